"""Means of scores that are not independent: cluster-robust errors and intervals.

Items are sampled and bring their conversations with them, so items are the clusters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .intervals import Estimate, bounded_interval, check_level, normal_quantile, student_half, student_quantile

Values = Sequence[float] | NDArray[np.floating]
# Values without known ends have no interval with fewer clusters.
MIN_CLUSTERS = 5
# A standard error up to this fraction of the mean is rounding.
_ROUNDING = 1e-12


@dataclass(slots=True, frozen=True)
class ClusteredMean:
    """Mean over `n` values in `clusters` clusters, and its standard error (None below two clusters).

    Every value has the same weight, so a cluster's weight is its number of values: `effective_clusters` is n² / sum of
    squared sizes (Kish 1965). `strata`: number of groups of clusters with separate means.
    """

    mean: float
    se: float | None
    n: int
    clusters: int
    effective_clusters: float
    strata: int = 1

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the standard error."""
        return self.clusters - self.strata

    def interval(self, level: float = 0.95) -> Estimate | None:
        """Return the mean with Student's interval; a point if every cluster has that mean; None below two clusters."""
        check_level(level)
        if self.se is None:
            return None
        half = student_half(self.se, self.freedom, level)
        return Estimate(self.mean, self.mean - half, self.mean + half)

    def ends(
        self, low: float = -math.inf, high: float = math.inf, *, rate: bool = False, level: float = 0.95
    ) -> Estimate | None:
        """Return the mean with an interval for values from `low` to `high`; None if there is no valid one.

        With finite ends it is `bounded_interval`. Otherwise it is Student's, cut at a known end. Student's is None
        below `MIN_CLUSTERS` clusters, because it would depend on normality, and if no cluster departs from the mean by
        more than rounding.
        """
        if math.isfinite(low) and math.isfinite(high):
            # A mean of rounded numbers may exceed their maximum by the last bit.
            return self.bounded_interval(min(low, self.mean), max(high, self.mean), rate=rate, level=level)
        student = self.interval(level)
        if student is None or self.clusters < MIN_CLUSTERS or (self.se or 0.0) <= _ROUNDING * abs(self.mean):
            return None
        return Estimate(self.mean, max(student.low, min(low, self.mean)), min(student.high, max(high, self.mean)))

    def bounded_interval(self, low: float, high: float, *, rate: bool = False, level: float = 0.95) -> Estimate:
        """Return the mean with an interval that stays between `low` and `high` (`intervals.bounded_interval`).

        There is an interval for a single cluster, too: a wide one.

        Args:
            low: Lowest possible value.
            high: Highest possible value.
            rate: All values are either `low` or `high`. With one value a cluster, the interval is Wilson's. With
                several, it is Wilson's at the effective sample size, at least `effective_clusters`, with adjusted
                degrees of freedom (Korn and Graubard 1998). If False, Student's quantile is used.
            level: Confidence level.
        """
        check_level(level)
        if not low <= self.mean <= high or low == high:
            raise ValueError(f"mean {self.mean}; it must lie between two different bounds, found {low} and {high}")
        unit_mean, tail = (self.mean - low) / (high - low), (1.0 + level) / 2
        dispersion = stretch = 1.0
        if self.se is not None and 0.0 < unit_mean < 1.0:
            variance = (self.se / (high - low)) ** 2 * (self.clusters - 1) / self.clusters
            dispersion = variance * self.effective_clusters / (unit_mean * (1.0 - unit_mean))
            plain = student_quantile(tail, self.n - 1) if rate else normal_quantile(tail)
            stretch = float(student_quantile(tail, self.freedom) / plain)
        numbers = np.array([[unit_mean], [dispersion], [self.effective_clusters], [stretch]])
        ends = bounded_interval(numbers[0], numbers[1], numbers[2], numbers[3], level)
        lower, upper = (low + float(end[0]) * (high - low) for end in ends)
        return Estimate(self.mean, min(lower, self.mean), max(upper, self.mean))


def clustered_mean(values: Values, labels: Sequence[str], strata: Sequence[str] | None = None) -> ClusteredMean | None:
    """Return the mean of `values` with its cluster-robust standard error; None if there are none.

    `labels` and `strata` name each value's cluster and stratum.

    se² = G/(G-1) · sum over clusters of (sum of the cluster's residuals)² / n². With `strata`, residuals are taken from
    each stratum's mean (Cochran 1977, section 5.6), if there are several and each has two clusters; else they are
    ignored.

    Source: Liang and Zeger 1986; Cameron and Miller 2015, sections II.C and VI.B; for evaluations of language models,
        Miller 2024, "Adding error bars to evals", section 2.2.
    """
    if strata is None and len({*labels}) == len(labels) == len(values) > 0 and all(map(math.isfinite, values)):
        return _independent_mean([float(value) for value in values])
    groups = _values_by_cluster(values, labels)
    if not groups:
        return None
    if strata is not None and (stratified := _stratified(values, labels, strata)) is not None:
        return stratified
    numbers = [value for group in groups.values() for value in group]
    mean = math.fsum(numbers) / len(numbers)
    residuals = (math.fsum(value - mean for value in group) for group in groups.values())
    squares = math.fsum(residual * residual for residual in residuals)
    return _clustered_error(mean, squares, len(numbers), len(groups), sum(len(group) ** 2 for group in groups.values()))


