"""Reading a journal back: the calls of one conversation, and the ended conversations in order.

Used by resume, replay, fork, report, show and catch-up. Reads are streamed. Every row is verified against its checksum;
damaged rows are left out, counted and named.
What never belongs here: writing (see ``journal``), opening the file (see ``journal_file``), what a result means.
"""

from __future__ import annotations

import sqlite3
import stat
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from .checksums import is_call_checksum, short_checksum
from .errors import JournalNotice
from .journal import NAMES, PLAIN_ROLE, SAME, branch_and_role, schema_version
from .journal_errors import journal_error
from .journal_file import open_for_reading, table_names
from .messages import Completion
from .packing import Unpacker
from .rare_fields import add_rare_fields


@dataclass(slots=True)
class RecordedCall:
    """One call as the journal holds it; ``branch`` is the path of the branch that it stands in, "" for none."""

    role: str
    ordinal: int
    digest: bytes
    completion: Completion
    at: float
    branch: str = ""


@dataclass(slots=True)
class EndedConversation:
    """One ended conversation; ``result`` is the protocol's record, or the error's record where ``failed``.

    ``item`` is None where its record is damaged. Conversations on the same item may share the object: do not change it.
    """

    number: int
    key: str
    item: Any
    failed: bool
    result: Any


# What a damaged row can raise while it is read.
DAMAGE = (struct.error, TypeError, AttributeError, ValueError, KeyError, IndexError, OverflowError)
_MOST_KEYS = 100_000_000  # no run has more: a damaged key is no reason to look for years
_MOST_HOPS = 20  # from a conversation to the one with which its item was written
_NAMED = 5  # damaged records that are named; the others are counted
_CALLS = (
    "select role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra, {}, rowid"
    " from calls where {} order by rowid"
)


