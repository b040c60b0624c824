"""Graded answers: what a judge gave for each thing that people can grade too, whatever the system.

What never belongs here: people's grades, and the columns of any file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, frozen=True)
class GradedAnswer:
    """One thing that a judge graded.

    ``key``: the conversation's; ``round`` counts from 1 where rounds are graded. ``cluster`` names what answers have in
    common that are not independent, as a rule their item. ``score``: None where the judge's words could not be read.
    ``known``: numbers that are known of it without a judge, by name. ``question`` and ``answer``: the texts that people
    read to grade it, where they are known beforehand.
    """

    key: str
    candidate: str
    cluster: str
    score: float | None
    round: int | None = None
    known: Mapping[str, float] = field(default_factory=dict)
    question: str = ""
    answer: str = ""


@dataclass(slots=True, frozen=True)
class Grading:
    """How a judge grades: from ``low`` to ``high``, or pass (1) and fail (0).

    ``answers`` makes the graded answers of a recorded result: of the conversation's key, its candidate's label, its
    task and what was recorded.
    """

    low: float
    high: float
    answers: Callable[[str, str, Any, Any], Iterable[GradedAnswer]]
    passes: bool = False
