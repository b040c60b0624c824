"""Mergeable, order-independent aggregates: means, tallies, pass^k, failures, clusters of items.

Sums are exact (scaled integers), so numbers may be added in any order, and partial sums merged in any order, with the
same bits: reports are byte-identical at every concurrency. Every scenario loads this module, so it does not import
numpy, which loads slowly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any

# Every finite float is an integer multiple of 2**-1074.
_SCALE = 1074
# Distinct numbers to count before summing: scores repeat, and big integers are slow.
_MAX_PENDING = 1024


class Mean:
    """Count, exact sum and exact sum of squares of floats."""

    __slots__ = ("_pending", "_squares", "_sum", "n")

    def __init__(self) -> None:
        self.n = 0
        self._sum = 0
        self._squares = 0
        self._pending: dict[float, int] = {}

    def add(self, value: float) -> None:
        """Add one number."""
        if not math.isfinite(value):
            raise ValueError(f"{value} is not finite; leave it out of the mean")
        self.n += 1
        pending = self._pending
        pending[value] = pending.get(value, 0) + 1
        if len(pending) > _MAX_PENDING:
            self._settle()

    def merge(self, other: Mean) -> None:
        """Add everything that another mean has counted."""
        other._settle()
        self.n += other.n
        self._sum += other._sum
        self._squares += other._squares

    def _settle(self) -> None:
        """Add the values that have only been counted so far to the exact sums."""
        for value, count in self._pending.items():
            numerator, denominator = float(value).as_integer_ratio()
            scaled = numerator << (_SCALE - denominator.bit_length() + 1)
            self._sum += count * scaled
            self._squares += count * scaled * scaled
        self._pending.clear()

    @property
    def clusters(self) -> int:
        """Count of independent units among the values; in this class, each value is one."""
        return self.n

    @property
    def mean(self) -> float | None:
        """Arithmetic mean; None if there are no numbers."""
        self._settle()
        return None if self.n == 0 else float(Fraction(self._sum, self.n << _SCALE))

    @property
    def variance(self) -> float | None:
        """Sample variance (divisor n−1); None below two numbers."""
        if self.n < 2:
            return None
        self._settle()
        spread = self.n * self._squares - self._sum * self._sum
        return float(Fraction(spread, (self.n * (self.n - 1)) << (2 * _SCALE)))

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean of independent numbers; None below two numbers."""
        variance = self.variance
        return None if variance is None else math.sqrt(variance / self.n)


class ClusteredStream(Mean):
    """Mean of numbers, some in clusters; numbers of a cluster are not independent of each other.

    A number without a cluster is independent of all others. The standard error is computed as in
    `clustered_means.clustered_mean`.
    """

    __slots__ = ("_clusters",)

    def __init__(self) -> None:
        super().__init__()
        self._clusters: dict[str, Mean] = {}

    def add(self, value: float, cluster: str = "") -> None:
        """Add one number; `cluster` "" means that it belongs to no cluster."""
        super().add(value)
        if cluster:
            self._clusters.setdefault(cluster, Mean()).add(value)

    def merge(self, other: Mean) -> None:
        super().merge(other)
        if isinstance(other, ClusteredStream):
            for name, cluster in other._clusters.items():
                self._clusters.setdefault(name, Mean()).merge(cluster)

    @property
    def clusters(self) -> int:
        return self.n - sum(cluster.n for cluster in self._clusters.values()) + len(self._clusters)

    @property
    def standard_error(self) -> float | None:
        if not self._clusters:
            return super().standard_error
        self._settle()
        n, total, clusters = self.n, self._sum, list(self._clusters.values())
        for cluster in clusters:
            cluster._settle()
        count = self.clusters
        alone = count - len(clusters)
        if count < 2:
            return None
        # Sum over clusters of (n times the residual)²; a number without a cluster is a cluster of its own.
        summed = total - sum(cluster._sum for cluster in clusters)
        squares = n * n * (self._squares - sum(cluster._squares for cluster in clusters))
        squares += alone * total * total - 2 * n * total * summed
        squares += sum((n * cluster._sum - cluster.n * total) ** 2 for cluster in clusters)
        return math.sqrt(Fraction(count * squares, ((count - 1) * n**4) << (2 * _SCALE)))


class Tally:
    """Counts by name, mergeable, read in a fixed order."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Count `name`."""
        self.counts[name] = self.counts.get(name, 0) + count

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for name, count in other.counts.items():
            self.add(name, count)

    def to_dict(self) -> dict[str, int]:
        """Return the counts, sorted by name."""
        return dict(sorted(self.counts.items()))


