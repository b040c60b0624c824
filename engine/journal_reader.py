"""Read a journal: calls of one conversation, ended conversations in order, rows added since the last read.

Used by resume, replay, fork, report, show, the viewer and late event readers. Rows are streamed. Every row is verified
against its checksum; damaged rows are skipped, counted and named.
"""

from __future__ import annotations

import math
import os
import sqlite3
import stat
import struct
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from .errors import JournalError, JournalNotice
from .journal import (
    PLAIN_ROLE,
    SAME_ITEM_PREFIX,
    TABLE_NAMES,
    branch_and_role,
    is_locked,
    journal_error,
    schema_version,
)
from .journal_format import (
    CALL_COLUMNS,
    Unpacker,
    add_rare_fields,
    is_call_checksum,
    short_checksum,
)
from .journal_opening import names_in_file, open_for_reading, opened_unchecked
from .messages import Completion
from .steps import STEP_PREFIX


@dataclass(slots=True)
class RecordedCall:
    """A call as stored in the journal; `branch` is the path of its branch, "" for none."""

    role: str
    ordinal: int
    digest: bytes
    completion: Completion
    at: float
    branch: str = ""


@dataclass(slots=True)
class EndedConversation:
    """An ended conversation; `result` is the protocol's record, or the error's record if `failed`.

    `item` is None if its record is damaged. Conversations on the same item may share `item`: do not change it.
    """

    number: int
    key: str
    item: Any
    failed: bool
    result: Any


# Errors that reading a damaged row can raise.
DAMAGE_ERRORS = (struct.error, TypeError, AttributeError, ValueError, KeyError, IndexError, OverflowError)
_MAX_KEYS = 100_000_000  # no run has more; limits the search after a damaged key
_MAX_HOPS = 20  # from a conversation to the conversation that stores its item
_MAX_NAMED = 5  # damaged records to name; further ones are only counted
_SELECT_CALLS = f"select {CALL_COLUMNS}, {{}}, rowid from calls where {{}} order by rowid"
_SELECT_STARTED = "select number, key, item, {} from started where {}"
_SELECT_ENDED = "select number, status, result, {} from ended where {}"


