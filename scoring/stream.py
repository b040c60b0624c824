"""Streaming, mergeable aggregates whose value does not depend on the order in which numbers came.

Sums are exact (scaled integers), so any order, any split and any merge give the same bits; that is what makes reports
byte-identical at every concurrency. What never belongs here: what the numbers mean.
"""

from __future__ import annotations

import math
from fractions import Fraction

# Every finite float is a whole multiple of 2**-1074.
_SCALE = 1074
# Distinct numbers that are counted before they are summed: scores repeat, and long whole numbers are slow.
_WAITING = 1024


class Mean:
    """Count, exact sum and exact sum of squares of floats."""

    __slots__ = ("_squares", "_sum", "_waiting", "n")

    def __init__(self) -> None:
        self.n = 0
        self._sum = 0
        self._squares = 0
        self._waiting: dict[float, int] = {}

    def add(self, value: float) -> None:
        """Take in one number.

        :raises ValueError: it is not finite.
        """
        if not math.isfinite(value):
            raise ValueError(f"{value} has no place in a mean")
        self.n += 1
        waiting = self._waiting
        waiting[value] = waiting.get(value, 0) + 1
        if len(waiting) > _WAITING:
            self._settle()

    def add_many(self, value: float, count: int) -> None:
        """Take in one number ``count`` times.

        :raises ValueError: the number is not finite, or the count is negative.
        """
        if count < 0:
            raise ValueError(f"{count} numbers cannot be added")
        if count:
            self.add(value)
            self.n += count - 1
            self._waiting[value] = self._waiting.get(value, 0) + count - 1

    def merge(self, other: Mean) -> None:
        """Take in everything that another one has seen."""
        other._settle()
        self.n += other.n
        self._sum += other._sum
        self._squares += other._squares

    def _settle(self) -> None:
        """Sum what was only counted."""
        for value, count in self._waiting.items():
            numerator, denominator = float(value).as_integer_ratio()
            scaled = numerator << (_SCALE - denominator.bit_length() + 1)
            self._sum += count * scaled
            self._squares += count * scaled * scaled
        self._waiting.clear()

    @property
    def clusters(self) -> int:
        """How many independent units the numbers come from: as many as there are numbers."""
        return self.n

    @property
    def mean(self) -> float | None:
        """The arithmetic mean; None of nothing."""
        self._settle()
        return None if self.n == 0 else float(Fraction(self._sum, self.n << _SCALE))

    @property
    def variance(self) -> float | None:
        """The sample variance (divisor n−1); None below two numbers."""
        if self.n < 2:
            return None
        self._settle()
        spread = self.n * self._squares - self._sum * self._sum
        return float(Fraction(spread, (self.n * (self.n - 1)) << (2 * _SCALE)))

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean, the numbers being independent clusters; None below two."""
        variance = self.variance
        return None if variance is None else math.sqrt(variance / self.n)


class ClusteredStream(Mean):
    """A mean of numbers of which some come in clusters: those of a cluster are not independent of one another.

    A number without a cluster is independent of all others. The standard error is that of ``clusters.clustered_mean``.
    """

    __slots__ = ("_clusters",)

    def __init__(self) -> None:
        super().__init__()
        self._clusters: dict[str, Mean] = {}

    def add(self, value: float, cluster: str = "") -> None:
        """Take in one number.

        :raises ValueError: it is not finite.
        """
        super().add(value)
        if cluster:
            self._clusters.setdefault(cluster, Mean()).add(value)

    def merge(self, other: Mean) -> None:
        super().merge(other)
        if isinstance(other, ClusteredStream):
            for name, one in other._clusters.items():
                self._clusters.setdefault(name, Mean()).merge(one)

    @property
    def clusters(self) -> int:
        return self.n - sum(one.n for one in self._clusters.values()) + len(self._clusters)

    @property
    def standard_error(self) -> float | None:
        if not self._clusters:
            return super().standard_error
        self._settle()
        n, total, clusters = self.n, self._sum, list(self._clusters.values())
        for one in clusters:
            one._settle()
        count = self.clusters
        alone = count - len(clusters)
        if count < 2:
            return None
        # n times the residuals of all clusters, squared and summed; a number alone is a cluster.
        summed = total - sum(one._sum for one in clusters)
        squares = n * n * (self._squares - sum(one._squares for one in clusters))
        squares += alone * total * total - 2 * n * total * summed
        squares += sum((n * one._sum - one.n * total) ** 2 for one in clusters)
        return math.sqrt(Fraction(count * squares, ((count - 1) * n**4) << (2 * _SCALE)))


class Tally:
    """Counts by name, mergeable, read out in a fixed order."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Count ``name``."""
        self.counts[name] = self.counts.get(name, 0) + count

    def merge(self, other: Tally) -> None:
        """Take in another's counts."""
        for name, count in other.counts.items():
            self.add(name, count)

    def to_dict(self) -> dict[str, int]:
        """The counts by name, sorted by name."""
        return dict(sorted(self.counts.items()))
