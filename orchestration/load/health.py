"""Whether the client itself was the bottleneck: lag of its event loop, its CPU, and how late it dispatched requests.

A figure of a judge that was measured by a client at its limit is a figure of the client. What never belongs here:
figures of judges.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from viva.engine.clock import Clock, VirtualClock
from viva.engine.lag import LagMonitor

# Beyond these the client is said to be the bottleneck. Delays count only where they are a part of the latency.
_LATE_SECONDS, _LATE_SHARE = 0.005, 0.05  # p99 of the dispatch delay: seconds, and share of the median latency
_LAG_SECONDS = 0.050  # p99 of the event loop's lag
_BUSY = 0.90  # share of a core that the event loop's thread used


class ClientHealth:
    """Watches while entered; ``record`` then says what it saw."""

    def __init__(self, clock: Clock) -> None:
        self._lag = None if isinstance(clock, VirtualClock) else LagMonitor(clock)
        self._wall = self._thread = self._process = 0.0

    async def __aenter__(self) -> ClientHealth:
        self._wall, self._thread, self._process = time.perf_counter(), time.thread_time(), time.process_time()
        if self._lag is not None:
            await self._lag.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._lag is not None:
            await self._lag.__aexit__()
        self._wall = time.perf_counter() - self._wall
        self._thread, self._process = time.thread_time() - self._thread, time.process_time() - self._process

    def record(self) -> dict[str, Any]:
        """``cpu``: share of a core that the event loop's thread used; ``cpu_process``: all threads of the process, in
        which a local judge may compute too. ``lag`` in milliseconds. Empty under a virtual clock.
        """
        if self._lag is None:
            return {}
        wall = max(self._wall, 1e-9)
        cpu, process = self._thread / wall, self._process / wall
        return {
            "seconds": wall,
            "cpu": cpu,
            "cpu_process": process,
            "cpu_seconds": self._thread,
            "lag": self._lag.statistics(),
        }


def joined(records: list[dict[str, Any]]) -> dict[str, Any]:
    """One record for several parts: shares weighted by time, the worst lag."""
    seen = [one for one in records if one]
    if not seen:
        return {}
    seconds = sum(one["seconds"] for one in seen)
    return {
        "seconds": seconds,
        "cpu": sum(one["cpu"] * one["seconds"] for one in seen) / seconds,
        "cpu_process": sum(one["cpu_process"] * one["seconds"] for one in seen) / seconds,
        "cpu_seconds": sum(one["cpu_seconds"] for one in seen),
        "lag": {name: max(one["lag"].get(name, 0.0) for one in seen) for name in ("p50_ms", "p99_ms", "max_ms")},
    }


def bottleneck(health: Mapping[str, Any], speed: Mapping[str, Any]) -> str:
    """Why the client was the bottleneck, in a sentence; "" where it was not.

    :param speed: the record of ``Speed``.
    """
    dispatch = speed["latencies"]["dispatch"].get("p99", 0.0)
    median = speed["latencies"]["e2e"].get("p50", 0.0)
    reasons = []
    if dispatch > _LATE_SECONDS and dispatch > _LATE_SHARE * median:
        reasons.append(f"1% of the requests were dispatched more than {1e3 * dispatch:.0f} ms late")
    if health:
        lag = health["lag"].get("p99_ms", 0.0) / 1e3
        if lag > _LAG_SECONDS and lag > _LATE_SHARE * median:
            reasons.append(f"its event loop lagged by {1e3 * lag:.0f} ms (p99)")
        if health["cpu"] > _BUSY:
            reasons.append(f"its event loop was busy {100 * health['cpu']:.0f}% of the time")
    return f"the client was the bottleneck: {', and '.join(reasons)}" if reasons else ""
