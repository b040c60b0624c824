"""Stopping a run and cancelling conversations: which error decides, which waits end, which calls are awaited.

A run that is asked to stop awaits the requests under way and begins no further one. A wait before a request
(for a permit, a connection, the next try) stands inside ``cancellable_wait``; a request that waits in a queue
of another thread stands inside ``withdrawable``. The context of the task says which run it belongs to, so
backends that several runs share need not be told.
"""

from __future__ import annotations

import asyncio
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
    """The run was asked to stop: the requests under way are recorded, and no further one begins. For the runner."""


class ConversationStopped(Exception):  # control flow, not an error
    """The conversation, or a branch of it, is to end now. ``by`` says who asked (detector, budget, …), ``reason`` why.

    A protocol catches it to return what it has; uncaught, the conversation ends without a result.
    """

    def __init__(self, by: str, reason: str) -> None:
        super().__init__(f"{by}: {reason}")
        self.by, self.reason = by, reason


class EndOfRecord(BaseException):  # control flow, not an error
    """A conversation that is held again asks for more than was recorded. Not an ``Exception``, so that protocols do not
    catch it.
    """


# The next conversation would meet it too: the run ends, and this conversation may go on when it is resumed.
ENDS_RUN = (AccountBlocked, ConfigurationError, JournalError, Unauthorized, Unreachable)
_ENDS_TASK = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, EndOfRecord)


def is_failure(error: BaseException) -> bool:
    """Return whether what a user's code has raised is a failure of that code: anything but the cancellation of the
    task, and what ends the program. ``SystemExit`` is a failure, and so are exceptions of libraries that are no
    ``Exception`` (``pytest.fail``), or ``CancelledError`` in a task that nobody has cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return not isinstance(error, _ENDS_TASK)


def deciding_error(error: BaseException) -> BaseException:
    """Return the error of a group, however deeply nested, that decides what becomes of whoever raised it.

    Task groups raise all that their tasks have raised together. The order of precedence: what ends the program or
    cancels the task; what ends the run, or interrupts its conversations; failures, where a model's is taken last, for
    it may follow from another; ``ConversationStopped``. So a conversation that can go on later is not recorded as
    failed, and one that has failed is not recorded as stopped. Of equals the first counts. An error that is no group is
    returned as it is.
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
    """Whether a run was asked to stop (`requested`). ``enter`` makes it that of the current task and its children."""

    __slots__ = ("_waits", "requested")

    def __init__(self) -> None:
        self.requested = False
        self._waits: set[Callable[[], None]] = set()

    def request(self) -> None:
        """Stop: waits before a request end at once."""
        self.requested = True
        for withdraw in list(self._waits):
            withdraw()

    def enter(self) -> None:
        """Hold for whatever the current task awaits from here on."""
        _CURRENT.set(self)


_CURRENT: ContextVar[StopSignal | None] = ContextVar("viva_stop", default=None)


@contextmanager
def cancellable_wait() -> Iterator[None]:
    """Surround a wait before a request: ``RunStopping`` ends it once the task's run was asked to stop."""
    with anyio.CancelScope() as scope, withdrawable(scope.cancel):
        yield
    if scope.cancelled_caught:
        raise RunStopping


@contextmanager
def withdrawable(withdraw: Callable[[], None]) -> Iterator[None]:
    """Around a request that waits in a queue until it is computed. ``withdraw`` is called, in the event loop, when the
    task's run is asked to stop: it takes the request back unless it is being computed.

    :raises RunStopping: the task's run was asked to stop before.
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


T = TypeVar("T")


async def gather(calls: Sequence[Callable[[], Awaitable[T]]], *, abandon: bool = False) -> list[T]:
    """Await them all, begun in their order; one alone is awaited here, without a task of its own.

    Where any raises, the others still go on to their ends, so that what they ask of models does not depend on which of
    them is faster; then the error that decides (``stopping.decisive``, in the order in which they were given) is
    raised. With ``abandon`` the others are cancelled instead.
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
    """Which conversations of one run are cancelled, by key. One that has not begun yet fails when its turn comes."""

    __slots__ = ("_reasons", "_under_way")

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._under_way: dict[str, _CancelGuard] = {}

    def guard(self, key: str) -> _CancelGuard:
        """Return a context manager around one conversation; raises ``ConversationCancelled`` if it was cancelled."""
        return _CancelGuard(self, key)

    async def cancel(self, keys: Iterable[str], reason: str) -> list[str]:
        """Cancel these conversations and wait until none of their calls is under way; the keys of those that were. The
        caller is not one of them.
        """
        reasons = dict.fromkeys(keys, reason)
        self._reasons = reasons | self._reasons
        guards = {key: self._under_way[key] for key in reasons if key in self._under_way}
        ends = [guard.cancel() for guard in guards.values()]
        for ended in ends:
            await ended.wait()
        return list(guards)


class _CancelGuard:
    """Around one conversation. The event that tells its end is made only if somebody waits for it: thousands of these
    stand in memory at once.
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
        """Cancel the conversation, and return the event that is set when it has ended."""
        self._ended = self._ended or anyio.Event()
        self._scope.cancel()
        return self._ended
