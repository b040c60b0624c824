"""A graded round as its analysis needs it: grades as they count and as they were given, gold grades, rules, counts.

What never belongs here: reading a grading folder (``commands.reading``), and formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viva.scoring.dispute_criteria import DisputeCriteria
from viva.scoring.grade_table import GradeTable

from .versions import Versions


@dataclass(slots=True, frozen=True)
class GoldGrade:
    """A grade of a gold answer, whose right grade is ``expected``."""

    question: str
    answer: str
    grader: str
    value: float
    expected: float


@dataclass(slots=True, frozen=True)
class RoundCounts:
    """What a round holds. ``missing``: grades that people still owe by the overlap; ``taken_back``: rows without a
    grade; ``invalid``: grades that were taken out of the figures; ``decided``: answers that an adjudicator decided.
    """

    questions: int = 0
    invalid_questions: int = 0
    gold_questions: int = 0
    answers: int = 0
    grades: int = 0
    missing: int = 0
    taken_back: int = 0
    invalid: int = 0
    decided: int = 0


@dataclass(slots=True, frozen=True)
class GradedRound:
    """One round. ``table``: grades as they count, with decisions; ``original``: the same rows as they were given.

    ``decided``: question and candidate of each decided answer, with the decision. ``texts``: of questions, by id.
    ``training``: the deployment gate's ``threshold``; ``rules`` also hold ``retrain`` and ``review``.
    """

    title: str
    table: GradeTable
    original: GradeTable
    name: str = ""
    kind: str = "evaluation"
    decided: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gold: list[GoldGrade] = field(default_factory=list)
    weights: Mapping[str, float] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)
    criteria: DisputeCriteria = field(default_factory=DisputeCriteria)
    training: Mapping[str, Any] = field(default_factory=dict)
    rubric: Mapping[str, Any] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    texts: Mapping[str, str] = field(default_factory=dict)
    counts: RoundCounts = field(default_factory=RoundCounts)

    def undecided(self) -> NDArray[np.bool_]:
        """Which rows are a grader's own grade and no decision."""
        table = self.table
        pairs = zip(table.question.tolist(), table.candidate.tolist(), strict=True)
        return np.array(
            [(table.questions[k], table.candidates[q]) not in self.decided for k, q in pairs], dtype=np.bool_
        )
