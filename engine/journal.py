"""The journal: every finished model call, and every conversation's start and end, in one SQLite file.

Writing belongs to one thread of its own; the event loop only appends to a list. The thread takes what has gathered,
writes it with many rows per statement and commits once (WAL, group commit). Many rows per statement is what makes
this work beside a busy loop: each SQLite step gives up the interpreter lock and must win it back.

What never belongs here: what a call means, scores, prompts (a view is rebuilt from its recorded replies).
Reading back is in ``history``.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson

from .clock import Clock
from .errors import JournalError
from .messages import Completion

T = TypeVar("T")

SCHEMA_VERSION = 1
_SCHEMA = """
create table if not exists meta (key text primary key, value text not null) without rowid;
create table if not exists started (number integer primary key, key text not null, item text not null);
create table if not exists calls (
    conversation integer not null, role text not null, ordinal integer not null, digest blob not null,
    text text not null, finish text not null, prompt_tokens integer not null, completion_tokens integer not null,
    at real not null, latency real not null, extra text);
create index if not exists calls_by_conversation on calls (conversation);
create table if not exists ended (number integer primary key, status text not null, result text not null);
"""
_CALL_COLUMNS = 11
# SQLite takes 32,766 parameters a statement; powers of two keep the statement cache small.
_CHUNKS = (1024, 256, 64, 16, 4, 1)
_GROUP_SECONDS = 0.02
_EAGER_ROWS = 2048
_FULL_ROWS = 20_000
SAME = "="  # no JSON begins like this
_NOTHING = (None,) * 6


class Journal:
    """The writing half. Use ``async with Journal(path, clock)``; leaving it flushes and joins the thread.

    ``record_*`` never wait and raise ``JournalError`` once the file can no longer be written. ``on_failure`` is called
    in the event loop when that happens, so that the run can stop at once.
    """

    def __init__(self, path: Path, clock: Clock, on_failure: Callable[[JournalError], None] | None = None) -> None:
        self.path = path
        self.failure: JournalError | None = None
        self.on_failure = on_failure
        self._clock = clock
        # Deques: appending here and popping there are each one atomic step, so no lock stands in the hot path.
        self._started: deque[tuple[Any, ...]] = deque()
        self._calls: deque[tuple[Any, ...]] = deque()
        self._ended: deque[tuple[Any, ...]] = deque()
        self._latest: tuple[Any, int] = (None, 0)
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._thread = threading.Thread(target=self._write_forever, name="viva-journal", daemon=True)
        self._commits = 0
        self._written = 0

    async def __aenter__(self) -> Journal:
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(ready)
        self._thread.start()
        try:
            with self._clock.external():
                await ready
            self._raise_failure()
        except BaseException:
            await self.__aexit__()  # nobody else will
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        # No await here may be cancelled away: what was computed must reach the disk even when the run is halted.
        self._closing = True
        self._wake.set()
        self._hurry.set()
        self._thread.join()

    def record_started(self, number: int, key: str, item: Any) -> None:
        """A conversation was admitted; ``item`` is kept so that the run folder explains itself.

        Where it is the very object that the conversation before had (another candidate on the same item), the number of
        the one that it was first written with is kept instead, behind ``SAME``.
        """
        latest, first = self._latest
        if item is latest and item is not None and number != first:
            text = f"{SAME}{first}"
        else:
            text = orjson.dumps(item).decode()
            self._latest = (item, number)
        self._append(self._started, (number, key, text))

    def record_call(
        self, number: int, role: str, ordinal: int, digest: bytes, completion: Completion, at: float
    ) -> None:
        """A model call was answered."""
        c = completion
        rare = (c.logprobs, c.first_token, c.pieces, c.expected, c.likelihoods, c.calls)
        extra = orjson.dumps(_extra(c)).decode() if c.attempts > 1 or c.thoughts or rare != _NOTHING else None
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
                extra,
            ),
        )

    def record_ended(self, number: int, status: str, result: Any) -> None:
        """A conversation ended for good: status ``finished`` or ``failed``."""
        self._append(self._ended, (number, status, orjson.dumps(result, option=orjson.OPT_SORT_KEYS).decode()))

    @property
    def full(self) -> bool:
        """More rows wait than should; await ``flush`` before making more."""
        return len(self._calls) >= _FULL_ROWS

    async def flush(self) -> None:
        """Wait until everything recorded so far is committed.

        :raises JournalError: it cannot be.
        """
        self._raise_failure()
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(done)
        self._raise_failure()  # the thread may have died, and answered its last waiters, just before we joined them
        self._wake.set()
        self._hurry.set()
        with self._clock.external():
            await done
        self._raise_failure()

    def statistics(self) -> dict[str, int]:
        """Rows written, commits made, rows waiting."""
        return {"rows": self._written, "commits": self._commits, "waiting": len(self._calls)}

    def _append(self, queue: deque[tuple[Any, ...]], row: tuple[Any, ...]) -> None:
        self._raise_failure()
        queue.append(row)
        if not self._wake.is_set():
            self._wake.set()
        elif len(queue) == _EAGER_ROWS:
            self._hurry.set()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    # -- the writing thread ---------------------------------------------------------------------------------------

    def _write_forever(self) -> None:
        connection: sqlite3.Connection | None = None
        waiters: list[asyncio.Future[None]] = []
        try:
            connection = open_database(self.path)
            self._answer(_drain(self._waiters))
            while True:
                self._wake.wait()
                if not self._closing:
                    self._hurry.wait(_GROUP_SECONDS)  # let a group gather
                closing = self._closing
                self._wake.clear()
                self._hurry.clear()
                waiters = _drain(self._waiters)
                self._write(connection)
                self._answer(waiters)
                if closing:
                    break
        except Exception as error:  # whatever ended this thread: nobody may be left waiting for it
            if isinstance(error, sqlite3.Error):
                self.failure = journal_error(self.path, error)
            elif isinstance(error, JournalError):
                self.failure = error
            else:
                self.failure = JournalError(f"{self.path}: cannot write the journal: {error!r}")
            self._answer(waiters + _drain(self._waiters))
            if self.on_failure is not None and not self._closing:
                self._loop.call_soon_threadsafe(self.on_failure, self.failure)
        finally:
            if connection is not None:
                connection.close()

    def _write(self, connection: sqlite3.Connection) -> None:
        # Last things first: whatever ended has its calls and its start in the queues that are emptied after it.
        ended, calls, started = _drain(self._ended), _drain(self._calls), _drain(self._started)
        total = len(ended) + len(calls) + len(started)
        if not total:
            return
        connection.execute("begin immediate")
        insert_rows(connection, "started", 3, started)
        insert_rows(connection, "calls", _CALL_COLUMNS, calls)
        insert_rows(connection, "ended", 3, ended)
        connection.execute("commit")
        self._written += total
        self._commits += 1

    def _answer(self, waiters: list[asyncio.Future[None]]) -> None:
        if waiters:
            self._loop.call_soon_threadsafe(_resolve, waiters)


def _extra(c: Completion) -> dict[str, Any]:
    """What few completions have; ``history`` reads it back."""
    fields: dict[str, Any] = {"attempts": c.attempts}
    for name in ("first_token", "logprobs", "pieces", "expected"):
        value = getattr(c, name)
        if value is not None:
            fields[name] = value
    if c.thoughts:
        fields["thoughts"] = c.thoughts
    if c.likelihoods is not None:
        fields["likelihoods"] = [likelihood.to_record() for likelihood in c.likelihoods]
    if c.calls is not None:
        fields["calls"] = [call.to_record() for call in c.calls]
    return fields


def open_database(path: Path) -> sqlite3.Connection:
    """Open (or make) a journal file for writing and check that it is one of this version.

    :raises JournalError: it is corrupt, of another version, or cannot be written.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None, cached_statements=64)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        connection.execute("pragma wal_autocheckpoint = 4000")
        connection.executescript(_SCHEMA)
        connection.execute("insert or ignore into meta values ('schema', ?)", (str(SCHEMA_VERSION),))
        (version,) = connection.execute("select value from meta where key = 'schema'").fetchone()
    except sqlite3.Error as error:
        raise journal_error(path, error) from error
    if int(version) != SCHEMA_VERSION:
        raise JournalError(
            f"{path}: journal schema {version}, this version of viva writes schema {SCHEMA_VERSION}; "
            "use the version named in the run's manifest.json"
        )
    return connection


