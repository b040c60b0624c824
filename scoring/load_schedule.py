"""Schedule of a load test: arrival times, the rates to try, and the objective that a rate has to meet.

Arrival times are absolute, in seconds from the start, generated one by one from a rate and a seed. Rates depend only on
the results so far, so a resumed load test continues as if it had never stopped. An objective such as `p95_e2e<3s,
parse_fail<1%, drift<0.05` is met if every term is met; a term with an unknown figure is not met.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from viva.engine import seeds
from viva.engine.errors import ConfigurationError


def constant_arrivals(rate: float) -> Iterator[float]:
    """Generate evenly spaced arrivals, the first at 0. Times are products, so that rounding does not accumulate."""
    return (number / rate for number in itertools.count())


def poisson_arrivals(rate: float, *seed: object) -> Iterator[float]:
    """Generate a Poisson process: independent exponential gaps with a mean of 1/rate."""
    draw = seeds.generator(*seed, "poisson").expovariate
    return itertools.accumulate(draw(rate) for _ in itertools.repeat(None))


def bursty_arrivals(rate: float, burst: float, *seed: object) -> Iterator[float]:
    """Generate gamma gaps with a mean of 1/rate; `burst` is their squared coefficient of variation (1: Poisson)."""
    draw = seeds.generator(*seed, "bursty").gammavariate
    shape, scale = 1.0 / burst, burst / rate
    return itertools.accumulate(draw(shape, scale) for _ in itertools.repeat(None))


def replay_arrivals(times: Sequence[float], rate: float | None = None) -> Iterator[float]:
    """Repeat recorded times endlessly, sorted, and counted from the earliest one.

    If `rate` is given, times are stretched or compressed to this mean rate. At least two times must differ.
    """
    ordered = sorted(times)
    span = ordered[-1] - ordered[0] if len(ordered) > 1 else 0.0
    if span <= 0:
        raise ValueError("replayed arrivals need at least two recorded times that differ")
    own = (len(ordered) - 1) / span
    factor = 1.0 if rate is None else own / rate
    period = span + 1.0 / own  # mean gap before the recording repeats
    return (factor * (lap * period + time - ordered[0]) for lap in itertools.count() for time in ordered)


@dataclass(slots=True, frozen=True)
class RateResult:
    """Result of a rate (requests per second, or requests in flight).

    `met`: the rate met the objective; `saturated`: its queue grew without bound.
    """

    rate: float
    met: bool
    saturated: bool = False


class RatePlan(Protocol):
    """Protocol of a plan that chooses the next rate."""

    def next(self, tried: Sequence[RateResult]) -> float | None:
        """Return the next rate, None at the end."""


@dataclass(slots=True, frozen=True)
class RateList:
    """Listed rates in ascending order, up to the first at which the queue grows without bound."""

    rates: tuple[float, ...]

    def next(self, tried: Sequence[RateResult]) -> float | None:
        """Return the next rate, None at the end."""
        if any(result.saturated for result in tried):
            return None
        done = {result.rate for result in tried}
        return next((rate for rate in sorted(set(self.rates)) if rate not in done), None)


@dataclass(slots=True, frozen=True)
class RateSearch:
    """Search for the highest rate that meets the objective.

    The rate is doubled from `low` until a rate fails or `high` is reached, then bisected geometrically until the ends
    differ by less than the fraction `tolerance`. If `low` fails, it is halved, down to a hundredth.
    """

    low: float
    high: float
    tolerance: float = 0.05

    def next(self, tried: Sequence[RateResult]) -> float | None:
        """Return the next rate, None once the highest one is known well enough."""
        if not tried:
            return _round_rate(self.low)
        failed = [result.rate for result in tried if not result.met]
        # A rate above a failed rate met the objective by luck, so only rates below the lowest failed one count.
        worst = min(failed, default=None)
        met = [result.rate for result in tried if result.met and (worst is None or result.rate < worst)]
        best = max(met, default=None)
        if best is None:
            assert worst is not None
            lower = _round_rate(worst / 2)
            return lower if lower >= self.low / 100 and lower < worst else None
        if worst is None:
            return _round_rate(min(2 * best, self.high)) if best < _round_rate(self.high) else None
        if worst <= best * (1 + self.tolerance):
            return None
        middle = _round_rate((best * worst) ** 0.5)
        return middle if best < middle < worst else None


def highest_rate(tried: Sequence[RateResult]) -> float | None:
    """Return the highest rate that met the objective and is below every rate that failed; None if there is none."""
    worst = min((result.rate for result in tried if not result.met), default=None)
    return max((result.rate for result in tried if result.met and (worst is None or result.rate < worst)), default=None)


def _round_rate(rate: float) -> float:
    return float(f"{rate:.4g}")


# Latencies in seconds, with what each one times.
LATENCY_FIGURES = {
    "e2e": "from the intended start to the last token",
    "ttft": "time to first token, from the intended start",
    "itl": "inter-token latency: mean gap between the tokens of a request",
    "service": "from dispatch to the last token",
    "dispatch": "dispatch delay: from the intended start to dispatch",
}
# Fractions and other figures, by name.
SHARE_FIGURES = {
    "error": "failed requests",
    "throttled": "requests that the endpoint throttled",
    "parse_fail": "answers without a readable verdict",
    "truncated": "answers cut at the token limit",
    "refused": "answers that refuse to judge",
    "agreement": "verdicts equal to the unloaded ones",
    "goodput_share": "requests answered within the objective's latencies",
}
PLAIN_FIGURES = {
    "drift": "how far verdicts move from the unloaded ones, as a share of the scale",
    "throughput": "answers a second",
    "goodput": "answers a second within the objective's latencies",
    "cost": "cost of 1,000 verdicts",
}
_STATISTIC = re.compile(r"(p\d{1,2}(?:\.\d+)?|mean|max)_(\w+)$")
_TERM = re.compile(r"\s*([a-z_0-9.]+)\s*(<=|>=|<|>)\s*([0-9.]+(?:e-?\d+)?)\s*(s|ms|us|µs|%|)\s*$")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "%": 1e-2, "": 1.0}
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(slots=True, frozen=True)
class ObjectiveTerm:
    """Condition on a figure. `bound` is in seconds, a fraction, or a plain number; `text` is the original text."""

    figure: str
    sign: str
    bound: float
    text: str

    @property
    def latency(self) -> str:
        """Name in `LATENCY_FIGURES` of the bounded latency; "" for other figures."""
        match = _STATISTIC.match(self.figure)
        return match[2] if match else ""

    @property
    def quantile(self) -> float | None:
        """Quantile that the bound applies to (`p95`: 0.95); None for means, maxima and other figures."""
        match = _STATISTIC.match(self.figure)
        return float(match[1][1:]) / 100 if match and match[1].startswith("p") else None

    def is_met(self, value: float | None) -> bool:
        """Return True if a figure meets the condition; None does not."""
        return value is not None and _SIGNS[self.sign](value, self.bound)


@dataclass(slots=True, frozen=True)
class Objective:
    """Conditions of one objective."""

    terms: tuple[ObjectiveTerm, ...]

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Parse terms FIGURE<BOUND separated by commas; raise ConfigurationError if one is unknown."""
        return cls(tuple(_parse_term(part) for part in text.split(",")))

    def __str__(self) -> str:
        return ", ".join(term.text for term in self.terms)

    def missed_terms(self, figures: Mapping[str, float | None]) -> tuple[ObjectiveTerm, ...]:
        """Return the terms that these figures do not meet."""
        return tuple(term for term in self.terms if not term.is_met(figures.get(term.figure)))

    def limits(self) -> dict[str, float]:
        """Return for each latency the limit in seconds below which a request counts as goodput."""
        limits: dict[str, float] = {}
        for term in self.terms:
            if term.latency and term.sign in ("<", "<="):
                limits[term.latency] = min(limits.get(term.latency, term.bound), term.bound)
        return limits


