"""One score against another over several models: the line, the correlations, and the points that lie off it.

Yu et al. 2024, appendix C and Figure 4: a model far below the line of interview score on benchmark accuracy answers
better than it understands, which suggests contamination. Pure functions.
What never belongs here: where the two scores come from, and drawing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import linear_regression

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

    ``residuals`` are y less the line; ``deviations`` the same in units of each point's expected spread; ``below`` and
    ``above`` the names of those beyond ``threshold`` such units.
    """

    slope: float
    intercept: float
    residuals: dict[str, float]
    deviations: dict[str, float]
    threshold: float

    @property
    def below(self) -> list[str]:
        """Points significantly below the line."""
        return [name for name, deviation in self.deviations.items() if deviation < -self.threshold]

    @property
    def above(self) -> list[str]:
        """Points significantly above the line."""
        return [name for name, deviation in self.deviations.items() if deviation > self.threshold]


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
    held = min(len(points), (len(points) + 3) // 2)
    line = _least_trimmed(points, held)
    furthest = sorted(abs(line.residual(point)) for point in points)[held - 1]
    spread = _NORMAL_MAD * furthest
    kept = [point for point in points if abs(line.deviation(point, spread)) <= _ROUGHLY]
    if len(kept) > 2 and len({point.x for point in kept}) > 1:
        line = _least_squares(kept)
        spread = math.sqrt(math.fsum(line.residual(point) ** 2 for point in kept) / (len(kept) - 2))
    residuals = {point.name: line.residual(point) for point in points}
    deviations = {point.name: line.deviation(point, spread) for point in points}
    return Regression(line.slope, line.intercept, residuals, deviations, threshold)


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
