"""Early stopping of interviews by anytime-valid intervals: the rules, and the watch that applies them.

A rule looks at anytime-valid intervals (``confidence_sequences``), so looking after every item does no harm. It
looks only at the longest prefix of the items' seeded order that every candidate has finished: which conversations
end sooner, and how many run at once, has no part in the decision.

Items count as independent, unless they come in clusters (of a subject, of a passage that several ask about): then whole
clusters do, each of them one observation, and the rule is looked at where a cluster ends.
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
    "'decided', {half_width: 2.0} or {decided: true}, each mapping with a level (0.95) and the cluster of items that "
    "are not independent (subject or passage) where wanted"
)
# A difference ranges over twice what a score does, and only its sign decides: a coarser grid does.
_PAIR_STEPS = 1000


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """The rule as the user wrote it: exactly one of the two.

    ``half_width``  until each candidate's interval is at most twice this wide, in points of the score.
    ``decided``     until every pair of candidates is told apart: the interval of the difference excludes 0.

    ``level`` is the probability with which an interval covers its mean however often it is looked at; under ``decided``
    that all pairs' intervals do at once. ``cluster`` is the items' field that says which of them belong together; None:
    items are independent of one another.
    """

    half_width: float | None = None
    decided: bool = False
    level: float = 0.95
    cluster: str | None = None

    def __post_init__(self) -> None:
        """:raises ValueError: both rules are given, or none; a value is out of its range."""
        if (self.half_width is not None) == self.decided:
            problem = "both half_width and decided" if self.decided else "neither half_width nor decided"
            raise ValueError(f"until: {problem}; allowed is exactly one: {_ALLOWED}")
        if self.half_width is not None and not (math.isfinite(self.half_width) and self.half_width > 0.0):
            raise ValueError(f"until.half_width: {self.half_width}; allowed is a number of points above 0")
        try:
            check_level(self.level)
        except ValueError:
            raise ValueError(f"until.level: {self.level}; allowed is a share between 0 and 1, such as 0.95") from None

    @classmethod
    def parse(cls, value: Any) -> StoppingRule:
        """The rule in a settings file: ``decided``, ``{half_width: 2.0}`` or ``{decided: true}``, mappings with
        ``level`` where another than 0.95 is wanted.
        """
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
        """Plain data; ``parse`` reads it back."""
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
    """The decision, fed with conversations in any order.

    ``planned`` is the number of items; each candidate is to hold one conversation on each. Under ``half_width`` the
    rule holds when each candidate's interval is narrow enough, each at the level by itself. Under ``decided`` it holds
    when every pair is told apart, not merely the best from the rest: a sweep is reported as a table whose rows are read
    against each other, and two equal candidates are then compared on all that was planned. Each pair's interval has the
    level 1 - (1 - level) / pairs (Bonferroni), so that all hold at once.

    With ``clusters`` the first of them are the first so many items, and so on. What intervals cover is the mean over
    conversations all the same; their observations are the clusters' means, weighed by how many conversations each has.

    Unscored conversations take their place and teach nothing: intervals are of the mean over scored conversations,
    and of the mean difference over items on which both are scored.
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
        """:raises ValueError: no candidates, two of one name, or only one to decide about; ``planned`` is below 0,
        ``low`` not below ``high``, or clusters do not have so many items.
        """
        if not candidates or len(set(candidates)) < len(candidates):
            raise ValueError(f"candidates: {list(candidates)}; at least one is needed, each name once")
        if until.decided and len(candidates) < 2:
            raise ValueError(f"until: decided, with the one candidate {candidates[0]!r}; a decision needs two")
        if planned < 0:
            raise ValueError(f"planned: {planned} items")
        if clusters is not None and (sum(clusters.sizes) != planned or min(clusters.sizes, default=1) < 1):
            raise ValueError(f"clusters of {sum(clusters.sizes)} items; planned are {planned}")
        self.until, self.candidates, self.planned = until, tuple(candidates), planned
        self.low, self.high = low, high
        self.stopped_at: int | None = None
        self._clusters = clusters
        self._ends = None if clusters is None else list(accumulate(clusters.sizes))
        self._largest = 1 if clusters is None else max(clusters.sizes, default=1)
        self._finished = 0  # conversations, in all
        self._next = 0  # the first item that not all candidates have finished
        self._prefix = 0
        self._open: list[list[float]] = []  # scores of the items from the prefix on: those of an unfinished cluster
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
        """Take in a finished conversation: ``place`` is its item's in the seeded order, from 0.

        ``score`` is None where there is none: a failed conversation, or one without a readable verdict. After the
        stop a conversation is counted and no more.
        """
        if candidate not in self.candidates:
            raise ValueError(f"candidate {candidate!r}; watched are {list(self.candidates)}")
        if not 0 <= position < self.planned:
            raise ValueError(f"place {position}; planned are {self.planned} items, counted from 0")
        if score is not None and not self.low <= score <= self.high:  # nan too
            raise ValueError(
                f"{candidate!r} at place {position}: score {score}; scores lie in {self.low:g}–{self.high:g}"
            )
        row = self._ahead.setdefault(position, {})
        if position < self._next or candidate in row:
            raise ValueError(f"{candidate!r} at place {position}: told twice")
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
        """Take in the next item of the order, or all items of the next cluster, now that all candidates have finished
        them."""
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
        """One observation for each row from the items of a cluster: the mean of those that have a value, and their
        number as a share of the largest cluster's."""
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
        """How many items the decision rests on: all before the first unfinished one (or its cluster), or the stop."""
        return self._prefix

    @property
    def overshoot(self) -> int:
        """Conversations finished beyond the prefix at which the rule held; depends on timing, so no report has it."""
        return 0 if self.stopped_at is None else self._finished - self.stopped_at * len(self.candidates)

    @property
    def saved(self) -> int | None:
        """Planned conversations that the decision did not need, overshoot among them; None before the rule holds."""
        return None if self.stopped_at is None else (self.planned - self.stopped_at) * len(self.candidates)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Each candidate's interval at the stop, or now, at the level by itself."""
        ends = zip(self._own.lows.tolist(), self._own.highs.tolist(), strict=True)
        return dict(zip(self.candidates, ends, strict=True))

    @property
    def better(self) -> list[tuple[str, str, float, float]]:
        """Pairs told apart: better one, worse one, and the interval of the difference in points, in the candidates'
        order. Empty under ``half_width``.

        A lower end of 0 says that the difference is above 0: an interval's ends are not part of it.
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
        """Plain data, six decimals: the rule, what it takes to be independent, where it held, what that saved, and the
        means and intervals of the conversations on which it rests (``n`` scored ones in ``observations``).

        Once the rule holds, nothing in it depends on when conversations ended.
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
