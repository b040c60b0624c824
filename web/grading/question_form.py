"""One question as a form: what a grader sees of it, and the grades and comments that come back.

Texts are shown as safe HTML, answers by blind position, labels with their keys. Submissions come from a form or as a
script's JSON; each is recorded once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.json_data import strip_surrogate_escapes
from viva.grading.assignments import record_finished, reopen_assignment
from viva.grading.records import Grader, Label, Question, Turn
from viva.grading.store import GradeStore

from ..markdown import ModelText, render_model_text
from ..problems import Refusal
from ..sessions import Sessions

_CACHE_SIZE = 256  # rendered questions
_EXCERPT_LENGTH = 120  # characters of a question in a list
_FOLDED_TURNS = 3  # turns before the question; more are folded


@dataclass(slots=True, frozen=True)
class ShownLabel:
    """A grade that may be given; ``key`` gives it, empty where there are more grades than digits."""

    value: float
    name: str
    meaning: str
    key: str


@dataclass(slots=True, frozen=True)
class ShownTurn:
    """Who said something, and what."""

    role: str
    text: ModelText


@dataclass(slots=True, frozen=True)
class ShownAnswer:
    """The answer at a position."""

    position: int
    turns: tuple[ShownTurn, ...]


@dataclass(slots=True, frozen=True)
class ShownQuestion:
    """A page's content; it is the same for everybody."""

    number: int
    dimension: tuple[str, ...]
    context: tuple[ShownTurn, ...]
    fold_context: bool
    text: ModelText
    standard_answer: ModelText | None
    principle: ModelText | None
    labels: tuple[ShownLabel, ...]
    answers: tuple[ShownAnswer, ...]


class QuestionRenderer:
    """Questions as they are shown, the last ones kept: making HTML of long answers takes a while."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, bool], ShownQuestion] = OrderedDict()

    async def render(self, question: Question, *, plain: bool = False) -> ShownQuestion:
        """This question; ``plain``: all texts as they were written. Longer work is done beside the event loop."""
        key = question.number, plain
        rendered = self._known.get(key)
        if rendered is None:
            rendered = await asyncio.to_thread(render_question, question, plain=plain)
            self._known[key] = rendered
            while len(self._known) > _CACHE_SIZE:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return rendered


def render_question(question: Question, *, plain: bool = False) -> ShownQuestion:
    """What is shown of a question."""
    return ShownQuestion(
        question.number,
        tuple(part for part in question.dimension.split("/") if part),
        _render_turns(question.context, plain),
        len(question.context) > _FOLDED_TURNS,
        render_model_text(question.text, plain=plain),
        render_model_text(question.standard_answer, plain=plain) if question.standard_answer else None,
        render_model_text(question.principle, plain=plain) if question.principle else None,
        render_labels(question.labels),
        tuple(ShownAnswer(answer.position, _render_turns(answer.turns, plain)) for answer in question.answers),
    )


def render_labels(labels: Sequence[Label]) -> tuple[ShownLabel, ...]:
    """The labels with their keys: the digit that a grade is, else the digits from 1 on in order."""
    digits = [f"{label.value:g}" for label in labels]
    if not all(len(digit) == 1 for digit in digits):
        digits = [str(position) if position < 10 else "" for position in range(1, len(labels) + 1)]
    return tuple(
        ShownLabel(label.value, f"{label.value:g}", label.meaning, key)
        for label, key in zip(labels, digits, strict=True)
    )


def _render_turns(turns: Sequence[Turn], plain: bool) -> tuple[ShownTurn, ...]:
    return tuple(ShownTurn(turn.role, render_model_text(turn.text, plain=plain)) for turn in turns)


def excerpt(text: str) -> str:
    """The beginning of a text on one line, for lists."""
    line = " ".join(text[: 4 * _EXCERPT_LENGTH].split())
    return line[:_EXCERPT_LENGTH] + "…" if len(line) > _EXCERPT_LENGTH else line


MAX_COMMENT = 4_000  # characters
MAX_BYTES = 400_000  # of what is sent at once: some tens of grades with long comments
_MAX_SUBMISSIONS = 100
_MAX_NAME = 60


@dataclass(slots=True, frozen=True)
class Submission:
    """A grade of the answer at a position. ``seal`` is what the page was given with the question."""

    name: str
    question: int
    position: int
    value: float | None
    comment: str
    seal: str


def question_seal(sessions: Sessions, grader: int, question: int) -> str:
    """What a page is given with a question, to show that this grader was asked to grade it."""
    return sessions.seal(f"{grader} {question}")


def read_json(data: bytes) -> tuple[str, list[Submission]]:
    """The form token and the submissions that a page's script sends."""
    try:
        body = orjson.loads(strip_surrogate_escapes(data.decode()))
        items = [_parse_submission(item) for item in body["items"][: _MAX_SUBMISSIONS + 1]]
        if len(items) > _MAX_SUBMISSIONS:
            raise ValueError
        return str(body["form"]), items
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise Refusal(400, "Not a grade", "What was sent is no list of grades.", code="form") from None