def _independent_mean(numbers: Sequence[float]) -> ClusteredMean:
    """Return what `clustered_mean` returns for clusters of one value each, in a tenth of the time."""
    mean = math.fsum(numbers) / len(numbers)
    residuals = [value - mean for value in numbers]
    squares = math.fsum(residual * residual for residual in residuals)
    return _clustered_error(mean, squares, len(numbers), len(numbers), len(numbers))


def _stratified(values: Values, labels: Sequence[str], strata: Sequence[str]) -> ClusteredMean | None:
    indices_by_stratum: dict[str, list[int]] = {}
    for index, stratum in enumerate(strata):
        indices_by_stratum.setdefault(stratum, []).append(index)
    parts = [
        clustered_mean([values[at] for at in indices], [labels[at] for at in indices])
        for indices in indices_by_stratum.values()
    ]
    estimates = [part for part in parts if part is not None and part.se is not None]
    if len(estimates) < 2 or len(estimates) < len(parts):
        return None
    n = sum(part.n for part in estimates)
    se = math.sqrt(math.fsum((part.n * (part.se or 0.0)) ** 2 for part in estimates)) / n
    mean = math.fsum(float(value) for value in values) / n
    effective_clusters = n * n / math.fsum(part.n**2 / part.effective_clusters for part in estimates)
    return ClusteredMean(mean, se, n, sum(part.clusters for part in estimates), effective_clusters, len(estimates))


def coded_clustered_mean(values: NDArray[np.float64], codes: NDArray[np.intp]) -> ClusteredMean | None:
    """Return `clustered_mean` of an array; `codes` number each value's cluster, from 0 and not necessarily all."""
    if values.shape != codes.shape or not np.isfinite(values).all():
        raise ValueError(f"{values.shape} values with {codes.shape} codes; both must fit, and values must be finite")
    if not values.size:
        return None
    sizes = np.bincount(codes)
    mean = math.fsum(values.tolist()) / values.size
    residuals = np.bincount(codes, values - mean)
    squares, squared_sizes = float(residuals @ residuals), int(sizes @ sizes)
    return _clustered_error(mean, squares, values.size, int(np.count_nonzero(sizes)), squared_sizes)


def clustered_counts(values: Sequence[float], clusters: Mapping[tuple[int, ...], int]) -> ClusteredMean | None:
    """Return `clustered_mean` of a few distinct values; None if there are none.

    Args:
        values: The distinct values.
        clusters: Number of clusters, by how often each of `values`, in their order, occurs in such a cluster.
    """
    alike = sorted((counts, times) for counts, times in clusters.items() if times and any(counts))
    if not alike:
        return None
    sizes = [(sum(counts), times) for counts, times in alike]
    n = sum(size * times for size, times in sizes)
    mean = math.fsum(times * _sum(values, counts) for counts, times in alike) / n
    deviations = [value - mean for value in values]
    squares = math.fsum(times * _sum(deviations, counts) ** 2 for counts, times in alike)
    return _clustered_error(
        mean, squares, n, sum(times for _, times in sizes), sum(size * size * times for size, times in sizes)
    )


def _sum(values: Sequence[float], counts: Sequence[int]) -> float:
    return math.fsum(value * count for value, count in zip(values, counts, strict=True))


def _clustered_error(mean: float, squares: float, n: int, clusters: int, squared_sizes: int) -> ClusteredMean:
    """Build the mean from the sum of squares of the clusters' summed residuals."""
    se = math.sqrt(clusters / (clusters - 1) * squares) / n if clusters > 1 else None
    return ClusteredMean(mean, se, n, clusters, n * n / squared_sizes)


def _values_by_cluster(values: Values, labels: Sequence[str]) -> dict[str, list[float]]:
    if len(values) != len(labels):
        raise ValueError(f"{len(values)} values with {len(labels)} labels; each value needs the label of its cluster")
    groups: dict[str, list[float]] = {}
    for value, label in zip(values, labels, strict=True):
        if not math.isfinite(value):
            raise ValueError(f"values: {value} in cluster {label!r} is not finite; leave out unscored values")
        groups.setdefault(label, []).append(float(value))
    return groups
