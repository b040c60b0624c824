"""Real and virtual clocks. Every wait goes through a clock.

Under `VirtualClock` the event loop never sleeps: when nothing is ready, time jumps to the next timer. Hours of back-off
pass in milliseconds, and everything that waits on the loop (anyio, asyncio, our limits) uses this time unchanged.
Threads cannot be skipped: wait for one inside `external()`, and the loop then really waits.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio

T = TypeVar("T")

# Monotonic seconds, including time in suspend if the system counts it.
_seconds_since_boot: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


class Clock(Protocol):
    """Interface of a clock."""

    def now(self) -> float:
        """Return monotonic seconds; only differences are meaningful."""

    def wall(self) -> float:
        """Return seconds since the epoch, for timestamps."""

    async def sleep(self, seconds: float) -> None:
        """Sleep; zero or less still lets other tasks run once."""

    def external(self) -> Any:
        """Return a context manager that surrounds a wait for another thread."""

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run `main` in a new event loop that follows this clock."""


class RealClock:
    """The system clock. Its timestamps stay monotonic even if somebody sets the machine's clock.

    They are the time of the object's creation plus the seconds since then, including time in suspend.
    """

    def __init__(self) -> None:
        self._began = time.time() - _seconds_since_boot()

    now = staticmethod(time.monotonic)  # called several times per call: avoids a frame

    def wall(self) -> float:
        return self._began + _seconds_since_boot()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(max(0.0, seconds))

    @contextmanager
    def external(self) -> Iterator[None]:
        yield

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        return anyio.run(main)


class VirtualClock:
    """A clock that advances only when everybody waits. `start` is the first value of `wall`."""

    def __init__(self, start: float = 0.0) -> None:
        self._start = start
        self._now = 0.0
        self.waiting_outside = 0

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._start + self._now

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(max(0.0, seconds))

    @contextmanager
    def external(self) -> Iterator[None]:
        self.waiting_outside += 1
        try:
            yield
        finally:
            self.waiting_outside -= 1

    def advance(self, seconds: float) -> None:
        """Jump ahead. Called by the loop's selector, and by tests."""
        self._now += seconds

    def drives(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return True if an event loop follows this clock."""
        return isinstance(loop, _VirtualLoop) and loop.clock is self

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        return anyio.run(main, backend_options={"loop_factory": lambda: _VirtualLoop(self)})


class _JumpingSelector(selectors.DefaultSelector):
    """Selector that advances the clock instead of waiting for a timeout."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        # While a thread is working we really wait: the thread wakes the loop through the loop's pipe.
        ready = super().select(None if self._clock.waiting_outside else 0)
        if ready:
            return ready
        self._clock.advance(timeout)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        super().__init__(_JumpingSelector(clock))

    def time(self) -> float:
        return self.clock.now()
