"""Votes of several judges on labelled items: shared errors, effective votes, and the majority.

A vote is wrong if it differs from people's label. **Effective votes** are the number of judges with independent errors
whose mean error would vary as little as that of these judges:

    n_eff = n · Σ var(e_i) / var(Σ e_i)        e_i: 1 if judge i is wrong, else 0

This is n divided by Kish's design effect. With one error rate and one correlation ρ for all pairs it is
n / (1 + (n - 1) ρ) (Kish 1965, section 5.4), as used by Kohli 2026 (arXiv 2605.29800). The ratio of variances is used
because it needs no mean over pairs, weighs judges by how often they err, and is defined if some judge never errs. It is
at least 1; errors that compensate one another count as n.

Intervals are those of a jackknife over clusters of items on Fisher's scale of an intraclass correlation (Fisher 1925,
section 39), with Student's t. The percentile bootstrap misses errors that all judges share and that are rarer than the
items are many: it covered the truth in 73% to 97% of simulated studies of 50 to 200 items. So both ends are extended to
what they would be with half an item more, on which all judges err, or a single judge does. benches/jury.py measures the
coverage of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .clustered_means import MIN_CLUSTERS, clustered_mean
from .intervals import Estimate, check_level, student_quantile
from .meta_evaluation import percentile_interval

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
_UNSEEN = 0.5  # weight, in items, of an unseen pattern of errors
_EDGE = 1e-3  # distance of a transformed figure from the ends of its range
_BATCH = 2_000_000  # resampled numbers in memory at a time


@dataclass(slots=True, frozen=True)
class Ballots:
    """Votes of judges on labelled items, as codes of the labels.

    `votes` has a row for each item and a column for each judge; `truth` has people's labels. `clusters` has a code from
    0 for each item; items of one cluster are not independent.
    """

    judges: tuple[str, ...]
    votes: Codes
    truth: Codes
    clusters: Codes

    @classmethod
    def from_labels(
        cls, votes: dict[str, Sequence[object]], truth: Sequence[object], groups: Sequence[str] | None = None
    ) -> Ballots:
        """Build from labels of any kind, one for each item.

        Raises:
            ValueError: if there is no judge, or lengths differ.
        """
        if not votes or any(len(column) != len(truth) for column in votes.values()):
            raise ValueError(f"{len(truth)} labels; each judge needs one vote on each item")
        if groups is not None and len(groups) != len(truth):
            raise ValueError(f"{len(truth)} labels, but {len(groups)} groups; each item needs one")
        codes: dict[object, int] = {}
        columns = [[codes.setdefault(vote, len(codes)) for vote in column] for column in (truth, *votes.values())]
        names = [str(at) for at in range(len(truth))] if groups is None else groups
        order = {name: code for code, name in enumerate(dict.fromkeys(names))}
        matrix = np.array(columns, dtype=np.int64).reshape(len(columns), len(truth))
        clusters = np.array([order[name] for name in names], dtype=np.int64)
        return cls(tuple(votes), matrix[1:].T, matrix[0], clusters)

    def subset(self, items: Mask) -> Ballots:
        """Return the ballots on some items."""
        _, clusters = np.unique(self.clusters[items], return_inverse=True)
        return Ballots(self.judges, self.votes[items], self.truth[items], np.asarray(clusters, dtype=np.int64))

    @property
    def right(self) -> Mask:
        """Return which vote equals people's label, by item and judge."""
        return np.asarray(self.votes == self.truth[:, None])

    @property
    def cluster_count(self) -> int:
        return int(self.clusters.max(initial=-1)) + 1


def majority_credit(votes: Codes, truth: Codes) -> Floats:
    """Return for each item the probability that the vote of most judges is right; a tie is broken at random."""
    labels = int(max(votes.max(initial=0), truth.max(initial=0))) + 1
    counts = np.zeros((len(truth), labels))
    for column in votes.T:
        counts[np.arange(len(truth)), column] += 1.0
    tied = counts == counts.max(axis=1, keepdims=True)
    return np.asarray(tied[np.arange(len(truth)), truth] / tied.sum(axis=1), dtype=np.float64)


