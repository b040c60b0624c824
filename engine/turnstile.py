"""Bounds how much conversation code runs between two turns of the event loop.

When thousands of answers arrive at once, asyncio would run all of their continuations in one turn, and timers, signals
and sockets would wait for a tenth of a second. Each conversation passes here after every answer: within the turn's
time slice it continues at once; beyond it, it queues (first in, first out) for one of the next turns.

What never belongs here: limits that a user sets (``limits``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter

_SLICE_SECONDS = 0.004
_FEWEST = 8


class Turnstile:
    """Await ``enter`` only if ``pass_nowait`` says no."""

    __slots__ = ("_began", "_loop", "_passed", "_per_slice", "_running", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running = False
        self._began = 0.0
        self._passed = 0
        self._per_slice = 64

    def pass_nowait(self) -> bool:
        """Whether the conversation may continue at once, because this turn of the loop still has time."""
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
        taken = perf_counter() - self._began
        if taken > 0:
            self._per_slice = max(_FEWEST, int(self._passed * min(4.0, _SLICE_SECONDS / taken)))
        released = 0
        while self._waiting and released < self._per_slice:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                released += 1
        self._begin()  # after the releases, so that the next measurement comes after their work
        self._passed = released