def _parse_submission(item: Mapping[str, Any]) -> Submission:
    value = item["value"]
    submission = Submission(item["name"], item["question"], item["position"], value, item["comment"], item["seal"])
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError
    if not (
        isinstance(submission.name, str) and 0 < len(submission.name) <= _MAX_NAME and isinstance(submission.seal, str)
    ):
        raise ValueError
    if not all(type(number) is int and abs(number) < 2**53 for number in (submission.question, submission.position)):
        raise ValueError
    if not isinstance(submission.comment, str) or len(submission.comment) > MAX_COMMENT:
        raise ValueError
    return submission


def read_form(fields: Mapping[str, Any], question: int) -> list[Submission]:
    """What a form without a script changes: it holds all answers, and what stood there when it was made.

    :raises Refusal: a field is not of that form.
    """
    name = str(fields.get("name", ""))
    if not 0 < len(name) <= _MAX_NAME - 10:
        raise Refusal(400, "Not a grade", "What was sent is no grade.", code="form")
    submissions = []
    for field in fields:
        kind, _, position = field.partition("-")
        if kind != "comment" or not (position.isascii() and position.isdigit() and len(position) < 6):
            continue
        value, comment = str(fields.get(f"value-{position}", "")), _normalize_newlines(fields[field])
        if value == fields.get(f"had-{position}", "") and comment == _normalize_newlines(
            fields.get(f"said-{position}", "")
        ):
            continue
        if len(comment) > MAX_COMMENT:
            raise Refusal(413, "Too long", f"A comment has {MAX_COMMENT:,} characters at most.", code="too-long")
        try:
            number = float(value) if value else None
        except ValueError:
            raise Refusal(400, "Not a grade", "What was sent is no grade.", code="form") from None
        submissions.append(
            Submission(f"{name}.{position}", question, int(position), number, comment, str(fields.get("seal", "")))
        )
    return submissions


def _normalize_newlines(text: object) -> str:
    return str(text).replace("\r\n", "\n")


def record_submission(store: GradeStore, sessions: Sessions, grader: Grader, submission: Submission) -> None:
    """Record a submission of this grader.

    :raises Refusal: the question is not this grader's, there is no answer at that position, or the value is not one of
        its labels.
    """
    row = store.connection.execute(
        "select id from answers where question = ? and position = ?", (submission.question, submission.position)
    ).fetchone()
    has_seat = store.connection.execute(
        "select 1 from seats where question = ? and grader = ?", (submission.question, grader.number)
    ).fetchone()
    if row is None or not (has_seat or sessions.unsealed(submission.seal) == f"{grader.number} {submission.question}"):
        raise Refusal(403, "Not yours", "This question is not one of yours.", code="not-yours")
    if not has_seat:
        reopen_assignment(store, grader, submission.question)
    try:
        store.grade(
            grader.number, row[0], submission.value, submission.comment, submission=f"{grader.number} {submission.name}"
        )
    except ConfigurationError as error:
        raise Refusal(400, "Not a grade", f"This cannot be a grade: {error}.", code="value") from None
    record_finished(store, grader, submission.question)


def record_submissions(
    store: GradeStore, sessions: Sessions, grader: Grader, submissions: list[Submission]
) -> dict[str, dict[str, str]]:
    """Record submissions, each for itself: by name, empty where it is recorded, else why it is not."""
    outcomes: dict[str, dict[str, str]] = {}
    for submission in submissions:
        try:
            with store.batch():
                record_submission(store, sessions, grader, submission)
        except Refusal as refusal:
            outcomes[submission.name] = {"code": refusal.code or "", "text": refusal.detail}
        else:
            outcomes[submission.name] = {}
    return outcomes
