"""Advice on panels of judges: which judges to add to a panel next, or which items to label first.

A panel's vote is that of most of its judges; a tie is broken at random. So one judge more cannot improve on a single
judge or on any panel of odd size, and only panels of odd size are considered: a panel grows by one or two judges.

Items on which all judges vote alike say nothing about panels. So gains are measured on *contested* items, on which some
judge votes differently, and multiplied by the fraction of items that are contested. That fraction needs no labels.

Of the additions with at least half of the highest gain in accuracy, the one with the highest gain per cost is chosen on
nine tenths of the labelled clusters and assessed on the tenth, in turn: no item assesses a panel that it has helped to
choose. The panel is advised only if these out-of-fold votes are more often right than *every* single judge's and than
the present panel's, each by a paired test (an intersection-union test, Berger 1982: no correction for the number of
judges is needed). Otherwise the advice is to label more contested items if a decision with them is worth it, or to keep
what there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from .clustered_means import ClusteredMean, clustered_mean
from .comparison import mean_difference_p
from .intervals import Estimate, check_level, extend_to_zero, normal_share
from .juries import assign_folds
from .sample_size import items_for_difference
from .votes import Ballots, Floats, Mask, contested_items, majority_credit

Action = Literal["add", "label", "keep"]
MIN_CONTESTED = 10  # labelled contested clusters below which no panel is assessed
MAX_GROWTH = 10  # labels are advised up to this multiple of the labelled contested clusters
MIN_WORTH = 0.0025  # expected gain in accuracy for which labels are advised
_WORTHWHILE = 0.5  # fraction of the highest gain from which an addition is ranked by its gain per cost
_FOLDS = 10
_POWER = 0.8
_ROUNDING = 1e-9


@dataclass(slots=True, frozen=True)
class Addition:
    """Judges that may be added to a panel, as seen on all labels: for comparison, not for a decision.

    `gain` is the larger panel's accuracy minus that of the best single judge, or of the present panel if that is
    higher. `cost` is what the added judges cost for an item. `per_cost` is the gain divided by it, None without a gain.
    """

    added: tuple[str, ...]
    gain: float
    cost: float
    per_cost: float | None


@dataclass(slots=True, frozen=True)
class LabelPlan:
    """Contested items to label before deciding.

    `expected_gain`, in accuracy, is that of deciding with them; None if nothing is known yet. It is the preposterior
    value of the decision, with the measured gain and its standard error as the belief (Raiffa and Schlaifer 1961,
    section 5.4).
    """

    items: int
    expected_gain: float | None


@dataclass(slots=True, frozen=True)
class PanelAdvice:
    """Next step for a panel.

    `base` is the panel to which judges would be added: the present one, or the best single judge if that is at least as
    accurate on the labels. `added` are the judges to add, or, if `action` is not `add`, the best candidates. `gain` is
    out of fold: accuracy of the larger panel minus that of the closest rival, which is `rival`; `p` is two-sided, the
    highest over all rivals. `stability` is the fraction of folds that chose `added`. `additions` are sorted, best
    first. `n` items are labelled; `contested` of them, in `clusters` clusters, are contested, as is the fraction
    `share` of all items.
    """

    action: Action
    base: tuple[str, ...]
    added: tuple[str, ...]
    rival: str
    gain: Estimate | None
    p: float | None
    stability: float | None
    labels: LabelPlan | None
    additions: list[Addition]
    n: int
    contested: int
    clusters: int
    share: float

    @property
    def panel(self) -> tuple[str, ...]:
        """The advised panel."""
        return (*self.base, *self.added) if self.action == "add" else self.base


def advise_panel(
    ballots: Ballots,
    present: Sequence[str] = (),
    costs: Mapping[str, float] | None = None,
    *,
    share: float | None = None,
    seed: int = 7,
    level: float = 0.95,
) -> PanelAdvice:
    """Return the next step for a panel of judges.

    Args:
        ballots: Votes of all judges on labelled items.
        present: Judges of the present panel; none: the best single judge.
        costs: Cost of a vote by judge, all above 0; default: 1 each.
        share: Fraction of all items, labelled or not, that are contested; default: of the labelled ones. If given, the
            labelled items may be any random sample of the contested ones.
        seed: Seed of the folds.
        level: Confidence level of the interval; the tests are at 1 - `level`.

    Raises:
        ValueError: if a judge of `present` has no votes, or a cost is not above 0.
    """
    check_level(level)
    if unknown := [name for name in present if name not in ballots.judges]:
        raise ValueError(f"present: {unknown[0]!r} has no votes; the judges are {', '.join(ballots.judges)}")
    prices = np.array([1.0 if costs is None else costs[name] for name in ballots.judges])
    if not (np.isfinite(prices).all() and (prices > 0).all()):
        raise ValueError("costs: each must be a number above 0")
    is_contested = contested_items(ballots.votes)
    n = len(ballots.truth)
    fraction = float(is_contested.sum()) / max(1, n) if share is None else share
    contested = ballots.subset(is_contested)
    search = _Search(contested, tuple(sorted({ballots.judges.index(name) for name in present})), prices)
    k = contested.cluster_count
    if k < MIN_CONTESTED:
        names = tuple(present)
        plan = LabelPlan(MIN_CONTESTED - k, None) if len(ballots.judges) > 2 else None
        action: Action = "keep" if plan is None else "label"
        return PanelAdvice(action, names, (), "", None, None, None, plan, [], n, len(contested.truth), k, fraction)
    everything = np.ones(k, dtype=bool)
    base, additions = search.additions(everything)
    names, listed = search.names(base), [search.describe(base, entry, everything, fraction) for entry in additions]
    counts = n, len(contested.truth), k, fraction
    if not additions:
        return PanelAdvice("keep", names, (), names[0], None, None, None, None, [], *counts)
    added = additions[0]
    credit, stability = _out_of_fold(search, added, seed)
    rivals = {name: search.credit((at,)) for at, name in enumerate(ballots.judges)}
    if len(search.present) > 1:
        rivals[" + ".join(search.names(search.present))] = search.credit(search.present)
    mean, rival, p = _closest_rival(credit, rivals, contested)
    ends = extend_to_zero(mean.bounded_interval(-1.0, 1.0, level=level), p, level)
    gain = Estimate(fraction * ends.value, fraction * ends.low, fraction * ends.high)
    is_better = p is not None and p <= 1.0 - level and mean.mean > 0
    labels = None if is_better else _labels_to_add(mean, fraction, level)
    chosen: Action = "add" if is_better else "label" if labels is not None else "keep"
    return PanelAdvice(chosen, names, search.names(added), rival, gain, p, stability, labels, listed, *counts)


class _Search:
    """Panels with their votes' credit by item, and sums of it by cluster."""

    def __init__(self, ballots: Ballots, present: tuple[int, ...], prices: Floats) -> None:
        self.ballots, self.present, self.prices = ballots, present, prices
        self.sizes = np.bincount(ballots.clusters, minlength=ballots.cluster_count).astype(np.float64)
        self._credits: dict[tuple[int, ...], Floats] = {}
        self._sums: dict[tuple[int, ...], Floats] = {}

    def names(self, judges: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.ballots.judges[at] for at in judges)

    def credit(self, judges: tuple[int, ...]) -> Floats:
        """Return by item the probability that the panel's vote is right."""
        panel = tuple(sorted(judges))
        if panel not in self._credits:
            self._credits[panel] = majority_credit(self.ballots.votes[:, panel], self.ballots.truth)
        return self._credits[panel]

    def accuracy(self, judges: tuple[int, ...], clusters: Mask) -> float:
        panel = tuple(sorted(judges))
        if panel not in self._sums:
            sums = np.zeros(len(self.sizes))
            np.add.at(sums, self.ballots.clusters, self.credit(panel))
            self._sums[panel] = sums
        return float(self._sums[panel][clusters].sum() / self.sizes[clusters].sum())

    def base(self, clusters: Mask) -> tuple[int, ...]:
        """Return the present panel, or the best single judge if that is better; the cheaper of equally good judges."""
        best = max(
            range(len(self.ballots.judges)),
            key=lambda at: (round(self.accuracy((at,), clusters), 9), -self.prices[at], -at),
        )
        if self.present and self.accuracy(self.present, clusters) >= self.accuracy((best,), clusters) - _ROUNDING:
            return self.present
        return (best,)

    def additions(self, clusters: Mask) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """Return the base and the judges that may be added to it, the most valuable ones first.

        Additions with at least half of the highest gain come first, by gain per cost, then those with a smaller gain,
        and last the others by their loss.
        """
        base = self.base(clusters)
        others = [at for at in range(len(self.ballots.judges)) if at not in base]
        floor = self.accuracy(base, clusters)
        added = list(combinations(others, 1 if len(base) % 2 == 0 else 2))
        gains = {judges: self.accuracy((*base, *judges), clusters) - floor for judges in added}
        enough = _WORTHWHILE * max(gains.values(), default=0.0)

        def value(judges: tuple[int, ...]) -> tuple[bool, bool, float, float]:
            gain, cost = gains[judges], float(self.prices[list(judges)].sum())
            is_gain = gain > _ROUNDING
            return (is_gain and gain >= enough - _ROUNDING, is_gain, gain / cost if is_gain else gain, -cost)

        return base, sorted(added, key=value, reverse=True)

    def describe(self, base: tuple[int, ...], added: tuple[int, ...], clusters: Mask, share: float) -> Addition:
        gain = share * (self.accuracy((*base, *added), clusters) - self.accuracy(base, clusters))
        cost = float(self.prices[list(added)].sum())
        return Addition(self.names(added), gain, cost, gain / cost if gain > _ROUNDING else None)


