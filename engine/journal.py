"""The journal: every finished model call, and every conversation's start and end, in one SQLite file.

One thread writes; the event loop only appends to a list. The thread takes what has accumulated, writes it with many
rows per statement and commits once (WAL, group commit). Few, large statements matter beside a busy loop: each SQLite
step releases the interpreter lock and has to wait to get it back.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import stat
import struct
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import orjson

from .clock import Clock
from .errors import JournalError, JournalNotice
from .file_descriptors import has_free_descriptors
from .files import describe_version_problem
from .journal_format import DICTIONARIES, call_checksum, rare_fields, short_checksum
from .messages import Completion

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DESCRIPTORS_OF_JOURNAL = 4  # opened by SQLite for one database: file, log, index, folder


def refuse_special_file(path: Path) -> None:
    """Refuse a path at which something else than a regular file is.

    In a run folder made by others, a link would lead what is written to another file.

    Raises:
        JournalError: It is a symbolic link, a FIFO, a device or a folder.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # there is nothing, or whoever opens it reports the error
    if stat.S_ISLNK(mode):
        raise JournalError(f"{path}: a symbolic link, and viva does not write through links; put the file itself there")
    if not stat.S_ISREG(mode):
        raise JournalError(f"{path}: not a regular file, so viva does not write it; remove it")


def refuse_special_database(path: Path) -> None:
    """Refuse a database that, or one of whose auxiliary files, is a link or no regular file; see above."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        refuse_special_file(path.with_name(path.name + suffix))


def journal_error(path: Path, error: sqlite3.Error, name: str = "journal") -> JournalError:
    """Return an error that says what is wrong with the file and what to do, with SQLite's own message."""
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR")) and not has_free_descriptors(_DESCRIPTORS_OF_JOURNAL):
        advice = "too many open files, raise the limit (ulimit -n)"
    elif code.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        advice = "free space on that disk (or raise the file-size limit), then `viva resume` the run"
    elif is_locked(error):
        advice = "another program holds a lock on it: close that program, then `viva resume` the run"
    elif code == "SQLITE_ERROR" or code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):  # e.g. no such table
        advice = "the file is damaged: restore it from a copy, or start the run again in another folder"
    else:
        advice = "check that the folder exists and is writable"
    return JournalError(f"{path}: cannot use the {name}: {error} ({code or 'sqlite'}); {advice}")


def creation_advice(error: BaseException | None) -> str:
    """Return advice for a run folder that could not be created, to append to the error's message; "" for none."""
    code = getattr(error, "sqlite_errorname", "") or ""
    full = code.startswith("SQLITE_FULL") or (
        code.startswith("SQLITE_IOERR") and has_free_descriptors(_DESCRIPTORS_OF_JOURNAL)
    )
    if full or getattr(error, "errno", None) in _NO_SPACE:
        return "; free space on that disk, then repeat the command"
    return ""


def damaged_journal_error(path: Path) -> JournalError:
    """Return the error for writing to a journal with a broken structure."""
    return JournalError(
        f"{path}: the file is damaged and can no longer be written: restore it from a copy, or start the run again in "
        "another folder; `viva report` and `viva show` can still read the rest"
    )


def missing_journal_error(path: Path) -> JournalError:
    """Return the error for a run with a manifest but no journal."""
    return JournalError(
        f"{path}: the journal of this run is missing; put it back (gunzip it if it is compressed), or start the run "
        "again in another folder"
    )


