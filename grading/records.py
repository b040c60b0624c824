"""Records of a grading folder: questions with answers in blind positions, graders, grades and decisions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

GraderKind = Literal["person", "model"]
# What a grader may do: grade; also decide disputes; also manage graders and look at results.
GraderRole = Literal["grader", "adjudicator", "admin"]
# A paused grader keeps their seats and cannot grade; a retired one gives up the seats that are not finished.
GraderState = Literal["active", "paused", "retired"]


@dataclass(slots=True, frozen=True)
class Label:
    """A grade that may be given, and its meaning."""

    value: float
    meaning: str


@dataclass(slots=True, frozen=True)
class Turn:
    """A turn that graders see: ``role`` is a word such as user, assistant or interactor."""

    role: str
    text: str


@dataclass(slots=True)
class Answer:
    """What is graded: a candidate's answer, or one turn of a run.

    ``candidate`` is never shown to graders. ``turns``: the answer, as a rule one turn. ``key`` and ``round`` say which
    conversation of a run it is, ``score`` what the run's judge gave. ``expected`` is a gold answer's right grade.
    ``probability``: with which it was chosen to be graded; None where nobody drew. ``id`` and ``position`` (from 1) are
    given by the store.
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
    """A page: what was asked, how to grade it, the answers.

    ``dimension`` is the path of a capability dimension with slashes, empty where there are none. ``cluster`` names what
    questions have in common that are not independent; as a rule the question itself. ``context`` is what was said
    before. ``labels`` are the grades that may be given, from the worst to the best. ``overlap``: how many graders it is
    for; None for all of them (gold questions). ``invalid``: why it counts no more. ``number`` is given by the store.
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
        """The highest grade that may be given."""
        return max(label.value for label in self.labels)

    def to_record(self) -> dict[str, Any]:
        """Plain data of everything but the answers."""
        record = asdict(self)
        del record["answers"]
        return record


@dataclass(slots=True, frozen=True)
class Grader:
    """Somebody who grades: a person, or a judge model in the same chair. ``number`` is what pages and tables show."""

    number: int
    name: str
    kind: GraderKind = "person"
    role: GraderRole = "grader"
    state: GraderState = "active"
    model: str = ""


@dataclass(slots=True, frozen=True)
class Grade:
    """The current grade of one grader for one answer; ``invalid`` says who took it out of the figures, and why.

    ``value`` None: taken back by the grader, or not yet decided; the comment may stand. ``at``: seconds since 1970.
    """

    answer: str
    grader: int
    value: float | None
    comment: str
    at: float
    invalid: str = ""


@dataclass(slots=True, frozen=True)
class Decision:
    """An adjudicator's grade of a disputed answer, with the reason; the original grades stay."""

    answer: str
    adjudicator: int
    value: float
    reason: str
    at: float


@dataclass(slots=True, frozen=True)
class Progress:
    """How far a grader, or everybody, has come: questions finished and begun, and how many wait for them."""

    finished: int
    begun: int
    left: int
