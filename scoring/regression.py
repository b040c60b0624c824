"""One score against another over several models: the line, the correlations, and the points that lie off it.

Yu et al. 2024, appendix C and Figure 4: a model far below the line of interview score on benchmark accuracy answers
better than it understands, which suggests contamination. Pure functions.
What never belongs here: where the two scores come from, and drawing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import linear_regression
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
LEVEL = 0.05  # of all tests together
FEWEST = 10  # items, or clusters of items: from fewer no error can be estimated
_MANY = 1e6  # degrees of freedom

_NORMAL_MAD = 1.4826  # the median absolute value of a normal distribution times this is its standard deviation
_ROUGHLY = 2.5  # expected spreads within which a point has a part in the final line


@dataclass(slots=True, frozen=True)
class Point:
    """One model: ``x`` and ``y`` with the standard errors of each (0 where they are not known)."""

    name: str
    x: float
    y: float
    x_error: float = 0.0
    y_error: float = 0.0


@dataclass(slots=True, frozen=True)
class Regression:
    """A line through points that does not follow outliers.

    ``residuals`` are y less the line; ``deviations`` the same in units of each point's expected spread; ``kept`` the
    points that the final line is drawn through. ``below`` and ``above`` are the names of those beyond ``threshold``
    such units; where points were tested (``departures``), of those whose corrected p is less than 0.05.
    """

    slope: float
    intercept: float
    residuals: dict[str, float]
    deviations: dict[str, float]
    threshold: float
    kept: tuple[str, ...] = ()
    p_values: Mapping[str, float] | None = None

    @property
    def below(self) -> list[str]:
        """Points significantly below the line."""
        return [name for name, deviation in self.deviations.items() if deviation < 0 and self._off(name, deviation)]

    @property
    def above(self) -> list[str]:
        """Points significantly above the line."""
        return [name for name, deviation in self.deviations.items() if deviation > 0 and self._off(name, deviation)]

    def _off(self, name: str, deviation: float) -> bool:
        if self.p_values is None:
            return abs(deviation) > self.threshold
        return self.p_values.get(name, 1.0) < LEVEL


def robust_line(points: Sequence[Point], threshold: float = 3.0) -> Regression:
    """A line that outliers do not draw to themselves, and each point's distance from it.

    Reweighted least squares (Rousseeuw and Leroy 1987): the line of least trimmed squares, through the h = (n+3)/2
    points that lie closest to a line, tells which points lie within 2.5 expected spreads; the final line is that of
    least squares through those. So two outliers among six points are found; where half lie elsewhere, no line can say
    which half.

    A point's expected spread joins that of the residuals (first the h-th smallest, scaled for a normal distribution;
    then the standard deviation of those kept) with the point's own standard errors. Give those where points are few:
    six points with normal noise about a line have one flagged in 8% of samples with them, in most samples without,
    for so few residuals say little of the noise.

    :raises ValueError: fewer than three points, two of one name, or all at the same x.
    """
    if len(points) < 3:
        raise ValueError(f"{len(points)} points; a line with outliers needs at least three")
    if len({point.name for point in points}) < len(points):
        raise ValueError("points: two have the same name")
    if len({point.x for point in points}) < 2:
        raise ValueError(f"x: all points lie at {points[0].x:g}; no line has a slope there")
    held = _held(len(points))
    line = _least_trimmed(points, held)
    furthest = sorted(abs(line.residual(point)) for point in points)[held - 1]
    spread = _NORMAL_MAD * furthest
    kept = [point for point in points if abs(line.deviation(point, spread)) <= _ROUGHLY]
    names = tuple(point.name for point in kept)
    if len(kept) > 2 and len({point.x for point in kept}) > 1:
        line = _least_squares(kept)
        spread = math.sqrt(math.fsum(line.residual(point) ** 2 for point in kept) / (len(kept) - 2))
    residuals = {point.name: line.residual(point) for point in points}
    deviations = {point.name: line.deviation(point, spread) for point in points}
    return Regression(line.slope, line.intercept, residuals, deviations, threshold, names)


def _held(count: int) -> int:
    """How many points a line of least trimmed squares rests on."""
    return min(count, (count + 3) // 2)


@dataclass(slots=True, frozen=True)
class Departure:
    """A point's distance from the line through the points kept, itself left out: the test of whether it belongs there.

    ``value`` is y less the line, ``se`` its expected spread if it belongs there, with ``freedom`` degrees; ``models``
    is the part of ``se`` that more items would not narrow. ``tries``: by how much a p-value is corrected, because the
    line was searched for; None where so many points are off already that no line could tell of one more.
    """

    value: float
    se: float
    freedom: float
    models: float
    limit: float
    tries: int | None

    def corrected_for(self, tables: int) -> Departure:
        """Return the same test as one of those of this point in so many tables, by Bonferroni."""
        return self if self.tries is None else replace(self, tries=self.tries * tables)

    @property
    def p(self) -> float:
        """The chance of lying as far off on that side, corrected."""
        from scipy.stats import t

        if self.tries is None:
            return 1.0
        ratio = abs(self.value) / self.se if self.se else math.inf if self.value else 0.0
        return min(1.0, self.tries * max(sys.float_info.min, float(t.sf(ratio, self.freedom))))

    def power(self, fall: float) -> float:
        """The probability that the test finds a point that lies ``fall`` off."""
        from scipy.stats import t

        if self.tries is None or not self.se:
            return 0.0
        return float(t.sf(t.isf(LEVEL / self.tries, self.freedom) - fall / self.se, self.freedom))

    def times_the_items(self, fall: float, power: float) -> float | None:
        """How many times as many items find that with this ``power``; None where no number of them would."""
        from scipy.stats import t

        if self.tries is None:
            return None
        wanted = fall / float(t.isf(LEVEL / self.tries, self.limit) + t.ppf(power, self.limit))
        if wanted <= self.models:
            return None
        return (self.se**2 - self.models**2) / (wanted**2 - self.models**2)


@dataclass(slots=True, frozen=True)
class ItemErrors:
    """What the items say of one point: for each cluster of items its share of the error of ``x`` and of ``y`` (the sum
    of its residuals over the number of values), and the number of ``clusters`` that have values.

    ``x_least`` and ``y_least``: errors that are not undercut, whatever the spread seen: few values may be alike by
    chance.
    """

    x: Floats
    y: Floats
    clusters: int
    x_least: float = 0.0
    y_least: float = 0.0


def departures(
    line: Regression, points: Sequence[Point], errors_of: Mapping[str, ItemErrors], *, scatter: float, tests: int = 1
) -> dict[str, Departure]:
    """Test each point against the line of the others that were kept; points that cannot be tested are left out.

    A point's expected spread joins the error from the items, point and line being compared item by item (on as many
    degrees of freedom as there are clusters less one), and how far points lie about a line beyond that: ``scatter``, or
    more where the kept points show more (on as many degrees as there are of them less two), with the line's own error
    at that place (the prediction interval of least squares). A few points that happen to lie on a line do not say that
    all do, so ``scatter`` is allowed in any case. The degrees of the sum are Satterthwaite's (1946).

    The kept points were searched for, so p is corrected by Bonferroni for every set of points that the search could
    have left out and each of its members; and for ``tests`` kinds of test. So the chance of finding any point of a
    clean table below its line is at most 0.05 / ``tests``, if points lie normally about a line by no more than that.
    """
    most = len(points) - _held(len(points))
    sets = sum(off * math.comb(len(points), off) for off in range(1, most + 1))
    found = {}
    for point in points:
        kept = [one for one in points if one.name in line.kept and one.name != point.name]
        if len(kept) < 3 or len({one.x for one in kept}) < 2:
            continue
        off = len(points) - len(line.kept) + (point.name in line.kept)
        found[point.name] = _departure(point, kept, errors_of, scatter, tests * sets if off <= most else None)
    return found


def _departure(
    point: Point, kept: Sequence[Point], errors_of: Mapping[str, ItemErrors], scatter: float, tries: int | None
) -> Departure:
    xs, ys = (np.array([getattr(one, name) for one in kept]) for name in ("x", "y"))
    apart = xs - xs.mean()
    total = float(apart @ apart)
    slope = float(apart @ ys) / total
    weights = 1 / len(kept) + (point.x - xs.mean()) * apart / total
    errors = ys - ys.mean() - slope * apart
    freedom = len(kept) - 2
    own = errors_of[point.name]
    # What the items alone make of the points' places, cluster by cluster.
    noise = np.array([_noise(errors_of[one.name], slope) for one in kept])
    by_items = float(((_noise(own, slope) - weights @ noise) ** 2).sum())
    by_items += _beyond(own.y_least, own.y) + slope**2 * _beyond(own.x_least, own.x)
    left = noise - noise.mean(axis=0) - np.outer(apart, apart @ noise) / total
    seen = (float(errors @ errors) - float((left**2).sum())) / freedom
    stretch = 1 + 1 / len(kept) + (point.x - xs.mean()) ** 2 / total
    clusters = max(2, min(own.clusters, *(errors_of[one.name].clusters for one in kept)))
    # Of few items nobody knows what part of the scatter is theirs.
    more = seen > scatter**2 and clusters >= FEWEST
    by_points = (seen if more else scatter**2) * stretch
    unsure = by_items**2 / (clusters - 1) + (by_points**2 / freedom if more else 0.0)
    whole = by_points + by_items
    degrees = whole**2 / unsure if unsure else _MANY
    limit = float(freedom) if more else _MANY
    return Departure(point.y - float(weights @ ys), math.sqrt(whole), degrees, math.sqrt(by_points), limit, tries)


def _noise(one: ItemErrors, slope: float) -> Floats:
    factor = math.sqrt(one.clusters / (one.clusters - 1)) if one.clusters > 1 else 1.0
    noise: Floats = factor * (one.y - slope * one.x)
    return noise


def _beyond(least: float, parts: Floats) -> float:
    """By how much the square of the least error exceeds the variance seen."""
    return max(0.0, least**2 - float((parts**2).sum()))


@dataclass(slots=True, frozen=True)
class _Line:
    slope: float
    intercept: float

    def residual(self, point: Point) -> float:
        return point.y - (self.intercept + self.slope * point.x)

    def deviation(self, point: Point, spread: float) -> float:
        residual = self.residual(point)
        expected = math.hypot(spread, point.y_error, self.slope * point.x_error)
        if expected:
            return residual / expected
        return math.copysign(math.inf, residual) if residual else 0.0  # off a perfect line, by however little


def _least_trimmed(points: Sequence[Point], held: int) -> _Line:
    """The line with the smallest sum of its ``held`` smallest squared residuals.

    From the line through each pair of points, the nearest points and their own line are taken in turn until the sum no
    longer falls (the concentration steps of Rousseeuw and Van Driessen 2006).
    """
    best: tuple[float, _Line] | None = None
    for one, other in combinations(sorted(points, key=lambda point: (point.x, point.y, point.name)), 2):
        if one.x == other.x:
            continue
        line, total = _least_squares([one, other]), math.inf
        while True:
            nearest = sorted(points, key=lambda point: (abs(line.residual(point)), point.name))[:held]
            now = math.fsum(line.residual(point) ** 2 for point in nearest)
            if best is None or now < best[0]:
                best = now, line
            if not now < total or len({point.x for point in nearest}) < 2:
                break
            line, total = _least_squares(nearest), now
    if best is None:
        raise ValueError("x: all points lie at one place")
    return best[1]


def _least_squares(points: Sequence[Point]) -> _Line:
    slope, intercept = linear_regression([point.x for point in points], [point.y for point in points])
    return _Line(slope, intercept)


def pearson(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float] | None:
    """Pearson's r and its two-sided p-value; None where one side has no spread, or of fewer than three pairs.

    r is known to about sixteen digits, so no p-value is less than that of r = 1 - 2**-53: it is never 0.

    :raises ValueError: the two differ in length.
    """
    from scipy.stats import beta, pearsonr  # take half a second to load

    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} values against {len(ys)}")
    if len(xs) < 3 or len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    found = pearsonr(xs, ys)
    least = 2.0 * float(beta.cdf(sys.float_info.epsilon / 4, len(xs) / 2 - 1, len(xs) / 2 - 1))
    return float(found.statistic), max(float(found.pvalue), least, sys.float_info.min)
