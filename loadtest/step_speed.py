"""Speed of one judge in one step, from the log: which requests count, latencies, throughput, client health.

A request counts if it was due in the steady part of the step: after the warm-up, and before the last few requests,
which met less load because nothing followed them. In a killed part, only requests that were due before the first lost
request count; otherwise slow requests would be missing. Event-loop lag, CPU and dispatch delay are monitored, because
a client at its limit would measure itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from viva.engine.clock import Clock, VirtualClock
from viva.engine.event_loop import LagMonitor
from viva.scoring.load_latency import BatchMeans, SpeedStatistics, Steadiness, find_steady_state
from viva.scoring.load_schedule import LATENCY_FIGURES, Objective, ObjectiveTerm

from .load_driver import INTERRUPTED, SATURATED, TOO_MANY
from .load_log import LoadHistory, LoggedPart, LoggedStep
from .load_records import LoadStep

# Beyond these limits the client is the bottleneck. Delays count only if they are a notable share of the latency.
_LATE_SECONDS, _LATE_SHARE = 0.005, 0.05  # limits of the dispatch delay's p99: (seconds, share of the median latency)
_LAG_SECONDS = 0.050  # limit of the p99 of the event loop's lag
_BUSY = 0.90  # limit of the share of a core that the event loop's thread uses


class ClientHealth:
    """Monitor of the client, active within its context; afterwards `record` returns the result."""

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
        """Return the measurements; empty under a virtual clock.

        `cpu` is the share of a core used by the event loop's thread; `cpu_process` the share used by all threads of the
        process, which may include a local judge. `lag` is in milliseconds.
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


