"""Records of a grading folder: questions with answers in blind positions, graders, grades and decisions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

GraderKind = Literal["person", "model"]
# Permissions, in this order: grade; also decide disputes; also manage graders and view results.
GraderRole = Literal["grader", "adjudicator", "admin"]
# A paused grader cannot grade but keeps all assignments; a retired grader loses unfinished assignments.
GraderState = Literal["active", "paused", "retired"]


@dataclass(slots=True, frozen=True)
class Label:
    """Permitted grade and its meaning."""

    value: float
    meaning: str


@dataclass(slots=True, frozen=True)
class Turn:
    """Turn that graders see: `role` is a word such as user, assistant or interactor."""

    role: str
    text: str


@dataclass(slots=True)
class Answer:
    """Answer to grade: a candidate's answer, or one turn of a run.

    `candidate` is never shown to graders. `turns` has the answer, usually in one turn. `key` and `round` identify the
    conversation of a run, `score` is the judge's score in the run. `expected` is a gold answer's correct grade.
    `probability` is the chance of being selected for grading; None without sampling. `id` and `position` (from 1) are
    assigned by the store.
    """

    candidate: str
    turns: list[Turn]
    key: str = ""
    round: int | None = None
    score: float | None = None
    probability: float | None = None
    expected: float | None = None
    id: str = ""
    position: int = 0


@dataclass(slots=True)
class Question:
    """Page for graders: the question, how to grade it, and the answers.

    `dimension` is the path of a capability dimension with slashes, or empty. `cluster` is shared by dependent
    questions; usually it is the question itself. `context` is the earlier conversation. `labels` are the permitted
    grades, from worst to best. `overlap` is the required number of graders; None for all graders (gold questions).
    `invalid`: why the question no longer counts. `number` is assigned by the store.
    """

    id: str
    text: str
    labels: list[Label]
    answers: list[Answer]
    dimension: str = ""
    cluster: str = ""
    context: list[Turn] = field(default_factory=list)
    standard_answer: str = ""
    principle: str = ""
    difficulty: str = ""
    source: str = ""
    overlap: int | None = 3
    gold: bool = False
    invalid: str = ""
    number: int = 0

    @property
    def top(self) -> float:
        """Highest permitted grade."""
        return max(label.value for label in self.labels)

    def to_record(self) -> dict[str, Any]:
        """Return all fields except the answers as plain data."""
        record = asdict(self)
        del record["answers"]
        return record


@dataclass(slots=True, frozen=True)
class Grader:
    """Grader: a person or a judge model. Pages and tables show the `number`."""

    number: int
    name: str
    kind: GraderKind = "person"
    role: GraderRole = "grader"
    state: GraderState = "active"
    model: str = ""


@dataclass(slots=True, frozen=True)
class Grade:
    """Current grade of one grader for one answer; `invalid` says who excluded the grade, and why.

    `value` is None if the grader has withdrawn the grade or not yet decided; comments remain. `at`: seconds since 1970.
    """

    answer: str
    grader: int
    value: float | None
    comment: str
    at: float
    invalid: str = ""


@dataclass(slots=True, frozen=True)
class Decision:
    """An adjudicator's grade of a disputed answer, with the reason; the original grades remain."""

    answer: str
    adjudicator: int
    value: float
    reason: str
    at: float


@dataclass(slots=True, frozen=True)
class Progress:
    """Progress of one or all graders: questions finished, begun and left."""

    finished: int
    begun: int
    left: int
