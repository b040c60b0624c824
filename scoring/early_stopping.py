"""Early stopping of interviews by anytime-valid intervals: the rules, and the watch that applies them.

A rule uses anytime-valid intervals (`confidence_sequences`), so checking it after every item is safe. It looks only at
the longest prefix of the items' seeded order that every candidate has finished, so the decision does not depend on
which conversations end sooner, or on how many run at once.

Items count as independent unless they come in clusters (items of one subject, or about one passage). Then each whole
cluster is one observation, and the rule is checked at the end of a cluster.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import Any

from .aggregates import ItemClusters, Mean
from .confidence_sequences import ConfidenceSequences
from .intervals import check_level

_ALLOWED = (
    "'decided', {half_width: 2.0} or {decided: true}; a mapping may also set level (0.95) and, if items are not "
    "independent, their cluster (subject or passage)"
)
# Only the sign of a difference matters, so a coarser grid is enough.
_PAIR_STEPS = 1000


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Stopping rule as the user wrote it: either `half_width` or `decided`.

    `half_width`  until each candidate's interval is at most twice this value wide, in points of the score.
    `decided`     until every pair of candidates is separated: the interval of the difference excludes 0.

    `level` is the probability with which an interval covers its mean however often it is checked; under `decided`, the
    probability for all pairs' intervals together. `cluster` is the items' field that names their cluster; None: items
    are independent.
    """

    half_width: float | None = None
    decided: bool = False
    level: float = 0.95
    cluster: str | None = None

    def __post_init__(self) -> None:
        """Check the rule.

        Raises:
            ValueError: if both rules are set, or neither; or a value is out of range.
        """
        if (self.half_width is not None) == self.decided:
            problem = "both half_width and decided" if self.decided else "neither half_width nor decided"
            raise ValueError(f"until: found {problem}; allowed is exactly one: {_ALLOWED}")
        if self.half_width is not None and not (math.isfinite(self.half_width) and self.half_width > 0.0):
            raise ValueError(f"until.half_width: {self.half_width}; allowed is a number of points above 0")
        try:
            check_level(self.level)
        except ValueError:
            raise ValueError(f"until.level: {self.level}; allowed is a share between 0 and 1, such as 0.95") from None

    @classmethod
    def parse(cls, value: Any) -> StoppingRule:
        """Parse a settings file's rule: `decided`, `{half_width: 2.0}` or `{decided: true}`, maybe with `level`."""
        if value == "decided":
            return cls(decided=True)
        if not isinstance(value, Mapping):
            raise ValueError(f"until: {value!r}; allowed is {_ALLOWED}")
        for name in value:
            if name not in cls.__slots__:
                raise ValueError(f"until.{name}: no such field; allowed is {_ALLOWED}")
        half_width, decided = value.get("half_width"), value.get("decided", False)
        if not isinstance(decided, bool):
            raise ValueError(f"until.decided: {decided!r}; allowed is true or false")
        return cls(
            half_width=None if half_width is None else _check_number("half_width", half_width),
            decided=decided,
            level=_check_number("level", value.get("level", 0.95)),
            cluster=_check_name("cluster", value.get("cluster")),
        )

    def to_record(self) -> dict[str, Any]:
        """Return plain data that `parse` reads back."""
        rule: dict[str, Any] = {"decided": True} if self.decided else {"half_width": self.half_width}
        return {**rule, "level": self.level, **({} if self.cluster is None else {"cluster": self.cluster})}


def _check_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"until.{name}: {value!r}; allowed is a number")
    return float(value)


def _check_name(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"until.{name}: {value!r}; allowed is the name of a field")
    return value


