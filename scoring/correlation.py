"""Scores against benchmark accuracies: correlations, robust lines, and the models that lie off them.

Yu et al. 2024, appendix C, Table 7 (coefficients, with and without a suspected model) and Figure 4: a model far below
the line of interview score on benchmark accuracy answers better than it understands, which suggests contamination.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from statistics import linear_regression

import numpy as np
from numpy.typing import NDArray

from .intervals import Floats, mid_ranks, normal_share, student_quantile, student_tail

DEPARTURE_LEVEL = 0.05  # level of all tests together
MIN_POINTS = 10  # items, or clusters of items: fewer are too few to estimate an error
_UNBOUNDED = 1e6  # degrees of freedom
_MAX_STARTS = 2_000  # pairs of points, those of 63 points; with more points some pairs are tried
_RANDOM_STARTS = 500  # as in Rousseeuw and Van Driessen 2006
_MOST_TRIES = 10**300  # more do not fit into a float

_NORMAL_MAD = 1.4826  # standard deviation over median absolute value of a normal distribution
_ROUGH_THRESHOLD = 2.5  # expected spreads within which a point counts for the final line


@dataclass(slots=True, frozen=True)
class Point:
    """Model in the plane: `x` and `y` with their standard errors (0 if unknown)."""

    name: str
    x: float
    y: float
    x_error: float = 0.0
    y_error: float = 0.0


@dataclass(slots=True, frozen=True)
class Regression:
    """Line through points that outliers do not influence.

    `residuals` are y minus the line; `deviations` are residuals in units of each point's expected spread; `inliers` are
    the points behind the final line. `below` and `above` name the points beyond `threshold` such units; if points were
    tested (`departures`), they name the points with a corrected p below 0.05.
    """

    slope: float
    intercept: float
    residuals: dict[str, float]
    deviations: dict[str, float]
    threshold: float
    inliers: tuple[str, ...] = ()
    p_values: Mapping[str, float] | None = None

    @property
    def below(self) -> list[str]:
        """Points significantly below the line."""
        return [
            name for name, deviation in self.deviations.items() if deviation < 0 and self._is_outlier(name, deviation)
        ]

    @property
    def above(self) -> list[str]:
        """Points significantly above the line."""
        return [
            name for name, deviation in self.deviations.items() if deviation > 0 and self._is_outlier(name, deviation)
        ]

    def _is_outlier(self, name: str, deviation: float) -> bool:
        if self.p_values is None:
            return abs(deviation) > self.threshold
        return self.p_values.get(name, 1.0) < DEPARTURE_LEVEL


def robust_line(points: Sequence[Point], threshold: float = 3.0) -> Regression:
    """Fit a line that outliers do not attract, and return each point's distance from it.

    Reweighted least squares: the line of least trimmed squares, through the h = (n+3)/2 points closest to a line,
    decides which points lie within 2.5 expected spreads; the final line is the least-squares line of these points. So
    two outliers among six points are found; if half the points lie elsewhere, no line can tell which half.

    A point's expected spread combines the spread of the residuals (first the h-th smallest, scaled for a normal
    distribution; then the standard deviation of the inliers) with the point's own standard errors. Provide standard
    errors if points are few. With them, a point is flagged in 8% of samples of six points with normal noise about a
    line; without them, in most samples.

    Raises:
        ValueError: if there are fewer than three points, two of one name, or all at the same x.

    Source: Rousseeuw and Leroy 1987.
    """
    if len(points) < 3:
        raise ValueError(f"found {len(points)} points; a line that outliers do not attract needs at least three points")
    if len({point.name for point in points}) < len(points):
        raise ValueError("points: two points have the same name")
    if len({point.x for point in points}) < 2:
        raise ValueError(f"x: all points have the value {points[0].x:g}; a slope needs two different values")
    coverage = _trimmed_count(len(points))
    line = _least_trimmed(points, coverage)
    furthest = sorted(abs(line.residual(point)) for point in points)[coverage - 1]
    spread = _NORMAL_MAD * furthest
    inliers = [point for point in points if abs(line.deviation(point, spread)) <= _ROUGH_THRESHOLD]
    names = tuple(point.name for point in inliers)
    if len(inliers) > 2 and len({point.x for point in inliers}) > 1:
        line = _least_squares(inliers)
        spread = math.sqrt(math.fsum(line.residual(point) ** 2 for point in inliers) / (len(inliers) - 2))
    residuals = {point.name: line.residual(point) for point in points}
    deviations = {point.name: line.deviation(point, spread) for point in points}
    return Regression(line.slope, line.intercept, residuals, deviations, threshold, names)


def _trimmed_count(count: int) -> int:
    """Return the number of points behind a line of least trimmed squares."""
    return min(count, (count + 3) // 2)


@dataclass(slots=True, frozen=True)
class Departure:
    """Distance of a point from the line through the other inliers, with the test of whether it belongs to that line.

    `value` is y minus the line, `se` its expected spread under the null hypothesis, with `freedom` degrees of freedom;
    `models` is the part of `se` that more items would not reduce, `limit` the `freedom` with any number of items. p is
    multiplied by `tries`, because the line was searched for; `tries` is None (p = 1) if so many points are off the line
    already that no other could be tested.
    """

    value: float
    se: float
    freedom: float
    models: float
    limit: float
    tries: int | None

    def corrected_for(self, tables: int) -> Departure:
        """Return the test corrected for testing this point in `tables` tables (Bonferroni)."""
        return self if self.tries is None else replace(self, tries=self.tries * tables)

    @property
    def p(self) -> float:
        """Corrected p-value of lying as far off on that side."""
        if self.tries is None:
            return 1.0
        ratio = abs(self.value) / self.se if self.se else math.inf if self.value else 0.0
        return min(1.0, self.tries * max(sys.float_info.min, float(student_tail(ratio, self.freedom))))

    def power(self, fall: float) -> float:
        """Return the probability that the test detects a point that lies `fall` off."""
        if self.tries is None or not self.se:
            return 0.0
        return float(student_tail(self._critical(self.freedom) - fall / self.se, self.freedom))

    def item_factor(self, fall: float, power: float) -> float | None:
        """Return how many times as many items would detect `fall` with this `power`; None if no number would."""
        if self.tries is None:
            return None
        target = fall / (self._critical(self.limit) + float(student_quantile(power, self.limit)))
        if target <= self.models:
            return None
        return (self.se**2 - self.models**2) / (target**2 - self.models**2)

    def _critical(self, freedom: float) -> float:
        return -float(student_quantile(DEPARTURE_LEVEL / (self.tries or 1), freedom))


@dataclass(slots=True, frozen=True)
class ItemErrors:
    """Contribution of items to one point's error.

    `x` and `y` have by cluster of items its share of the error of that coordinate: the sum of its residuals divided by
    the number of values. `clusters` is the number of clusters with values. `x_least` and `y_least` are lower limits of
    the errors, because a few values may be alike by chance.
    """

    x: Floats
    y: Floats
    clusters: int
    x_least: float = 0.0
    y_least: float = 0.0


def independent_errors(points: Sequence[Point], counts: Mapping[str, int]) -> dict[str, ItemErrors]:
    """Return errors of points whose coordinates are estimates with errors that are independent of all others.

    Such are the estimates of adaptive exams, which choose other items for each model. `counts` has by point the smaller
    number of items behind its coordinates, each a cluster of its own.
    """
    shares = np.eye(2 * len(points))
    errors = {}
    for index, point in enumerate(points):
        count = counts[point.name]
        # `departures` corrects observed errors for the number of clusters; these are known.
        known = math.sqrt((count - 1) / count) if count > 1 else 1.0
        x, y = known * point.x_error * shares[2 * index], known * point.y_error * shares[2 * index + 1]
        errors[point.name] = ItemErrors(x, y, count)
    return errors


def departures(
    line: Regression, points: Sequence[Point], errors_of: Mapping[str, ItemErrors], *, scatter: float, tests: int = 1
) -> dict[str, Departure]:
    """Test each point against the line of the other inliers; points that cannot be tested are left out.

    A point's expected spread joins two parts. One is the error from the items, compared item by item, with clusters - 1
    degrees of freedom. The other is `scatter`, the further spread of models about a line, or the spread that the
    inliers show if it is larger, with inliers - 2 degrees of freedom and the prediction error of least squares. A few
    points that happen to lie on a line do not prove that all do, so `scatter` is always allowed for. The joint degrees
    of freedom are Satterthwaite's (1946).

    The inliers were searched for, so p is corrected (Bonferroni) for all sets of points that the search could have left
    out, all members of a set, and `tests` kinds of test. So the chance of finding any point of a clean table below its
    line is at most 0.05 / `tests`, if models scatter normally about a line by at most `scatter`.
    """
    max_outliers = len(points) - _trimmed_count(len(points))
    sets = sum(outliers * math.comb(len(points), outliers) for outliers in range(1, max_outliers + 1))
    sets = min(sets, _MOST_TRIES)
    results, names = {}, frozenset(line.inliers)
    for point in points:
        inliers = [inlier for inlier in points if inlier.name in names and inlier.name != point.name]
        if len(inliers) < 3 or len({inlier.x for inlier in inliers}) < 2:
            continue
        outliers = len(points) - len(line.inliers) + (point.name in line.inliers)
        results[point.name] = _departure(
            point, inliers, errors_of, scatter, tests * sets if outliers <= max_outliers else None
        )
    return results


def _departure(
    point: Point, inliers: Sequence[Point], errors_of: Mapping[str, ItemErrors], scatter: float, tries: int | None
) -> Departure:
    xs, ys = (np.array([getattr(inlier, name) for inlier in inliers]) for name in ("x", "y"))
    centred = xs - xs.mean()
    total = float(centred @ centred)
    slope = float(centred @ ys) / total
    weights = 1 / len(inliers) + (point.x - xs.mean()) * centred / total
    errors = ys - ys.mean() - slope * centred
    freedom = len(inliers) - 2
    own = errors_of[point.name]
    # Error of the points that is due to the items, cluster by cluster.
    noise = np.array([_point_noise(errors_of[inlier.name], slope) for inlier in inliers])
    by_items = float(((_point_noise(own, slope) - weights @ noise) ** 2).sum())
    by_items += _excess_variance(own.y_least, own.y) + slope**2 * _excess_variance(own.x_least, own.x)
    remainder = noise - noise.mean(axis=0) - np.outer(centred, centred @ noise) / total
    observed = (float(errors @ errors) - float((remainder**2).sum())) / freedom
    stretch = 1 + 1 / len(inliers) + (point.x - xs.mean()) ** 2 / total
    clusters = max(2, min(own.clusters, *(errors_of[inlier.name].clusters for inlier in inliers)))
    # With few items, the items' part of the scatter is unknown.
    scattered = observed > scatter**2 and clusters >= MIN_POINTS
    by_points = (observed if scattered else scatter**2) * stretch
    unsure = by_items**2 / (clusters - 1) + (by_points**2 / freedom if scattered else 0.0)
    variance = by_points + by_items
    degrees = variance**2 / unsure if unsure else _UNBOUNDED
    limit = float(freedom) if scattered else _UNBOUNDED
    return Departure(point.y - float(weights @ ys), math.sqrt(variance), degrees, math.sqrt(by_points), limit, tries)


def _point_noise(errors: ItemErrors, slope: float) -> Floats:
    factor = math.sqrt(errors.clusters / (errors.clusters - 1)) if errors.clusters > 1 else 1.0
    noise: Floats = factor * (errors.y - slope * errors.x)
    return noise


def _excess_variance(floor: float, parts: Floats) -> float:
    """Return by how much the square of the minimum error exceeds the observed variance."""
    return max(0.0, floor**2 - float((parts**2).sum()))


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
        return math.copysign(math.inf, residual) if residual else 0.0  # off a perfect line, every distance is infinite


def _least_trimmed(points: Sequence[Point], coverage: int) -> _Line:
    """Return the line with the smallest sum of its `coverage` smallest squared residuals.

    Starting at the line through each pair of points, find the nearest points and fit their line, until the sum no
    longer falls. With more than `_MAX_STARTS` pairs, `_RANDOM_STARTS` of them are tried, always the same ones.

    Source: concentration steps of Rousseeuw and Van Driessen 2006.
    """
    best: tuple[float, _Line] | None = None
    ordered = sorted(points, key=lambda point: (point.x, point.y, point.name))
    starts: Iterable[Sequence[Point]] = combinations(ordered, 2)
    if math.comb(len(ordered), 2) > _MAX_STARTS:
        choice = random.Random(len(ordered))
        starts = [choice.sample(ordered, 2) for _ in range(_RANDOM_STARTS)]
    for first, second in starts:
        if first.x == second.x:
            continue
        line, total = _least_squares([first, second]), math.inf
        while True:
            nearest = sorted(points, key=lambda point: (abs(line.residual(point)), point.name))[:coverage]
            current = math.fsum(line.residual(point) ** 2 for point in nearest)
            if best is None or current < best[0]:
                best = current, line
            if not current < total or len({point.x for point in nearest}) < 2:
                break
            line, total = _least_squares(nearest), current
    if best is None:
        raise ValueError("x: all values are equal")
    return best[1]


def _least_squares(points: Sequence[Point]) -> _Line:
    slope, intercept = linear_regression([point.x for point in points], [point.y for point in points])
    return _Line(slope, intercept)


def pearson(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float] | None:
    """Return Pearson's r and its two-sided p-value; None without spread on a side, or below three pairs.

    r is exact to about sixteen digits, so p is never 0: its minimum belongs to r = 1 - 2**-53.
    """
    from scipy.special import betainc

    if not _have_spread(xs, ys):
        return None
    r = _linear_coefficient(np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64))
    # Without a relation r has the beta distribution on -1 to 1.
    shape = len(xs) / 2 - 1
    p = 2.0 * float(betainc(shape, shape, max((1.0 - abs(r)) / 2, sys.float_info.epsilon / 4)))
    return r, max(p, sys.float_info.min)


def _linear_coefficient(xs: Floats, ys: Floats) -> float:
    x, y = xs - xs.mean(), ys - ys.mean()
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip(x @ y / math.sqrt(float(x @ x) * float(y @ y)), -1.0, 1.0))


# Pairs up to which Spearman's p comes from all n! orders (40,320); beyond, from the t distribution.
MAX_EXACT = 8
_MAX_EXACT_KENDALL = 33  # pairs, as in scipy
_MAX_PAIRWISE = 500  # pairs up to which all are compared at once


@dataclass(slots=True, frozen=True)
class ModelScores:
    """Static accuracy and score of one model on one dataset, with standard errors (0 if unknown)."""

    model: str
    dataset: str
    accuracy: float
    score: float
    accuracy_se: float = 0.0
    score_se: float = 0.0


@dataclass(slots=True, frozen=True)
class Coefficient:
    """Coefficient from -1 to 1, and the two-sided p-value of no relation."""

    value: float
    p: float


@dataclass(slots=True, frozen=True)
class Correlation:
    """The three coefficients of `n` pairs; each is None without spread on a side, or below three pairs."""

    n: int
    pearson: Coefficient | None
    spearman: Coefficient | None
    kendall: Coefficient | None


@dataclass(slots=True, frozen=True)
class Correlations:
    """Columns of Table 7 for one choice of models: all datasets pooled, and each dataset by itself."""

    overall: Correlation
    datasets: dict[str, Correlation]


@dataclass(slots=True, frozen=True)
class DatasetLine:
    """Line of score on accuracy over one dataset's models.

    `spread` is the expected spread of the residuals, in units of the score: without standard errors a point is flagged
    beyond `line.threshold * spread`; with them, the point's own are added.
    """

    line: Regression
    spread: float


def correlation(xs: Sequence[float], ys: Sequence[float]) -> Correlation:
    """Return Pearson, Spearman and Kendall of pairs."""
    result = pearson(xs, ys)
    linear = None if result is None else Coefficient(*result)
    return Correlation(len(xs), linear, spearman(xs, ys), kendall(xs, ys))


def spearman(xs: Sequence[float], ys: Sequence[float]) -> Coefficient | None:
    """Return Spearman's rho (1904): Pearson's r of the mid-ranks. None as with `pearson`.

    Up to `MAX_EXACT` pairs, p comes from the permutation test: twice the fraction of orders with as extreme a rho.
    Beyond, rho * sqrt((n-2) / (1-rho²)) is compared with t with n-2 degrees of freedom, which is poor for few pairs; p
    is at least 2/n!, the chance that n pairs are in order or in reverse order.

    Source: Kendall and Stuart, vol. 2, section 31.19.
    """
    if not _have_spread(xs, ys):
        return None
    n, x_ranks, y_ranks = len(xs), mid_ranks(xs), mid_ranks(ys)
    rho = _linear_coefficient(x_ranks, y_ranks)
    if n > MAX_EXACT:
        ratio = abs(rho) * math.sqrt((n - 2) / ((1.0 + rho) * (1.0 - rho))) if abs(rho) < 1.0 else math.inf
        return Coefficient(rho, max(2.0 * float(student_tail(ratio, n - 2)), _smallest_p(n)))
    y_ranks -= y_ranks.mean()
    products, observed = (
        x_ranks[_all_orders(n)] @ y_ranks,
        x_ranks @ y_ranks,
    )  # rho up to a constant factor
    tail = min((products <= observed).mean(), (products >= observed).mean())
    return Coefficient(rho, min(1.0, 2.0 * float(tail)))


@lru_cache(maxsize=MAX_EXACT)
def _all_orders(n: int) -> NDArray[np.int64]:
    return np.array(list(permutations(range(n))))


def kendall(xs: Sequence[float], ys: Sequence[float]) -> Coefficient | None:
    """Return Kendall's tau-b (1938, 1945). None as with `pearson`.

    Concordant minus discordant pairs of pairs, divided by sqrt(pairs not tied in x · pairs not tied in y). p is exact
    without ties up to n = 33, else by the normal approximation with the variance for ties.

    Source: Kendall 1970, "Rank correlation methods", 4th ed., chapters 4 and 5.
    """
    if not _have_spread(xs, ys):
        return None
    n = len(xs)
    if n > _MAX_PAIRWISE:
        from scipy.stats import kendalltau

        result = kendalltau(xs, ys)
        return Coefficient(float(result.statistic), max(float(result.pvalue), sys.float_info.min))
    signs = [np.sign(np.subtract.outer(values, values)) for values in map(np.asarray, (xs, ys))]
    score, untied = float((signs[0] * signs[1]).sum()) / 2, [np.abs(matrix).sum() / 2 for matrix in signs]
    tau = min(1.0, max(-1.0, score / math.sqrt(untied[0]) / math.sqrt(untied[1])))
    if n <= _MAX_EXACT_KENDALL and untied[0] == untied[1] == n * (n - 1) / 2:
        p = _orders_as_discordant(n, int(untied[0] - abs(score)) // 2)
    else:
        p = 2.0 * normal_share(-abs(score) / math.sqrt(_score_variance(xs, ys)))
    return Coefficient(tau, max(p, sys.float_info.min))


def _orders_as_discordant(n: int, discordant: int) -> float:
    """Return twice the fraction of orders of `n` things with at most `discordant` discordant pairs, at most 1."""
    orders = np.ones(1)
    for size in range(2, n + 1):
        orders = np.convolve(orders, np.ones(size))
    return min(1.0, 2.0 * float(orders[: discordant + 1].sum() / math.factorial(n)))


def _score_variance(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the variance of concordant minus discordant pairs without a relation, corrected for ties."""
    n = len(xs)
    ties = [np.unique(values, return_counts=True)[1].astype(np.float64) for values in (xs, ys)]
    pairs, triples, scores = (
        [float((t * (t - 1) * (times * t + more)).sum()) for t in ties] for times, more in ((0, 1), (1, -2), (2, 5))
    )
    plain = (n * (n - 1) * (2 * n + 5) - sum(scores)) / 18
    return plain + math.prod(pairs) / (2 * n * (n - 1)) + math.prod(triples) / (9 * n * (n - 1) * (n - 2))


