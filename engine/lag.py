"""How late the event loop runs its timers, which shows whether something blocks it.

What never belongs here: latencies of models.
"""

from __future__ import annotations

import asyncio

from .clock import Clock

_EVERY_SECONDS = 0.05
_KEEP = 20_000


class LagMonitor:
    """Measures while entered. ``statistics`` gives median, p99 and maximum in milliseconds."""

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
        self._due = self._loop.time() + _EVERY_SECONDS
        self._handle = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        if len(self._lags) >= _KEEP:  # hours of run: thin out rather than grow
            del self._lags[::2]
        self._lags.append(max(0.0, self._loop.time() - self._due))
        self._arm()

    def statistics(self) -> dict[str, float]:
        """``{"p50_ms", "p99_ms", "max_ms"}``, empty before the first measurement."""
        lags = sorted(self._lags)
        if not lags:
            return {}
        pick = {"p50_ms": lags[len(lags) // 2], "p99_ms": lags[int(len(lags) * 0.99)], "max_ms": lags[-1]}
        return {name: round(value * 1e3, 3) for name, value in pick.items()}
