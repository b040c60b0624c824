"""Reading the log of a load test back: its steps, their parts, and the requests one by one, never all at once.

May be used while the test goes on, in another process too. What never belongs here: writing, and figures.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import JournalError
from viva.engine.journal_errors import journal_error
from viva.engine.sound_file import damage_of
from viva.scoring.load.speed import Timing

from .log import FILE, SCHEMA, check_version
from .records import LoadStep, Sent

_AT_ONCE = 1024
_TIMING = "intended, dispatched, first_token, finished, prompt_tokens, completion_tokens, error, tries, throttled"
_SENT = (
    "step, judge, number, request, occurrence, seed, intended, dispatched, first_token, finished, text, finish, "
    "prompt_tokens, completion_tokens, error, message, tries, throttled, part"
)


@dataclass(slots=True, frozen=True)
class LoggedPart:
    """A part of a step. ``seconds`` are how long requests were let in, None where the part was killed; ``watched`` is
    what was watched beside them.
    """

    part: int
    seconds: float | None
    watched: dict[str, Any]


@dataclass(slots=True, frozen=True)
class LoggedStep:
    """A step that began at ``began`` (seconds since the epoch). ``ends`` has the reason of its end for each judge, None
    while it has not ended.
    """

    step: LoadStep
    began: float
    ends: dict[str, str] | None
    parts: tuple[LoggedPart, ...]


class LoadHistory:
    """The reading half of a log. Close it, or use it as a context manager.

    :raises JournalError: there is no log, or it cannot be read.
    """

    def __init__(self, folder: Path, *, checked: bool = False) -> None:
        """Open the log; ``checked``: look at all of it first, which takes as long as to read it."""
        self.path = folder / FILE
        if not self.path.exists():
            raise JournalError(f"{self.path}: there is no log of a load test")
        try:
            self._connection = sqlite3.connect(self.path, timeout=30.0, isolation_level=None)
            check_version(self.path, self._connection)
        except sqlite3.Error as error:
            raise journal_error(self.path, error) from error
        if checked and (damage := damage_of(self._connection, SCHEMA)):
            self._connection.close()
            raise JournalError(f"{self.path}: cannot be read as the log of a load test: {damage}")

    def __enter__(self) -> LoadHistory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def steps(self) -> list[LoggedStep]:
        """All steps that have begun, in the order in which they ran."""
        found = []
        for number, *row in self._rows("select step, plan, began, ends from steps order by place"):
            parts = self._rows("select part, seconds, watched from parts where step = ? order by part", number)
            try:
                found.append(_step(row, parts))
            except (ValueError, TypeError, KeyError) as error:
                told = f"the record of step {number} cannot be read ({type(error).__name__}: {error})"
                raise JournalError(f"{self.path}: {told}; restore the file from a copy") from None
        return found

    def finished(self, step: int, judge: str) -> bytearray:
        """For each number of a judge's requests, up to the highest that has ended, 1 if it has ended."""
        [(highest,)] = self._rows("select max(number) from sent where step = ? and judge = ?", step, judge)
        marks = bytearray(0 if highest is None else highest + 1)
        for (number,) in self._rows("select number from sent where step = ? and judge = ?", step, judge):
            marks[number] = 1
        return marks

    def count(self, step: int | None = None) -> int:
        """How many requests have ended, in one step or in all."""
        where = "" if step is None else "where step = ?"
        [(count,)] = self._rows(f"select count(*) from sent {where}", *([] if step is None else [step]))
        return int(count)

    def messages(self, step: int, judge: str) -> dict[str, str]:
        """What the first failure of each type said, of a judge's requests in a step."""
        query = "select error, message, min(number) from sent where step = ? and judge = ? and error != '' group by 1"
        return {error: message for error, message, _ in self._rows(query, step, judge)}

    def timings(self, step: int, judge: str) -> Iterator[tuple[int, int, Timing]]:
        """``(part, number, timing)`` of a judge's requests in a step, by number."""
        query = f"select part, number, {_TIMING} from sent where step = ? and judge = ? order by number"
        for part, number, *fields in self._rows(query, step, judge):
            yield part, number, Timing(*fields)

    def sent(self, step: int, judge: str) -> Iterator[Sent]:
        """A judge's requests in a step with their texts, by number."""
        query = f"select {_SENT} from sent where step = ? and judge = ? order by number"
        for row in self._rows(query, step, judge):
            yield Sent(*row)

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            cursor = self._connection.execute(query, values)
            while rows := cursor.fetchmany(_AT_ONCE):
                yield from rows
        except sqlite3.Error as error:
            raise journal_error(self.path, error) from error


def _step(row: Sequence[Any], parts: Iterable[tuple[Any, ...]]) -> LoggedStep:
    """:raises ValueError, TypeError, KeyError: a record has not the form in which it was written."""
    plan, began, ends = row
    fields = orjson.loads(plan)
    fields["judges"] = tuple(fields["judges"])
    logged = []
    for part, seconds, watched in parts:
        seen = orjson.loads(watched) if watched else {}
        if not isinstance(seen, dict):
            raise TypeError("what was watched is no object")
        logged.append(LoggedPart(part, seconds, seen))
    reasons = orjson.loads(ends) if ends else None
    if reasons is not None and not isinstance(reasons, dict):
        raise TypeError("the reasons of its end are no object")
    return LoggedStep(LoadStep(**fields), began, reasons, tuple(logged))
