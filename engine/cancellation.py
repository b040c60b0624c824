"""Stopping and pausing a run, cancelling conversations: which error decides, which waits end, which calls are awaited.

A run that is asked to stop awaits the requests in flight and starts no others. A wait before a request (for a permit, a
connection, the next retry) runs inside `cancellable_wait`; a request that waits in another thread's queue runs inside
`withdrawable`. The task's context identifies its run, so backends shared by several runs need no notification.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TypeVar

import anyio

from .errors import (
    AccountBlocked,
    BackendError,
    ConfigurationError,
    ConversationCancelled,
    JournalError,
    LimitReached,
    Unauthorized,
    Unreachable,
)


class RunStopping(Exception):  # control flow, not an error
    """The run was asked to stop. Requests in flight are recorded; no other begins. For the runner."""


class ConversationStopped(Exception):  # control flow, not an error
    """The conversation, or a branch of it, must end now. `by` says who asked (detector, budget, …), `reason` says why.

    A protocol may catch it to return what it has; otherwise the conversation ends without a result.
    """

    def __init__(self, by: str, reason: str) -> None:
        super().__init__(f"{by}: {reason}")
        self.by, self.reason = by, reason


class EndOfRecord(BaseException):  # control flow, not an error
    """A replayed conversation asks for more than was recorded.

    Not an `Exception`, so that protocols do not catch it.
    """


# The next conversation would fail likewise: the run ends, and this conversation continues when the run is resumed.
ENDS_RUN = (AccountBlocked, ConfigurationError, JournalError, Unauthorized, Unreachable)
_ENDS_TASK = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, EndOfRecord)


def is_failure(error: BaseException) -> bool:
    """Return True if an exception raised by a user's code is a failure of that code.

    It is not a failure if it ends the program or cancels the current task.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return not isinstance(error, _ENDS_TASK)


def deciding_error(error: BaseException) -> BaseException:
    """Return the error that takes precedence in a (nested) exception group.

    Task groups raise the errors of all their tasks together. The order of precedence: what ends the program or cancels
    the task; what ends the run or interrupts its conversations; failures (a model's failure last, because it may follow
    from another failure); `ConversationStopped`. So a conversation that can continue later is not recorded as failed,
    and a failed one is not recorded as stopped. Of errors of equal rank the first counts. An error that is no group is
    returned as is.
    """
    return min(_leaf_errors(error), key=_precedence)


