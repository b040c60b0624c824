"""Estimates with confidence intervals: quantiles, ranks, and intervals of bounded means and differences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .aggregates import Mean

Floats: TypeAlias = NDArray[np.float64]

# scipy.special loads slowly, scipy.stats three times as slowly: only functions that need them import them.


@dataclass(slots=True, frozen=True)
class Estimate:
    """Value with the lower and upper end of its interval."""

    value: float
    low: float
    high: float


def extend_to_zero(estimate: Estimate, p: float | None, level: float = 0.95) -> Estimate:
    """Extend a difference's interval to 0 if a test, which makes other assumptions, does not reject 0."""
    if p is None or p < 1.0 - level:
        return estimate
    return Estimate(estimate.value, min(estimate.low, 0.0), max(estimate.high, 0.0))


def check_level(level: float) -> None:
    """Raise ValueError unless a confidence level is between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level}; it must be a share between 0 and 1")


def student_quantile(probability: float, freedom: Any) -> Any:
    """Return the quantile of Student's t distribution; `freedom` may be an array."""
    from scipy.special import stdtrit

    return stdtrit(freedom, probability)


def student_tail(value: Any, freedom: Any) -> Any:
    """Return the probability that Student's t exceeds `value`."""
    from scipy.special import stdtr

    return stdtr(freedom, -value)


def student_half(error: float, freedom: float, level: float) -> float:
    """Return the half-width of Student's interval of an estimate with this standard error."""
    return float(student_quantile((1.0 + level) / 2, freedom)) * error


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(probability))


def normal_share(value: float) -> float:
    """Return the standard normal distribution function at `value`."""
    from scipy.special import ndtr

    return float(ndtr(value))


def mid_ranks(values: Any, weights: Floats | None = None) -> Floats:
    """Return ranks from 1; ties get the mean of their ranks.

    With `weights`: the weight of all smaller values plus half the weight of equal ones.
    """
    _, places = np.unique(values, return_inverse=True)
    equal = np.bincount(places, weights)
    ranks = np.cumsum(equal) - equal / 2
    return np.asarray((ranks + 0.5 if weights is None else ranks)[places], dtype=np.float64)


def bounded_interval(
    means: Floats, dispersions: Floats, items: Floats, stretch: Floats, level: float
) -> tuple[Floats, Floats]:
    """Return both ends of Wilson's interval, generalised to means of values from 0 to 1.

    `dispersions` are variances divided by the variance of yes-or-no values with the same mean (0–1): n items count as n
    / dispersion. `stretch` multiplies the normal quantile, because dispersions are estimated. Every interval allows for
    unseen items: a fraction z² / (items + z²) of them may sit at either end, so the width is never 0.
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
    """Return the difference of two means, second minus first, with Welch's interval (1947).

    Without any spread the interval is a point.

    Raises:
        ValueError: if `first` or `second` has fewer than two numbers, or `level` is not between 0 and 1.
    """
    check_level(level)
    (first_mean, first_error), (second_mean, second_error) = _spread("first", first), _spread("second", second)
    difference = second_mean - first_mean
    total = first_error + second_error
    if total == 0.0:
        return Estimate(difference, difference, difference)
    # Welch–Satterthwaite by fractions of the variance: squares of small variances would underflow.
    fraction = first_error / total
    freedom = 1.0 / (fraction**2 / (first.clusters - 1) + (1.0 - fraction) ** 2 / (second.clusters - 1))
    half = student_half(math.sqrt(total), freedom, level)
    return Estimate(difference, difference - half, difference + half)


def _spread(name: str, values: Mean) -> tuple[float, float]:
    """Return the mean and the square of its standard error."""
    mean, error = values.mean, values.standard_error
    if mean is None or error is None:
        unit = "numbers" if values.clusters == values.n else "numbers of one cluster"
        raise ValueError(
            f"{name}: {values.n} {unit}; the interval of a difference needs at least two independent ones on each side"
        )
    return mean, error * error
