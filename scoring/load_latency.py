"""Latency and throughput of a load test: histograms, goodput, cost, warm-up, and growing queues.

Latencies count from the intended start of a request, so that neither a slow server nor a slow client hides its delay
(no *coordinated omission*, in G. Tene's words). Quantiles are exact to three significant digits. The warm-up is cut by
MSER-5. A queue grows if requests arrive faster than they are answered, so growth is tested on the number of requests in
flight at regular times.

Source: White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69:6, 1997.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]
from numpy.typing import NDArray

from .load_schedule import LATENCY_FIGURES

_UNIT = 1e-6  # seconds
_MAX_MICROSECONDS = 86_400_000_000  # a day; longer latencies are counted as a day
_DIGITS = 3


class LatencyHistogram:
    """Distribution of latencies from a microsecond to a day, in seconds."""

    __slots__ = ("_counts", "longest", "total")

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _MAX_MICROSECONDS, _DIGITS)
        self.total = 0.0
        self.longest = 0.0

    def record(self, seconds: float) -> None:
        """Count one latency."""
        if not seconds >= 0.0:
            raise ValueError(f"a latency of {seconds} s; latencies must be at least 0")
        self._counts.record_value(min(_MAX_MICROSECONDS, round(seconds / _UNIT)))
        self.total += seconds
        if seconds > self.longest:
            self.longest = seconds

    def merge(self, other: LatencyHistogram) -> None:
        """Add everything that another histogram has counted."""
        self._counts.add(other._counts)
        self.total += other.total
        self.longest = max(self.longest, other.longest)

    def __len__(self) -> int:
        return int(self._counts.get_total_count())

    @property
    def mean(self) -> float | None:
        """Mean in seconds; None without any latency."""
        return self.total / len(self) if len(self) else None

    def quantile(self, probability: float) -> float | None:
        """Return a quantile in seconds; None without any latency."""
        return self._at([probability])[0] if len(self) else None

    def shares(self, points: int = 200) -> list[tuple[float, float]]:
        """Return the cumulative distribution as about `points` pairs `(seconds, probability)`, denser in the tail."""
        count = len(self)
        if not count:
            return []
        steps = [number / points for number in range(1, points)] + [0.999, 0.9999]
        steps = [step for step in steps if step <= 1 - 1 / count] + [1.0]
        return sorted(set(zip(self._at(steps), steps, strict=True)))

    def _at(self, probabilities: Sequence[float]) -> list[float]:
        """Return quantiles of at least one latency.

        The package's own quantile loops over its counts, which would block other code while requests are sent, and
        takes the nearest rank, which is one too low for few requests.
        """
        counts = self._counts
        below = np.cumsum(np.frombuffer(counts.counts, dtype=np.uint64, count=counts.counts_len))
        ranks = [max(1, math.ceil(probability * len(self) - 1e-9)) for probability in probabilities]
        places = np.searchsorted(below, np.array(ranks, dtype=np.uint64)).tolist()
        ends = [counts.get_highest_equivalent_value(counts.get_value_from_index(index)) for index in places]
        return [min(self.longest, end * _UNIT) for end in ends]

    def to_record(self) -> dict[str, Any]:
        """Return JSON data from which `from_record` builds an equal histogram."""
        data = self._counts.encode()
        text = data.decode() if isinstance(data, bytes) else str(data)
        return {"hdr": text, "unit": "us", "total": self.total, "longest": self.longest}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> LatencyHistogram:
        """Build a histogram from `to_record`.

        Raises:
            ValueError: if the record is damaged.
        """
        histogram = cls()
        try:
            base64.b64decode(record["hdr"], validate=True)
            histogram._counts = HdrHistogram.decode(record["hdr"])
            histogram.total, histogram.longest = float(record["total"]), float(record["longest"])
        except Exception as error:  # the codec raises types of its own
            raise ValueError(f"a damaged histogram: {error!r}") from error
        return histogram


_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


@dataclass(slots=True, frozen=True)
class RequestTiming:
    """Timing of one request, in seconds from its step's start.

    `first_token` is None if no text came; `error` is "" on success; `throttled` is the time spent between tries.
    """

    intended: float
    dispatched: float
    first_token: float | None
    finished: float
    prompt_tokens: int
    completion_tokens: int
    error: str = ""
    tries: int = 1
    throttled: float = 0.0


@dataclass(slots=True)
class SpeedStatistics:
    """Speed of a step's requests.

    `limits` (seconds by the names of `LATENCY_FIGURES`) define goodput.
    """

    limits: dict[str, float] = field(default_factory=dict)
    latencies: dict[str, LatencyHistogram] = field(
        default_factory=lambda: {name: LatencyHistogram() for name in LATENCY_FIGURES}
    )
    failed: LatencyHistogram = field(default_factory=LatencyHistogram)
    errors: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    good: int = 0
    no_first_token: int = 0  # answered without any text
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    retried: int = 0  # requests that took more than one try
    throttled_seconds: float = 0.0

    def add(self, timing: RequestTiming) -> None:
        """Count a request."""
        self.requests += 1
        self.latencies["dispatch"].record(timing.dispatched - timing.intended)
        self.retries += timing.tries - 1
        self.retried += timing.tries > 1
        self.throttled_seconds += timing.throttled
        if timing.error:
            self.errors[timing.error] += 1
            self.failed.record(timing.finished - timing.intended)
            return
        self.prompt_tokens += timing.prompt_tokens
        self.completion_tokens += timing.completion_tokens
        self.no_first_token += timing.first_token is None
        latencies = _request_latencies(timing)
        for name, seconds in latencies.items():
            self.latencies[name].record(seconds)
        self.good += self._meets_limits(latencies)

    def is_good(self, timing: RequestTiming) -> bool:
        """Return True if a request was answered within all limits."""
        return not timing.error and (not self.limits or self._meets_limits(_request_latencies(timing)))

    def _meets_limits(self, latencies: dict[str, float]) -> bool:
        return all(name not in latencies or latencies[name] < limit for name, limit in self.limits.items())

    def merge(self, other: SpeedStatistics) -> None:
        """Add everything that another instance has counted."""
        for name, histogram in self.latencies.items():
            histogram.merge(other.latencies[name])
        self.failed.merge(other.failed)
        self.errors.update(other.errors)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def answered(self) -> int:
        """Number of requests that did not fail."""
        return self.requests - sum(self.errors.values())

    def record(self, seconds: float, price_in: float = 0.0, price_out: float = 0.0) -> dict[str, Any]:
        """Return the figures as JSON data.

        Args:
            seconds: Time during which requests were admitted; the basis of rates.
            price_in: Price of a million prompt tokens.
            price_out: Price of a million completion tokens.
        """
        cost = (self.prompt_tokens * price_in + self.completion_tokens * price_out) / 1e6
        answered = self.answered
        return {
            "requests": self.requests,
            "answered": answered,
            "errors": dict(sorted(self.errors.items())),
            "throttles": self.errors.get("Throttled", 0),
            "retries": self.retries,
            "throttled_seconds": self.throttled_seconds,
            "no_first_token": self.no_first_token,
            "seconds": seconds,
            "offered_rate": self.requests / seconds if seconds > 0 else None,
            "goodput_share": self.good / self.requests if self.requests else None,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "tokens_per_second": self.completion_tokens / seconds if seconds > 0 else None,
            "cost": cost,
            "cost_per_1000": 1000 * cost / answered if answered and cost else None,
            "latencies": {name: latency_summary(histogram) for name, histogram in self.latencies.items()},
            "failed_latencies": latency_summary(self.failed),
        }


def _request_latencies(timing: RequestTiming) -> dict[str, float]:
    """Return the latencies of an answered request, without the dispatch delay."""
    latencies = {"e2e": timing.finished - timing.intended, "service": timing.finished - timing.dispatched}
    if timing.first_token is not None:
        latencies["ttft"] = timing.first_token - timing.intended
        if timing.completion_tokens > 1:
            latencies["itl"] = (timing.finished - timing.first_token) / (timing.completion_tokens - 1)
    return latencies


_COUNTS = ("requests", "good", "no_first_token", "prompt_tokens", "completion_tokens", "retries", "retried",
           "throttled_seconds")  # fmt: skip


def latency_summary(histogram: LatencyHistogram) -> dict[str, Any]:
    """Return count, mean, quantiles and maximum in seconds; only the count if it is 0."""
    if not len(histogram):
        return {"count": 0}
    quantiles = {name: histogram.quantile(probability) for name, probability in _QUANTILES.items()}
    return {"count": len(histogram), "mean": histogram.mean, **quantiles, "max": histogram.longest}


Floats = NDArray[np.float64]

_BATCH_SIZE = 5
_MAX_BATCHES = 4096  # batches in memory; beyond, pairs are merged
_MIN_BATCHES = 10  # batches needed to assess steadiness
_TREND_PARTS = 12  # parts compared for a trend
_TREND_DEVIATIONS = 5.0  # standard errors of a slope
_TREND_CHANGE = 0.2  # from the first part to the last, as a fraction of the mean


@dataclass(slots=True)
class BatchMeans:
    """Series as means of equal batches, in bounded memory; `begins` has the time of each batch's first value."""

    means: list[float] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    size: int = _BATCH_SIZE
    _begin: float = 0.0
    _sum: float = 0.0
    _count: int = 0

    def add(self, time: float, value: float) -> None:
        """Add the next value of the series; times ascend."""
        if not self._count:
            self._begin = time
        self._sum += value
        self._count += 1
        if self._count == self.size:
            self.means.append(self._sum / self.size)
            self.begins.append(self._begin)
            self._sum, self._count = 0.0, 0
            if len(self.means) == _MAX_BATCHES:
                self.means = [
                    (first + second) / 2 for first, second in zip(self.means[::2], self.means[1::2], strict=True)
                ]
                self.begins = self.begins[::2]
                self.size *= 2


