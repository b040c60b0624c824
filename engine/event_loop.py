"""The event loop under load: its lag, fair turns among thousands of conversations, a tuned garbage collector.

When thousands of answers arrive at once, asyncio would run all of their continuations in one turn, while timers,
signals and sockets wait for a tenth of a second. Each conversation passes a `LoopYield` after every answer: within the
turn's time slice it continues at once; after that it queues (first in, first out) for one of the next turns.

The garbage collector belongs to the whole process, so only the `viva` command tunes it; a program that embeds the
engine may put `with gc_tuned():` around its runs. Tens of thousands of live conversations make up nearly all of the
heap and contain no garbage cycles, yet every full collection walks them all.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from .clock import Clock

_INTERVAL_SECONDS = 0.05
_MAX_SAMPLES = 20_000


class LagMonitor:
    """Measures the event loop's lag while entered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lags: list[float] = []
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    async def __aenter__(self) -> LagMonitor:
        self._loop = asyncio.get_running_loop()
        self._arm()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        self._due = self._loop.time() + _INTERVAL_SECONDS
        self._handle = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        if len(self._lags) >= _MAX_SAMPLES:  # after hours: drop every second sample
            del self._lags[::2]
        self._lags.append(max(0.0, self._loop.time() - self._due))
        self._arm()

    def statistics(self) -> dict[str, float]:
        """Return `{"p50_ms", "p99_ms", "max_ms"}`, empty before the first measurement."""
        lags = sorted(self._lags)
        if not lags:
            return {}
        quantiles = {"p50_ms": lags[len(lags) // 2], "p99_ms": lags[int(len(lags) * 0.99)], "max_ms": lags[-1]}
        return {name: round(value * 1e3, 3) for name, value in quantiles.items()}


_SLICE_SECONDS = 0.004
_MIN_CONTINUATIONS = 8


class LoopYield:
    """Fair turns on the event loop. Await `enter` only if `pass_nowait` returns False."""

    __slots__ = ("_began", "_loop", "_passed", "_per_slice", "_running", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running = False
        self._began = 0.0
        self._passed = 0
        self._per_slice = 64

    def pass_nowait(self) -> bool:
        """Return True if this turn of the loop still has time, so that the conversation may continue at once."""
        if not self._running:
            self._begin()
        elif self._waiting or perf_counter() - self._began > _SLICE_SECONDS:
            return False
        self._passed += 1
        return True

    def enter(self) -> asyncio.Future[None]:
        """Join the queue; the future is done in one of the next turns."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        return turn

    def _begin(self) -> None:
        self._running = True
        self._began = perf_counter()
        self._passed = 0
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._running = False
        if not self._waiting:
            return
        elapsed = perf_counter() - self._began
        if elapsed > 0:
            self._per_slice = max(_MIN_CONTINUATIONS, int(self._passed * min(4.0, _SLICE_SECONDS / elapsed)))
        released = 0
        while self._waiting and released < self._per_slice:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                released += 1
        self._begin()  # after the releases, so that the next measurement follows their work
        self._passed = released


_THRESHOLDS = (5_000, 10_000, 1_000)
_default_thresholds = gc.get_threshold()
_active_users = 0


@contextmanager
def gc_tuned() -> Iterator[None]:
    """Exclude all loaded objects from garbage collection and collect less often.

    The effect ends when the last user, from any event loop or thread, has left.
    """
    global _active_users, _default_thresholds
    if _active_users == 0:
        _default_thresholds = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
    _active_users += 1
    try:
        yield
    finally:
        _active_users -= 1
        if _active_users == 0:
            gc.set_threshold(*_default_thresholds)
            gc.unfreeze()