def merge_health(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the records of several parts: shares are averaged with time as weight, the worst lag is kept."""
    measured = [record for record in records if record]
    if not measured:
        return {}
    seconds = sum(record["seconds"] for record in measured)
    return {
        "seconds": seconds,
        "cpu": sum(record["cpu"] * record["seconds"] for record in measured) / seconds,
        "cpu_process": sum(record["cpu_process"] * record["seconds"] for record in measured) / seconds,
        "cpu_seconds": sum(record["cpu_seconds"] for record in measured),
        "lag": {
            name: max(record["lag"].get(name, 0.0) for record in measured) for name in ("p50_ms", "p99_ms", "max_ms")
        },
    }


def client_bottleneck(health: Mapping[str, Any], speed: Mapping[str, Any]) -> str:
    """Return a sentence on why the client was the bottleneck; "" if it was not. `speed` is the step's record."""
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


RUNNING = "running"
_MOST_COOL_DOWN = 0.1  # maximum warm-up or cool-down as a share of a part, if determined automatically


@dataclass(slots=True)
class StepMeasurement:
    """Measurement of a step: `record` as JSON data (described in `docs/load.md`), `speed` as distributions.

    `windows` has, by part, (start, end) of the due times that count, in seconds from the part's start.
    """

    step: LoadStep
    judge: str
    speed: SpeedStatistics
    record: dict[str, Any]
    windows: dict[int, tuple[float, float]]

    @property
    def saturated(self) -> bool:
        """True if the queue grew without bound."""
        return self.record["end"] in (SATURATED, TOO_MANY)

    def figures(self, objective: Objective) -> dict[str, float | None]:
        """Return the speed figures that an objective may use."""
        record = self.record
        requests = record["requests"]
        values: dict[str, float | None] = {
            "throughput": record["throughput"],
            "goodput": record["goodput"],
            "goodput_share": record["goodput_share"],
            "error": 1 - record["answered"] / requests if requests else None,
            "throttled": record["throttles"] / requests if requests else None,
            "cost": record["cost_per_1000"],
        }
        return values | {term.figure: self._timed(term) for term in objective.terms if term.latency in LATENCY_FIGURES}

    def _timed(self, term: ObjectiveTerm) -> float | None:
        histogram = self.speed.latencies[term.latency]
        if term.quantile is not None:
            return histogram.quantile(term.quantile)
        if term.figure.startswith("mean"):
            return histogram.mean
        return histogram.longest if len(histogram) else None


@dataclass(slots=True)
class _PartSeries:
    """Requests of a part, read once to determine its window."""

    logged: LoggedPart
    tail: int
    latencies: BatchMeans = field(default_factory=BatchMeans)
    count: int = 0
    last: float = 0.0
    lost: bool = False  # a request is missing: no later request counts
    due: deque[float] = field(default_factory=deque)  # when the last requests were due
    total: float = 0.0  # of latencies

    def add(self, due: float, latency: float) -> None:
        self.latencies.add(due, latency)
        self.count += 1
        self.total += latency
        self.last = due
        self.due.append(due)
        if len(self.due) > self.tail:
            self.due.popleft()

    def window(
        self, judge: str, steadiness: Steadiness, warm_up: float | None, cool_down: float | None
    ) -> tuple[float, float]:
        start = (steadiness.begin or 0.0) if warm_up is None else warm_up
        let_in = self.logged.watched.get("judges", {}).get(judge, {}).get("let_in")
        if let_in is None:  # the part has no end: it was killed
            return start, max(start, self.last)
        if cool_down is None and self.tail and self.count > 2 * self.tail:
            return start, max(start, self.due[0])
        if cool_down is None and not self.tail and self.count:
            cool_down = min(self.total / self.count, _MOST_COOL_DOWN * let_in)
        return start, max(start, let_in - (cool_down or 0.0))


def measure_step(
    history: LoadHistory,
    logged: LoggedStep,
    judge: str,
    *,
    limits: Mapping[str, float] | None = None,
    warm_up: float | None = None,
    cool_down: float | None = None,
    unloaded: StepMeasurement | None = None,
    prices: tuple[float, float] = (0.0, 0.0),
) -> StepMeasurement:
    """Return the figures of a judge in a step.

    `limits` has the maximum seconds of each latency for goodput. `warm_up` seconds at the beginning of each part and
    `cool_down` seconds at its end are excluded. With None they are determined automatically: the cool-down is the mean
    latency in an open loop; in a closed loop, it covers as many requests as are in flight. `unloaded` is the same judge
    without load; `prices` are per million tokens.
    """
    step = logged.step
    if step.unloaded:
        warm_up = cool_down = 0.0  # without a queue, each request counts
    series = _read_series(history, logged, judge)
    steady = {part: find_steady_state(part_series.latencies) for part, part_series in series.items()}
    windows = {
        part: part_series.window(judge, steady[part], warm_up, cool_down) for part, part_series in series.items()
    }
    speed = SpeedStatistics(dict(limits or {}))
    total, answered, good, busy = 0, 0, 0, 0.0
    for part, _, timing in history.timings(step.index, judge):
        start, end = windows[part]
        total += 1
        if start <= timing.intended < end:
            speed.add(timing)
        if not timing.error and start <= timing.finished < end:
            answered += 1
            good += speed.is_good(timing)
        busy += max(0.0, min(timing.finished, end) - max(timing.intended, start))
    seconds = sum(end - start for start, end in windows.values())
    logged_parts = [part_series.logged for part_series in series.values()]
    watched_parts = [part.watched.get("judges", {}).get(judge, {}) for part in logged_parts]
    record = {
        "step": step.index,
        "judge": judge,
        "arrivals": step.arrivals,
        "rate": step.rate,
        "concurrency": step.concurrency,
        "end": watched_parts[-1].get("end", RUNNING) if watched_parts else RUNNING,
        "sent": total,
        "windows": [[part, start, end] for part, (start, end) in windows.items()],
        "steady": _all_steady([state.steady for state in steady.values()]),
        **speed.record(seconds, *prices),
        "error_messages": history.messages(step.index, judge) if speed.errors else {},
        "throughput": answered / seconds if seconds > 0 else None,
        "goodput": good / seconds if seconds > 0 else None,
        "in_flight": busy / seconds if seconds > 0 else None,
        "most_in_flight": max((watched.get("most_in_flight", 0) for watched in watched_parts), default=0),
        "health": merge_health([part.watched.get("health", {}) for part in logged_parts]),
    }
    record |= _queueing_record(record, unloaded)
    record["bottleneck"] = "" if step.unloaded else client_bottleneck(record["health"], record)
    return StepMeasurement(step, judge, speed, record, windows)


def _read_series(history: LoadHistory, logged: LoggedStep, judge: str) -> dict[int, _PartSeries]:
    """Return the parts in which the judge received requests, with the data that determine their windows."""
    step = logged.step
    tail = step.concurrency or 0 if step.arrivals == "closed" and not step.unloaded else 0
    parts = {part.part: part for part in logged.parts}
    series: dict[int, _PartSeries] = {}
    expected = 0
    for part, number, timing in history.timings(step.index, judge):
        current = series.get(part)
        if current is None:
            current = series[part] = _PartSeries(parts[part], tail)
        for earlier in series:
            # A request was in flight when an earlier part was killed if a later part has its number, or no part has it.
            if earlier < part or number > expected:
                series[earlier].lost = True
        expected = number + 1
        if not current.lost:
            current.add(timing.intended, timing.finished - timing.intended)
    return dict(sorted(series.items()))


def end_reason(logged: LoggedStep, judge: str) -> str:
    """Return why a judge gets no further requests in a step; "" if it gets further requests."""
    ends = [part.watched.get("judges", {}).get(judge, {}).get("end", "") for part in logged.parts]
    return next((end for end in reversed(ends) if end and end != INTERRUPTED), "")


def _all_steady(steady: list[bool | None]) -> bool | None:
    if False in steady:
        return False
    return True if steady and None not in steady else None


def _queueing_record(record: Mapping[str, Any], unloaded: StepMeasurement | None) -> dict[str, float | None]:
    """Return the effect of load: the share of latency that is due to load, and the number of requests computed at once.

    This number follows from the unloaded service time by Little's law.
    """
    mean = record["latencies"]["e2e"].get("mean")
    alone = None if unloaded is None else unloaded.speed.latencies["service"].mean
    if not mean or alone is None:
        return {"unloaded": alone, "queueing_share": None, "busy": None}
    throughput = record["throughput"]
    return {
        "unloaded": alone,
        "queueing_share": max(0.0, 1.0 - alone / mean),
        "busy": None if throughput is None else throughput * alone,
    }