class StoppingWatch:
    """Stopping decision, to which conversations are added as they end, whatever their order.

    Under `half_width` the rule holds when each candidate's interval, which has the level by itself, is narrow enough.
    Under `decided` it holds when every pair is separated, not only the best from the rest, because a sweep's table is
    read pair by pair. With two equal candidates, all planned items are run. Each pair's interval has the level 1 - (1 -
    level) / pairs (Bonferroni), so that all hold jointly.

    With `clusters`, the target remains the mean over conversations; observations are the clusters' means, weighted by
    their number of conversations. Unscored conversations count as finished but add no information: intervals are of the
    mean over scored conversations, and of the mean difference over items on which both are scored.
    """

    def __init__(
        self,
        until: StoppingRule,
        candidates: Sequence[str],
        planned: int,
        low: float = 0.0,
        high: float = 100.0,
        clusters: ItemClusters | None = None,
    ) -> None:
        """Start a watch over `planned` items, one conversation each for every candidate, scored `low` to `high`.

        Raises:
            ValueError: if there are no candidates, two have one name, or `decided` has only one; if `planned` is below
                0, `low` is not below `high`, or clusters do not add up to `planned`.
        """
        if not candidates or len(set(candidates)) < len(candidates):
            raise ValueError(f"candidates: {list(candidates)}; at least one is needed, each name once")
        if until.decided and len(candidates) < 2:
            raise ValueError(f"until: 'decided' needs at least two candidates, found only {candidates[0]!r}")
        if planned < 0:
            raise ValueError(f"planned: {planned} items; the number cannot be below 0")
        if clusters is not None and (sum(clusters.sizes) != planned or min(clusters.sizes, default=1) < 1):
            raise ValueError(
                f"clusters have {sum(clusters.sizes)} items; expected at least one in each, and {planned} in all"
            )
        self.until, self.candidates, self.planned = until, tuple(candidates), planned
        self.low, self.high = low, high
        self.stopped_at: int | None = None
        self._clusters = clusters
        self._ends = None if clusters is None else list(accumulate(clusters.sizes))
        self._largest = 1 if clusters is None else max(clusters.sizes, default=1)
        self._finished = 0  # conversations, in all
        self._next = 0  # first item that some candidate has not finished
        self._prefix = 0
        self._open: list[list[float]] = []  # scores of the items of an unfinished cluster
        self._means = [Mean() for _ in candidates]
        self._ahead: dict[int, dict[str, float]] = {}
        self._own = ConfidenceSequences(len(candidates), low=low, high=high, level=until.level)
        self._pairs = list(combinations(range(len(candidates)), 2)) if until.decided else []
        self._differences: ConfidenceSequences | None = None
        if self._pairs:
            level, width = 1.0 - (1.0 - until.level) / len(self._pairs), high - low
            self._differences = ConfidenceSequences(
                len(self._pairs), low=-width, high=width, level=level, steps=_PAIR_STEPS
            )

    def add(self, candidate: str, position: int, score: float | None) -> None:
        """Add a finished conversation; after the stop it is only counted.

        Args:
            candidate: One of the candidates.
            position: Position of the conversation's item in the seeded order, from 0.
            score: None for a failed conversation, or one without a readable verdict.
        """
        if candidate not in self.candidates:
            raise ValueError(f"unknown candidate {candidate!r}; expected one of {list(self.candidates)}")
        if not 0 <= position < self.planned:
            raise ValueError(f"position {position} of {self.planned} planned items; positions count from 0")
        if score is not None and not self.low <= score <= self.high:  # nan too
            raise ValueError(
                f"{candidate!r} at position {position}: score {score}; scores must lie in {self.low:g}–{self.high:g}"
            )
        row = self._ahead.setdefault(position, {})
        if position < self._next or candidate in row:
            raise ValueError(f"{candidate!r} at position {position}: reported twice")
        row[candidate] = math.nan if score is None else score
        self._finished += 1
        while self.stopped_at is None and len(self._ahead.get(self._next, ())) == len(self.candidates):
            scores = self._ahead.pop(self._next)
            self._next += 1
            self._open.append([scores[name] for name in self.candidates])
            if self._ends is None or self._ends[bisect_right(self._ends, self._prefix)] == self._next:
                self._learn(self._open)
                self._open = []

    def _learn(self, items: list[list[float]]) -> None:
        """Add the next item of the order, or all items of the next cluster, once all candidates have finished them."""
        self._prefix = self._next
        for scores in items:
            for mean, score in zip(self._means, scores, strict=True):
                if not math.isnan(score):
                    mean.add(score)
        self._own.add(*self._observed(items))
        if self._differences is not None:
            self._differences.add(
                *self._observed([[scores[left] - scores[right] for left, right in self._pairs] for scores in items])
            )
        if self._is_decided():
            self.stopped_at = self._prefix

    def _observed(self, items: list[list[float]]) -> tuple[list[float], list[float]]:
        """Return, for each row, one observation from the items of a cluster, and its weight.

        The observation is the mean of the row's values, the weight their number as a fraction of the largest cluster's.
        """
        means, weights = [], []
        for column in zip(*items, strict=True):
            values = [value for value in column if not math.isnan(value)]
            means.append(math.fsum(values) / len(values) if values else math.nan)
            weights.append(len(values) / self._largest)
        return means, weights

    def _is_decided(self) -> bool:
        if self._differences is not None:
            return len(self.better) == len(self._pairs)
        assert self.until.half_width is not None
        return bool((self._own.highs - self._own.lows <= 2.0 * self.until.half_width).all())

    @property
    def prefix(self) -> int:
        """Number of items behind the decision: those before the first unfinished item or cluster, or the stop."""
        return self._prefix

    @property
    def overshoot(self) -> int:
        """Conversations finished beyond the stop. Depends on timing, so no report contains it."""
        return 0 if self.stopped_at is None else self._finished - self.stopped_at * len(self.candidates)

    @property
    def saved(self) -> int | None:
        """Planned conversations that the decision did not need, overshoot included; None before the rule holds."""
        return None if self.stopped_at is None else (self.planned - self.stopped_at) * len(self.candidates)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Each candidate's interval at the stop, or now; each by itself has the level."""
        ends = zip(self._own.lows.tolist(), self._own.highs.tolist(), strict=True)
        return dict(zip(self.candidates, ends, strict=True))

    @property
    def better(self) -> list[tuple[str, str, float, float]]:
        """Pairs whose difference excludes 0, in the candidates' order: (better candidate, worse candidate, low, high).

        `low` and `high` bound the difference in points, both ends excluded: a `low` of 0 means that the difference is
        above 0. Empty under `half_width`.
        """
        pairs: list[tuple[str, str, float, float]] = []
        if self._differences is None:
            return pairs
        ends = zip(self._differences.lows.tolist(), self._differences.highs.tolist(), strict=True)
        for (left, right), (low, high) in zip(self._pairs, ends, strict=True):
            first, second = self.candidates[left], self.candidates[right]
            if low >= 0.0 and high > 0.0:
                pairs.append((first, second, low, high))
            elif high <= 0.0 and low < 0.0:
                pairs.append((second, first, 0.0 - high, 0.0 - low))
        return pairs

    def to_record(self) -> dict[str, Any]:
        """Return plain data, with six decimals: rule, independent unit, stop, saving, means and intervals.

        `n` is the number of scored conversations in `observations` observations. Once the rule holds, nothing in the
        record depends on when conversations ended.
        """
        intervals = {}
        for row, (name, (low, high)) in enumerate(self.intervals.items()):
            mean = self._means[row]
            intervals[name] = {
                "n": mean.n,
                "observations": int(self._own.counts[row]),
                "mean": None if mean.mean is None else round(mean.mean, 6),
                "low": round(low, 6),
                "high": round(high, 6),
            }
        return {
            "rule": self.until.to_record(),
            "independent": "item" if self._clusters is None else self._clusters.field,
            "planned": self.planned,
            "prefix": self._prefix,
            "stopped_at": self.stopped_at,
            "saved": self.saved,
            "intervals": intervals,
            "better": [
                {"better": winner, "worse": loser, "low": round(low, 6), "high": round(high, 6)}
                for winner, loser, low, high in self.better
            ],
        }
