"""Reading a journal back: the calls of one conversation, and the ended conversations in order.

Used by resume, replay, fork, report and show. Reads page through SQLite, so a run of any size streams.
What never belongs here: writing (see ``journal``), and what a result means.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from .errors import JournalError
from .journal import SAME, SCHEMA_VERSION, journal_error, missing_journal
from .likelihood import Likelihood
from .messages import Completion
from .tools import ToolCall


@dataclass(slots=True)
class RecordedCall:
    """One call as the journal holds it."""

    role: str
    ordinal: int
    digest: bytes
    completion: Completion
    at: float


@dataclass(slots=True)
class EndedConversation:
    """One ended conversation; ``result`` is the protocol's record, or the error's record where ``failed``.

    Conversations on the same item may share the object: it is not to be changed.
    """

    number: int
    key: str
    item: Any
    failed: bool
    result: Any


class History:
    """The reading half of a journal. Close it, or use it as a context manager.

    :raises JournalError: the file is missing, damaged or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._latest: tuple[int, Any] = (-1, None)
        if not path.exists():
            raise missing_journal(path)
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)
            (version,) = self._connection.execute("select value from meta where key = 'schema'").fetchone()
        except (sqlite3.Error, TypeError) as error:
            raise self._error(error) from error
        if int(version) != SCHEMA_VERSION:
            raise JournalError(f"{path}: journal schema {version}, this version of viva reads {SCHEMA_VERSION}")

    def __enter__(self) -> History:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def calls(self, number: int) -> list[RecordedCall]:
        """The calls of one conversation, oldest first (a call asked anew after a divergence appears twice)."""
        rows = self._select(
            "select role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, latency, extra, at"
            " from calls where conversation = ? order by rowid",
            (number,),
        )
        return [_call(row) for row in rows]

    def started(self, number: int) -> tuple[str, Any] | None:
        """Key and item of a conversation that was admitted, else None."""
        for key, item in self._select("select key, item from started where number = ?", (number,)):
            return str(key), self._item(item)
        return None

    def numbers(self) -> Iterator[int]:
        """The numbers of all admitted conversations, ascending."""
        for (number,) in self._select("select number from started order by number"):
            yield number

    def ended_numbers(self, *, failed: bool = True) -> set[int]:
        """The numbers of the ended conversations, those that failed only if wanted."""
        where = "" if failed else " where status = 'finished'"
        return {number for (number,) in self._select(f"select number from ended{where}")}

    def ended(self) -> Iterator[EndedConversation]:
        """All ended conversations by ascending number, streamed."""
        rows = self._select(
            "select ended.number, key, item, status, result from ended join started using (number)"
            " order by ended.number"
        )
        for number, key, item, status, result in rows:
            yield EndedConversation(number, key, self._item(item), status == "failed", orjson.loads(result))

    def keys(self) -> dict[str, int]:
        """The number of every admitted conversation by its key."""
        return dict(self._select("select key, number from started"))

    def number_of(self, key: str) -> int | None:
        """The number of the conversation called ``key``, or of the only one whose key ends with it."""
        exact = [n for (n,) in self._select("select number from started where key = ?", (key,))]
        tail = [n for (n,) in self._select("select number from started where substr(key, ?) = ?", (-len(key), key))]
        found = exact or tail
        return found[0] if len(found) == 1 else None

    def _item(self, text: str) -> Any:
        """The item that stands in a row, or with the conversation whose number stands in its place."""
        if not text.startswith(SAME):
            return orjson.loads(text)
        number = int(text.removeprefix(SAME))
        if number != self._latest[0]:
            found = list(self._select("select item from started where number = ?", (number,)))
            if not found:
                raise JournalError(f"{self.path}: the item of conversation {number} is missing: the file is damaged")
            self._latest = (number, self._item(found[0][0]))
        return self._latest[1]

    def _select(self, sql: str, parameters: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(sql, parameters)
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> JournalError:
        if isinstance(error, sqlite3.Error):
            return journal_error(self.path, error)
        return JournalError(f"{self.path}: this file is not a journal of viva")


def has_begun(journal: Path) -> bool:
    """Whether anything is recorded in a run's journal; one that cannot be read may hold something.

    A kill may leave a journal without tables, or with empty ones.
    """
    if not journal.exists():
        return False
    try:
        with closing(sqlite3.connect(journal)) as connection:
            return connection.execute("select 1 from started limit 1").fetchone() is not None
    except sqlite3.OperationalError as error:
        return "no such table" not in str(error)
    except sqlite3.Error:
        return True


def _call(row: tuple[Any, ...]) -> RecordedCall:
    role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, latency, extra, at = row
    completion = Completion(text, finish, prompt_tokens, completion_tokens, latency)
    if extra:
        more = orjson.loads(extra)
        likelihoods = more.pop("likelihoods", None)
        if likelihoods is not None:
            completion.likelihoods = [Likelihood.from_record(record) for record in likelihoods]
        calls = more.pop("calls", None)
        if calls is not None:
            completion.calls = [ToolCall.from_record(record) for record in calls]
        for name, value in more.items():
            setattr(completion, name, value)
    return RecordedCall(role, ordinal, digest, completion, at)