def correlate(figures: Iterable[ModelScores], without: Collection[str] = ()) -> Correlations:
    """Return coefficients of accuracy and score over all models except `without` (Yu et al. 2024, Table 7).

    P-values of the pooled datasets are too small, because a model's figures are not independent.
    """
    rows = [row for row in figures if row.model not in without]
    return Correlations(
        _correlate_group(rows), {name: _correlate_group(group) for name, group in group_by_dataset(rows).items()}
    )


def fit_lines(figures: Iterable[ModelScores]) -> dict[str, DatasetLine | None]:
    """Fit the robust line of score on accuracy in each dataset; None if accuracies are equal.

    Raises:
        ValueError: if a dataset has fewer than three models.
    """
    return {name: _fit_line(group) for name, group in group_by_dataset(figures).items()}


def group_by_dataset(figures: Iterable[ModelScores]) -> dict[str, list[ModelScores]]:
    """Return the figures of each dataset, in order of first appearance."""
    groups: dict[str, list[ModelScores]] = {}
    for figure in figures:
        groups.setdefault(figure.dataset, []).append(figure)
    return groups


def _correlate_group(group: Sequence[ModelScores]) -> Correlation:
    return correlation([figure.accuracy for figure in group], [figure.score for figure in group])


def _have_spread(xs: Sequence[float], ys: Sequence[float]) -> bool:
    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} values against {len(ys)}; the numbers must be equal")
    return len(xs) > 2 and len(set(xs)) > 1 and len(set(ys)) > 1


def _smallest_p(n: int) -> float:
    """Return the smallest p-value of a test over all orders of `n` pairs, above 0 even if too small for a float."""
    return max(math.exp(math.log(2.0) - math.lgamma(n + 1)), sys.float_info.min)


def _fit_line(group: Sequence[ModelScores]) -> DatasetLine | None:
    points = [
        Point(figure.model, figure.accuracy, figure.score, figure.accuracy_se, figure.score_se) for figure in group
    ]
    if len(points) > 2 and len({point.x for point in points}) < 2:
        return None
    line = robust_line(points)
    # A deviation is the residual over the joint spread and own errors; the largest deviation gives the spread most
    # precisely.
    furthest = max(points, key=lambda point: abs(line.residuals[point.name]))
    residual, deviation = line.residuals[furthest.name], line.deviations[furthest.name]
    joined = residual / deviation if deviation else 0.0
    own = math.hypot(furthest.y_error, line.slope * furthest.x_error)
    return DatasetLine(line, math.sqrt(max(0.0, joined**2 - own**2)))
