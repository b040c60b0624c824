"""How fast a judge was, from its requests one by one: latencies as histograms, counts, throughput, goodput, cost.

Latencies count from the intended start of a request, so that neither a slow server nor a slow client hides its delay
(G. Tene calls the error of counting from the dispatch *coordinated omission*); those from the dispatch stand beside.
Errors are counted apart: only answered requests have latencies. Two of these records can be merged.

What never belongs here: verdicts, and which requests are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .histogram import LatencyHistogram
from .objective import TIMED

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


@dataclass(slots=True, frozen=True)
class Timing:
    """One request, in seconds from its step's start; ``first_token`` None where no text came. ``error`` "" is success;
    ``throttled`` are seconds between tries.
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
class Speed:
    """Add requests with ``add``; ``limits`` (seconds by the names of ``TIMED``) say which of them are goodput."""

    limits: dict[str, float] = field(default_factory=dict)
    latencies: dict[str, LatencyHistogram] = field(default_factory=lambda: {name: LatencyHistogram() for name in TIMED})
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

    def add(self, one: Timing) -> None:
        """Count a request."""
        self.requests += 1
        self.latencies["dispatch"].record(one.dispatched - one.intended)
        self.retries += one.tries - 1
        self.retried += one.tries > 1
        self.throttled_seconds += one.throttled
        if one.error:
            self.errors[one.error] += 1
            self.failed.record(one.finished - one.intended)
            return
        self.prompt_tokens += one.prompt_tokens
        self.completion_tokens += one.completion_tokens
        self.no_first_token += one.first_token is None
        took = _latencies(one)
        for name, seconds in took.items():
            self.latencies[name].record(seconds)
        self.good += self._within(took)

    def is_good(self, one: Timing) -> bool:
        """Whether a request was answered within all limits."""
        return not one.error and (not self.limits or self._within(_latencies(one)))

    def _within(self, took: dict[str, float]) -> bool:
        return all(name not in took or took[name] < limit for name, limit in self.limits.items())

    def merge(self, other: Speed) -> None:
        """Take over all that the other has counted."""
        for name, histogram in self.latencies.items():
            histogram.merge(other.latencies[name])
        self.failed.merge(other.failed)
        self.errors.update(other.errors)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def answered(self) -> int:
        """Requests that did not fail."""
        return self.requests - sum(self.errors.values())

    def record(self, seconds: float, price_in: float = 0.0, price_out: float = 0.0) -> dict[str, Any]:
        """The figures as JSON data.

        :param seconds: how long the requests were let in: what rates are counted over. :param price_in, price_out: per
            million tokens.
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
            "latencies": {name: summary(histogram) for name, histogram in self.latencies.items()},
            "failed_latencies": summary(self.failed),
        }


def _latencies(one: Timing) -> dict[str, float]:
    """Of an answered request, without the dispatch delay."""
    took = {"e2e": one.finished - one.intended, "service": one.finished - one.dispatched}
    if one.first_token is not None:
        took["ttft"] = one.first_token - one.intended
        if one.completion_tokens > 1:
            took["itl"] = (one.finished - one.first_token) / (one.completion_tokens - 1)
    return took


_COUNTS = ("requests", "good", "no_first_token", "prompt_tokens", "completion_tokens", "retries", "retried",
           "throttled_seconds")  # fmt: skip


def summary(histogram: LatencyHistogram) -> dict[str, Any]:
    """Count, mean, quantiles and maximum in seconds; nothing but the count where it is 0."""
    if not len(histogram):
        return {"count": 0}
    quantiles = {name: histogram.quantile(share) for name, share in _QUANTILES.items()}
    return {"count": len(histogram), "mean": histogram.mean, **quantiles, "max": histogram.longest}