class History:
    """The reading half of a journal. Close it, or use it as a context manager.

    `damage` names the damaged records met so far; `broken` has the numbers of conversations whose calls end at a
    damaged record. Damage is reported through `warnings` (`JournalNotice`): the first few records at once, the number
    of all on close.

    Raises:
        JournalError: The file is missing, has another version, or is so damaged that nothing can be read.
    """

    most_bytes: int | None = None  # maximum bytes of the texts of one conversation

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: dict[str, None] = {}
        self.broken: set[int] = set()
        self._reported = 0
        self._latest: tuple[int, Any] = (-1, None)
        self._opened = open_for_reading(path)
        self._connection = self._opened.connection
        self._connection.text_factory = bytes  # invalid UTF-8 is detected by its checksum
        self._sums = self._opened.version >= 2  # True if rows have checksums
        self._sum = "checksum" if self._sums else "null"
        self._sound: bool | None = None
        self._packed = Unpacker(self._connection)
        self._rows_by_conversation: dict[int, list[int]] = {}

    def __enter__(self) -> History:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and report damage that was not reported yet."""
        self._warn_about_damage(everything=True)
        self._opened.close()

    @property
    def sound(self) -> bool:
        """True if the file's structure is intact, by SQLite's own check, run once.

        If it is not, whole rows may be missing, and nothing may be written to the file.
        """
        if self._sound is None:
            try:
                [(verdict,), *_] = self._connection.execute("pragma integrity_check(1)").fetchall()
            except sqlite3.Error as error:
                if not _is_damage(error):
                    raise journal_error(self.path, error) from error
                verdict = str(error).encode()
            self._sound = verdict == b"ok"
            if not self._sound:
                self._note_damage("the structure of the file (records may be missing)")
                self._warn_about_damage()
        return self._sound

    def calls(self, number: int) -> list[RecordedCall]:
        """Return the calls of one conversation, oldest first (a call repeated after a divergence appears twice).

        The list ends before the first damaged call: what follows counts as not recorded.
        """
        calls: list[RecordedCall] = []
        size = self._packed.size
        for row in self._iter_call_rows(number):
            if self.most_bytes is not None and self._packed.size - size > self.most_bytes:
                raise JournalError(
                    f"{self.path}: the texts of conversation {number} are longer than {self.most_bytes // 2**20} MiB, "
                    "too long for a page; read them with `viva show`"
                )
            call = self._read_call(row, f"call {len(calls) + 1}")
            if call is None:
                self.broken.add(number)
                break
            calls.append(call)
        self._warn_about_damage()
        return calls

    def started(self, number: int) -> tuple[str, Any] | None:
        """Return key and item of an admitted conversation, else None; the item is None if its record is damaged."""
        rows = self._iter_rows(_SELECT_STARTED.format(self._sum, "number = ?"), number)
        start = next((self._read_start(*row) for row in rows), None)
        self._warn_about_damage()
        return start

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of all admitted conversations, ascending."""
        for (number,) in self._iter_table("started", "number"):
            yield number

    def ended_numbers(self, *, failed: bool = True) -> set[int]:
        """Return the numbers of the ended conversations; with `failed` False, without the failed ones."""
        numbers = set()
        for row in self._iter_table("ended", f"number, status, result, {self._sum}"):
            texts = self._verify("end", *row)
            if texts is not None and (failed or texts[0] == "finished"):
                numbers.add(row[0])
        self._warn_about_damage()
        return numbers

    def ended(self) -> Iterator[EndedConversation]:
        """Yield all ended conversations by ascending number, except those with damaged records."""
        rows = self._iter_table("ended", f"number, status, result, {self._sum}")
        yield from filter(None, (self._read_end(*row) for row in rows))
        self._warn_about_damage()

    def end(self, number: int) -> EndedConversation | None:
        """Return how one conversation ended; None if it has not, or if its record is damaged."""
        rows = self._iter_rows(_SELECT_ENDED.format(self._sum, "number = ?"), number)
        return next((self._read_end(*row) for row in rows), None)

    def keys(self) -> dict[str, int]:
        """Return the number of every admitted conversation by its key."""
        keys = {}
        for row in self._iter_table("started", f"number, key, item, {self._sum}"):
            if (texts := self._verify("start", *row)) is not None:
                keys[texts[0]] = row[0]
        self._warn_about_damage()
        return keys

    def number_of(self, key: str) -> int | None:
        """Return the number of the conversation called `key`, else of the only one whose key ends so, else None."""
        keys = self.keys()
        if key in keys:
            return keys[key]
        matches = [number for candidate, number in keys.items() if candidate.endswith(key)]
        return matches[0] if len(matches) == 1 else None

    def control(self) -> list[dict[str, Any]]:
        """Return what the run was asked to do, in order (`Journal.record_control`)."""
        if "control" not in names_in_file(self._connection):
            return []
        requests = []
        for number, at, request, checksum in self._iter_table("control", "number, at, request, checksum"):
            try:
                text = request.decode()
                if checksum != short_checksum((number, at, text)):
                    raise ValueError
                requests.append(orjson.loads(text))
            except (*DAMAGE_ERRORS, AttributeError, struct.error):
                self._note_damage(f"control request {number}")
        self._warn_about_damage()
        return [request for request in requests if isinstance(request, dict)]

    def has_answers(self, roles: Sequence[str], prefix: str) -> bool:
        """Return True if at least one of these roles has an answer in a conversation whose key begins with `prefix`."""
        marks = ",".join("?" * len(roles))
        try:
            row = self._connection.execute(
                "select 1 from calls join started on number = conversation"
                f" where {PLAIN_ROLE} in ({marks}) and substr(key, 1, ?) = ? limit 1",
                (*roles, len(prefix), prefix),
            ).fetchone()
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise journal_error(self.path, error) from error
            return False
        return row is not None

    def call_counts(self) -> dict[int, int]:
        """Return the number of recorded model calls by conversation; empty if the table is damaged."""
        selection = f"where {PLAIN_ROLE} not like 'compute:%' group by conversation"
        try:
            return dict(self._connection.execute(f"select conversation, count(*) from calls {selection}").fetchall())
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise journal_error(self.path, error) from error
            return {}

    def latencies(self) -> Iterator[tuple[int, str, int, float]]:
        """Yield conversation, role with its branch, ordinal, and seconds of every call and step, oldest first."""
        for number, role, ordinal, latency in self._iter_table(
            "calls", "conversation, role, ordinal, latency", key="rowid"
        ):
            if isinstance(role, bytes) and isinstance(latency, float):
                yield number, role.decode(errors="replace"), ordinal, latency
        self._warn_about_damage()

    def spans(self) -> Iterator[tuple[int, str, float, float]]:
        """Yield conversation, role without its branch, and the seconds at which each of its calls began and ended."""
        for number, stored, at, latency in self._iter_table("calls", "conversation, role, at, latency", key="rowid"):
            if isinstance(stored, bytes) and isinstance(at, float) and isinstance(latency, float):
                role = branch_and_role(stored.decode(errors="replace"))[1]
                if not role.startswith(STEP_PREFIX):
                    yield number, role, at - latency, at
        self._warn_about_damage()

    # -- rows and what is wrong with them -------------------------------------------------------------------------

    def _read_end(self, number: int, status: Any, result: Any, checksum: Any) -> EndedConversation | None:
        texts = self._verify("end", number, status, result, checksum, as_json=True)
        if texts is None:
            return None
        start = self.started(number)
        if start is None:
            self._note_damage(f"start of conversation {number}")
        return None if start is None else EndedConversation(number, *start, texts[0] == "failed", texts[1])

    def _read_start(self, number: int, key: Any, item: Any, checksum: Any) -> tuple[str, Any] | None:
        texts = self._verify("start", number, key, item, checksum)
        if texts is None:
            return None
        try:
            return texts[0], self._read_item(texts[1])
        except DAMAGE_ERRORS:
            self._note_damage(f"item of conversation {number}")
            return texts[0], None

    def _read_item(self, text: str) -> Any:
        """Return the item stored in a row, or with the conversation whose number the row refers to."""
        if not text.startswith(SAME_ITEM_PREFIX):
            return orjson.loads(text)
        first = int(text.removeprefix(SAME_ITEM_PREFIX))
        if first != self._latest[0]:
            number = first
            for _ in range(_MAX_HOPS):  # the referenced row may refer further if a later process wrote it
                [row] = self._iter_rows(_SELECT_STARTED.format(self._sum, "number = ?"), number)
                _, item = self._read_texts(*row)
                if not item.startswith(SAME_ITEM_PREFIX):
                    break
                number = int(item.removeprefix(SAME_ITEM_PREFIX))
            else:
                raise ValueError
            self._latest = (first, orjson.loads(item))
        return self._latest[1]

    def _read_texts(self, number: int, first: bytes, second: bytes, checksum: Any) -> tuple[str, str]:
        """Return the two texts of a row of `started` or `ended`, or raise one of `DAMAGE_ERRORS`."""
        row = number, self._packed.text(first), self._packed.text(second)
        if self._sums and short_checksum(row) != checksum:
            raise ValueError
        return row[1:]

    def _verify(
        self, record: str, number: int, first: bytes, second: bytes, checksum: Any, *, as_json: bool = False
    ) -> tuple[str, Any] | None:
        """Return the texts of a row of `started` or `ended`, or note that the conversation's record is damaged."""
        try:
            first_text, second_text = self._read_texts(number, first, second, checksum)
            if not as_json:
                return first_text, second_text
            record = orjson.loads(second_text)
            if first_text == "failed" and not isinstance(record, dict):
                raise ValueError
            return first_text, record
        except DAMAGE_ERRORS:
            self._note_damage(f"{record} of conversation {number}")
            return None

    def _read_call(self, row: tuple[Any, ...], record: str) -> RecordedCall | None:
        """Return the call of a row, or note that this record of its conversation is damaged."""
        *fields, checksum, _ = row
        number, role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra = fields
        try:
            extra = None if extra is None else self._packed.text(extra)
            role, text, finish = role.decode(), self._packed.text(text), finish.decode()
            plain_row = (
                number,
                role,
                ordinal,
                digest,
                text,
                finish,
                prompt_tokens,
                completion_tokens,
                at,
                latency,
                extra,
            )
            # The checksum verifies the types of numbers, too, of which older journals have only that.
            if not is_call_checksum(checksum, plain_row) and self._sums:
                raise ValueError
            completion = Completion(text, finish, prompt_tokens, completion_tokens, latency)
            if extra:
                add_rare_fields(completion, extra)
            branch, role = branch_and_role(role)
        except DAMAGE_ERRORS:
            self._note_damage(f"{record} of conversation {number}")
            return None
        return RecordedCall(role, ordinal, digest, completion, at, branch)

    def _note_damage(self, record: str) -> None:
        self.damage[record] = None

    def _warn_about_damage(self, *, everything: bool = False) -> None:
        count = len(self.damage)
        if count == self._reported or (count > _MAX_NAMED and not everything):
            return
        self._reported = count
        names = ", ".join(list(self.damage)[:_MAX_NAMED]) + (
            f" and {count - _MAX_NAMED} more" if count > _MAX_NAMED else ""
        )
        warnings.warn(
            f"{self.path}: skipped because of damage: {names}; `viva resume {self.path.parent}` repeats the missing "
            "calls of conversations that have not ended",
            JournalNotice,
            stacklevel=1,
        )

    def _iter_call_rows(self, number: int) -> Iterator[tuple[Any, ...]]:
        if self.sound:
            yield from self._iter_rows(_SELECT_CALLS.format(self._sum, "conversation = ?"), number)
            return
        if not self._rows_by_conversation:  # the index is unreliable: use each row's own number
            for conversation, rowid in self._iter_table("calls", "conversation, rowid", key="rowid"):
                self._rows_by_conversation.setdefault(conversation, []).append(rowid)
        for rowid in self._rows_by_conversation.get(number, ()):
            yield from self._iter_rows(_SELECT_CALLS.format(self._sum, "rowid = ?"), rowid)

    def _iter_rows(self, sql: str, *parameters: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query about one conversation; rows after a broken page are skipped and named."""
        try:
            yield from self._connection.execute(sql, parameters)
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise journal_error(self.path, error) from error
            self._note_damage(f"pages of the file at conversation {parameters[0]}")

    def _iter_table(self, table: str, columns: str, key: str = "number") -> Iterator[tuple[Any, ...]]:
        """Yield all rows of a table by ascending key; after a broken page they are looked up one by one."""
        latest = -1
        _ = self.sound  # report rows that are missing entirely
        try:
            for row in self._connection.execute(f"select {columns}, {key} from {table} order by {key}"):
                latest = row[-1]
                yield row[:-1]
            return
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise journal_error(self.path, error) from error
        self._note_damage(f"pages of the file in its table '{table}'")
        for number in range(latest + 1, self._greatest_key(table, key) + 1):
            try:
                row = self._connection.execute(f"select {columns} from {table} where {key} = ?", (number,)).fetchone()
            except sqlite3.Error:
                continue
            if row is not None:
                yield row

    def _greatest_key(self, table: str, key: str) -> int:
        """Return the greatest key that may be in a table, by the readable pages of the file; -1 if no page has one."""
        candidates = [-1]
        queries = [f"select max({key}) from {table}"]
        if table != "calls":
            queries += ["select max(number) from started", "select max(number) from ended"]
            queries += ["select max(conversation) from calls"]
        for query in queries:
            try:
                (value,) = self._connection.execute(query).fetchone()
            except sqlite3.Error:
                continue
            if isinstance(value, int):
                candidates.append(value)
        return min(max(candidates), _MAX_KEYS)


def has_tables(journal: Path) -> bool:
    """Return True if a journal has its tables, or is damaged; a kill may come before they are created."""
    return _has_rows(journal, "select value from meta where key = 'schema'")


def is_unfinished(journal: Path) -> bool:
    """Return True if creating the journal was interrupted: it has no record, and nothing of another program."""
    if not stat.S_ISREG(journal.stat().st_mode):
        return False
    try:
        with closing(sqlite3.connect(journal)) as connection:
            return names_in_file(connection) <= TABLE_NAMES and schema_version(connection) == 0
    except (sqlite3.Error, UnicodeDecodeError):
        return False


def has_records(journal: Path) -> bool:
    """Return True if anything is recorded in a journal; an unreadable one may contain records."""
    return _has_rows(journal, "select 1 from started limit 1")


def _has_rows(journal: Path, query: str) -> bool:
    """Return True if a query has a result, or if the file cannot be read."""
    if not journal.exists():
        return False
    try:
        with opened_unchecked(journal) as connection:
            return connection.execute(query).fetchone() is not None
    except sqlite3.OperationalError as error:
        return "no such table" not in str(error)
    except (sqlite3.Error, UnicodeDecodeError, JournalError):
        return True


def _is_damage(error: sqlite3.Error) -> bool:
    """Return True if an error says that pages of the file are broken, not that the file cannot be used now."""
    return not isinstance(error, sqlite3.OperationalError) and isinstance(error, sqlite3.DatabaseError)


_CHUNK_ROWS = 500  # numbers per query
_LONGEST_READ = 60  # seconds; a damaged file can contain the same page without end
_STEPS_BETWEEN_CHECKS = 1_000_000  # steps of SQLite's machine, some milliseconds
_BATCH_BYTES = 16 * 2**20  # of the texts after which `read_additions` stops


@dataclass(slots=True)
class AddedCall:
    """A recorded call, the number of its conversation, and its row in the journal."""

    number: int
    row: int
    call: RecordedCall


@dataclass(slots=True)
class AddedEnd:
    """End of a conversation; `checksum` distinguishes one record of an end from another."""

    number: int
    failed: bool
    result: Any
    checksum: int


@dataclass(slots=True)
class JournalAdditions:
    """Rows added since the last read: `started` has (number, key, the task's record).

    The next read continues at `last_row` and `last_number`. `more` is True if there were more rows than requested;
    `cut` is True if ends are missing because the texts are long.
    """

    started: list[tuple[int, str, Any]] = field(default_factory=list)
    calls: list[AddedCall] = field(default_factory=list)
    ended: list[AddedEnd] = field(default_factory=list)
    last_number: int = -1
    last_row: int = 0
    more: bool = False
    cut: bool = False


class JournalTail(History):
    """A journal that is read repeatedly while it grows. `History`'s queries about one conversation work as well.

    `is_stopped`: a long query ends early when this is true.

    Raises:
        JournalError: As for `History`.
    """

    most_bytes = 64 * 2**20

    def __init__(self, path: Path, is_stopped: Callable[[], bool] = lambda: False) -> None:
        super().__init__(path)
        self._unreadable: set[int] = set()  # conversations whose damaged starts `read_additions` has met
        self._deadline = math.inf
        self._connection.set_progress_handler(
            lambda: is_stopped() or time.monotonic() > self._deadline, _STEPS_BETWEEN_CHECKS
        )

    @property
    def sound(self) -> bool:
        """Always True: each row is verified by its checksum."""
        return True

    def read_additions(
        self,
        last_number: int,
        last_row: int,
        unended: Collection[int],
        limit: int,
        known: Collection[int] | None = None,
    ) -> JournalAdditions:
        """Return at most `limit` new conversations, at most `limit` new calls, and ends.

        New conversations are those after `last_number`, new calls those after `last_row`. Conversations that were added
        to a run in progress begin before some of lower numbers: if some up to `last_number` are unknown, `known` has
        the others, and those that have begun since are new, too. No call is returned before its conversation. The ends
        belong to these conversations, to the conversations of these calls, and to the `unended` ones. Fewer are
        returned if their texts are long.
        """
        additions = JournalAdditions(last_number=last_number, last_row=last_row)
        started = f"{_SELECT_STARTED} order by number limit ?".format(self._sum, "number > ?")
        calls = f"{_SELECT_CALLS} limit ?".format(self._sum, "rowid > ?")
        with self._read_transaction():
            limit_bytes = self._packed.size + _BATCH_BYTES
            late = self._late_numbers(last_number, known)
            unread = {*late}
            rest = self._connection.execute(started, (last_number, max(0, limit - len(late))))
            count, is_full = 0, False
            for row in chain(self._read_started(late[:limit]), rest):
                if self._packed.size > limit_bytes:
                    is_full = True
                    break
                count += 1
                unread.discard(row[0])
                additions.last_number = max(additions.last_number, row[0])
                if (start := self._read_start(*row)) is not None:
                    additions.started.append((row[0], *start))
                else:
                    self._unreadable.add(row[0])
            is_full = is_full or count == limit
            count = 0
            for row in self._connection.execute(calls, (last_row, limit)):
                count += 1
                if row[0] in unread or (is_full and row[0] > additions.last_number):
                    break
                if self._packed.size > limit_bytes:
                    is_full = True
                    break
                additions.last_row = row[-1]
                if (call := self._read_call(row, "a call")) is not None:
                    additions.calls.append(AddedCall(row[0], row[-1], call))
            numbers = (
                {number for number, _, _ in additions.started}
                | {added.number for added in additions.calls}
                | set(unended)
            )
            for end in self._read_ends(sorted(numbers)):
                additions.ended.append(end)
                additions.cut = self._packed.size > limit_bytes
                if additions.cut:
                    break
            additions.more = is_full or additions.cut or count == limit
        self._warn_about_damage()
        return additions

    def _late_numbers(self, last_number: int, known: Collection[int] | None) -> list[int]:
        """Return the numbers up to `last_number` of conversations that have begun and are not known."""
        if known is None:
            return []
        numbers = self._connection.execute(
            "select number from started where number <= ? order by number", (last_number,)
        )
        return [number for (number,) in numbers if number not in known and number not in self._unreadable]

    def _read_started(self, numbers: list[int]) -> Iterator[tuple[Any, ...]]:
        for at in range(0, len(numbers), _CHUNK_ROWS):
            chunk = numbers[at : at + _CHUNK_ROWS]
            query = _SELECT_STARTED.format(self._sum, f"number in ({','.join('?' * len(chunk))})")
            yield from self._connection.execute(query, chunk)

    def end_of(self, number: int) -> AddedEnd | None:
        """Return how one conversation ended; None if it has not, or if the record is damaged."""
        end = next(iter(self._read_ends([number])), None)
        self._warn_about_damage()
        return end

    def end_checksums(self) -> dict[int, int]:
        """Return a checksum of each conversation's end record; the record's length in journals without checksums."""
        column = "checksum" if self._sums else "length(result)"
        with self._read_transaction():
            return dict(self._connection.execute(f"select number, {column} from ended").fetchall())

    def _read_ends(self, numbers: list[int]) -> Iterator[AddedEnd]:
        for at in range(0, len(numbers), _CHUNK_ROWS):
            chunk = numbers[at : at + _CHUNK_ROWS]
            marks = ",".join("?" * len(chunk))
            query = _SELECT_ENDED.format(self._sum, f"number in ({marks})")
            for row in self._connection.execute(query, chunk):
                if (texts := self._verify("end", *row, as_json=True)) is not None:
                    checksum = row[-1] if self._sums else len(row[2].decode())
                    yield AddedEnd(row[0], texts[0] == "failed", texts[1], checksum)

    @contextmanager
    def _read_transaction(self) -> Iterator[None]:
        """Run the queries in one read transaction, which ends after a minute or when the reader is stopped."""
        try:
            self._deadline = time.monotonic() + _LONGEST_READ
            self._connection.execute("begin")
            try:
                yield
            finally:
                self._connection.execute("rollback")
        except sqlite3.Error as error:
            if is_locked(error):
                return  # the next read will find the rest
            if (error.sqlite_errorname or "") == "SQLITE_INTERRUPT":
                took = f"reading it took longer than {_LONGEST_READ} s, or was stopped"
                raise JournalError(f"{self.path}: {took}") from None
            raise journal_error(self.path, error) from error
        finally:
            self._deadline = math.inf


def journal_state(path: Path) -> tuple[int, ...]:
    """Return what changes when a journal is written: identities, sizes and times of its files, if any."""
    state: list[int] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            status = os.stat(file)
        except OSError:
            continue
        state += [status.st_ino, status.st_size, status.st_mtime_ns]
    return tuple(state)
