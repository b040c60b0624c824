"""C-Eval's subjects in the order of its publication, and where each begins in the concatenated set.

C-Eval (Huang et al. 2023) is published as one file a subject; Yu et al. (2024) number its rows through, subject
after subject in this order. The sizes are those of the validation split (1,346 rows); every subject has five
development rows. So a file opened alone gives its items the same numbers as the whole folder.

What never belongs here: reading anything.
"""

from __future__ import annotations

from itertools import accumulate

_VALIDATION_ROWS = {
    "computer_network": 19,
    "operating_system": 19,
    "computer_architecture": 21,
    "college_programming": 37,
    "college_physics": 19,
    "college_chemistry": 24,
    "advanced_mathematics": 19,
    "probability_and_statistics": 18,
    "discrete_mathematics": 16,
    "electrical_engineer": 37,
    "metrology_engineer": 24,
    "high_school_mathematics": 18,
    "high_school_physics": 19,
    "high_school_chemistry": 19,
    "high_school_biology": 19,
    "middle_school_mathematics": 19,
    "middle_school_biology": 21,
    "middle_school_physics": 19,
    "middle_school_chemistry": 20,
    "veterinary_medicine": 23,
    "college_economics": 55,
    "business_administration": 33,
    "marxism": 19,
    "mao_zedong_thought": 24,
    "education_science": 29,
    "teacher_qualification": 44,
    "high_school_politics": 19,
    "high_school_geography": 19,
    "middle_school_politics": 21,
    "middle_school_geography": 12,
    "modern_chinese_history": 23,
    "ideological_and_moral_cultivation": 19,
    "logic": 22,
    "law": 24,
    "chinese_language_and_literature": 23,
    "art_studies": 33,
    "professional_tour_guide": 29,
    "legal_professional": 23,
    "high_school_chinese": 19,
    "high_school_history": 20,
    "middle_school_history": 22,
    "civil_servant": 47,
    "sports_science": 19,
    "plant_protection": 22,
    "basic_medicine": 19,
    "clinical_medicine": 22,
    "urban_and_rural_planner": 46,
    "accountant": 49,
    "fire_engineer": 31,
    "environmental_impact_assessment_engineer": 31,
    "tax_accountant": 49,
    "physician": 49,
}
_DEVELOPMENT_ROWS = 5

_BEGINS: dict[str, dict[str, int]] = {
    "val": dict(zip(_VALIDATION_ROWS, accumulate(_VALIDATION_ROWS.values(), initial=0), strict=False)),
    "dev": {subject: number * _DEVELOPMENT_ROWS for number, subject in enumerate(_VALIDATION_ROWS)},
}


def first_row(subject: str, split: str) -> int:
    """The 0-based row at which a subject begins in the concatenated split; 0 for one that C-Eval does not have."""
    return _BEGINS.get(split, {}).get(subject, 0)
