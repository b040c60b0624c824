"""What graders send: grades and comments, read from a form or a script's JSON, and recorded once each.

A submission has a name that its page gave it, so one that is sent again changes nothing.
What never belongs here: pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.escapes import without_halves
from viva.orchestration.grading.records import Grader
from viva.orchestration.grading.seats import note_finished, regain_seat
from viva.orchestration.grading.store import GradeStore

from ..people.guarding import Refusal
from ..people.links import Sessions

MOST_COMMENT = 4_000  # characters
MOST_BYTES = 400_000  # of what is sent at once: some tens of grades with long comments
_MOST_AT_ONCE = 100
_MOST_NAME = 60


@dataclass(slots=True, frozen=True)
class Submission:
    """A grade of the answer at a position. ``seal`` is what the page was given with the question."""

    name: str
    question: int
    position: int
    value: float | None
    comment: str
    seal: str


def seal_of(sessions: Sessions, grader: int, question: int) -> str:
    """What a page is given with a question, to show that this grader was asked to grade it."""
    return sessions.seal(f"{grader} {question}")


def read_json(data: bytes) -> tuple[str, list[Submission]]:
    """The form token and the submissions that a page's script sends.

    :raises Refusal: they are not of that form.
    """
    try:
        sent = orjson.loads(without_halves(data.decode()))
        items = [_submission(one) for one in sent["items"][: _MOST_AT_ONCE + 1]]
        if len(items) > _MOST_AT_ONCE:
            raise ValueError
        return str(sent["form"]), items
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise Refusal(400, "Not a grade", "What was sent is no list of grades.", code="form") from None


def _submission(one: Mapping[str, Any]) -> Submission:
    value = one["value"]
    found = Submission(one["name"], one["question"], one["position"], value, one["comment"], one["seal"])
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError
    if not (isinstance(found.name, str) and 0 < len(found.name) <= _MOST_NAME and isinstance(found.seal, str)):
        raise ValueError
    if not all(type(number) is int and abs(number) < 2**53 for number in (found.question, found.position)):
        raise ValueError
    if not isinstance(found.comment, str) or len(found.comment) > MOST_COMMENT:
        raise ValueError
    return found


def read_form(fields: Mapping[str, Any], question: int) -> list[Submission]:
    """What a form without a script changes: it holds all answers, and what stood there when it was made.

    :raises Refusal: a field is not of that form.
    """
    name = str(fields.get("name", ""))
    if not 0 < len(name) <= _MOST_NAME - 10:
        raise Refusal(400, "Not a grade", "What was sent is no grade.", code="form")
    found = []
    for field in fields:
        kind, _, place = field.partition("-")
        if kind != "comment" or not (place.isascii() and place.isdigit() and len(place) < 6):
            continue
        value, comment = str(fields.get(f"value-{place}", "")), _lines(fields[field])
        if value == fields.get(f"had-{place}", "") and comment == _lines(fields.get(f"said-{place}", "")):
            continue
        if len(comment) > MOST_COMMENT:
            raise Refusal(413, "Too long", f"A comment has {MOST_COMMENT:,} characters at most.", code="too-long")
        try:
            number = float(value) if value else None
        except ValueError:
            raise Refusal(400, "Not a grade", "What was sent is no grade.", code="form") from None
        found.append(Submission(f"{name}.{place}", question, int(place), number, comment, str(fields.get("seal", ""))))
    return found


def _lines(text: object) -> str:
    return str(text).replace("\r\n", "\n")


def submit(store: GradeStore, sessions: Sessions, grader: Grader, one: Submission) -> None:
    """Record a submission of this grader.

    :raises Refusal: the question is not this grader's, there is no answer at that position, or the value is not one of
        its labels.
    """
    row = store.connection.execute(
        "select id from answers where question = ? and position = ?", (one.question, one.position)
    ).fetchone()
    has_seat = store.connection.execute(
        "select 1 from seats where question = ? and grader = ?", (one.question, grader.number)
    ).fetchone()
    if row is None or not (has_seat or sessions.unsealed(one.seal) == f"{grader.number} {one.question}"):
        raise Refusal(403, "Not yours", "This question is not one of yours.", code="not-yours")
    if not has_seat:
        regain_seat(store, grader, one.question)
    try:
        store.grade(grader.number, row[0], one.value, one.comment, submission=f"{grader.number} {one.name}")
    except ConfigurationError as error:
        raise Refusal(400, "Not a grade", f"This cannot be a grade: {error}.", code="value") from None
    note_finished(store, grader, one.question)


def submit_all(
    store: GradeStore, sessions: Sessions, grader: Grader, submissions: list[Submission]
) -> dict[str, dict[str, str]]:
    """Record submissions, each for itself: by name, empty where it is recorded, else why it is not."""
    found: dict[str, dict[str, str]] = {}
    for one in submissions:
        try:
            with store.batch():
                submit(store, sessions, grader, one)
        except Refusal as refusal:
            found[one.name] = {"code": refusal.code, "text": refusal.text}
        else:
            found[one.name] = {}
    return found
