"""Folder of a load test: its settings (`load.json`), its lock, and the log of all requests (`load.sqlite`).

Logging never slows down the load: if the disk is slower, rows wait in memory. Any process may read the
log during the test.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson

from viva.engine.clock import Clock
from viva.engine.errors import ConfigurationError, JournalError
from viva.engine.files import describe_version_problem, find_sqlite_damage, write_atomically
from viva.engine.journal import LogWriter, drain_queue, insert_rows, journal_error
from viva.engine.permissions import grant_from_seal, seal_manifest
from viva.engine.run_folder import RunFolder, installed_versions
from viva.scoring.load_latency import RequestTiming

from .load_records import LoadStep, SentRequest

LOG_FILE = "load.sqlite"
LOG_VERSION = 1
LOG_SCHEMA = """
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
# In the order of the table `sent`; a `SentRequest` has `part` as its last field.
_COLUMNS = (
    *("step", "judge", "number", "part", "request", "occurrence", "seed"),
    *("intended", "dispatched", "first_token", "finished", "text", "finish", "prompt_tokens", "completion_tokens"),
    *("error", "message", "tries", "throttled"),
)
_to_row = attrgetter(*_COLUMNS)


class LoadLog(LogWriter):
    """Writer of a log."""

    kind = "log"
    group_seconds = 0.05

    def __init__(self, path: Path, clock: Clock, on_failure: Callable[[JournalError], None] | None = None) -> None:
        super().__init__(path, clock, on_failure)
        self._requests: deque[tuple[Any, ...]] = deque()
        self._changes: deque[tuple[str, tuple[Any, ...]]] = deque()

    def record(self, request: SentRequest) -> None:
        """Record a request that has ended, successfully or not."""
        self._append(self._requests, _to_row(request))

    def begin_step(self, step: LoadStep) -> None:
        """Record that a step begins or is resumed."""
        plan = orjson.dumps(step).decode()
        self._change(
            "insert or ignore into steps (step, plan, began) values (?, ?, ?)",
            (step.index, plan, round(self._clock.wall(), 3)),
        )

    def begin_part(self, step: int, part: int) -> None:
        """Record that a part of a step begins; its end stays unknown if the process is killed."""
        self._change("insert or replace into parts values (?, ?, null, null)", (step, part))

    def end_part(self, step: int, part: int, seconds: float, watched: Any) -> None:
        """Record the end of a part: the seconds during which requests were admitted, and monitoring data (JSON)."""
        self._change(
            "update parts set seconds = ?, watched = ? where step = ? and part = ?",
            (seconds, orjson.dumps(watched).decode(), step, part),
        )

    def end_step(self, step: int, ends: dict[str, str]) -> None:
        """Record the end of a step; `ends` has the reason for each judge."""
        self._change("update steps set ends = ? where step = ?", (orjson.dumps(ends).decode(), step))

    def _change(self, statement: str, values: tuple[Any, ...]) -> None:
        self._append(self._changes, (statement, values))

    def _open(self) -> sqlite3.Connection:
        return _open_log(self.path)

    def _write(self, connection: sqlite3.Connection) -> None:
        # Changes are taken first: when a step ends, its requests are already in the queue that is taken second.
        changes, requests = drain_queue(self._changes), drain_queue(self._requests)
        if not changes and not requests:
            return
        self._begin(connection)
        insert_rows(connection, "sent", len(_COLUMNS), requests)
        for statement, values in changes:
            connection.execute(statement, values)
        connection.execute("commit")


def _open_log(path: Path) -> sqlite3.Connection:
    """Open or create the log for writing.

    Raises:
        JournalError: The log has another version.
    """
    connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, cached_statements=64)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    connection.execute("pragma wal_autocheckpoint = 4000")
    connection.executescript(LOG_SCHEMA)
    connection.execute("insert or ignore into meta values ('schema', ?)", (str(LOG_VERSION),))
    check_log_version(path, connection)
    return connection


