"""Which rate to try next: a given list of them, or a search for the highest one that meets an objective.

Both follow from the results so far alone, so a resumed load test goes on as if it had never stopped.

What never belongs here: what an objective is, and how a rate is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True)
class Tried:
    """A rate (requests a second, or number in flight), whether it met the objective, and whether the queue grew without
    bound.
    """

    rate: float
    met: bool
    saturated: bool = False


class RatePlan(Protocol):
    """What says which rate comes next."""

    def next(self, tried: Sequence[Tried]) -> float | None:
        """The next rate, None at the end."""


@dataclass(slots=True, frozen=True)
class RateList:
    """The given rates in ascending order, up to the first at which the queue grows without bound."""

    rates: tuple[float, ...]

    def next(self, tried: Sequence[Tried]) -> float | None:
        """The next rate, None at the end."""
        if any(one.saturated for one in tried):
            return None
        done = {one.rate for one in tried}
        return next((rate for rate in sorted(set(self.rates)) if rate not in done), None)


@dataclass(slots=True, frozen=True)
class RateSearch:
    """Doubles from ``low`` until a rate fails or ``high`` is reached, then halves the gap (by its geometric mean) until
    the two ends differ by less than ``tolerance`` as a share. If ``low`` fails, it halves down to a hundredth of it.
    """

    low: float
    high: float
    tolerance: float = 0.05

    def next(self, tried: Sequence[Tried]) -> float | None:
        """The next rate, None where the highest one is known well enough."""
        if not tried:
            return _rounded(self.low)
        failed = [one.rate for one in tried if not one.met]
        # One that met the objective above a rate that failed was lucky: what counts is below the lowest failure.
        worst = min(failed, default=None)
        met = [one.rate for one in tried if one.met and (worst is None or one.rate < worst)]
        best = max(met, default=None)
        if best is None:
            assert worst is not None
            lower = _rounded(worst / 2)
            return lower if lower >= self.low / 100 and lower < worst else None
        if worst is None:
            return _rounded(min(2 * best, self.high)) if best < _rounded(self.high) else None
        if worst <= best * (1 + self.tolerance):
            return None
        middle = _rounded((best * worst) ** 0.5)
        return middle if best < middle < worst else None


def highest(tried: Sequence[Tried]) -> float | None:
    """The highest rate that met the objective below every rate that did not; None where none did."""
    worst = min((one.rate for one in tried if not one.met), default=None)
    return max((one.rate for one in tried if one.met and (worst is None or one.rate < worst)), default=None)


def _rounded(rate: float) -> float:
    return float(f"{rate:.4g}")