def _out_of_fold(search: _Search, added: tuple[int, ...], seed: int) -> tuple[Floats, float]:
    """Return by item the credit of the panel that the other folds choose, and how many folds choose `added`."""
    ballots = search.ballots
    k = ballots.cluster_count
    fold = np.array(assign_folds([f"{at:09}" for at in range(k)], min(_FOLDS, k), seed))
    credit, same = np.empty(len(ballots.truth)), 0
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        base, additions = search.additions(~inside)
        items = inside[ballots.clusters]
        credit[items] = search.credit((*base, *additions[0]))[items]
        same += set(additions[0]) == set(added)
    return credit, same / (int(fold.max()) + 1)


def _closest_rival(
    credit: Floats, rivals: Mapping[str, Floats], ballots: Ballots
) -> tuple[ClusteredMean, str, float | None]:
    """Return the smallest mean difference from a rival, this rival, and the highest p-value of all rivals.

    A rival that is at least as good has p = 1.
    """
    labels = [str(code) for code in ballots.clusters.tolist()]
    differences: list[tuple[ClusteredMean, str]] = []
    highest: float | None = 0.0
    for name, rival in rivals.items():
        difference = credit - rival
        mean = clustered_mean(difference.tolist(), labels)
        assert mean is not None
        by_cluster: dict[str, list[float]] = {}
        for label, value in zip(labels, difference.tolist(), strict=True):
            by_cluster.setdefault(label, []).append(value)
        p = mean_difference_p(mean, by_cluster)[0] if mean.mean > 0 else 1.0
        highest = None if p is None or highest is None else max(highest, p)
        differences.append((mean, name))
    closest, name = min(differences, key=lambda pair: pair[0].mean)
    return closest, name, highest


def _labels_to_add(mean: ClusteredMean, share: float, level: float) -> LabelPlan | None:
    """Return the contested items to label; None if deciding with more labels is hardly worth more than without.

    With a measured gain these are as many as show it with 80% power, at most `MAX_GROWTH` times the present ones;
    without a gain, as many again as there are.
    """
    if not mean.se:
        return None
    items = mean.clusters
    if mean.mean > _ROUNDING:
        needed = items_for_difference(mean.mean, mean.se**2 * mean.clusters, _POWER, level) - mean.clusters
        items = min(needed, MAX_GROWTH * mean.clusters)
    items = max(10, math.ceil(items / 10) * 10)
    worth = share * _value_of_labels(mean.mean, mean.se, mean.clusters, items)
    return LabelPlan(items, worth) if worth >= MIN_WORTH else None


def _value_of_labels(gain: float, error: float, labels: int, more: int) -> float:
    """Return the expected gain from a decision after `more` labels, if nothing were added without them."""
    spread = error * math.sqrt(more / (labels + more))
    ratio = gain / spread
    density = math.exp(-0.5 * ratio * ratio) / math.sqrt(2.0 * math.pi)
    return spread * (density + ratio * normal_share(ratio))