def check_log_version(path: Path, connection: sqlite3.Connection) -> None:
    """Check that a log has this version.

    Raises:
        JournalError: The log has another version.
    """
    row = connection.execute("select value from meta where key = 'schema'").fetchone()
    if row is None or row[0] != str(LOG_VERSION):
        raise JournalError(
            f"{path}: {describe_version_problem('log of a load test, schema', row and row[0], [LOG_VERSION])}"
        )


_ROWS_AT_ONCE = 1024
_TIMING_COLUMNS = ", ".join(RequestTiming.__dataclass_fields__)
_SENT_COLUMNS = ", ".join(SentRequest.__dataclass_fields__)


@dataclass(slots=True, frozen=True)
class LoggedPart:
    """Part of a step.

    `seconds` is the time during which requests were admitted, None if the part was killed; `watched` is monitoring
    data.
    """

    part: int
    seconds: float | None
    watched: dict[str, Any]


@dataclass(slots=True, frozen=True)
class LoggedStep:
    """Step that began at `began` (seconds since the epoch).

    `ends` has the reason of its end for each judge, None while it is running.
    """

    step: LoadStep
    began: float
    ends: dict[str, str] | None
    parts: tuple[LoggedPart, ...]


class LoadHistory:
    """Reader of a log. Close it, or use it as a context manager.

    Raises:
        JournalError: There is no log, or it cannot be read.
    """

    def __init__(self, folder: Path, *, checked: bool = False) -> None:
        """Open the log; with `checked`, first verify the whole log, which takes as long as reading it."""
        self.path = folder / LOG_FILE
        if not self.path.exists():
            raise JournalError(f"{self.path}: the log of the load test is missing; restore it from a copy")
        try:
            self._connection = sqlite3.connect(self.path, timeout=30.0, isolation_level=None)
            check_log_version(self.path, self._connection)
        except sqlite3.Error as error:
            raise journal_error(self.path, error) from error
        if checked and (damage := find_sqlite_damage(self._connection, LOG_SCHEMA)):
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
        """Return all steps that have begun, in the order in which they ran."""
        steps = []
        for number, *row in self._rows("select step, plan, began, ends from steps order by place"):
            parts = self._rows("select part, seconds, watched from parts where step = ? order by part", number)
            try:
                steps.append(_step_from_row(row, parts))
            except (ValueError, TypeError, KeyError) as error:
                problem = f"the record of step {number} cannot be read ({type(error).__name__}: {error})"
                raise JournalError(f"{self.path}: {problem}; restore the file from a copy") from None
        return steps

    def finished(self, step: int, judge: str) -> bytearray:
        """Return a byte for each of the judge's requests up to the highest ended number: 1 if it has ended, else 0."""
        [(highest,)] = self._rows("select max(number) from sent where step = ? and judge = ?", step, judge)
        marks = bytearray(0 if highest is None else highest + 1)
        for (number,) in self._rows("select number from sent where step = ? and judge = ?", step, judge):
            marks[number] = 1
        return marks

    def count(self, step: int | None = None) -> int:
        """Return the number of ended requests, in one step or in all."""
        clause = "" if step is None else "where step = ?"
        [(count,)] = self._rows(f"select count(*) from sent {clause}", *([] if step is None else [step]))
        return int(count)

    def messages(self, step: int, judge: str) -> dict[str, str]:
        """Return a judge's failures in a step: by type, the message of the first one."""
        query = "select error, message, min(number) from sent where step = ? and judge = ? and error != '' group by 1"
        return {error: message for error, message, _ in self._rows(query, step, judge)}

    def timings(self, step: int, judge: str) -> Iterator[tuple[int, int, RequestTiming]]:
        """Yield `(part, number, timing)` of a judge's requests in a step, ordered by number."""
        query = f"select part, number, {_TIMING_COLUMNS} from sent where step = ? and judge = ? order by number"
        for part, number, *fields in self._rows(query, step, judge):
            yield part, number, RequestTiming(*fields)

    def sent_requests(self, step: int, judge: str) -> Iterator[SentRequest]:
        """Yield a judge's requests in a step with their texts, ordered by number."""
        query = f"select {_SENT_COLUMNS} from sent where step = ? and judge = ? order by number"
        for row in self._rows(query, step, judge):
            yield SentRequest(*row)

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            cursor = self._connection.execute(query, values)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield from rows
        except sqlite3.Error as error:
            raise journal_error(self.path, error) from error


