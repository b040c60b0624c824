"""Graded round for analysis: grades, decisions, gold grades, counts; and the consistency of each grader.

Graders are compared with gold answers, adjudicators' decisions and each other: those below the threshold of the
training gate may not grade in evaluations. `Versions` tells whether a question or response is the same in two rounds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from viva.scoring.dispute_criteria import DisputeCriteria
from viva.scoring.graders import GradeTable
from viva.scoring.intervals import Estimate
from viva.scoring.ratios import weighted_ratio


@dataclass(slots=True, frozen=True)
class Versions:
    """Digests that tell whether a question, or a candidate's response to it, is the same in two rounds.

    If neither round has a digest, the same id means the same question, and a response counts as different. `tags` of
    either round take precedence: by question and candidate, whether the response is the same in substance; by question
    and an empty candidate, whether the question is the same.
    """

    questions: Mapping[str, str] = field(default_factory=dict)
    responses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tags: Mapping[tuple[str, str], bool] = field(default_factory=dict)

    def same_question(self, other: Versions, question: str) -> bool:
        """Return True if a question of both rounds is the same."""
        tagged = self._tag(other, question, "")
        return self.questions.get(question) == other.questions.get(question) if tagged is None else tagged

    def same_response(self, other: Versions, question: str, candidate: str) -> bool:
        """Return True if a candidate's response to a question of both rounds is the same."""
        tagged = self._tag(other, question, candidate)
        if tagged is not None:
            return tagged
        own = self.responses.get(question, {}).get(candidate)
        return own is not None and own == other.responses.get(question, {}).get(candidate)

    def _tag(self, other: Versions, question: str, candidate: str) -> bool | None:
        return self.tags.get((question, candidate), other.tags.get((question, candidate)))


@dataclass(slots=True, frozen=True)
class GoldGrade:
    """Grade of a gold answer, whose correct grade is `expected`."""

    question: str
    answer: str
    grader: str
    value: float
    expected: float


@dataclass(slots=True, frozen=True)
class RoundCounts:
    """Counts of a round.

    `missing`: grades that people still owe by the overlap; `taken_back`: grades without a value; `invalid`: excluded
    grades; `decided`: answers that an adjudicator decided.
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
    """Graded round. `table` has the grades as they count, with decisions; `original` the same rows as they were given.

    `decided` maps (question, candidate) of each decided answer to the decision; `texts` maps ids of questions to their
    texts. `training` has the deployment gate's `threshold`; `rules` contain `retrain` and `review`.
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
        """Return a mask of the rows that are a grader's own grade rather than a decision."""
        table = self.table
        pairs = zip(table.question.tolist(), table.candidate.tolist(), strict=True)
        return np.array(
            [(table.questions[k], table.candidates[q]) not in self.decided for k, q in pairs], dtype=np.bool_
        )


GateResult = Literal["passes", "retrain", "too few"]
Reference = Literal["gold", "decided", "others"]
GATE_THRESHOLD = 0.7
MIN_COMPARED = 5  # with fewer compared answers the gate has no result


@dataclass(slots=True, frozen=True)
class GraderConsistency:
    """Consistency of a grader with the references, 0–1, and the number of answers by kind of reference.

    `near` is the share of grades that are at most one grade off. `gate` is the result of comparing `consistency` with
    the threshold; `sure` is True if the interval excludes the threshold.
    """

    grader: str
    consistency: Estimate | None
    near: float | None
    answers: int
    references: dict[Reference, int]
    gate: GateResult
    sure: bool


def grader_consistency(
    graded: GradedRound, threshold: float | None = None, *, models: bool | None = None
) -> list[GraderConsistency]:
    """Compare every grader with references.

    A reference is a gold answer's correct grade; an adjudicator's decision; otherwise the grade that most of the other
    graders gave, if it has more votes than any other. The compared grades are the original grades. Intervals are
    clustered by question. If people graded, models have no votes unless `models` (default: the round's criteria): a
    judge's grades neither support nor contradict a person.
    """
    minimum = float(graded.training.get("threshold", GATE_THRESHOLD)) if threshold is None else threshold
    compared = _compare_with_references(graded, graded.criteria.models if models is None else models)
    results = []
    for name in graded.original.graders:
        own = compared.get(name, [])
        kinds = Counter(kind for *_, kind in own)
        if not own:
            results.append(GraderConsistency(name, None, None, 0, {}, "too few", False))
            continue
        questions = {question: index for index, question in enumerate(dict.fromkeys(row[0] for row in own))}
        distances = np.array([abs(value - reference) for _, value, reference, _ in own])
        cluster = np.array([questions[row[0]] for row in own], dtype=np.int64)
        equal = (distances == 0).astype(np.float64)
        ratio = weighted_ratio(equal, np.ones(len(own)), np.zeros(len(own), dtype=np.int64),
                               cluster, np.ones(1))  # fmt: skip
        estimate = None if ratio is None else ratio.bounded_interval()
        gate: GateResult = (
            "too few"
            if estimate is None or len(own) < MIN_COMPARED
            else "passes"
            if estimate.value >= minimum
            else "retrain"
        )
        sure = estimate is not None and gate != "too few" and not estimate.low <= minimum <= estimate.high
        results.append(
            GraderConsistency(name, estimate, float((distances <= 1).mean()), len(own), dict(kinds), gate, sure)
        )
    return results


def _compare_with_references(graded: GradedRound, models: bool) -> dict[str, list[tuple[str, float, float, Reference]]]:
    """Return question, grade, reference, and kind of reference by grader."""
    compared: dict[str, list[tuple[str, float, float, Reference]]] = defaultdict(list)
    for gold in graded.gold:
        compared[gold.grader].append((gold.question, gold.value, gold.expected, "gold"))
    table = graded.original
    answers: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for k, q, i, value in zip(table.question.tolist(), table.candidate.tolist(), table.grader.tolist(),
                              table.values.tolist(), strict=True):  # fmt: skip
        if value == value:  # not missing
            answers[k, q].append((i, value))
    voters = {i for i, name in enumerate(table.graders) if models or name not in table.models}
    if not voters & {i for grades in answers.values() for i, _ in grades}:
        voters = set(range(len(table.graders)))  # no person has graded: compare models with one another
    for (k, q), grades in answers.items():
        question = table.questions[k]
        decided = graded.decided.get((question, table.candidates[q]))
        votes = Counter(value for i, value in grades if i in voters)
        for i, value in grades:
            if decided is not None:
                compared[table.graders[i]].append((question, value, decided, "decided"))
            elif (reference := _majority_of_others(votes, value if i in voters else None)) is not None:
                compared[table.graders[i]].append((question, value, reference, "others"))
    return compared


def _majority_of_others(votes: Counter[float], own: float | None) -> float | None:
    """Return the grade that most others gave, or None; `own` is the grader's vote, if it is one of `votes`."""
    ranked = sorted(((count - (value == own), value) for value, count in votes.items()), reverse=True)
    if not ranked or ranked[0][0] == 0 or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return None
    return ranked[0][1]
