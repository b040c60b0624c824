"""Batches of a model's calls: gathered, recorded, sent, polled, and handed to the calls that wait for them.

A batch is paid work that may take a day, so it outlives this process. Its record is an SQLite file in the run's folder:
a batch and the names of its calls are committed before the batch is created at the endpoint, its id once the endpoint
has answered, and the answers before any call gets one. Creating a batch is not idempotent: if it is unknown whether the
endpoint created one (a kill, a broken connection), the endpoint's list is searched for it before its calls are sent
again.

A call's name is a hash of its run, conversation, branch, role, ordinal and request. In a resumed run the same call
therefore finds its answer in a recorded batch, even if that batch was sent by a process that was killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..cancellation import cancellable_wait
from ..clock import Clock
from ..errors import (
    AccountBlocked,
    AnswerTooLarge,
    BackendError,
    ConfigurationError,
    Forbidden,
    JournalError,
    Rejected,
    SettingRefused,
    Throttled,
    Unauthorized,
    Unreachable,
)
from ..events import BatchChanged, Retried
from ..files import describe_version_problem
from ..journal import journal_error, refuse_special_database
from ..limits import DEFAULT_PATIENCE
from ..messages import Request
from .base import EventSink
from .batch_api import Batch, BatchApi, BatchStatus, BatchUndecided, Outcome, is_batch_id

T = TypeVar("T")

DEFAULT_WAIT = 5.0  # seconds without a new call after which a batch is sent
# All other times are multiples of that wait: the first and the longest pause between polls, and the time after which a
# batch that was about to be created is in the endpoint's list, or was never created.
_FIRST_POLL, _LONGEST_POLL, _SETTLING = 2.0, 60.0, 6.0
_POLL_GROWTH = 1.5
_FIRST_RETRY, _LONGEST_RETRY = 0.1, 12.0  # likewise, after a failed request of the batch API
_FRAME_BYTES = 200  # around a body in a batch
_CHUNK_BYTES = 8 << 20  # of answers in one transaction
_VERSION = 1
_TABLES = """
create table meta (salt text not null);
create table batches (
    number integer primary key, state text not null, id text not null default '', calls integer not null,
    began real not null, ended real);
