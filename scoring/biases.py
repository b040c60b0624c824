"""Effects of what should not matter on verdicts: means of cases against 0, the same where the truth is known, spreads.

Pure functions of one number a case. What never belongs here: what the numbers mean, and who judges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .clusters import ClusteredMean, clustered_mean
from .comparison import tested_mean
from .intervals import Estimate

# scipy.stats takes half a second to load: the functions that need it import it.


@dataclass(slots=True, frozen=True)
class Effect:
    """An effect with its interval, and the two-sided p-value of there being none (None where nothing is tested).

    ``n`` is the number of cases that it rests on.
    """

    value: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int


NO_EFFECT = Effect(None, None, None, None, 0)


def mean_effect(values: Mapping[str, float], *, wins: bool = False, level: float = 0.95) -> Effect:
    """The mean over cases of values from -1 to 1, which is 0 where nothing has an effect.

    The interval is Student's, or where values are ``wins``, which few cases may hold none of, that of values between
    -1 and 1 (``ClusteredMean.within``); p is that of sign flips up to 100 cases, else of Student's t.

    :raises ValueError: a value is not finite.
    """
    cases = sorted(values)
    found = clustered_mean([values[case] for case in cases], cases)
    if found is None:
        return NO_EFFECT
    ends = found.within(-1.0, 1.0, level=level) if wins else _student(found, level)
    p, _ = tested_mean(found, {case: [values[case]] for case in cases})
    return Effect(found.mean, ends.low, ends.high, p, found.n)


def balanced_effect(values: Mapping[str, float], truth: Mapping[str, int], level: float = 0.95) -> Effect:
    """The mean of values from -1 to 1 where the truth is -1 or 1 for each case, both sides weighing the same.

    A judge who errs without favour says 1 as often where the truth is -1 as it says -1 where the truth is 1, so its
    effect is 0 however often it errs, and however often either is true (equal opportunity: Hardt et al. 2016; for
    self-preference, Wataoka et al. 2024). Welch's interval and t-test of the sum of the two means, halved. Cases
    without such a truth are left out; no effect is known where a side has fewer than two cases.
    """
    from scipy.stats import t

    sides = [[values[case] for case in sorted(values) if truth.get(case) == side] for side in (1, -1)]
    if min(map(len, sides)) < 2:
        return Effect(None, None, None, None, sum(map(len, sides)))
    means = [math.fsum(side) / len(side) for side in sides]
    # A quarter of a square more keeps the error above 0 where all cases of a side are alike.
    errors = [
        (math.fsum((value - mean) ** 2 for value in side) + 0.25) / (len(side) * (len(side) - 1))
        for side, mean in zip(sides, means, strict=True)
    ]
    value, error = sum(means) / 2, math.sqrt(sum(errors)) / 2
    freedom = sum(errors) ** 2 / sum(one**2 / (len(side) - 1) for one, side in zip(errors, sides, strict=True))
    half = float(t.ppf((1 + level) / 2, freedom)) * error
    p = float(2 * t.sf(abs(value) / error, freedom))
    return Effect(value, max(-1.0, value - half), min(1.0, value + half), p, sum(map(len, sides)))


def spread_effect(grades: Mapping[str, Sequence[float]], level: float = 0.95) -> Effect:
    """The mean over cases of the standard deviation of repeated grades from 0 to 1; nothing is tested.

    Cases with fewer than two grades are left out.
    """
    spreads = {case: _deviation(values) for case, values in grades.items() if len(values) > 1}
    cases = sorted(spreads)
    found = clustered_mean([spreads[case] for case in cases], cases)
    if found is None:
        return NO_EFFECT
    ends = _student(found, level)
    return Effect(found.mean, max(0.0, ends.low), ends.high, None, found.n)


def _student(found: ClusteredMean, level: float) -> Estimate:
    """Student's interval; that of values between bounds of one case, which has none."""
    return found.interval(level) or found.within(-1.0, 1.0, level=level)


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return min(1.0, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)))