class History:
    """The reading half of a journal. Close it, or use it as a context manager.

    ``damage`` names the damaged records met so far; ``broken`` has the numbers of conversations whose calls end at one.
    Damage is reported through ``warnings`` (``JournalNotice``): the first few records at once, all when it is closed.

    :raises JournalError: the file is missing, of another version, or so damaged that nothing can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: dict[str, None] = {}
        self.broken: set[int] = set()
        self._told = 0
        self._latest: tuple[int, Any] = (-1, None)
        self._opened = open_for_reading(path)
        self._connection = self._opened.connection
        self._connection.text_factory = bytes  # what is no UTF-8 any more is found by its checksum
        self._sums = self._opened.version >= 2  # rows of version 1 have none
        self._sum = "checksum" if self._sums else "null"
        self._sound: bool | None = None
        self._packed = Unpacker(self._connection)
        self._places: dict[int, list[int]] = {}

    def __enter__(self) -> History:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and tell of damage that was not told of yet."""
        self._tell(everything=True)
        self._opened.close()

    @property
    def sound(self) -> bool:
        """Whether the file's structure is whole (SQLite's own check, made once): where it is not, whole rows may be
        missing, and nothing may be written to it.
        """
        if self._sound is None:
            try:
                [(found,), *_] = self._connection.execute("pragma integrity_check(1)").fetchall()
            except sqlite3.Error as error:
                if not _is_damage(error):
                    raise journal_error(self.path, error) from error
                found = str(error).encode()
            self._sound = found == b"ok"
            if not self._sound:
                self._damaged("the structure of the file, so that records may be missing altogether")
                self._tell()
        return self._sound

    def calls(self, number: int) -> list[RecordedCall]:
        """The calls of one conversation, oldest first (a call asked anew after a divergence appears twice).

        They end before the first damaged one: what follows it counts as not recorded.
        """
        found = []
        for row in self._call_rows(number):
            try:
                found.append(self._call(number, row))
            except DAMAGE:
                self._damaged(f"call {len(found) + 1} of conversation {number}")
                self.broken.add(number)
                break
        self._tell()
        return found

    def started(self, number: int) -> tuple[str, Any] | None:
        """Key and item of a conversation that was admitted, else None; the item is None where its record is damaged."""
        found = None
        for key, item, checksum in self._rows(f"select key, item, {self._sum} from started where number = ?", number):
            found = self._start(number, key, item, checksum)
        self._tell()
        return found

    def numbers(self) -> Iterator[int]:
        """The numbers of all admitted conversations, ascending."""
        for (number,) in self._every("started", "number"):
            yield number

    def ended_numbers(self, *, failed: bool = True) -> set[int]:
        """The numbers of the ended conversations, those that failed only if wanted."""
        found = set()
        for number, status, result, checksum in self._every("ended", f"number, status, result, {self._sum}"):
            try:
                status, result = self._verified(checksum, number, status, result)
            except DAMAGE:
                self._damaged(f"end of conversation {number}")
            else:
                if failed or status == "finished":
                    found.add(number)
        self._tell()
        return found

    def ended(self) -> Iterator[EndedConversation]:
        """All ended conversations by ascending number, streamed, but for those whose records are damaged."""
        rows = self._every("ended", f"number, status, result, {self._sum}")
        yield from filter(None, (self._end(*row) for row in rows))
        self._tell()

    def end(self, number: int) -> EndedConversation | None:
        """How one conversation ended; None if it has not, or where its record is damaged."""
        rows = self._rows(f"select number, status, result, {self._sum} from ended where number = ?", number)
        return next((self._end(*row) for row in rows), None)

    def keys(self) -> dict[str, int]:
        """The number of every admitted conversation by its key."""
        found = {}
        for number, key, item, checksum in self._every("started", f"number, key, item, {self._sum}"):
            try:
                key, item = self._verified(checksum, number, key, item)
                found[key] = number
            except DAMAGE:
                self._damaged(f"start of conversation {number}")
        self._tell()
        return found

    def number_of(self, key: str) -> int | None:
        """The number of the conversation called ``key``, or of the only one whose key ends with it."""
        keys = self.keys()
        if key in keys:
            return keys[key]
        found = [number for known, number in keys.items() if known.endswith(key)]
        return found[0] if len(found) == 1 else None

    def answered(self, roles: Sequence[str], prefix: str) -> bool:
        """Whether any of these roles was ever answered in a conversation whose key begins with ``prefix``."""
        marks = ",".join("?" * len(roles))
        try:
            found = self._connection.execute(
                "select 1 from calls join started on number = conversation"
                f" where {PLAIN_ROLE} in ({marks}) and substr(key, 1, ?) = ? limit 1",
                (*roles, len(prefix), prefix),
            ).fetchone()
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise journal_error(self.path, error) from error
            return False
        return found is not None

    # -- rows and what is wrong with them -------------------------------------------------------------------------

    def _end(self, number: int, status: Any, result: Any, checksum: Any) -> EndedConversation | None:
        try:
            status, result = self._verified(checksum, number, status, result)
            record, start = orjson.loads(result), self.started(number)
        except DAMAGE:
            self._damaged(f"end of conversation {number}")
            return None
        if start is None:
            self._damaged(f"start of conversation {number}")
        return None if start is None else EndedConversation(number, *start, status == "failed", record)

    def _start(self, number: int, key: Any, item: Any, checksum: Any) -> tuple[str, Any] | None:
        try:
            key, item = self._verified(checksum, number, key, item)
        except DAMAGE:
            self._damaged(f"start of conversation {number}")
            return None
        try:
            return key, self._item(item)
        except DAMAGE:
            self._damaged(f"item of conversation {number}")
            return key, None

    def _item(self, text: str) -> Any:
        """The item that stands in a row, or with the conversation whose number stands in its place."""
        if not text.startswith(SAME):
            return orjson.loads(text)
        first = int(text.removeprefix(SAME))
        if first != self._latest[0]:
            number = first
            for _ in range(_MOST_HOPS):  # one that was admitted again by a later process may point on
                rows = self._rows(f"select key, item, {self._sum} from started where number = ?", number)
                [(key, item, checksum)] = list(rows)
                key, item = self._verified(checksum, number, key, item)
                if not item.startswith(SAME):
                    break
                number = int(item.removeprefix(SAME))
            else:
                raise ValueError
            self._latest = (first, orjson.loads(item))
        return self._latest[1]

    def _verified(self, checksum: Any, number: Any, *texts: bytes) -> list[str]:
        """The texts of a row of ``started`` or ``ended``.

        :raises: one of ``DAMAGE`` where the row is not what was written.
        """
        read = [self._packed.text(text) for text in texts]
        if self._sums and short_checksum((number, *read)) != checksum:
            raise ValueError
        return read

    def _call(self, number: int, row: tuple[Any, ...]) -> RecordedCall:
        """:raises: one of ``DAMAGE`` where the row is not what was written."""
        role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra, checksum, _ = row
        extra = None if extra is None else self._packed.text(extra)
        role, text, finish = role.decode(), self._packed.text(text), finish.decode()
        whole = (number, role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra)
        if self._sums and not is_call_checksum(checksum, whole):
            raise ValueError
        completion = Completion(text, finish, prompt_tokens, completion_tokens, latency)
        if extra:
            add_rare_fields(completion, extra)
        branch, role = branch_and_role(role)
        return RecordedCall(role, ordinal, digest, completion, at, branch)

    def _damaged(self, what: str) -> None:
        self.damage[what] = None

    def _tell(self, *, everything: bool = False) -> None:
        count = len(self.damage)
        if count == self._told or (count > _NAMED and not everything):
            return
        self._told = count
        named = ", ".join(list(self.damage)[:_NAMED]) + (f" and {count - _NAMED} more" if count > _NAMED else "")
        warnings.warn(
            f"{self.path}: damaged, and not used: {named}; `viva resume {self.path.parent}` computes anew what is "
            "missing of conversations that have not ended",
            JournalNotice,
            stacklevel=1,
        )

    def _call_rows(self, number: int) -> Iterator[tuple[Any, ...]]:
        if self.sound:
            yield from self._rows(_CALLS.format(self._sum, "conversation = ?"), number)
            return
        if not self._places:  # the index cannot be trusted: each row says itself where it belongs
            for conversation, rowid in self._every("calls", "conversation, rowid", key="rowid"):
                self._places.setdefault(conversation, []).append(rowid)
        for rowid in self._places.get(number, ()):
            yield from self._rows(_CALLS.format(self._sum, "rowid = ?"), rowid)

    def _rows(self, sql: str, *parameters: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a question about one conversation; those behind a broken page are left out, and named."""
        try:
            yield from self._connection.execute(sql, parameters)
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise journal_error(self.path, error) from error
            self._damaged(f"pages of the file at conversation {parameters[0]}")

    def _every(self, table: str, columns: str, key: str = "number") -> Iterator[tuple[Any, ...]]:
        """All rows of a table by ascending key; behind a broken page they are looked up one by one."""
        latest = -1
        _ = self.sound  # what is missing altogether has no row that could tell
        try:
            for row in self._connection.execute(f"select {columns}, {key} from {table} order by {key}"):
                latest = row[-1]
                yield row[:-1]
            return
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise journal_error(self.path, error) from error
        self._damaged(f"pages of the file in its table '{table}'")
        for number in range(latest + 1, self._last(table, key) + 1):
            try:
                row = self._connection.execute(f"select {columns} from {table} where {key} = ?", (number,)).fetchone()
            except sqlite3.Error:
                continue
            if row is not None:
                yield row

    def _last(self, table: str, key: str) -> int:
        """The greatest key that may be in a table, as far as any page of the file tells; -1 if none does."""
        found = [-1]
        questions = [f"select max({key}) from {table}"]
        if table != "calls":
            questions += ["select max(number) from started", "select max(number) from ended"]
            questions += ["select max(conversation) from calls"]
        for question in questions:
            try:
                (value,) = self._connection.execute(question).fetchone()
            except sqlite3.Error:
                continue
            if isinstance(value, int):
                found.append(value)
        return min(max(found), _MOST_KEYS)


def has_begun(journal: Path) -> bool:
    """Whether a journal has its tables: a kill may come before they are made.

    One that is damaged has.
    """
    return _answers(journal, "select value from meta where key = 'schema'")


def is_unmade(journal: Path) -> bool:
    """Whether a journal is one whose making was cut off: nothing was ever recorded in it, and nothing of another
    program stands in it.
    """
    if not stat.S_ISREG(journal.stat().st_mode):
        return False
    try:
        with closing(sqlite3.connect(journal)) as connection:
            return table_names(connection) <= NAMES and schema_version(connection) == 0
    except (sqlite3.Error, UnicodeDecodeError):
        return False


def has_records(journal: Path) -> bool:
    """Whether anything is recorded in a journal; one that cannot be read may hold something."""
    return _answers(journal, "select 1 from started limit 1")


def _answers(journal: Path, question: str) -> bool:
    """Whether a question has an answer; True where the file cannot be asked."""
    if not journal.exists():
        return False
    try:
        with closing(sqlite3.connect(journal)) as connection:
            return connection.execute(question).fetchone() is not None
    except sqlite3.OperationalError as error:
        return "no such table" not in str(error)
    except (sqlite3.Error, UnicodeDecodeError):
        return True


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that pages of the file are broken, rather than that it cannot be used now."""
    return not isinstance(error, sqlite3.OperationalError) and isinstance(error, sqlite3.DatabaseError)
