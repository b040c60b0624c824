"""Weighted ratios of sums over clusters and strata, with bounded intervals, and their differences.

A stratum's ratio is the sum of its clusters' points over the sum of their attainable points; the overall ratio is the
weighted mean of the strata's. Clusters are sampled, strata are fixed.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .comparison import MAX_SIGN_FLIPS, sign_flip_p
from .intervals import (
    Estimate,
    bounded_interval,
    check_level,
    extend_to_zero,
    normal_quantile,
    student_quantile,
    student_tail,
)

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
_Z2 = 3.84  # the square of the normal quantile of 95%


@dataclass(slots=True, frozen=True)
class WeightedRatio:
    """Ratio, 0–1, over `clusters` clusters.

    `variance` is the ratio's, with `freedom` degrees of freedom; `effective_clusters` is their effective number in a
    single stratum. By cluster code: `influence`, whose squares sum to the variance if every stratum has at least two
    clusters, and `parts`, which sum to the ratio.
    """

    value: float
    variance: float
    freedom: float
    effective_clusters: float
    clusters: int
    influence: Floats
    parts: Floats

    def bounded_interval(self, level: float = 0.95) -> Estimate:
        """Return the ratio with an interval that stays between 0 and 1 (`intervals.bounded_interval`).

        For one stratum with one yes-or-no value a cluster it is Wilson's, with Student's quantile; it has a width even
        if no cluster differs from another.
        """
        check_level(level)
        value, items, dispersion, stretch = min(1.0, max(0.0, self.value)), self.effective_clusters, 1.0, 1.0
        spread, tail = value * (1.0 - value), (1.0 + level) / 2
        if spread > 0.0:
            dispersion = self.variance * (self.clusters - 1) / self.clusters * items / spread if self.clusters > 1 \
                else 1.0  # fmt: skip
            if dispersion > 1.0:  # more than a single stratum could have: the effective number of items is overstated
                items, dispersion = items / dispersion, 1.0
            stretch = float(student_quantile(tail, self.freedom)) / normal_quantile(tail)
        numbers = np.array([[value], [dispersion], [items], [stretch]])
        low, high = bounded_interval(numbers[0], numbers[1], numbers[2], numbers[3], level)
        return Estimate(value, float(low[0]), float(high[0]))


def weighted_ratio(
    points: Floats, attainable: Floats, stratum: Codes, cluster: Codes, weights: Floats
) -> WeightedRatio | None:
    """Return the weighted ratio of scored things, one a row; None if nothing attainable has a weight.

    The variance is the variance of the linearised ratio with the factor G/(G-1) of each stratum (clusters drawn with
    replacement). A stratum of one cluster shows no spread: it gets the variance of one yes-or-no value at Wilson's
    centre, times the dispersion of the other strata.

    Args:
        points: Points of each row.
        attainable: Attainable points of each row.
        stratum: Stratum of each row, numbered from 0.
        cluster: Cluster of each row, numbered from 0.
        weights: Weight of each stratum; normalised over the strata that have rows.

    Source: Cochran 1977, sections 6.4 and 6.10.
    """
    cells, places = np.unique(stratum * (int(cluster.max(initial=0)) + 1) + cluster, return_inverse=True)
    sums = _sums(places, points, len(cells))
    bounds = _sums(places, attainable, len(cells))
    strata, clusters = np.divmod(cells, int(cluster.max(initial=0)) + 1)
    totals = _sums(strata, bounds, len(weights))
    stratum_weights = np.where(totals > 0, weights, 0.0)
    if not stratum_weights.sum() > 0:
        return None
    stratum_weights = stratum_weights / stratum_weights.sum()
    mask = stratum_weights[strata] > 0
    sums, bounds, strata, clusters = sums[mask], bounds[mask], strata[mask], clusters[mask]
    used = stratum_weights > 0
    safe = np.where(used, totals, 1.0)
    ratios = np.where(used, _sums(strata, sums, len(weights)) / safe, 0.0)
    sizes = np.bincount(strata, minlength=len(weights)).astype(np.float64)
    evens = np.where(used, safe**2 / np.maximum(_sums(strata, bounds**2, len(weights)), 1e-300), 1.0)
    factors = np.where(sizes > 1, sizes / np.maximum(1.0, sizes - 1), 0.0)
    shares = stratum_weights[strata] / safe[strata]
    influence = _sums(clusters, shares * np.sqrt(factors[strata]) * (sums - ratios[strata] * bounds))
    parts = _sums(clusters, shares * sums)
    variances = _sums(strata, (shares * (sums - ratios[strata] * bounds)) ** 2, len(weights)) * factors
    variance = float(influence @ influence)
    alone = used & (sizes == 1)
    if alone.any():
        borrowed = stratum_weights[alone] ** 2 * _dispersion(variances, stratum_weights, ratios, evens, used & ~alone)
        centre = (ratios[alone] + _Z2 / 2) / (1 + _Z2)
        variances[alone] = borrowed * centre * (1 - centre)
        variance += float(variances[alone].sum())
    freedoms = np.maximum(1.0, sizes - 1)
    total = float(variances.sum())
    freedom = total**2 / float((variances[used] ** 2 / freedoms[used]).sum()) if total > 0 else \
        max(1.0, float((sizes[used] - 1).sum()))  # fmt: skip
    effective_clusters = 1.0 / float((stratum_weights[used] ** 2 / evens[used]).sum())
    value = float(stratum_weights @ ratios)
    return WeightedRatio(value, variance, freedom, effective_clusters, len(np.unique(clusters)), influence, parts)


def _sums(codes: Codes, values: Floats, length: int = 0) -> Floats:
    return np.asarray(np.bincount(codes, values, length), dtype=np.float64)


def _dispersion(variances: Floats, weights: Floats, ratios: Floats, evens: Floats, mask: NDArray[np.bool_]) -> float:
    """Return the variance of the masked strata divided by that of yes-or-no values; 1 if unknown."""
    bound = float((weights[mask] ** 2 * ratios[mask] * (1 - ratios[mask]) / evens[mask]).sum())
    return min(1.0, float(variances[mask].sum()) / bound) if bound > 0 else 1.0


@dataclass(slots=True, frozen=True)
class RatioDifference:
    """Difference of two ratios, first minus second, from -1 to 1, and the two-sided p-value of no difference.

    `p` is None below two clusters, and then there is no interval. `ends` gives an interval at any level, which includes
    0 exactly if `p` is not below 1 - level.
    """

    value: float
    p: float | None
    sides: tuple[WeightedRatio, WeightedRatio]
    rho: float

    def ends(self, level: float = 0.95) -> Estimate | None:
        """Return the difference with its interval; None if there is no test.

        It is extended to 0 if the sign-flip test does not reject 0 while the interval would.
        """
        check_level(level)
        if self.p is None:
            return None
        return extend_to_zero(self._mover(level), self.p, level)

    def _mover(self, level: float) -> Estimate:
        first, second = (side.bounded_interval(level) for side in self.sides)
        low = self.value - _side(first.value - first.low, second.high - second.value, self.rho)
        high = self.value + _side(first.high - first.value, second.value - second.low, self.rho)
        return Estimate(self.value, max(-1.0, low), min(1.0, high))


def ratio_difference(first: WeightedRatio, second: WeightedRatio) -> RatioDifference:
    """Return the difference of two ratios over the same clusters with the same codes.

    The interval combines the intervals of both ratios and the correlation of their influences (MOVER): it stays within
    ±1 and has a width even if no cluster differs. `p` is the larger of two: the p-value of the sign-flip test (above
    `MAX_SIGN_FLIPS` clusters, of Student's t), and the level at which the interval ends at 0. With few clusters each
    alone may reject too often: the sign-flip test if losses are rare and heavy, the interval if strata have one
    cluster.

    Source: Zou and Donner 2008; Newcombe 1998 for pairs.
    """
    value = min(1.0, max(0.0, first.value)) - min(1.0, max(0.0, second.value))
    wide = max(len(first.influence), len(second.influence))
    a, b = (np.pad(each, (0, wide - len(each))) for each in (first.influence, second.influence))
    product = math.sqrt(float(a @ a) * float(b @ b))
    rho = min(1.0, max(-1.0, float(a @ b) / product)) if product > 0 else 0.0
    if min(first.clusters, second.clusters) < 2:
        return RatioDifference(value, None, (first, second), rho)
    left, right = (np.pad(each, (0, wide - len(each))) for each in (first.parts, second.parts))
    differences = (left - right)[(left != 0) | (right != 0) | (a != 0) | (b != 0)]
    if not len(differences):
        p = 1.0
    elif len(differences) <= MAX_SIGN_FLIPS:
        p = sign_flip_p(differences)
    else:
        error = math.sqrt(float(((a - b) ** 2).sum()))
        ratio = abs(value) / error if error else math.inf if value else 0.0
        p = max(sys.float_info.min, 2.0 * float(student_tail(ratio, min(first.freedom, second.freedom))))
    return RatioDifference(
        value, _p_within_interval(p, RatioDifference(value, p, (first, second), rho)), (first, second), rho
    )


def _p_within_interval(p: float, difference: RatioDifference) -> float:
    """Return the larger of `p` and the p-value at whose level the interval ends at 0."""

    def holds_0(alpha: float) -> bool:
        ends = difference._mover(1.0 - alpha)
        return ends.low <= 0.0 <= ends.high

    lower, upper = max(p, 1e-12), 0.999
    if lower >= upper or not holds_0(lower):
        return p
    if holds_0(upper):
        return 1.0
    while upper > 1.001 * lower:
        middle = math.sqrt(lower * upper)
        lower, upper = (middle, upper) if holds_0(middle) else (lower, middle)
    return upper


def _side(own: float, opposite: float, rho: float) -> float:
    return math.sqrt(max(0.0, own * own + opposite * opposite - 2.0 * rho * own * opposite))