def _step_from_row(row: Sequence[Any], parts: Iterable[tuple[Any, ...]]) -> LoggedStep:
    """Return the step that a row records.

    Raises:
        ValueError, TypeError, KeyError: A record has another form than those that are written.
    """
    plan, began, ends = row
    fields = orjson.loads(plan)
    fields["judges"] = tuple(fields["judges"])
    logged = []
    for part, seconds, watched in parts:
        observed = orjson.loads(watched) if watched else {}
        if not isinstance(observed, dict):
            raise TypeError("monitoring data is not an object")
        logged.append(LoggedPart(part, seconds, observed))
    reasons = orjson.loads(ends) if ends else None
    if reasons is not None and not isinstance(reasons, dict):
        raise TypeError("its end reasons are not an object")
    return LoggedStep(LoadStep(**fields), began, reasons, tuple(logged))


LOAD_FILE = "load.json"
_LOCK = "lock"
_FOLDER_VERSION = 1


class LoadFolder:
    """Load test on disk. Call `create` or `open` to get one, and `lock` before writing."""

    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self.path, self.fields = path, fields
        self._created: list[Path] = []  # paths that this object has created
        self._lock = RunFolder(path, {})

    @classmethod
    def create(cls, path: Path, fields: dict[str, Any]) -> LoadFolder:
        """Create the folder with `fields` (JSON data) in it.

        Raises:
            ConfigurationError: The folder already contains something.
            JournalError: The folder cannot be written.
        """
        if (path / LOAD_FILE).exists():
            raise ConfigurationError(
                f"{path} already contains a load test; resume it with `viva judge load --resume {path}`, or choose "
                "another folder with --out"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigurationError(f"{path} exists and is not a load test; choose another folder with --out")
        created = [path / LOAD_FILE, path / _LOCK, *([] if path.exists() else [path])]
        try:
            path.mkdir(parents=True, exist_ok=True)
            record = seal_manifest({"load_test": _FOLDER_VERSION, **fields, "versions": installed_versions()})
            data = orjson.dumps(record, option=orjson.OPT_INDENT_2)
            write_atomically(path / LOAD_FILE, data)
        except OSError as error:
            raise JournalError(f"{path}: cannot create the folder of the load test: {error.strerror}") from error
        folder = cls.open(path)
        folder._created = created
        return folder

    @classmethod
    def open(cls, path: Path) -> LoadFolder:
        """Open a load test.

        Raises:
            ConfigurationError: The folder has no load test, or its `load.json` cannot be read.
        """
        file = path / LOAD_FILE
        try:
            fields = orjson.loads(file.read_bytes())
        except FileNotFoundError:
            raise ConfigurationError(f"{path}: not a load test: there is no {LOAD_FILE}") from None
        except (OSError, orjson.JSONDecodeError) as error:
            raise ConfigurationError(f"{file}: cannot be read: {error}") from None
        if not isinstance(fields, dict) or fields.get("load_test") != _FOLDER_VERSION:
            version = fields.get("load_test") if isinstance(fields, dict) else None
            raise ConfigurationError(f"{file}: {describe_version_problem('load_test', version, [_FOLDER_VERSION])}")
        grant_from_seal(fields)
        return cls(path, fields)

    def lock(self) -> None:
        """Keep other processes from writing to this test."""
        self._lock.lock()

    def unlock(self) -> None:
        """Release the lock; if no step has begun, remove what this object has created."""
        if not (self.path / LOG_FILE).exists():
            for path in self._created:
                with suppress(OSError):
                    path.rmdir() if path == self.path else path.unlink()
        self._lock.unlock()