def _parse_term(part: str) -> ObjectiveTerm:
    match = _TERM.match(part)
    if not match:
        raise ConfigurationError(
            f"objective '{part.strip()}': expected FIGURE<BOUND with the unit s, ms or %, such as p95_e2e<3s, "
            "parse_fail<1% or drift<0.05"
        )
    figure, sign, number, unit = match.groups()
    statistic = _STATISTIC.match(figure)
    timed = bool(statistic and statistic[2] in LATENCY_FIGURES)
    if not timed and figure not in SHARE_FIGURES and figure not in PLAIN_FIGURES:
        names = ", ".join([*SHARE_FIGURES, *PLAIN_FIGURES])
        raise ConfigurationError(
            f"objective '{part.strip()}': unknown figure '{figure}'; use p50_, p95_, p99_, mean_ or max_ with "
            f"{', '.join(LATENCY_FIGURES)} (p95_e2e), or {names}"
        )
    if timed != (unit in ("s", "ms", "us", "µs")) or (unit == "%" and figure in ("throughput", "goodput", "cost")):
        expectation = (
            "a time in s, ms or us"
            if timed
            else "a number without a unit" + (", or in %" if figure in SHARE_FIGURES else "")
        )
        raise ConfigurationError(f"objective '{part.strip()}': {figure} takes {expectation}")
    try:
        bound = float(number) * _UNITS[unit]
    except ValueError:
        raise ConfigurationError(f"objective '{part.strip()}': '{number}' is not a number") from None
    return ObjectiveTerm(figure, sign, bound, part.strip())