def is_locked(error: sqlite3.Error) -> bool:
    """Return True if another program holds a lock."""
    return (getattr(error, "sqlite_errorname", "") or "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


T = TypeVar("T")

# What a committed row survives: `commit` a kill of the process, `power` also a power cut.
Durability = Literal["commit", "power"]
_SYNCHRONOUS: dict[Durability, str] = {"commit": "normal", "power": "full"}
SCHEMA_VERSION = 2
# Rows of version 1 have no checksums; such a journal continues without them. Version 3 is version 2 with packed texts.
PACKED_VERSION = 3
READABLE_VERSIONS = (1, SCHEMA_VERSION, PACKED_VERSION)
_SCHEMA = """
create table if not exists meta (key text primary key, value text not null) without rowid;
create table if not exists started (
    number integer primary key, key text not null, item text not null, checksum integer not null);
create table if not exists calls (
    conversation integer not null, role text not null, ordinal integer not null, digest blob not null,
    text text not null, finish text not null, prompt_tokens integer not null, completion_tokens integer not null,
    at real not null, latency real not null, extra text, checksum integer not null);
create index if not exists calls_by_conversation on calls (conversation);
create table if not exists ended (
    number integer primary key, status text not null, result text not null, checksum integer not null);
"""
# Made when a run is first controlled (`orchestration.control`).
_CONTROL = """create table if not exists control (
    number integer primary key, at real not null, request text not null, checksum integer not null)"""
TABLE_NAMES = frozenset(
    ["meta", "started", "calls", "calls_by_conversation", "ended", "control", DICTIONARIES]
)  # our names
_TABLES = {"started": (3, short_checksum), "calls": (11, call_checksum), "ended": (3, short_checksum)}
# SQLite takes 32,766 parameters a statement; powers of two keep the statement cache small.
_CHUNKS = (1024, 256, 64, 16, 4, 1)
_EAGER_ROWS = 2048
_FULL_ROWS = 20_000
_BUSY_SECONDS = 5.0  # wait for another program's lock before each warning
_PATIENCE_SECONDS = 600.0  # total wait for a lock
_CLOSING_SECONDS = 30.0  # total wait once the run was told to stop
SAME_ITEM_PREFIX = "="  # no JSON begins like this
# Separates the names in a branch's path. No role begins with "/", and no name in a path contains "/" or ":".
BRANCH_PREFIX = "/"
# The role alone, from the column `role`.
PLAIN_ROLE = f"case when role like '{BRANCH_PREFIX}%' then substr(role, instr(role, ':') + 1) else role end"


def role_in_branch(path: str, role: str) -> str:
    """Return the value of the column `role`: the role, prefixed by the path of its branch, if any."""
    return f"{BRANCH_PREFIX}{path}:{role}" if path else role


def branch_and_role(stored: str) -> tuple[str, str]:
    """Return a branch's path ("" for the conversation itself) and a role, from the column `role`."""
    if not stored.startswith(BRANCH_PREFIX):
        return "", stored
    path, _, role = stored[1:].partition(":")
    return path, role


class LogWriter(ABC):
    """A SQLite file written by its own thread. Use `async with`; leaving flushes and joins the thread.

    Recording never waits, and raises `JournalError` once the file can no longer be written. `on_failure` is called in
    the event loop when that happens, so that the run can stop at once.
    """

    kind = "journal"
    group_seconds = 0.02

    def __init__(self, path: Path, clock: Clock, on_failure: Callable[[JournalError], None] | None = None) -> None:
        self.path = path
        self.failure: JournalError | None = None
        self.on_failure = on_failure
        self._clock = clock
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = self._hasty = False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._thread = threading.Thread(target=self._write_forever, name=f"viva-{self.kind}", daemon=True)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(ready)
        self._thread.start()
        try:
            with self._clock.external():
                await ready
            self._raise_failure()
        except BaseException:
            await self.__aexit__()  # the caller will not do so
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        # Nothing here awaits, so nothing can be cancelled: recorded rows reach the disk even when the run is halted.
        self._closing = True
        self._wake.set()
        self._hurry.set()
        self._thread.join()

    def hasten(self) -> None:
        """Shorten the wait for another program's lock, because the run is to stop."""
        self._hasty = True

    async def flush(self) -> None:
        """Wait until everything recorded so far is committed.

        Raises:
            JournalError: The rows cannot be committed.
        """
        self._raise_failure()
        if self._closing:
            return  # closing writes everything
        committed: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(committed)
        self._raise_failure()  # the thread may have died just before we became a waiter
        self._wake.set()
        self._hurry.set()
        with self._clock.external():
            await committed
        self._raise_failure()

    def _append(self, queue: deque[T], row: T) -> None:
        if self.failure is not None:
            raise self.failure
        queue.append(row)
        if not self._wake.is_set():
            self._wake.set()
        elif len(queue) == _EAGER_ROWS:
            self._hurry.set()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    # -- the writing thread ---------------------------------------------------------------------------------------

    @abstractmethod
    def _open(self) -> sqlite3.Connection: ...

    @abstractmethod
    def _write(self, connection: sqlite3.Connection) -> None: ...

    def _write_forever(self) -> None:
        connection: sqlite3.Connection | None = None
        waiters: list[asyncio.Future[None]] = []
        try:
            connection = self._open()
            self._answer(drain_queue(self._waiters))
            while True:
                self._wake.wait()
                if not self._closing:
                    self._hurry.wait(self.group_seconds)  # let a group gather
                closing = self._closing
                self._wake.clear()
                self._hurry.clear()
                waiters = drain_queue(self._waiters)
                self._write(connection)
                self._answer(waiters)
                if closing:
                    break
        except Exception as error:  # the waiters must be released in any case
            if isinstance(error, sqlite3.Error):
                self.failure = journal_error(self.path, error)
            elif isinstance(error, JournalError):
                self.failure = error
            else:
                self.failure = JournalError(f"{self.path}: cannot write the {self.kind}: {error!r}")
            self._answer(waiters + drain_queue(self._waiters))
            if self.on_failure is not None and not self._closing:
                self._loop.call_soon_threadsafe(self.on_failure, self.failure)
        finally:
            if connection is not None:
                _merge_log(connection)
                connection.close()

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Take the write lock; wait, with a warning, for another program that holds it."""
        began = time.monotonic()
        while True:
            try:
                connection.execute("begin immediate")
                return
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - began
                patience = _CLOSING_SECONDS if self._closing or self._hasty else _PATIENCE_SECONDS
                if not is_locked(error) or waited >= patience:
                    raise
                warnings.warn(
                    f"{self.path}: another program holds a write lock on the {self.kind}; the run waits for at most "
                    f"{_PATIENCE_SECONDS / 60:g} minutes",
                    JournalNotice,
                    stacklevel=1,
                )

    def _answer(self, waiters: list[asyncio.Future[None]]) -> None:
        if waiters:
            self._loop.call_soon_threadsafe(_resolve, waiters)


class Journal(LogWriter):
    """The writing half of a run's journal."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        on_failure: Callable[[JournalError], None] | None = None,
        durability: Durability = "commit",
    ) -> None:
        super().__init__(path, clock, on_failure)
        self._durability: Durability = durability
        # Deques: append and pop are atomic, so the hot path needs no lock.
        self._started: deque[tuple[Any, ...]] = deque()
        self._calls: deque[tuple[Any, ...]] = deque()
        self._ended: deque[tuple[Any, ...]] = deque()
        self._control: deque[tuple[float, str, Collection[int]]] = deque()
        self._latest: tuple[Any, int] = (None, 0)
        self._commits = 0
        self._written = 0

    def record_started(self, number: int, key: str, item: Any) -> None:
        """Record that a conversation was admitted; `item` is stored so that the run folder explains itself.

        If it is the same object as in the previous conversation (another candidate on the same item), only the number
        of the conversation that first stored it is written, after `SAME_ITEM_PREFIX`.
        """
        latest, first = self._latest
        if item is latest and item is not None and number != first:
            text = f"{SAME_ITEM_PREFIX}{first}"
        else:
            text = orjson.dumps(item).decode()
            self._latest = (item, number)
        self._append(self._started, (number, key, text))

    def record_call(
        self, number: int, role: str, ordinal: int, digest: bytes, completion: Completion, at: float
    ) -> None:
        """Record an answered model call; `role` is a value that `role_in_branch` returned."""
        c = completion
        self._append(
            self._calls,
            (
                number,
                role,
                ordinal,
                digest,
                c.text,
                c.finish,
                c.prompt_tokens,
                c.completion_tokens,
                at,
                c.latency,
                rare_fields(c),
            ),
        )

    def record_ended(self, number: int, status: str, result: Any) -> None:
        """Record a conversation's final end, with status `finished` or `failed`."""
        self._append(self._ended, (number, status, orjson.dumps(result, option=orjson.OPT_SORT_KEYS).decode()))

    def record_control(self, at: float, request: Any, reopened: Collection[int] = ()) -> None:
        """Record what the run was asked to do; `reopened` are conversations that have ended and are to go on."""
        self._append(self._control, (at, orjson.dumps(request, option=orjson.OPT_SORT_KEYS).decode(), reopened))

    @property
    def full(self) -> bool:
        """True if too many rows are queued; await `flush` before adding more."""
        return len(self._calls) >= _FULL_ROWS

    def statistics(self) -> dict[str, int]:
        """Return the numbers of rows written, commits, and rows waiting."""
        return {"rows": self._written, "commits": self._commits, "waiting": len(self._calls)}

    def _open(self) -> sqlite3.Connection:
        connection = open_database(self.path, self._durability)
        self._file = _file_identity(self.path)
        self._summed = schema_version(connection) >= 2
        return connection

    def _write(self, connection: sqlite3.Connection) -> None:
        # In reverse order: the calls and start of an ended conversation are in the queues that are emptied later.
        ended, calls, started = drain_queue(self._ended), drain_queue(self._calls), drain_queue(self._started)
        control = drain_queue(self._control)
        if total := len(ended) + len(calls) + len(started) + len(control):
            self._insert(connection, control, started, calls, ended)
            self._written += total
            self._commits += 1
        self._check_in_place()

    def _insert(
        self,
        connection: sqlite3.Connection,
        control: list[tuple[float, str, Collection[int]]],
        *groups: list[tuple[Any, ...]],
    ) -> None:
        self._begin(connection)
        for at, request, reopened in control:
            connection.execute(_CONTROL)
            [(last,)] = connection.execute("select coalesce(max(number), 0) from control").fetchall()
            row = (last + 1, at, request)
            connection.execute("insert into control values (?, ?, ?, ?)", (*row, short_checksum(row)))
            connection.executemany("delete from ended where number = ?", [(number,) for number in reopened])
        for (table, (columns, checksum)), rows in zip(_TABLES.items(), groups, strict=True):
            if self._summed:
                try:
                    rows = [(*row, checksum(row)) for row in rows]
                except struct.error as error:
                    raise OverflowError(f"a number does not fit its column: {error}") from error
                columns += 1
            insert_rows(connection, table, columns, rows)
        connection.execute("commit")

    def _check_in_place(self) -> None:
        """Check that the file being written is still the file of that name, which a resume will open."""
        if _file_identity(self.path) != self._file:
            raise JournalError(
                f"{self.path}: the journal was removed or replaced during the run: everything recorded since then is "
                "lost; restore the run folder and `viva resume` it, or start the run again in another folder"
            )


