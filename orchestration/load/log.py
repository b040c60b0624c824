"""The log of a load test: every finished request with its text, and where the test stands, in one SQLite file.

Writing belongs to one thread, as in the engine's journal: the event loop only appends to a queue, the thread lets rows
gather, writes them with few statements and commits once (WAL, group commit). What was committed outlives the process; a
kill loses the requests of some tens of milliseconds. Nothing here ever slows the load down: if the disk is slower than
the load, rows wait in memory.

What never belongs here: figures. Reading back is in ``log_reading``.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from viva.engine.clock import Clock
from viva.engine.errors import JournalError
from viva.engine.formats import other_version
from viva.engine.journal import insert_rows
from viva.engine.journal_errors import journal_error

from .records import LoadStep, Sent

FILE = "load.sqlite"
VERSION = 1
SCHEMA = """
create table if not exists meta (key text primary key, value text not null) without rowid;
create table if not exists steps (
    place integer primary key, step integer not null unique, plan text not null, began real not null, ends text);
create table if not exists parts (
    step integer not null, part integer not null, seconds real, watched text, primary key (step, part)) without rowid;
create table if not exists sent (
    step integer not null, judge text not null, number integer not null, part integer not null,
    request text not null, occurrence integer not null, seed integer not null,
    intended real not null, dispatched real not null, first_token real, finished real not null,
    text text not null, finish text not null, prompt_tokens integer not null, completion_tokens integer not null,
    error text not null, message text not null, tries integer not null, throttled real not null,
    primary key (step, judge, number));
"""
_COLUMNS = 19
_GROUP_SECONDS = 0.05
_EAGER_ROWS = 4096


class LoadLog:
    """The writing half. Use ``async with LoadLog(path, clock)``; leaving it writes what is left and joins the thread.

    ``record`` and its like never wait; they raise ``JournalError`` once the file can no longer be written.
    ``on_failure`` is called in the event loop when that happens.
    """

    def __init__(self, path: Path, clock: Clock, on_failure: Callable[[JournalError], None] | None = None) -> None:
        self.path, self.failure, self.on_failure = path, None, on_failure
        self._clock = clock
        self._sent: deque[tuple[Any, ...]] = deque()
        self._changes: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._wake, self._hurry = threading.Event(), threading.Event()
        self._closing = False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._thread = threading.Thread(target=self._write_forever, name="viva-load-log", daemon=True)

    path: Path
    failure: JournalError | None

    async def __aenter__(self) -> LoadLog:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        try:
            await self.flush()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        # Nothing here awaits, so nothing can be cancelled: what was recorded reaches the disk.
        self._closing = True
        self._wake.set()
        self._hurry.set()
        self._thread.join()

    def record(self, one: Sent) -> None:
        """A request has ended, well or badly."""
        self._raise_failure()
        self._sent.append(
            (
                one.step,
                one.judge,
                one.number,
                one.part,
                one.request,
                one.occurrence,
                one.seed,
                one.intended,
                one.dispatched,
                one.first_token,
                one.finished,
                one.text,
                one.finish,
                one.prompt_tokens,
                one.completion_tokens,
                one.error,
                one.message,
                one.tries,
                one.throttled,
            )
        )
        if not self._wake.is_set():
            self._wake.set()
        elif len(self._sent) == _EAGER_ROWS:
            self._hurry.set()

    def begin_step(self, step: LoadStep) -> None:
        """A step begins, or goes on."""
        plan = orjson.dumps(step).decode()
        self._change(
            "insert or ignore into steps (step, plan, began) values (?, ?, ?)",
            (step.index, plan, round(self._clock.wall(), 3)),
        )

    def begin_part(self, step: int, part: int) -> None:
        """A part of a step begins; its end is unknown if it is killed."""
        self._change("insert or replace into parts values (?, ?, null, null)", (step, part))

    def end_part(self, step: int, part: int, seconds: float, watched: Any) -> None:
        """A part has ended: how long requests were let in, and what was watched beside them (JSON data)."""
        self._change(
            "update parts set seconds = ?, watched = ? where step = ? and part = ?",
            (seconds, orjson.dumps(watched).decode(), step, part),
        )

    def end_step(self, step: int, ends: dict[str, str]) -> None:
        """A step has ended, for each judge by a reason."""
        self._change("update steps set ends = ? where step = ?", (orjson.dumps(ends).decode(), step))

    async def flush(self) -> None:
        """Wait until all that was recorded so far is committed.

        :raises JournalError: it cannot be.
        """
        self._raise_failure()
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(done)
        self._raise_failure()
        self._wake.set()
        self._hurry.set()
        with self._clock.external():
            await done
        self._raise_failure()

    def _change(self, statement: str, values: tuple[Any, ...]) -> None:
        self._raise_failure()
        self._changes.append((statement, values))
        self._wake.set()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    # -- the writing thread ---------------------------------------------------------------------------------------

    def _write_forever(self) -> None:
        connection: sqlite3.Connection | None = None
        waiters: list[asyncio.Future[None]] = []
        try:
            connection = _opened(self.path)
            while True:
                self._wake.wait()
                if not self._closing:
                    self._hurry.wait(_GROUP_SECONDS)  # let a group gather
                closing = self._closing
                self._wake.clear()
                self._hurry.clear()
                waiters = _drained(self._waiters)
                self._write(connection)
                self._answer(waiters)
                if closing:
                    break
        except Exception as error:  # whatever ended this thread, its waiters must be released
            if isinstance(error, sqlite3.Error):
                self.failure = journal_error(self.path, error)
            elif isinstance(error, JournalError):
                self.failure = error
            else:
                self.failure = JournalError(f"{self.path}: cannot write the log: {error!r}")
            self._answer(waiters + _drained(self._waiters))
            if self.on_failure is not None and not self._closing:
                self._loop.call_soon_threadsafe(self.on_failure, self.failure)
        finally:
            if connection is not None:
                connection.close()

    def _write(self, connection: sqlite3.Connection) -> None:
        # Changes first: the requests of a step that ends are in the queue that is emptied after it.
        changes, sent = _drained(self._changes), _drained(self._sent)
        if not changes and not sent:
            return
        connection.execute("begin immediate")
        insert_rows(connection, "sent", _COLUMNS, sent)
        for statement, values in changes:
            connection.execute(statement, values)
        connection.execute("commit")

    def _answer(self, waiters: list[asyncio.Future[None]]) -> None:
        if waiters:
            self._loop.call_soon_threadsafe(_resolve, waiters)


def _opened(path: Path) -> sqlite3.Connection:
    """Open the log for writing, or make it.

    :raises JournalError: it is of another version.
    """
    connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, cached_statements=64)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    connection.execute("pragma wal_autocheckpoint = 4000")
    connection.executescript(SCHEMA)
    connection.execute("insert or ignore into meta values ('schema', ?)", (str(VERSION),))
    check_version(path, connection)
    return connection


def check_version(path: Path, connection: sqlite3.Connection) -> None:
    """:raises JournalError: the log is of another version."""
    found = connection.execute("select value from meta where key = 'schema'").fetchone()
    if found is None or found[0] != str(VERSION):
        raise JournalError(f"{path}: {other_version('log of a load test, schema', found and found[0], [VERSION])}")


def _drained(queue: deque[Any]) -> list[Any]:
    taken = []
    while queue:
        taken.append(queue.popleft())
    return taken


def _resolve(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