create table calls (name text not null, batch integer not null, answer blob, primary key (name, batch)) without rowid;
"""
# States: a batch that is being created, was created, has ended, or was never created.
_SENDING, _SENT, _ENDED, _DROPPED = "sending", "sent", "ended", "dropped"
_READABLE = "typeof(answer) = 'blob'"  # SQLite stores a value of any type in any column


def record_path(folder: Path, model: str) -> Path:
    """Return the path of a model's record of batches in a run's folder."""
    return folder / f"batches-{hashlib.blake2b(model.encode(), digest_size=4).hexdigest()}.sqlite"


class BatchRecord:
    """Record of one model's batches; one process at a time. The file is made with the first batch.

    Raises:
        ConfigurationError: Another process uses the file, or it is of another version.
        JournalError: It is a link, is damaged, or cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self.salt = secrets.token_hex(8)  # tells the names of this record from those of a copy of the run elsewhere
        if os.path.lexists(path):
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _open(self) -> sqlite3.Connection:
        refuse_special_database(self._path)
        with self._explained():
            self._connection = connection = sqlite3.connect(self._path, timeout=1.0, isolation_level=None)
            connection.execute("pragma locking_mode = exclusive")
            connection.execute("pragma synchronous = extra")
            connection.execute("begin exclusive")
            (version,) = connection.execute("pragma user_version").fetchone()
            if version == 0:
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute("insert into meta values (?)", (self.salt,))
                connection.execute(f"pragma user_version = {_VERSION}")
            elif version != _VERSION:
                raise ConfigurationError(f"{self._path}: {describe_version_problem('record', version, [_VERSION])}")
            connection.execute("commit")
            row = connection.execute("select salt from meta").fetchone()
        if row is None or not isinstance(row[0], str):
            raise self._damage_error("its table 'meta' has no text")
        self.salt = row[0]
        return connection

    def _damage_error(self, problem: str) -> JournalError:
        return JournalError(
            f"{self._path}: the batch record is damaged ({problem}): restore it from a copy, or delete it: calls "
            "without a recorded answer are then paid for again"
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise ConfigurationError(
                    f"{self._path}: another process uses this model's batches; run shards of a sweep one after another"
                ) from None
            raise journal_error(self._path, error, "batch record") from error
        except sqlite3.Error as error:
            raise journal_error(self._path, error, "batch record") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection or self._open()
        with self._explained():
            connection.execute("begin immediate")
            try:
                yield connection
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    def _rows(self, query: str, *values: Any) -> list[Any]:
        if self._connection is None:
            return []
        with self._explained():
            return self._connection.execute(query, values).fetchall()

    def open_batches(self) -> list[Batch]:
        """Return the batches that are or may be at the endpoint, oldest first."""
        rows = self._rows("select number, began, id from batches where state in (?, ?) order by number",
                          _SENDING, _SENT)  # fmt: skip
        for number, began, identifier in rows:
            if not isinstance(began, float) or not (identifier == "" or is_batch_id(identifier)):
                raise self._damage_error(
                    f"batch {number} has the id {str(identifier)[:40]!r} and the time {began!r:.40}"
                )
        return [
            Batch(
                number,
                self._key(number),
                [
                    name
                    for (name,) in self._rows(
                        "select name from calls where batch = ? and typeof(name) = 'text'", number
                    )
                ],
                began,
                identifier,
            )
            for number, began, identifier in rows
        ]

    def _key(self, number: int) -> str:
        return f"viva-{self.salt}-{number}"

    def begin(self, names: Sequence[str], at: float) -> Batch:
        """Record a batch that is about to be created."""
        with self._transaction() as connection:
            number = connection.execute(
                "insert into batches (state, calls, began) values (?, ?, ?)", (_SENDING, len(names), at)
            ).lastrowid
            assert number is not None
            connection.executemany("insert into calls values (?, ?, null)", ((name, number) for name in names))
        return Batch(number, self._key(number), names, at)

    def sent(self, batch: Batch) -> None:
        """Record that a batch was created, with its id."""
        with self._transaction() as connection:
            connection.execute("update batches set state = ?, id = ? where number = ?",
                               (_SENT, batch.id, batch.number))  # fmt: skip

    def store(self, batch: Batch, answers: Sequence[tuple[str, bytes]]) -> None:
        """Record answers of a batch; the first answer of a call counts."""
        with self._transaction() as connection:
            connection.executemany(
                f"update calls set answer = ? where name = ? and batch = ? and not {_READABLE}",
                ((answer, name, batch.number) for name, answer in answers),
            )

    def end(self, batch: Batch, at: float, *, created: bool) -> None:
        """Record that a batch has ended, or that it was never created."""
        with self._transaction() as connection:
            connection.execute("update batches set state = ?, ended = ? where number = ?",
                               (_ENDED if created else _DROPPED, at, batch.number))  # fmt: skip

    def answer(self, name: str) -> bytes | None:
        """Return the recorded answer of a call."""
        rows = self._rows(f"select answer from calls where name = ? and {_READABLE} limit 1", name)
        return rows[0][0] if rows else None

    def discard(self, name: str) -> None:
        """Delete an answer that cannot be read, so that the call can be sent again."""
        with self._transaction() as connection:
            connection.execute("update calls set answer = null where name = ?", (name,))

    def ids(self) -> set[str]:
        """Return the ids of all batches."""
        return {identifier for (identifier,) in self._rows("select id from batches where id != ''")}

    def has_answers(self) -> bool:
        """Return True if any call was ever answered."""
        return bool(self._rows(f"select 1 from calls where {_READABLE} limit 1"))


@dataclass(slots=True)
class _WaitingCall:
    """A call that waits for its answer. The future's result is an error, or None once the answer is recorded."""

    body: bytes
    future: asyncio.Future[Exception | None]
    waiters: int = 0


class _Backoff:
    """Pauses after failed requests of the batch API, until the patience is used up."""

    def __init__(self, queue: BatchQueue) -> None:
        self._queue = queue
        self._began: float | None = None
        self._failures = 0

    async def pause(self, error: BackendError) -> None:
        """Wait after a failure; raise `Unreachable` if failures have lasted for as long as the patience."""
        queue, clock = self._queue, self._queue.clock
        now = clock.now()
        self._began = now if self._began is None else self._began
        if now - self._began > queue.patience:
            raise Unreachable(
                f"the batch API has failed for {now - self._began:.0f} s; last error: "
                f"{str(error).removeprefix(f'{error.model}: ')}. Resume the run later; no batch is lost",
                model=error.model,
            ) from None
        factor = min(_LONGEST_RETRY, _FIRST_RETRY * 2.0 ** min(self._failures, 30))
        self._failures += 1
        delay = max(queue.wait * factor, min(error.retry_after or 0.0, queue.patience))
        queue.publish(Retried(clock.wall(), "", queue.api.label, type(error).__name__, delay))
        await clock.sleep(delay)


def _ignore_event(event: Any) -> None:
    """Publish nothing."""


class BatchQueue:
    """Calls of one model on their way through batches.

    A batch is sent if no call has arrived for `wait` seconds, or if it is full. Call `join_run`, then `open`.
    """

    def __init__(self, api: BatchApi, clock: Clock, wait: float = DEFAULT_WAIT) -> None:
        self.api, self.clock, self.wait = api, clock, wait
        self.patience = DEFAULT_PATIENCE
        self.publish: EventSink = _ignore_event
        self.has_answers = False
        self._path: Path | None = None
        self._record: BatchRecord | None = None
        self._calls: dict[str, _WaitingCall] = {}
        self._pending: dict[str, _WaitingCall] = {}  # not in a batch yet
        self._in_batch: set[str] = set()
        self._lost: dict[str, Exception] = {}  # calls in batches that this process no longer follows
        self._last_arrival = 0.0
        self._gathering = False
        self._tasks: set[asyncio.Task[None]] = set()

    def join_run(self, folder: Path | None, model: str, label: str, publish: EventSink | None, patience: float) -> None:
        """Set the folder of the record, and who hears of batches."""
        self.api.label = label
        self._path = None if folder is None else record_path(folder, model)
        self.publish = publish or _ignore_event
        self.patience = patience or DEFAULT_PATIENCE

    def open(self) -> None:
        """Open the record and follow the batches that an earlier process has left.

        Raises:
            ConfigurationError: There is no run, or another process uses the record.
            JournalError: The record is a link, is damaged, or cannot be read.
        """
        if self._path is None:
            raise ConfigurationError(
                f"{self.api.label}: batch=on works only in a run or a sweep, whose folder records the batches; "
                "leave it out here"
            )
        self._record = BatchRecord(self._path)
        try:
            self.has_answers = self._record.has_answers()
            batches = self._record.open_batches()
        except BaseException:
            self._record.close()
            raise
        for batch in batches:
            self._in_batch.update(batch.names)
            self._spawn(self._recover(batch), batch.names)

    async def close(self) -> None:
        """Stop following batches; a resumed run continues."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._record is not None:
            self._record.close()

    async def ask(self, request: Request, body: bytes) -> bytes:
        """Return the answer to a call: recorded, from a batch under way, or from the next batch.

        Raises:
            RunStopping: The run was asked to stop. The batch is not lost.
            BackendError: The call was not answered; the type says whether to send it again.
            ConfigurationError: The endpoint accepts no batches.
        """
        record, name = self._opened, self._name(request)
        answer = record.answer(name)
        if answer is not None:
            return answer
        if name in self._lost:
            raise _copy_error(self._lost[name])
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = _WaitingCall(body, asyncio.get_running_loop().create_future())
            if name not in self._in_batch:
                self._queue(name, call)
        call.waiters += 1
        try:
            with cancellable_wait():
                error = await asyncio.shield(call.future)
        finally:
            call.waiters -= 1
            if not call.waiters and self._calls.get(name) is call:
                del self._calls[name]
                self._pending.pop(name, None)
        if error is not None:
            raise _copy_error(error)
        answer = record.answer(name)
        assert answer is not None
        return answer

    def discard(self, request: Request) -> None:
        """Delete a call's answer, which cannot be read."""
        self._opened.discard(self._name(request))

    def statistics(self) -> dict[str, Any]:
        """Return the number of calls that wait for the next batch, and of those in batches."""
        return {"gathered": len(self._pending), "in_batches": len(self._in_batch)}

    @property
    def _opened(self) -> BatchRecord:
        if self._record is None:
            raise ConfigurationError(f"{self.api.label}: the backend is used outside its `async with`")
        return self._record

    def _name(self, request: Request) -> str:
        """Return a call's name: 32 hexadecimal digits."""
        assert self._path is not None
        run = "" if request.run is None else os.path.relpath(request.run, self._path.parent)
        parts = (self._opened.salt, run, request.conversation, request.branch, request.role, str(request.ordinal))
        encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
        data = b"".join(b"%d:%b" % (len(part), part) for part in encoded)
        return hashlib.blake2b(data + request.digest, digest_size=16).hexdigest()

    def _queue(self, name: str, call: _WaitingCall) -> None:
        self._pending[name] = call
        self._last_arrival = self.clock.now()
        if not self._gathering:
            self._gathering = True
            self._spawn(self._gather())

    async def _gather(self) -> None:
        """Send batches until no call waits."""
        try:
            while self._pending:
                idle = self.clock.now() - self._last_arrival
                if idle < self.wait and len(self._pending) < self.api.max_calls:
                    await self.clock.sleep(self.wait - idle)
                    continue
                bodies = self._take()
                try:
                    batch = self._opened.begin(list(bodies), self.clock.wall())
                except Exception as error:
                    self._finish(bodies, error)
                    continue
                self._in_batch.update(bodies)
                self._spawn(self._send(batch, bodies), batch.names)
        finally:
            self._gathering = False

    def _take(self) -> dict[str, bytes]:
        """Remove the calls of the next batch from the pending ones; return their bodies by name."""
        bodies: dict[str, bytes] = {}
        size = 0
        for name, call in self._pending.items():
            size += len(call.body) + _FRAME_BYTES
            if bodies and (size > self.api.max_bytes or len(bodies) == self.api.max_calls):
                break
            bodies[name] = call.body
        for name in bodies:
            del self._pending[name]
        return bodies

    def _spawn(self, work: Coroutine[Any, Any, None], names: Sequence[str] = ()) -> None:
        """Run `work`. If it fails, so do the calls with these names; their batch may still be at the endpoint."""

        async def run() -> None:
            try:
                await work
            except Exception as error:
                self._lost.update(dict.fromkeys(names, error))
                self._finish(names, error)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, batch: Batch, bodies: dict[str, bytes]) -> None:
        try:
            batch.id = await self._create(batch, bodies)
        except Unreachable:
            raise  # the batch may have been created: a resumed run searches for it
        except BackendError as error:
            self._opened.end(batch, self.clock.wall(), created=False)
            self._in_batch.difference_update(batch.names)
            self._finish(batch.names, self._refusal(error))
            return
        bodies.clear()
        self._opened.sent(batch)
        await self._follow(batch)

    async def _create(self, batch: Batch, bodies: dict[str, bytes]) -> str:
        """Create a batch once, although its creation may fail without a sign whether it took place."""
        backoff = _Backoff(self)
        while True:
            try:
                return await self.api.create(batch, bodies)
            except (Rejected, AccountBlocked):
                raise
            except Throttled as error:
                await backoff.pause(error)
            except BackendError as error:
                await self.clock.sleep(self.wait * _SETTLING)
                if (identifier := await self._find(batch)) is not None:
                    return identifier
                await backoff.pause(error)

    async def _find(self, batch: Batch) -> str | None:
        """Return the id of a batch that may have been created."""
        pauses = self._poll_pauses()
        while True:
            try:
                return await self._persist(lambda: self.api.find(batch, self._opened.ids()))
            except BatchUndecided:
                await self.clock.sleep(next(pauses))

    async def _recover(self, batch: Batch) -> None:
        """Continue with a batch of an earlier process."""
        if not batch.id:
            age = max(0.0, self.clock.wall() - batch.began)
            await self.clock.sleep(self.wait * _SETTLING - age)
            identifier = await self._find(batch)
            if identifier is None:
                self._opened.end(batch, self.clock.wall(), created=False)
                self._in_batch.difference_update(batch.names)
                for name in batch.names:
                    if name in self._calls:
                        self._queue(name, self._calls[name])
                return
            batch.id = identifier
            self._opened.sent(batch)
        await self._follow(batch)

    async def _follow(self, batch: Batch) -> None:
        """Poll a batch until it has ended, record its answers, and hand them to the waiting calls."""
        self.publish(BatchChanged(batch.began, "", self.api.label, batch.number, len(batch.names), "sent"))
        pauses = self._poll_pauses()
        while not (status := await self._persist(lambda: self.api.poll(batch), batch)).ended:
            await self.clock.sleep(next(pauses))
        if (failure := status.failure) is None:
            errors = await self._persist(lambda: self._collect(batch, status), batch)
        else:
            if isinstance(failure, Throttled) and failure.retry_after is None:
                failure.retry_after = min(self.wait * _LONGEST_POLL, self.patience)
            errors = dict.fromkeys(batch.names, self._refusal(failure))
        self._opened.end(batch, self.clock.wall(), created=True)
        self.publish(BatchChanged(self.clock.wall(), "", self.api.label, batch.number, len(batch.names), "ended"))
        self._in_batch.difference_update(batch.names)
        for name in batch.names:
            self._finish([name], errors.get(name))

    async def _collect(self, batch: Batch, status: BatchStatus) -> dict[str, Exception]:
        """Record the answers of an ended batch; return the errors of all other calls."""
        left = set(batch.names)
        errors: dict[str, Exception] = {}
        answers: list[tuple[str, bytes]] = []
        size = 0

        def store() -> None:
            nonlocal size
            if answers:
                self.has_answers = True
                self._opened.store(batch, answers)
            answers.clear()
            size = 0

        def take(name: str, outcome: Outcome) -> None:
            nonlocal size
            if name not in left:  # not ours, or a second result
                return
            left.remove(name)
            if isinstance(outcome, BackendError):
                errors[name] = outcome
                return
            answers.append((name, outcome))
            size += len(outcome)
            if size > _CHUNK_BYTES:
                store()

        is_cut = await self.api.read_results(batch, status, take)
        store()
        missing: BackendError | None = status.missing
        if is_cut:
            missing = AnswerTooLarge("a result of the batch is too long (option answer_mb)", model=self.api.label)
        assert missing is not None
        return errors | dict.fromkeys(left, missing)

    def _finish(self, names: Iterable[str], error: Exception | None) -> None:
        """End the waiting calls of these names: with an error, or because their answers are recorded."""
        for name in names:
            call = self._calls.pop(name, None)
            if call is not None and not call.future.done():
                call.future.set_result(error)

    def _refusal(self, error: BackendError) -> Exception:
        """Return the error of calls whose batch was refused as a whole; the first refusal ends the run."""
        if not isinstance(error, Rejected) or isinstance(error, Unauthorized | Forbidden) or self.has_answers:
            return error
        return SettingRefused(
            f"{self.api.label}: the endpoint refuses batches: {str(error).removeprefix(f'{error.model}: ')}; use a "
            "model that has a batch API, or leave batch=on out (a resumed run keeps its model names, so start a new "
            "run)"
        )

    async def _persist(self, operation: Callable[[], Awaitable[T]], batch: Batch | None = None) -> T:
        """Repeat a request that may safely be repeated until it succeeds or is refused."""
        backoff = _Backoff(self)
        while True:
            try:
                return await operation()
            except BackendError as error:
                if isinstance(error, Rejected) and not isinstance(error, Unauthorized):
                    subject = f"batch {batch.id}" if batch is not None else "the list of batches"
                    raise ConfigurationError(
                        f"{self.api.label}: the endpoint does not show {subject}: "
                        f"{str(error).removeprefix(f'{error.model}: ')}; use the key and address with which the run "
                        f"began, or delete {self._path}: calls without a recorded answer are then paid for again"
                    ) from None
                if not error.retryable:
                    raise
                await backoff.pause(error)

    def _poll_pauses(self) -> Iterator[float]:
        factor = _FIRST_POLL
        while True:
            yield self.wait * factor
            factor = min(_LONGEST_POLL, factor * _POLL_GROWTH)


def _copy_error(error: Exception) -> Exception:
    """Return an error of its own for one of several calls that failed together."""
    if not isinstance(error, BackendError | ConfigurationError):
        return error
    copied = type(error).__new__(type(error))
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    return copied
