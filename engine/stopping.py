"""How a run that was asked to stop tells its calls: requests under way are waited for, and none begins any more.

A wait before a request (for a permit, a connection, the next try) stands inside ``waiting``; a request that waits in a
queue of another thread, where it is computed without a further wait, stands inside ``queued``. The context of the task
says which run it belongs to, so backends that several runs share need not know them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import anyio

from .errors import (
    AccountBlocked,
    BackendError,
    ConfigurationError,
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


class RecordEnds(BaseException):  # control flow, not an error
    """A conversation that is held again asks for more than was recorded. Not an ``Exception``, so that protocols do not
    catch it.
    """


# The next conversation would meet it too: the run ends, and this conversation may go on when it is resumed.
ENDS_RUN = (AccountBlocked, ConfigurationError, JournalError, Unauthorized, Unreachable)
_ENDS_TASK = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, RecordEnds)


def is_failure(error: BaseException) -> bool:
    """Return whether what a user's code has raised is a failure of that code: anything but the cancellation of the
    task, and what ends the program. ``SystemExit`` is a failure, and so are exceptions of libraries that are no
    ``Exception`` (``pytest.fail``), or ``CancelledError`` in a task that nobody has cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return not isinstance(error, _ENDS_TASK)


def decisive(error: BaseException) -> BaseException:
    """Return the error of a group, however deeply nested, that decides what becomes of whoever raised it.

    Task groups raise all that their tasks have raised together. The order of precedence: what ends the program or
    cancels the task; what ends the run, or interrupts its conversations; failures, where a model's is taken last, for
    it may follow from another; ``ConversationStopped``. So a conversation that can go on later is not recorded as
    failed, and one that has failed is not recorded as stopped. Of equals the first counts. An error that is no group is
    returned as it is.
    """
    return min(_leaves(error), key=_precedence)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
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


class Stop:
    """Whether a run was asked to stop (``asked``). ``enter`` makes it that of the current task and its children."""

    __slots__ = ("_waits", "asked")

    def __init__(self) -> None:
        self.asked = False
        self._waits: set[Callable[[], None]] = set()

    def ask(self) -> None:
        """Stop: waits before a request end at once."""
        self.asked = True
        for withdraw in list(self._waits):
            withdraw()

    def enter(self) -> None:
        """Hold for whatever the current task awaits from here on."""
        _CURRENT.set(self)


_CURRENT: ContextVar[Stop | None] = ContextVar("viva_stop", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Around a wait that precedes a request.

    :raises RunStopping: the task's run was asked to stop.
    """
    with anyio.CancelScope() as scope, queued(scope.cancel):
        yield
    if scope.cancelled_caught:
        raise RunStopping


@contextmanager
def queued(withdraw: Callable[[], None]) -> Iterator[None]:
    """Around a request that waits in a queue until it is computed. ``withdraw`` is called, in the event loop, when the
    task's run is asked to stop: it takes the request back unless it is being computed.

    :raises RunStopping: the task's run was asked to stop before.
    """
    stop = _CURRENT.get()
    if stop is None:
        yield
        return
    if stop.asked:
        raise RunStopping
    stop._waits.add(withdraw)
    try:
        yield
    finally:
        stop._waits.discard(withdraw)
