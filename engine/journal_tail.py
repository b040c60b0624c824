"""Reads a journal piece by piece, also while another process writes it: what was added since the last look.

Each look is one short read transaction, so that it holds neither the writer nor its checkpoints back. Rows are verified
like all others (``history``); SQLite's check of the whole file, which takes seconds for one of gigabytes, is not made.
What never belongs here: what is kept of the rows.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from .history import DAMAGE, History, RecordedCall
from .journal_errors import is_busy, journal_error

_CHUNK = 500  # numbers in one question
_CALLS_AFTER = (
    "select role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra, {}, rowid,"
    " conversation from calls where rowid > ? order by rowid limit ?"
)


@dataclass(slots=True)
class AddedCall:
    """A recorded call, the number of its conversation, and the row of the journal that it stands in."""

    number: int
    row: int
    call: RecordedCall


@dataclass(slots=True)
class AddedEnd:
    """How a conversation ended; ``checksum`` tells one record of an end from another."""

    number: int
    failed: bool
    result: Any
    checksum: int


@dataclass(slots=True)
class Additions:
    """What one look found: ``started`` has number, key and task's record; ``last_row`` and ``last_number`` are where
    the next look goes on. ``more``: there was more than was asked for.
    """

    started: list[tuple[int, str, Any]] = field(default_factory=list)
    calls: list[AddedCall] = field(default_factory=list)
    ended: list[AddedEnd] = field(default_factory=list)
    last_number: int = -1
    last_row: int = 0
    more: bool = False


class JournalTail(History):
    """A journal that is looked at again and again. ``History``'s questions about one conversation work as well.

    :raises JournalError: as ``History``.
    """

    @property
    def sound(self) -> bool:
        """Taken for granted: each row is verified by its checksum."""
        return True

    def added(self, last_number: int, last_row: int, unended: Collection[int], limit: int) -> Additions:
        """At most ``limit`` conversations started behind ``last_number`` and calls behind ``last_row``; and the ends of
        these conversations, of those that the calls belong to, and of the ``unended`` ones.
        """
        found = Additions(last_number=last_number, last_row=last_row)
        with self._at_one_moment():
            self._add_started(found, limit)
            self._add_calls(found, limit)
            numbers = {number for number, _, _ in found.started} | {one.number for one in found.calls} | set(unended)
            found.ended = list(self._ends(sorted(numbers)))
        self._tell()
        return found

    def end_of(self, number: int) -> AddedEnd | None:
        """How one conversation ended; None where it has not, or where the record is damaged."""
        found = next(iter(self._ends([number])), None)
        self._tell()
        return found

    def end_checksums(self) -> dict[int, int]:
        """A checksum of the record of each conversation's end; of journals without checksums its length."""
        column = "checksum" if self._sums else "length(result)"
        with self._at_one_moment():
            return dict(self._connection.execute(f"select number, {column} from ended").fetchall())

    def _add_started(self, found: Additions, limit: int) -> None:
        rows = self._connection.execute(
            f"select number, key, item, {self._sum} from started where number > ? order by number limit ?",
            (found.last_number, limit),
        ).fetchall()
        found.more |= len(rows) == limit
        for number, key, item, checksum in rows:
            found.last_number = number
            start = self._start(number, key, item, checksum)
            if start is not None:
                found.started.append((number, *start))

    def _add_calls(self, found: Additions, limit: int) -> None:
        rows = self._connection.execute(_CALLS_AFTER.format(self._sum), (found.last_row, limit)).fetchall()
        found.more |= len(rows) == limit
        for *row, number in rows:
            found.last_row = row[-1]
            try:
                found.calls.append(AddedCall(number, row[-1], self._call(number, tuple(row))))
            except DAMAGE:
                self._damaged(f"a call of conversation {number}")

    def _ends(self, numbers: list[int]) -> Iterator[AddedEnd]:
        for at in range(0, len(numbers), _CHUNK):
            chunk = numbers[at : at + _CHUNK]
            marks = ",".join("?" * len(chunk))
            rows = self._connection.execute(
                f"select number, status, result, {self._sum} from ended where number in ({marks})", chunk
            ).fetchall()
            for number, raw_status, raw_result, checksum in rows:
                try:
                    status, result = self._verified(checksum, number, raw_status, raw_result)
                    known = checksum if self._sums else len(result)
                    yield AddedEnd(number, status == "failed", orjson.loads(result), known)
                except DAMAGE:
                    self._damaged(f"end of conversation {number}")

    @contextmanager
    def _at_one_moment(self) -> Iterator[None]:
        """All questions see the journal as it is at one moment."""
        try:
            self._connection.execute("begin")
            try:
                yield
            finally:
                self._connection.execute("rollback")
        except sqlite3.Error as error:
            if is_busy(error):
                return  # the next look finds what this one has not
            raise journal_error(self.path, error) from error


def journal_state(path: Path) -> tuple[int, ...]:
    """What changes when a journal is written to: sizes and times of its files, and which file it is. Empty where there
    is none.
    """
    found: list[int] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            seen = os.stat(file)
        except OSError:
            continue
        found += [seen.st_ino, seen.st_size, seen.st_mtime_ns]
    return tuple(found)
