"""Training of graders: how consistent each is with what is known to be right and with the others, and who may grade.

What never belongs here: severity (``scoring.severity``) and disputes (``scoring.disputes``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from viva.scoring.intervals import Estimate
from viva.scoring.ratios import weighted_ratio

from .graded_round import GradedRound

Gate = Literal["passes", "retrain", "too few"]
Reference = Literal["gold", "decided", "others"]
THRESHOLD = 0.7
LEAST = 5  # of fewer compared answers nothing is said


@dataclass(slots=True, frozen=True)
class GraderConsistency:
    """How often a grader gives the reference's grade, 0–1, and of how many answers by kind of reference.

    ``near``: the share at most one grade off. ``gate``: whether the threshold is reached; ``sure``: whether the
    interval leaves no doubt of it.
    """

    grader: str
    consistency: Estimate | None
    near: float | None
    answers: int
    references: dict[Reference, int]
    gate: Gate
    sure: bool


def grader_consistency(
    graded: GradedRound, threshold: float | None = None, *, models: bool | None = None
) -> list[GraderConsistency]:
    """Compare every grader with references: a gold answer's right grade; an adjudicator's decision; else the grade that
    most of the other graders gave, where one has more votes than any other.

    Grades are the original ones. Intervals are clustered by question. Where people graded, models have no votes unless
    ``models`` (by default as the round's criteria say): a judge's grades neither acquit a person nor accuse one.
    """
    least = float(graded.training.get("threshold", THRESHOLD)) if threshold is None else threshold
    compared = _compared(graded, graded.criteria.models if models is None else models)
    found = []
    for name in graded.original.graders:
        mine = compared.get(name, [])
        kinds = Counter(kind for *_, kind in mine)
        if not mine:
            found.append(GraderConsistency(name, None, None, 0, {}, "too few", False))
            continue
        questions = {question: place for place, question in enumerate(dict.fromkeys(one[0] for one in mine))}
        off = np.array([abs(value - reference) for _, value, reference, _ in mine])
        cluster = np.array([questions[one[0]] for one in mine], dtype=np.int64)
        ratio = weighted_ratio((off == 0).astype(np.float64), np.ones(len(mine)), np.zeros(len(mine), dtype=np.int64),
                               cluster, np.ones(1))  # fmt: skip
        told = None if ratio is None else ratio.within()
        gate: Gate = "too few" if told is None or len(mine) < LEAST else "passes" if told.value >= least else "retrain"
        sure = told is not None and gate != "too few" and not told.low <= least <= told.high
        found.append(GraderConsistency(name, told, float((off <= 1).mean()), len(mine), dict(kinds), gate, sure))
    return found


def _compared(graded: GradedRound, models: bool) -> dict[str, list[tuple[str, float, float, Reference]]]:
    """By grader: question, grade, reference, and the kind of reference."""
    found: dict[str, list[tuple[str, float, float, Reference]]] = defaultdict(list)
    for gold in graded.gold:
        found[gold.grader].append((gold.question, gold.value, gold.expected, "gold"))
    table = graded.original
    answers: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for k, q, i, value in zip(table.question.tolist(), table.candidate.tolist(), table.grader.tolist(),
                              table.values.tolist(), strict=True):  # fmt: skip
        if value == value:  # no missing one
            answers[k, q].append((i, value))
    voters = {i for i, name in enumerate(table.graders) if models or name not in table.models}
    if not voters & {i for grades in answers.values() for i, _ in grades}:
        voters = set(range(len(table.graders)))  # no person has graded: models are compared with one another
    for (k, q), grades in answers.items():
        question = table.questions[k]
        decided = graded.decided.get((question, table.candidates[q]))
        votes = Counter(value for i, value in grades if i in voters)
        for i, value in grades:
            if decided is not None:
                found[table.graders[i]].append((question, value, decided, "decided"))
            elif (reference := _most_of_others(votes, value if i in voters else None)) is not None:
                found[table.graders[i]].append((question, value, reference, "others"))
    return found


def _most_of_others(votes: Counter[float], own: float | None) -> float | None:
    """Return the grade that most others gave; None where there are none, or several have as many votes.

    ``own``: the grader's own grade, None if it is not among the votes.
    """
    ranked = sorted(((count - (value == own), value) for value, count in votes.items()), reverse=True)
    if not ranked or ranked[0][0] == 0 or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return None
    return ranked[0][1]
