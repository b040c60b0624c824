"""Estimates with confidence intervals: of shares, bounded means and differences.

Well-known formulas, computed by scipy where it has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .aggregates import Mean

Floats: TypeAlias = NDArray[np.float64]

# scipy.stats takes half a second to load: the functions that need it import it.


@dataclass(slots=True, frozen=True)
class Estimate:
    """A value with the lower and upper end of its interval."""

    value: float
    low: float
    high: float


def extend_to_zero(found: Estimate, p: float | None, level: float = 0.95) -> Estimate:
    """Return the interval of a difference, which reaches 0 where a test at its level does not refute 0.

    Interval and test come from different assumptions, and of few values one may refute 0 where the other does not.
    """
    if p is None or p < 1.0 - level:
        return found
    return Estimate(found.value, min(found.low, 0.0), max(found.high, 0.0))


def check_level(level: float) -> None:
    """:raises ValueError: ``level``, a confidence level, is not between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level}; it is a share between 0 and 1")


def wilson(part: int, whole: int, level: float = 0.95) -> Estimate | None:
    """The share ``part`` of ``whole``, 0–1, with the score interval of Wilson 1927; None of nothing.

    :raises ValueError: ``level`` is not between 0 and 1, or ``part`` not between 0 and ``whole``.
    """
    from scipy.stats import binomtest

    check_level(level)
    if not 0 <= part <= whole:
        raise ValueError(f"{part} of {whole} is no share")
    if whole == 0:
        return None
    interval = binomtest(part, whole).proportion_ci(confidence_level=level, method="wilson")
    return Estimate(part / whole, float(interval.low), float(interval.high))


def bounded_interval(
    shares: Floats, dispersions: Floats, items: Floats, stretch: Floats, level: float
) -> tuple[Floats, Floats]:
    """Both ends, 0–1, of the intervals of means of values from 0 to 1: Wilson's interval, carried over to such values.

    The mean of ``items`` yes-or-no values has the variance m (1 - m) / items; that of other values has ``dispersions``
    times it (0–1), and Wilson's interval is that of items / dispersion of them. ``stretch`` is the factor by which the
    normal quantile is too small because the dispersion is an estimate. No interval is wider than that of yes-or-no
    values, for no values between the same bounds vary more. None is narrower than what a share u = z² / (items + z²)
    of items that were not met could do if they all had 0, or all had 1: as Wilson's of 20 right out of 20 says that
    one sixth may still be wrong. So an interval has a width where no value differs from another.
    """
    from scipy.special import ndtri

    z = float(ndtri((1.0 + level) / 2))
    worth = np.maximum(items, items / (np.maximum(dispersions, 1e-12) * stretch**2))
    middle = (shares + z**2 / (2 * worth)) / (1 + z**2 / worth)
    half = z * np.sqrt(shares * (1 - shares) / worth + (z / (2 * worth)) ** 2) / (1 + z**2 / worth)
    unmet = z**2 / (items + z**2)
    low = np.minimum(middle - half, shares * (1 - unmet))
    high = np.maximum(middle + half, shares + (1 - shares) * unmet)
    return np.clip(low, 0.0, shares), np.clip(high, shares, 1.0)


def welch(first: Mean, second: Mean, level: float = 0.95) -> Estimate:
    """The difference of two means, second minus first, with the interval of Welch 1947 (variances may differ).

    Where neither has any spread, the interval is the point.

    :raises ValueError: one of them has seen fewer than two numbers, or ``level`` is not between 0 and 1.
    """
    from scipy.stats import t

    check_level(level)
    (first_mean, first_error), (second_mean, second_error) = _spread("first", first), _spread("second", second)
    difference = second_mean - first_mean
    total = first_error + second_error
    if total == 0.0:
        return Estimate(difference, difference, difference)
    # Welch–Satterthwaite, by shares of the variance: squares of small variances would vanish.
    share = first_error / total
    freedom = 1.0 / (share**2 / (first.clusters - 1) + (1.0 - share) ** 2 / (second.clusters - 1))
    half = float(t.ppf((1.0 + level) / 2, freedom)) * math.sqrt(total)
    return Estimate(difference, difference - half, difference + half)


def _spread(name: str, values: Mean) -> tuple[float, float]:
    """The mean, and the square of its standard error."""
    mean, error = values.mean, values.standard_error
    if mean is None or error is None:
        unit = "numbers" if values.clusters == values.n else "numbers of one cluster"
        raise ValueError(f"{name}: {values.n} {unit}; the interval of a difference needs at least two on each side")
    return mean, error * error
