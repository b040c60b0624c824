"""A value and how sure it is: the record that tables take, and the intervals of a share and of a difference of means.

Well-known formulas, computed by scipy where it has them. What never belongs here: what the numbers mean, and
resampling, which needs the numbers themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .stream import Mean

# scipy.stats takes half a second to load: the functions that need it import it.


@dataclass(slots=True, frozen=True)
class Estimate:
    """A value with the lower and upper end of its interval."""

    value: float
    low: float
    high: float


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
    freedom = 1.0 / (share**2 / (first.n - 1) + (1.0 - share) ** 2 / (second.n - 1))
    half = float(t.ppf((1.0 + level) / 2, freedom)) * math.sqrt(total)
    return Estimate(difference, difference - half, difference + half)


def _spread(name: str, values: Mean) -> tuple[float, float]:
    """The mean, and the square of its standard error."""
    mean, variance = values.mean, values.variance
    if mean is None or variance is None:
        raise ValueError(f"{name}: {values.n} numbers; the interval of a difference needs at least two on each side")
    return mean, variance / values.n