def _merge_log(connection: sqlite3.Connection) -> None:
    """Merge the log into the file. Closing the connection does so only if nobody has the file open to read it."""
    with suppress(sqlite3.Error):
        connection.execute("pragma busy_timeout = 1000")
        connection.execute("pragma wal_checkpoint(truncate)")


def open_database(path: Path, durability: Durability = "commit") -> sqlite3.Connection:
    """Open (or create) a journal file for writing and check its version.

    Raises:
        JournalError: It is corrupt, of another version, a link, or cannot be written.
    """
    refuse_special_database(path)
    try:
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, cached_statements=64)
        connection.execute("pragma journal_mode = wal")
        connection.execute(f"pragma synchronous = {_SYNCHRONOUS[durability]}")
        connection.execute(f"pragma fullfsync = {durability == 'power'}")  # on macOS a plain sync may stay in the drive
        connection.execute("pragma wal_autocheckpoint = 4000")
        if schema_version(connection) == 0:
            _drop_unfinished_tables(connection, path)
            connection.executescript(_SCHEMA)
            connection.execute("insert or ignore into meta values ('schema', ?)", (str(SCHEMA_VERSION),))
        version = schema_version(connection)
    except sqlite3.Error as error:
        raise journal_error(path, error) from error
    if version not in READABLE_VERSIONS:
        raise unreadable_version_error(path, version)
    return connection