def _leaf_errors(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaf_errors(part)
    else:
        yield error


def _precedence(error: BaseException) -> int:
    if isinstance(error, ENDS_RUN):
        return 1
    match error:
        case LimitReached():
            return 2
        case RunStopping():
            return 3
        case ConversationStopped():
            return 6
        case BackendError():
            return 5
    return 0 if isinstance(error, _ENDS_TASK) else 4


class StopSignal:
    """A run's request to stop. `enter` makes it the signal of the current task and its children."""

    __slots__ = ("_waits", "requested")

    def __init__(self) -> None:
        self.requested = False
        self._waits: set[Callable[[], None]] = set()

    def request(self) -> None:
        """Ask the run to stop: waits before a request end at once."""
        self.requested = True
        for withdraw in list(self._waits):
            withdraw()

    def enter(self) -> None:
        """Apply this signal to everything that the current task awaits from here on."""
        _CURRENT.set(self)


_CURRENT: ContextVar[StopSignal | None] = ContextVar("viva_stop", default=None)


@contextmanager
def cancellable_wait() -> Iterator[None]:
    """Surround a wait before a request: it raises `RunStopping` once the task's run is asked to stop."""
    with anyio.CancelScope() as scope, withdrawable(scope.cancel):
        yield
    if scope.cancelled_caught:
        raise RunStopping


@contextmanager
def withdrawable(withdraw: Callable[[], None]) -> Iterator[None]:
    """Surround a request that waits in a queue until it is computed.

    If the task's run is asked to stop, `withdraw` is called in the event loop and removes the request from the queue,
    unless it is already being computed.

    Raises:
        RunStopping: The run had been asked to stop already.
    """
    stop = _CURRENT.get()
    if stop is None:
        yield
        return
    if stop.requested:
        raise RunStopping
    stop._waits.add(withdraw)
    try:
        yield
    finally:
        stop._waits.discard(withdraw)


EVERY = ""  # instead of a model's label: all models


class Gate:
    """Gate of one run. `closed` is True if it holds back any calls; nothing else is asked on the hot path."""

    __slots__ = ("_changed", "_labels", "_waiting", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._labels: set[str] = set()
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Event()

    @property
    def closed_for(self) -> frozenset[str]:
        """Labels of the models whose calls are held back, or `EVERY`."""
        return frozenset(self._labels)

    def waiting(self, label: str = EVERY) -> int:
        """Return the number of calls of a model, or of all models, that wait until they may begin."""
        return self._waiting.total() if label == EVERY else self._waiting[label]

    def describe(self) -> list[str]:
        """Return a sentence for each pause: `model-a is paused: 2 calls wait until it is resumed`."""
        sentences = []
        for label in sorted(self._labels):
            count = self.waiting(label)
            wait = f": {count:,} call{' waits' if count == 1 else 's wait'} until it is resumed" if count else ""
            sentences.append(f"{label or 'the run'} is paused{wait}")
        return sentences

    def hold(self, label: str = EVERY) -> None:
        """Hold back the calls that begin from now on."""
        self._labels.add(label)
        self.closed = True

    def release(self, label: str = EVERY) -> None:
        """Let calls begin again."""
        self._labels.discard(label)
        self.closed = bool(self._labels)
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, label: str) -> None:
        """Wait until calls of this model may begin; raise `RunStopping` once the run is asked to stop."""
        self._waiting[label] += 1
        try:
            while self._labels & {EVERY, label}:
                with cancellable_wait():
                    await self._changed.wait()
        finally:
            self._waiting[label] -= 1


T = TypeVar("T")


async def gather(calls: Sequence[Callable[[], Awaitable[T]]], *, abandon: bool = False) -> list[T]:
    """Await all calls, started in order; return their results in the same order.

    A single call is awaited here, without a new task.

    If a call raises, the other calls still finish, so that the requests they make do not depend on timing; then the
    error that takes precedence (`deciding_error`, in the order of `calls`) is raised. With `abandon` the other calls
    are cancelled instead.
    """
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    async def run(index: int) -> None:
        try:
            results[index] = await calls[index]()
        except BaseException as error:
            if not is_failure(error):
                raise
            errors[index] = error
            if abandon:
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for index in range(len(calls)):
            group.start_soon(run, index)
    if errors:
        raise deciding_error(BaseExceptionGroup("of parts at once", [errors[index] for index in sorted(errors)]))
    return [results[index] for index in range(len(calls))]


class ConversationCanceller:
    """The cancelled conversations of one run, by key. A conversation cancelled before it begins fails at its turn."""

    __slots__ = ("_reasons", "_under_way")

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._under_way: dict[str, _CancelGuard] = {}

    def guard(self, key: str) -> _CancelGuard:
        """Return a context manager for one conversation; `ConversationCancelled` is raised if it was cancelled."""
        return _CancelGuard(self, key)

    def forget(self, keys: Iterable[str]) -> None:
        """Let conversations that were cancelled begin again."""
        for key in keys:
            self._reasons.pop(key, None)

    def remember(self, keys: Iterable[str], reason: str) -> None:
        """Cancel conversations that have not begun."""
        self._reasons = dict.fromkeys(keys, reason) | self._reasons

    async def cancel(self, keys: Iterable[str], reason: str) -> list[str]:
        """Cancel conversations, wait until their calls have ended, and return the keys of those that were running.

        The caller must not be one of these conversations.
        """
        keys = [*keys]
        self.remember(keys, reason)
        guards = {key: self._under_way[key] for key in keys if key in self._under_way}
        events = [guard.cancel() for guard in guards.values()]
        for event in events:
            await event.wait()
        return list(guards)


class _CancelGuard:
    """Context manager of one conversation.

    Its end event is created only if somebody waits for the event, because thousands of guards exist at once.
    """

    __slots__ = ("_cancelling", "_ended", "_key", "_scope")

    def __init__(self, cancelling: ConversationCanceller, key: str) -> None:
        self._cancelling, self._key = cancelling, key
        self._ended: anyio.Event | None = None

    def __enter__(self) -> None:
        if self._key in self._cancelling._reasons:
            raise ConversationCancelled(self._cancelling._reasons[self._key])
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        self._cancelling._under_way[self._key] = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            caught = self._scope.__exit__(kind, error, traceback)
        finally:
            del self._cancelling._under_way[self._key]
            if self._ended is not None:
                self._ended.set()
        if self._scope.cancelled_caught:
            raise ConversationCancelled(self._cancelling._reasons[self._key]) from None
        return caught

    def cancel(self) -> anyio.Event:
        """Cancel the conversation and return the event that is set when it has ended."""
        self._ended = self._ended or anyio.Event()
        self._scope.cancel()
        return self._ended