def contested_items(votes: Codes) -> Mask:
    """Return on which items not all judges vote alike."""
    return np.asarray((votes != votes[:, :1]).any(axis=1))


def effective_votes(errors: Mask, clusters: Codes, level: float = 0.95) -> Estimate | None:
    """Return the effective number of independent votes with its interval, 1 to the number of judges.

    Args:
        errors: Which vote is wrong, by item and judge.
        clusters: Code of each item's cluster, from 0.
        level: Confidence level.

    Returns:
        None if nobody errs, or there are fewer than `MIN_CLUSTERS` clusters.

    Raises:
        ValueError: if there are fewer than two judges.
    """
    check_level(level)
    n = int(errors.shape[1])
    if n < 2:
        raise ValueError(f"{n} judge; effective votes need at least two")
    moments = _Moments.from_errors(errors.astype(np.float64), clusters)
    if len(moments.counts) < MIN_CLUSTERS or not errors.any():
        return None

    def scaled(totals: _Moments) -> Floats:
        effect = np.clip(_design_effect(totals), _EDGE, n - _EDGE)
        return np.asarray(0.5 * np.log(effect / (n - effect)), dtype=np.float64)

    def effect_of(value: float) -> float:
        ratio = math.exp(2.0 * value)
        return n * ratio / (1.0 + ratio)

    everybody, alone = np.ones(n), np.eye(n)[int(np.argmax(errors.sum(axis=0)))]
    low, high = _jackknife_ends(scaled, moments, everybody, alone, level)
    value = min(float(n), max(1.0, n / max(float(_design_effect(moments.total())[0]), _EDGE)))
    return Estimate(value, max(1.0, min(value, n / effect_of(high))), min(float(n), max(value, n / effect_of(low))))


def _design_effect(totals: _Moments) -> Floats:
    """Return var(Σ e) / Σ var(e) of each row of totals; 1 if nobody errs."""
    variances = totals.variances().sum(axis=1)
    ratio = totals.total_variance() / np.where(variances > 0, variances, 1.0)
    return np.asarray(np.where(variances > 0, ratio, 1.0), dtype=np.float64)


@dataclass(slots=True, frozen=True)
class SharedErrors:
    """Errors that two judges share: the correlation of their errors, None if one of them never or always errs.

    `both_wrong` is the fraction of items on which both err; `expected` what it would be with independent errors.
    """

    first: str
    second: str
    correlation: Estimate | None
    both_wrong: float
    expected: float


def shared_errors(ballots: Ballots, level: float = 0.95) -> list[SharedErrors]:
    """Return the error correlation (φ) of each pair of judges; intervals as for `effective_votes`, on Fisher's z."""
    check_level(level)
    errors = (~ballots.right).astype(np.float64)
    pairs = []
    for first, second in combinations(range(len(ballots.judges)), 2):
        both = errors[:, [first, second]]
        rates = both.mean(axis=0)
        moments = _Moments.from_errors(both, ballots.clusters)
        estimate = None
        if len(moments.counts) >= MIN_CLUSTERS and ((rates > 0) & (rates < 1)).all():
            value = float(_phi(moments.total())[0])
            more = int(np.argmax(rates))
            low, high = _jackknife_ends(
                lambda totals: np.arctanh(np.clip(_phi(totals), _EDGE - 1.0, 1.0 - _EDGE)),
                moments, np.ones(2), np.eye(2)[more], level,
            )  # fmt: skip
            estimate = Estimate(value, min(value, float(np.tanh(low))), max(value, float(np.tanh(high))))
        names = ballots.judges[first], ballots.judges[second]
        pairs.append(SharedErrors(*names, estimate, float(both.prod(axis=1).mean()), float(rates.prod())))
    return pairs