def _drop_unfinished_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Drop the tables of an interrupted creation, perhaps by another version with other columns.

    Raises:
        JournalError: They contain rows, so the row with the version was lost.
    """
    tables = {name for (name,) in connection.execute("select name from sqlite_master")} & _TABLES.keys()
    for table in sorted(tables):
        if connection.execute(f"select 1 from {table} limit 1").fetchone():
            raise damaged_journal_error(path)
        connection.execute(f"drop table {table}")


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of a journal's schema; 0 if it has none yet, -1 if it is not a number."""
    if not connection.execute("select 1 from sqlite_master where name = 'meta'").fetchone():
        return 0
    row = connection.execute("select value from meta where key = 'schema'").fetchone()
    if row is None:
        return 0
    text = str(row[0])
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from any other under its name; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def insert_rows(connection: sqlite3.Connection, table: str, columns: int, rows: list[tuple[Any, ...]]) -> None:
    """Insert rows with as few statements as the parameter limit allows."""
    placeholders = "(" + ",".join("?" * columns) + ")"
    start = 0
    for chunk in _CHUNKS:
        while len(rows) - start >= chunk:
            values = [value for row in rows[start : start + chunk] for value in row]
            connection.execute(f"insert or replace into {table} values " + ",".join([placeholders] * chunk), values)
            start += chunk


def unreadable_version_error(path: Path, version: int) -> JournalError:
    """Return the error for a journal with an unsupported schema."""
    return JournalError(f"{path}: {describe_version_problem('journal schema', version, READABLE_VERSIONS)}")


def drain_queue(queue: deque[T]) -> list[T]:
    """Remove and return everything in a queue."""
    items = []
    while queue:
        items.append(queue.popleft())
    return items


def _resolve(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