@dataclass(slots=True, frozen=True)
class Steadiness:
    """Steady part of a series.

    `cut`: number of values to leave out at the beginning; `begin`: time of the first value kept (None if nothing is
    cut). `steady`: whether the rest is steady; None if there are too few values.
    """

    cut: int
    begin: float | None
    steady: bool | None


def find_steady_state(series: BatchMeans) -> Steadiness:
    """Find where a series becomes steady, if it does."""
    means = np.asarray(series.means)
    count = means.size
    if count < _MIN_BATCHES:
        return Steadiness(0, None, None)
    # Sums over the rest after each cut, all at once; centred first to avoid cancellation.
    centred = (means - means.mean())[::-1]
    remaining = np.arange(1, count + 1)
    sums, squares = np.cumsum(centred), np.cumsum(centred**2)
    errors = ((squares - sums**2 / remaining) / remaining**2)[::-1]  # by cut
    cut = int(np.argmin(errors[: count // 2 + 1]))
    if _has_trend(means[cut:]):
        return Steadiness(0, None, False)
    return Steadiness(cut * series.size, series.begins[cut] if cut else None, True)


def _has_trend(means: Floats) -> bool:
    """Return True if the means rise or fall significantly, and by more than a fraction of their level.

    Long batches are compared, because latencies of neighbours in a queue are correlated even without a trend.
    """
    parts = min(_TREND_PARTS, means.size // 2)
    if parts < 4:
        return False
    levels = np.array([part.mean() for part in np.array_split(means, parts)])
    places = np.arange(parts) - (parts - 1) / 2
    slope = float(places @ levels / (places @ places))
    residuals = levels - levels.mean() - slope * places
    error = float(np.sqrt(residuals @ residuals / (parts - 2) / (places @ places)))
    change = abs(slope) * (parts - 1)
    return change > _TREND_CHANGE * abs(levels.mean()) and abs(slope) > _TREND_DEVIATIONS * error


_MAX_SAMPLES = 256  # samples in memory; beyond, every other one is dropped
_MIN_SAMPLES = 16  # increments that a test needs
_MIN_SECONDS = 10.0  # seconds that growth must last, because a server may stall for a moment
_FIRST_SAMPLES = 32  # answers that define the latency before a queue builds up
_LATENCIES = 4.0  # multiple of this latency that must have passed before growth counts
_GROWTH_DEVIATIONS = 4.0  # standard errors
_SHORT_QUEUE = 0.10  # fraction of arrivals without an answer, for stopping early
_SHORT_QUEUE_AT_END = 0.03  # the same at the end of the step


@dataclass(slots=True)
class QueueWatch:
    """Queue of one judge in one step. Times are in seconds from the step's start."""

    _samples: list[tuple[float, int, int]] = field(default_factory=list)  # time, arrived, in flight
    _first: list[float] = field(default_factory=list)
    _stride: int = 1  # samples taken for each one stored
    _sample_count: int = 0

    def answered(self, latency: float) -> None:
        """Record an answer and its latency from the time its request was due."""
        if len(self._first) < _FIRST_SAMPLES:
            self._first.append(latency)

    def sample(self, time: float, arrived: int, in_flight: int) -> None:
        """Record the number of arrived requests and of those in flight; call it at regular times."""
        self._sample_count += 1
        if self._sample_count % self._stride == 0:
            self._samples.append((time, arrived, in_flight))
            if len(self._samples) == _MAX_SAMPLES:
                del self._samples[::2]
                self._stride *= 2

    def is_growing(self, *, at_end: bool = False) -> bool:
        """Return True if arrivals exceed answers persistently. `at_end`: all requests of the step have arrived."""
        if len(self._samples) < 2 or not self._first:
            return False
        end = self._samples[-1][0]
        window = [sample for sample in self._samples if sample[0] >= end / 2]
        seconds = window[-1][0] - window[0][0]
        settled = window[0][0] >= _LATENCIES * median(self._first)
        if len(window) <= _MIN_SAMPLES or not (settled or at_end) or (seconds < _MIN_SECONDS and not at_end):
            return False
        arrived, growth = window[-1][1] - window[0][1], window[-1][2] - window[0][2]
        if arrived <= 0 or growth < (_SHORT_QUEUE_AT_END if at_end else _SHORT_QUEUE) * arrived:
            return False
        increments = [later[2] - sample[2] for sample, later in itertools.pairwise(window)]
        return _has_answers_throughout(window) and _is_growing(increments)


def _has_answers_throughout(window: list[tuple[float, int, int]]) -> bool:
    """Return True if answers came in each quarter: a stalled server is not a saturated one."""
    answered = [arrived - in_flight for _, arrived, in_flight in window]
    marks = [answered[quarter * (len(answered) - 1) // 4] for quarter in range(5)]
    return all(later > earlier for earlier, later in itertools.pairwise(marks))


def _is_growing(increments: list[int]) -> bool:
    """Return True if the mean increment is significantly above zero."""
    mean, spread = fmean(increments), stdev(increments)
    return mean > 0 and mean > _GROWTH_DEVIATIONS * spread / math.sqrt(len(increments))
