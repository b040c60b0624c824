"""Mergeable aggregates, independent of order: means, tallies, pass^k, failures, clusters of items.

Sums are exact (scaled integers), so any order, any split and any merge give the same bits; that is what makes
reports byte-identical at every concurrency. Without numpy: every scenario loads this.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any

# Every finite float is a whole multiple of 2**-1074.
_SCALE = 1074
# Distinct numbers that are counted before they are summed: scores repeat, and long whole numbers are slow.
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
        """Take in one number."""
        if not math.isfinite(value):
            raise ValueError(f"{value} has no place in a mean")
        self.n += 1
        pending = self._pending
        pending[value] = pending.get(value, 0) + 1
        if len(pending) > _MAX_PENDING:
            self._settle()

    def merge(self, other: Mean) -> None:
        """Take in everything that another one has seen."""
        other._settle()
        self.n += other.n
        self._sum += other._sum
        self._squares += other._squares

    def _settle(self) -> None:
        """Sum what was only counted."""
        for value, count in self._pending.items():
            numerator, denominator = float(value).as_integer_ratio()
            scaled = numerator << (_SCALE - denominator.bit_length() + 1)
            self._sum += count * scaled
            self._squares += count * scaled * scaled
        self._pending.clear()

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

    A number without a cluster is independent of all others. The standard error is that of
    ``clustered_means.clustered_mean``.
    """

    __slots__ = ("_clusters",)

    def __init__(self) -> None:
        super().__init__()
        self._clusters: dict[str, Mean] = {}

    def add(self, value: float, cluster: str = "") -> None:
        """Take in one number."""
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
        # n times the residuals of all clusters, squared and summed; a number alone is a cluster.
        summed = total - sum(cluster._sum for cluster in clusters)
        squares = n * n * (self._squares - sum(cluster._squares for cluster in clusters))
        squares += alone * total * total - 2 * n * total * summed
        squares += sum((n * cluster._sum - cluster.n * total) ** 2 for cluster in clusters)
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


def pass_hat_k(trials: Iterable[tuple[int, int]], k: int) -> Mean:
    """pass^k of tau-bench (Yao et al. 2024, section 3): the chance that k independent tries of a task all succeed.

    :param trials: by task, how often it was tried (n) and how often that succeeded (c).
    :return: over the tasks with n ≥ k, the mean of C(c, k) / C(n, k), each of which estimates its task's chance without
        bias; its standard error is over tasks. Empty where no task was tried k times.
    :raises ValueError: k is below 1, or a task succeeded more often than it was tried.
    """
    if k < 1:
        raise ValueError(f"k is {k}; it counts tries, from 1")
    mean = Mean()
    for tried, succeeded in trials:
        if not 0 <= succeeded <= tried:
            raise ValueError(f"{succeeded} of {tried} tries cannot have succeeded")
        if tried >= k:
            mean.add(comb(succeeded, k) / comb(tried, k))
    return mean


@dataclass(frozen=True, slots=True)
class ItemClusters:
    """Items that come cluster by cluster: how many each cluster has, in their order, and the field they share.

    Clusters have to come in random order, whole.
    """

    field: str
    sizes: tuple[int, ...]

    def to_record(self) -> dict[str, Any]:
        """Plain data; ``from_record`` reads it back."""
        return {"field": self.field, "sizes": list(self.sizes)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ItemClusters:
        """:raises KeyError, TypeError, ValueError: it is not one."""
        return cls(str(record["field"]), tuple(map(int, record["sizes"])))


MAX_REASONS = 50  # in one record; rarer ones are counted together
OTHER_REASONS = "other reasons"
_MAX_REASON = 400  # characters of one reason
# What differs from one failure to the next and says nothing about the cause: numbers, and ids that servers make up.
_VARIABLE_PART = re.compile(r"\d+(?:\.\d+)?|\b(?=\w*\d)[\w-]{16,}\b")
# What would move a cursor or hide text where a file of reasons is shown in a terminal.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")


class Failures:
    """Failed conversations, counted. Reasons that differ in numbers or ids alone count as one."""

    __slots__ = ("_reasons", "_types")

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        self._reasons: dict[str, tuple[str, int]] = {}  # without what passes: the least text, and how many

    @property
    def total(self) -> int:
        """Failed conversations."""
        return sum(self._types.values())

    def add(self, error: Mapping[str, Any]) -> None:
        """Take in one error's record, as the journal holds it."""
        name = str(error.get("type", "unknown"))
        self._types[name] = self._types.get(name, 0) + 1
        self.count(failure_reason(error), 1)

    def merge(self, other: Failures) -> None:
        """Take in all that another has counted."""
        for name, count in other._types.items():
            self._types[name] = self._types.get(name, 0) + count
        for text, count in other._reasons.values():
            self.count(text, count)

    def count(self, reason: str, count: int) -> None:
        """Take in a reason that was counted elsewhere."""
        key = _VARIABLE_PART.sub("#", reason)
        before, so_far = self._reasons.get(key, (reason, 0))
        self._reasons[key] = (min(before, reason), so_far + count)

    def by_type(self) -> dict[str, int]:
        """Counts by type of error, sorted by type."""
        return dict(sorted(self._types.items()))

    def reasons(self) -> dict[str, int]:
        """Counts by reason, the most frequent first; ``OTHER_REASONS`` stands for what is beyond ``MAX_REASONS``."""
        ranked = sorted(self._reasons.values(), key=lambda entry: (entry[0] == OTHER_REASONS, -entry[1], entry[0]))
        top = dict(ranked[:MAX_REASONS])
        remainder = sum(count for _, count in ranked[MAX_REASONS:])
        return top | ({OTHER_REASONS: remainder} if remainder else {})

    def to_record(self) -> dict[str, dict[str, int]]:
        """``failures``, by type; and ``failure_reasons`` where anything failed."""
        reasons = self.reasons()
        return {"failures": self.by_type()} | ({"failure_reasons": reasons} if reasons else {})


def failure_reason(error: Mapping[str, Any]) -> str:
    """Return an error's record as one line: its type, its message, and where it happened if that is known."""
    text = " ".join(f"{error.get('type', 'unknown')}: {error.get('message', '')}".split()).removesuffix(":")
    text = _CONTROLS.sub(lambda match: f"\\x{ord(match.group()):02x}", text)
    cut = text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 1] + "…"
    return f"{cut} (at {error['at']})" if error.get("at") else cut


def merge_reasons(records: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counts of several records' ``failure_reasons`` together."""
    failures = Failures()
    for record in records:
        for reason, count in record.items():
            failures.count(reason, count)
    return failures.reasons()