def pass_hat_k(trials: Iterable[tuple[int, int]], k: int) -> Mean:
    """Estimate pass^k, the chance that k independent tries of a task all succeed.

    `trials` has (tries n, successes c) of each task. The result is the mean of C(c, k) / C(n, k) over tasks with n ≥ k.

    Source: Yao et al. 2024, section 3.
    """
    if k < 1:
        raise ValueError(f"k is {k}; expected a number of tries, at least 1")
    mean = Mean()
    for tried, succeeded in trials:
        if not 0 <= succeeded <= tried:
            raise ValueError(f"{succeeded} of {tried} tries cannot have succeeded")
        if tried >= k:
            mean.add(comb(succeeded, k) / comb(tried, k))
    return mean


@dataclass(frozen=True, slots=True)
class ItemClusters:
    """Sizes of clusters of items in item order, and the `field` that the items of a cluster share.

    The items of a cluster must follow one another, none left out, and the clusters must be in random order.
    """

    field: str
    sizes: tuple[int, ...]

    def to_record(self) -> dict[str, Any]:
        """Return plain data that `from_record` reads back."""
        return {"field": self.field, "sizes": list(self.sizes)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ItemClusters:
        return cls(str(record["field"]), tuple(map(int, record["sizes"])))


MAX_REASONS = 50  # reasons in one record; rarer reasons are counted together
OTHER_REASONS = "other reasons"
_MAX_REASON = 400  # characters of one reason
# Parts that vary between failures of one cause: numbers, and ids that servers generate.
_VARIABLE_PART = re.compile(r"\d+(?:\.\d+)?|\b(?=\w*\d)[\w-]{16,}\b")
# Characters that could move the cursor or hide text when a terminal prints the reasons.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")


class Failures:
    """Counts of failed conversations. Reasons that differ only in numbers or ids count as one."""

    __slots__ = ("_reasons", "_types")

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        self._reasons: dict[str, tuple[str, int]] = {}  # by normalised reason: smallest text, count

    @property
    def total(self) -> int:
        """Number of failed conversations."""
        return sum(self._types.values())

    def add(self, error: Mapping[str, Any]) -> None:
        """Count one error record of a journal."""
        name = str(error.get("type", "unknown"))
        self._types[name] = self._types.get(name, 0) + 1
        self.count(failure_reason(error), 1)

    def merge(self, other: Failures) -> None:
        """Add everything that another instance has counted."""
        for name, count in other._types.items():
            self._types[name] = self._types.get(name, 0) + count
        for text, count in other._reasons.values():
            self.count(text, count)

    def count(self, reason: str, count: int) -> None:
        """Add `count` to a reason; `total` and `by_type` stay as they are."""
        key = _VARIABLE_PART.sub("#", reason)
        text, total = self._reasons.get(key, (reason, 0))
        self._reasons[key] = (min(text, reason), total + count)

    def by_type(self) -> dict[str, int]:
        """Return counts by type of error, sorted by type."""
        return dict(sorted(self._types.items()))

    def reasons(self) -> dict[str, int]:
        """Return counts by reason, most frequent first; counts after `MAX_REASONS` are summed as `OTHER_REASONS`."""
        ranked = sorted(self._reasons.values(), key=lambda entry: (entry[0] == OTHER_REASONS, -entry[1], entry[0]))
        top = dict(ranked[:MAX_REASONS])
        remainder = sum(count for _, count in ranked[MAX_REASONS:])
        return top | ({OTHER_REASONS: remainder} if remainder else {})

    def to_record(self) -> dict[str, dict[str, int]]:
        """Return `failures` by type and, if anything failed, `failure_reasons`."""
        reasons = self.reasons()
        return {"failures": self.by_type()} | ({"failure_reasons": reasons} if reasons else {})


def failure_reason(error: Mapping[str, Any]) -> str:
    """Return an error record as one line: type, message, and the place in the code if known."""
    text = " ".join(f"{error.get('type', 'unknown')}: {error.get('message', '')}".split()).removesuffix(":")
    text = _CONTROLS.sub(lambda match: f"\\x{ord(match.group()):02x}", text)
    cut = text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 1] + "…"
    return f"{cut} (at {error['at']})" if error.get("at") else cut


def merge_reasons(records: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum the `failure_reasons` of several records."""
    failures = Failures()
    for record in records:
        for reason, count in record.items():
            failures.count(reason, count)
    return failures.reasons()