def _phi(totals: _Moments) -> Floats:
    """Return the correlation of two judges' errors for each row of totals; 0 if a judge has no spread."""
    variances = totals.variances()
    covariance = (totals.total_variance() - variances.sum(axis=1)) / 2
    product = variances.prod(axis=1)
    ratio = covariance / np.sqrt(np.where(product > 0, product, 1.0))
    return np.asarray(np.where(product > 0, ratio, 0.0), dtype=np.float64)


@dataclass(slots=True, frozen=True)
class _Moments:
    """Sums over the items of each cluster: their number, errors by judge, and squares of the number of errors."""

    counts: Floats
    sums: Floats
    squares: Floats

    @classmethod
    def from_errors(cls, errors: Floats, clusters: Codes) -> _Moments:
        k = int(clusters.max(initial=-1)) + 1
        sums = np.zeros((k, errors.shape[1]))
        np.add.at(sums, clusters, errors)
        squares = np.zeros(k)
        np.add.at(squares, clusters, errors.sum(axis=1) ** 2)
        return cls(np.bincount(clusters, minlength=k).astype(np.float64), sums, squares)

    def total(self) -> _Moments:
        """Return the sums over all clusters, as one row."""
        return _Moments(*(part.sum(axis=0, keepdims=True) for part in (self.counts, self.sums, self.squares)))

    def without_each(self) -> _Moments:
        """Return the sums over all clusters but one, a row for each cluster left out."""
        whole = self.total()
        return _Moments(whole.counts - self.counts, whole.sums - self.sums, whole.squares - self.squares)

    def with_item(self, errors: Floats, weight: float) -> _Moments:
        """Return the same clusters and one more, of a single item with these errors and this weight."""
        return _Moments(
            np.append(self.counts, weight),
            np.vstack([self.sums, weight * errors]),
            np.append(self.squares, weight * errors.sum() ** 2),
        )

    def variances(self) -> Floats:
        """Return the variance of each judge's errors, by row."""
        rates = self.sums / np.maximum(self.counts, 1e-12)[:, None]
        return np.asarray(rates * (1.0 - rates), dtype=np.float64)

    def total_variance(self) -> Floats:
        """Return the variance of an item's number of errors, by row."""
        counts = np.maximum(self.counts, 1e-12)
        return np.asarray(self.squares / counts - (self.sums.sum(axis=1) / counts) ** 2, dtype=np.float64)


def _jackknife_ends(
    scaled: Callable[[_Moments], Floats], moments: _Moments, high_item: Floats, low_item: Floats, level: float
) -> tuple[float, float]:
    """Return both ends of Student's interval of `scaled`, extended to what half an unseen item would make of them.

    Args:
        scaled: The figure on a scale on which it is nearly normal, for each row of sums.
        moments: Sums by cluster.
        high_item: Errors of the unseen item that raises the figure.
        low_item: Errors of the unseen item that lowers the figure.
        level: Confidence level.
    """

    def ends(sums: _Moments) -> tuple[float, float]:
        k = len(sums.counts)
        value, without = float(scaled(sums.total())[0]), scaled(sums.without_each())
        error = float(np.sqrt((k - 1) / k * ((without - without.mean()) ** 2).sum()))
        half = float(student_quantile((1.0 + level) / 2, k - 1)) * error
        return value - half, value + half

    low, high = ends(moments)
    higher, lower = (ends(moments.with_item(item, _UNSEEN)) for item in (high_item, low_item))
    return min(low, lower[0]), max(high, higher[1])


