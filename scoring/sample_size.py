"""Sample sizes: the items needed for an interval of a given width, or to detect a difference of two candidates.

The pilot's variance is taken as the true one, but the variance of a small pilot is uncertain (by about a third with 20
items).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .intervals import bounded_interval, check_level, normal_quantile, student_half, student_quantile


def items_for_half_width(half_width: float, variance: float, level: float = 0.95) -> int:
    """Return the smallest n ≥ 2 with t(n-1) · sqrt(variance / n) ≤ half_width (Cochran 1977, section 4.7)."""
    _check_arguments("half_width", half_width, variance, level)
    deviation = math.sqrt(variance)
    return _smallest_n(lambda n: student_half(deviation, n - 1, level) / math.sqrt(n) <= half_width)


def items_for_bounded(half_width: float, mean: float, dispersion: float, level: float = 0.95) -> int:
    """Return the smallest number of items at which a bounded interval is at most twice `half_width` wide; at least 2.

    All arguments are in units of the range between the bounds. The interval is `bounded_interval` with Student's
    quantile.

    Args:
        half_width: 0–1.
        mean: 0–1.
        dispersion: Variance of one item's value divided by mean · (1 - mean), the variance of yes-or-no values.
        level: Confidence level.
    """
    check_level(level)
    tail = (1.0 + level) / 2
    if not half_width > 0.0:
        raise ValueError(f"half_width is {half_width}; it must be above 0")
    if not (0.0 <= mean <= 1.0 and 0.0 <= dispersion <= 1.0):
        raise ValueError(f"mean {mean} and dispersion {dispersion}; they must lie in 0–1")

    def enough(n: int) -> bool:
        stretch = float(student_quantile(tail, n - 1)) / normal_quantile(tail)
        numbers = np.array([[mean], [dispersion], [float(n)], [stretch]])
        low, high = bounded_interval(numbers[0], numbers[1], numbers[2], numbers[3], level)
        return float(high[0] - low[0]) <= 2.0 * half_width

    return _smallest_n(enough)


def items_for_difference(difference: float, variance: float, power: float = 0.8, level: float = 0.95) -> int:
    """Return the smallest number of items at which a paired test detects `difference` with `power`; at least 2.

    The statistic of the two-sided t-test at 1 - `level` has the noncentral t distribution. For one of m pairs of a
    corrected table, pass 1 - (1 - level) / m as `level`. `variance` is the variance of an item's difference.

    Source: Cohen 1988, section 2.3.
    """
    _check_arguments("difference", abs(difference), variance, level)
    if not 1.0 - level <= power < 1.0:
        raise ValueError(f"power is {power}; it must be at least {1.0 - level:.6g} (chance) and below 1")
    if variance == 0.0:
        return 2
    effect = abs(difference) / math.sqrt(variance)
    return _smallest_n(lambda n: paired_test_power(effect, n, level) >= power)


def paired_test_power(effect: float, n: int, level: float = 0.95) -> float:
    """Return the power of the two-sided paired t-test over `n` items.

    `effect` is the true mean difference in standard deviations of the items' differences.
    """
    from scipy.special import nctdtr

    check_level(level)
    if n < 2:
        raise ValueError(f"{n} items; a test needs at least two")
    critical = student_half(1.0, n - 1, level)
    shift = abs(effect) * math.sqrt(n)
    # A rejection on the wrong side is one on the right side of the mirrored distribution; if its tail is negligible,
    # nctdtr may be nan.
    below = np.nan_to_num(nctdtr(n - 1, [shift, -shift], critical), nan=1.0)
    return float((1.0 - below).sum())


def _check_arguments(name: str, value: float, variance: float, level: float) -> None:
    check_level(level)
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name} is {value}; it must be above 0")
    if not (math.isfinite(variance) and variance >= 0.0):
        raise ValueError(f"variance is {variance}; it cannot be below 0")


def _smallest_n(enough: Callable[[int], bool]) -> int:
    """Return the smallest sufficient n from 2 on, by doubling and bisection; sufficiency is monotone."""
    high = 2
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return max(2, high)
