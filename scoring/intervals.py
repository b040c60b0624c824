"""Estimates with confidence intervals: quantiles, ranks, and intervals of bounded means and differences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .aggregates import Mean

Floats: TypeAlias = NDArray[np.float64]

# scipy.special takes a while to load, and scipy.stats three times as long: only functions that need them import them.


@dataclass(slots=True, frozen=True)
class Estimate:
    """A value with the lower and upper end of its interval."""

    value: float
    low: float
    high: float


def extend_to_zero(estimate: Estimate, p: float | None, level: float = 0.95) -> Estimate:
    """Return the interval of a difference, which reaches 0 where a test at its level does not refute 0.

    Interval and test come from different assumptions, and of few values one may refute 0 where the other does not.
    """
    if p is None or p < 1.0 - level:
        return estimate
    return Estimate(estimate.value, min(estimate.low, 0.0), max(estimate.high, 0.0))


def check_level(level: float) -> None:
    """:raises ValueError: ``level``, a confidence level, is not between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level}; it is a share between 0 and 1")


def student_quantile(probability: float, freedom: Any) -> Any:
    """Return the value that ``share`` of Student's t distribution lies below; ``freedom`` may be an array."""
    from scipy.special import stdtrit

    return stdtrit(freedom, probability)


def student_tail(value: Any, freedom: Any) -> Any:
    """Return the share of Student's t distribution above ``value``."""
    from scipy.special import stdtr

    return stdtr(freedom, -value)


def student_half(error: float, freedom: float, level: float) -> float:
    """Return the half width of Student's interval of an estimate with this standard error."""
    return float(student_quantile((1.0 + level) / 2, freedom)) * error


def normal_quantile(probability: float) -> float:
    """Return the value that ``share`` of the standard normal distribution lies below."""
    from scipy.special import ndtri

    return float(ndtri(probability))


def normal_share(value: float) -> float:
    """Return the share of the standard normal distribution below ``value``."""
    from scipy.special import ndtr

    return float(ndtr(value))


def mid_ranks(values: Any, weights: Floats | None = None) -> Floats:
    """Return the rank of each value from 1, equal ones having the mean of theirs.

    With ``weights``: the weight of all smaller values and half of that of equal ones.
    """
    _, places = np.unique(values, return_inverse=True)
    equal = np.bincount(places, weights)
    ranks = np.cumsum(equal) - equal / 2
    return np.asarray((ranks + 0.5 if weights is None else ranks)[places], dtype=np.float64)


def bounded_interval(
    means: Floats, dispersions: Floats, items: Floats, stretch: Floats, level: float
) -> tuple[Floats, Floats]:
    """Both ends, 0–1, of the intervals of means of values from 0 to 1: Wilson's interval, carried over to such values.

    The mean of ``items`` yes-or-no values has the variance m (1 - m) / items; that of other values has ``dispersions``
    times it (0–1), and Wilson's interval is that of items / dispersion of them. ``stretch`` is the factor by which the
    normal quantile is too small because the dispersion is an estimate. No interval is wider than that of yes-or-no
    values, for no values between the same bounds vary more. None is narrower than what a share u = z² / (items + z²)
    of items that were not met could do if they all had 0, or all had 1: as Wilson's of 20 right out of 20 says that
    one sixth may still be wrong. So an interval has a width where no value differs from another.
    """
    z = normal_quantile((1.0 + level) / 2)
    effective_items = np.maximum(items, items / (np.maximum(dispersions, 1e-12) * stretch**2))
    middle = (means + z**2 / (2 * effective_items)) / (1 + z**2 / effective_items)
    half = (
        z
        * np.sqrt(means * (1 - means) / effective_items + (z / (2 * effective_items)) ** 2)
        / (1 + z**2 / effective_items)
    )
    unmet = z**2 / (items + z**2)
    low = np.minimum(middle - half, means * (1 - unmet))
    high = np.maximum(middle + half, means + (1 - means) * unmet)
    return np.clip(low, 0.0, means), np.clip(high, means, 1.0)


def welch(first: Mean, second: Mean, level: float = 0.95) -> Estimate:
    """The difference of two means, second minus first, with the interval of Welch 1947 (variances may differ).

    Where neither has any spread, the interval is the point.

    :raises ValueError: one of them has seen fewer than two numbers, or ``level`` is not between 0 and 1.
    """
    check_level(level)
    (first_mean, first_error), (second_mean, second_error) = _spread("first", first), _spread("second", second)
    difference = second_mean - first_mean
    total = first_error + second_error
    if total == 0.0:
        return Estimate(difference, difference, difference)
    # Welch–Satterthwaite, by shares of the variance: squares of small variances would vanish.
    fraction = first_error / total
    freedom = 1.0 / (fraction**2 / (first.clusters - 1) + (1.0 - fraction) ** 2 / (second.clusters - 1))
    half = student_half(math.sqrt(total), freedom, level)
    return Estimate(difference, difference - half, difference + half)


def _spread(name: str, values: Mean) -> tuple[float, float]:
    """The mean, and the square of its standard error."""
    mean, error = values.mean, values.standard_error
    if mean is None or error is None:
        unit = "numbers" if values.clusters == values.n else "numbers of one cluster"
        raise ValueError(f"{name}: {values.n} {unit}; the interval of a difference needs at least two on each side")
    return mean, error * error
