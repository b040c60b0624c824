"""A question as a form: the page a grader sees, and the grades and comments that come back.

Texts are shown as safe HTML, answers in blind order, labels with their keys on the keyboard. Submissions come from a
form, or as JSON from the page's script; each is recorded once.
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

_CACHE_SIZE = 256  # cached questions
_EXCERPT_LENGTH = 120  # maximum characters of a question in a list
_FOLDED_TURNS = 3  # earlier turns that are shown; if there are more, they are folded


@dataclass(slots=True, frozen=True)
class ShownLabel:
    """A label to choose; the key `key` selects it ("" if there are more labels than digits)."""

    value: float
    name: str
    meaning: str
    key: str


@dataclass(slots=True, frozen=True)
class ShownTurn:
    """A turn: its speaker and text."""

    role: str
    text: ModelText


@dataclass(slots=True, frozen=True)
class ShownAnswer:
    """The answer at a position."""

    position: int
    turns: tuple[ShownTurn, ...]


@dataclass(slots=True, frozen=True)
class ShownQuestion:
    """Content of a question's page; it is the same for every grader."""

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
    """Cache of rendered questions, because rendering long answers as HTML takes a while."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, bool], ShownQuestion] = OrderedDict()

    async def render(self, question: Question, *, plain: bool = False) -> ShownQuestion:
        """Render a question, in a thread if it is long. `plain`: show all texts as they were written."""
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
    """Render a question."""
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
    """Assign keys to the labels: the digits if the labels are digits, else 1, 2, 3 … in order."""
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
    """Return the beginning of a text on one line, for lists."""
    line = " ".join(text[: 4 * _EXCERPT_LENGTH].split())
    return line[:_EXCERPT_LENGTH] + "…" if len(line) > _EXCERPT_LENGTH else line


MAX_COMMENT = 4_000  # characters
MAX_BYTES = 400_000  # maximum bytes of one request: some tens of grades with long comments
_MAX_SUBMISSIONS = 100
_MAX_NAME = 60


@dataclass(slots=True, frozen=True)
class Submission:
    """A grade of the answer at a position; `value` None removes it.

    `name` is unique, so that a repeated submission is recorded once. `seal` came with the question's page.
    """

    name: str
    question: int
    position: int
    value: float | None
    comment: str
    seal: str


def question_seal(sessions: Sessions, grader: int, question: int) -> str:
    """Return a seal that proves that this grader was given the question."""
    return sessions.seal(f"{grader} {question}")


def read_json(data: bytes) -> tuple[str, list[Submission]]:
    """Parse the form token and the submissions that the page's script sends."""
    try:
        body = orjson.loads(strip_surrogate_escapes(data.decode()))
        items = [_parse_submission(item) for item in body["items"][: _MAX_SUBMISSIONS + 1]]
        if len(items) > _MAX_SUBMISSIONS:
            raise ValueError
        return str(body["form"]), items
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise Refusal(400, "Not a grade", "This is no valid list of grades.", code="form") from None


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
    """Return the changed grades in the form of a browser without scripts, which has all answers' old and new values.

    Raises:
        Refusal: A field is malformed.
    """
    name = str(fields.get("name", ""))
    if not 0 < len(name) <= _MAX_NAME - 10:
        raise Refusal(400, "Not a grade", "The form has no valid grade.", code="form")
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
            raise Refusal(413, "Too long", f"A comment can have at most {MAX_COMMENT:,} characters.", code="too-long")
        try:
            number = float(value) if value else None
        except ValueError:
            raise Refusal(400, "Not a grade", "The form has no valid grade.", code="form") from None
        submissions.append(
            Submission(f"{name}.{position}", question, int(position), number, comment, str(fields.get("seal", "")))
        )
    return submissions


def _normalize_newlines(text: object) -> str:
    return str(text).replace("\r\n", "\n")


def record_submission(store: GradeStore, sessions: Sessions, grader: Grader, submission: Submission) -> None:
    """Record a submission of this grader.

    Raises:
        Refusal: The question is not assigned to this grader, there is no answer at that position, or the value is not
            one of its labels.
    """
    row = store.connection.execute(
        "select id from answers where question = ? and position = ?", (submission.question, submission.position)
    ).fetchone()
    has_assignment = store.connection.execute(
        "select 1 from seats where question = ? and grader = ?", (submission.question, grader.number)
    ).fetchone()
    if row is None or not (
        has_assignment or sessions.unsealed(submission.seal) == f"{grader.number} {submission.question}"
    ):
        raise Refusal(403, "Not assigned to you", "This question is not assigned to you.", code="not-yours")
    if not has_assignment:
        reopen_assignment(store, grader, submission.question)
    try:
        store.grade(
            grader.number, row[0], submission.value, submission.comment, submission=f"{grader.number} {submission.name}"
        )
    except ConfigurationError as error:
        raise Refusal(400, "Not a grade", f"Not a valid grade: {error}.", code="value") from None
    record_finished(store, grader, submission.question)


def record_submissions(
    store: GradeStore, sessions: Sessions, grader: Grader, submissions: list[Submission]
) -> dict[str, dict[str, str]]:
    """Record submissions independently of each other; return by submission name {} or the error's `code` and `text`."""
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
