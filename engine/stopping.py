"""How a run that was asked to stop tells its calls: requests under way are waited for, and none begins any more.

A wait before a request (for a permit, a connection, the next try) stands inside ``waiting``. The context of the task
says which run it belongs to, so backends that several runs share need not know them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import anyio


class RunStopping(Exception):  # control flow, not an error
    """The run was asked to stop: the requests under way are recorded, and no further one begins. For the runner."""


class Stop:
    """Whether a run was asked to stop (``asked``). ``enter`` makes it that of the current task and its children."""

    __slots__ = ("_waits", "asked")

    def __init__(self) -> None:
        self.asked = False
        self._waits: set[anyio.CancelScope] = set()

    def ask(self) -> None:
        """Stop: waits before a request end at once."""
        self.asked = True
        for scope in self._waits:
            scope.cancel()

    def enter(self) -> None:
        """Hold for whatever the current task awaits from here on."""
        _CURRENT.set(self)


_CURRENT: ContextVar[Stop | None] = ContextVar("viva_stop", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Around a wait that precedes a request.

    :raises RunStopping: the task's run was asked to stop.
    """
    stop = _CURRENT.get()
    if stop is None:
        yield
        return
    if stop.asked:
        raise RunStopping
    with anyio.CancelScope() as scope:
        stop._waits.add(scope)
        try:
            yield
        finally:
            stop._waits.discard(scope)
    if scope.cancelled_caught:
        raise RunStopping