def insert_rows(connection: sqlite3.Connection, table: str, columns: int, rows: list[tuple[Any, ...]]) -> None:
    """Insert many rows with as few statements as the parameter limit allows."""
    one = "(" + ",".join("?" * columns) + ")"
    start = 0
    for chunk in _CHUNKS:
        while len(rows) - start >= chunk:
            values = [value for row in rows[start : start + chunk] for value in row]
            connection.execute(f"insert or replace into {table} values " + ",".join([one] * chunk), values)
            start += chunk


def journal_error(path: Path, error: sqlite3.Error) -> JournalError:
    """Say what is wrong with the file and what to do, keeping SQLite's own words."""
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        advice = "free space on that disk (or raise the file-size limit), then `viva resume` the run"
    elif code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        advice = "the file is damaged: restore it from a copy, or start the run anew in another folder"
    else:
        advice = "check that the folder exists and may be written"
    return JournalError(f"{path}: cannot use the journal: {error} ({code or 'sqlite'}); {advice}")


def missing_journal(path: Path) -> JournalError:
    """The error where a run's manifest is there and its journal is not."""
    return JournalError(
        f"{path}: the journal of this run is missing; put it back where it was (gunzip it if it is packed), "
        "or start the run anew in another folder"
    )


def _drain(queue: deque[T]) -> list[T]:
    taken = []
    while queue:
        taken.append(queue.popleft())
    return taken


def _resolve(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