@dataclass(slots=True, frozen=True)
class JuryWorth:
    """Worth of a jury's votes on `n` items in `clusters` clusters.

    `accuracy` has the fraction of right votes by judge, `majority` that of the majority. `independent` is the
    majority's accuracy if errors were independent given the label, with the range of 95% of such votes. `gain` is
    majority minus `best`, the judge with the highest accuracy, chosen anew in each resample; its ends are None if there
    is no interval.
    """

    n: int
    clusters: int
    accuracy: dict[str, Estimate]
    majority: Estimate
    independent: Estimate
    best: str
    gain: float
    gain_low: float | None
    gain_high: float | None
    effective: Estimate | None
    pairs: list[SharedErrors]


def jury_worth(ballots: Ballots, *, seed: int = 7, resamples: int = 1_000, level: float = 0.95) -> JuryWorth:
    """Return what the votes of several judges are worth.

    Raises:
        ValueError: if there are fewer than two judges, or no items.
    """
    check_level(level)
    if len(ballots.judges) < 2 or not len(ballots.truth):
        counts = f"{len(ballots.judges)} judges, {len(ballots.truth)} items"
        raise ValueError(f"{counts}; a jury needs two judges and an item")
    right = ballots.right.astype(np.float64)
    credit = majority_credit(ballots.votes, ballots.truth)
    rates = right.mean(axis=0)
    best = int(np.argmax(rates))
    labels = [str(cluster) for cluster in ballots.clusters.tolist()]
    accuracy = {name: _rate(right[:, at], labels, level) for at, name in enumerate(ballots.judges)}
    low, high = percentile_interval(
        _resampled_gain(credit, right, ballots.clusters, seed, resamples), level, ballots.cluster_count
    )
    return JuryWorth(
        len(credit), ballots.cluster_count, accuracy, _rate(credit, labels, level),
        independent_majority(ballots, seed=seed, draws=min(resamples, 500)), ballots.judges[best],
        float(credit.mean() - rates[best]), low, high,
        effective_votes(~ballots.right, ballots.clusters, level), shared_errors(ballots, level),
    )  # fmt: skip


def _rate(values: Floats, clusters: Sequence[str], level: float) -> Estimate:
    mean = clustered_mean(values.tolist(), clusters)
    assert mean is not None
    return mean.bounded_interval(0.0, 1.0, rate=bool(np.isin(values, (0.0, 1.0)).all()), level=level)


def independent_majority(ballots: Ballots, *, seed: int, draws: int = 500) -> Estimate:
    """Return the accuracy of the majority if judges erred independently, with the range of 95% of the draws.

    Each judge's votes are exchanged among items with the same label, so accuracies and confusions stay, and only the
    dependence between judges disappears (Condorcet's jury, conditional on the label).
    """
    generator = np.random.default_rng([seed, 3])
    strata = [np.flatnonzero(ballots.truth == label) for label in np.unique(ballots.truth)]
    votes = ballots.votes.copy()
    values = np.empty(draws)
    for number in range(draws):
        for at in strata:
            votes[at] = generator.permuted(votes[at], axis=0)
        values[number] = majority_credit(votes, ballots.truth).mean()
    low, high = np.quantile(values, [0.025, 0.975])
    mean = float(values.mean())
    return Estimate(mean, min(mean, float(low)), max(mean, float(high)))


def _resampled_gain(credit: Floats, right: Floats, clusters: Codes, seed: int, resamples: int) -> Floats:
    """Return the gain of the majority over the best judge in resamples of whole clusters."""
    k = int(clusters.max(initial=-1)) + 1
    sizes = np.bincount(clusters, minlength=k).astype(np.float64)
    sums = np.zeros((k, right.shape[1] + 1))
    np.add.at(sums, clusters, np.column_stack([credit, right]))
    generator = np.random.default_rng([seed, 4])
    parts = []
    batch = max(1, _BATCH // max(1, k))
    for start in range(0, resamples, batch):
        counts = generator.multinomial(k, np.full(k, 1 / k), size=min(batch, resamples - start)).astype(np.float64)
        means = counts @ sums / (counts @ sizes)[:, None]
        parts.append(means[:, 0] - means[:, 1:].max(axis=1))
    return np.concatenate(parts)
