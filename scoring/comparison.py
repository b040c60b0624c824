"""Paired comparison of candidates: sign-flip and t-tests, corrections for multiple tests, effects of biases.

Comparing item by item removes the items' difficulty from the difference (Miller 2024, "Adding error bars to evals",
section 3). If two candidates are exchangeable on each item, either sign of an item's difference is equally likely
(Fisher 1935). Effects are means of one number per case against 0: the influence of irrelevant changes on verdicts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .clustered_means import ClusteredMean, clustered_mean
from .intervals import Estimate, check_level, extend_to_zero, student_half, student_tail

Floats = NDArray[np.float64]

MAX_SIGN_FLIPS = 100  # items
MAX_PAIRED = 60  # with more candidates, only this many are compared in pairs
_MAX_EXHAUSTIVE = 13  # items up to which all signs are tried
_RANDOM_FLIPS = 9_999
_ROUNDING = 1e-9


def sign_flip_p(sums: Floats) -> float:
    """Return the two-sided p-value of a mean of 0, from each item's sum of differences; at most `MAX_SIGN_FLIPS` items.

    With n items p is at least 2/2^n; at least 1/10,000 if signs are drawn at random (beyond 13 items).
    """
    signs = _all_signs(len(sums)) if len(sums) <= _MAX_EXHAUSTIVE else _random_signs(len(sums))
    own = 0 if len(sums) <= _MAX_EXHAUSTIVE else 1  # drawn signs may not include the observed ones
    observed, slack = abs(math.fsum(sums)), _ROUNDING * math.fsum(np.abs(sums))
    extreme = int((np.abs(signs @ sums) >= observed - slack).sum())
    return (extreme + own) / (len(signs) + own)


@lru_cache(maxsize=_MAX_EXHAUSTIVE)
def _all_signs(n: int) -> Floats:
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return (2 * bits - 1).astype(np.float64)


@lru_cache(maxsize=8)
def _random_signs(n: int) -> Floats:
    # Fixed seed: a table's p-values are the same on every run.
    bits = np.random.Generator(np.random.PCG64(1935)).integers(0, 2, (_RANDOM_FLIPS, MAX_SIGN_FLIPS))
    return np.ascontiguousarray(2 * bits[:, :n] - 1, dtype=np.float64)


Correction = Literal["holm", "benjamini-hochberg"]
Test = Literal["sign flips", "t"]
# A candidate's scores by item and by what distinguishes conversations on it (seed, evaluator); None: unscored.
Scores = Mapping[tuple[str, str], float | None]
# Mean differences of an item up to this are rounding, not a win.
_DIFFERENCE_ROUNDING = 1e-9


@dataclass(slots=True, frozen=True)
class Comparison:
    """Comparison of `first` and `second` on the items on which both are scored.

    `mean` is the mean of first minus second, None without common items; `difference` adds its interval, and `se` is its
    standard error, both clustered by item; `p` is the two-sided p-value by `test`; `p_corrected` is corrected for all
    pairs of the table. `difference`, `se`, `p` and `p_corrected` are None below two items.

    `n` items were compared, in `clusters` clusters and `pairs` pairs of conversations; on `dropped` items both have
    conversations, but no pair is scored on both sides. `won`, `tied` and `lost` are the fractions of items, 0–1, on
    which the first has the higher, the same or the lower mean score; None without common items.
    """

    first: str
    second: str
    mean: float | None
    difference: Estimate | None
    se: float | None
    p: float | None
    p_corrected: float | None
    n: int
    pairs: int
    dropped: int
    won: float | None
    tied: float | None
    lost: float | None
    test: Test | None
    clusters: int = 0


def compare(
    first: str,
    second: str,
    scores: Mapping[str, Scores],
    level: float = 0.95,
    highest: float = 100.0,
    *,
    clusters: Mapping[str, str] | None = None,
    strata: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare two candidates on conversations that both have had, paired by item and by seed or evaluator.

    Differences are taken conversation by conversation and clustered by item. The interval is for the mean of values
    between ± `highest` (`ClusteredMean.bounded_interval`), for this pair alone. Up to `MAX_SIGN_FLIPS` items `p` comes
    from the sign-flip test, which is exact if the candidates are exchangeable on each item; beyond, difference / se is
    compared with Student's t with n - 1 degrees of freedom. No p-value is less than 2/2^n.

    The tests reject a mean of 0 too often if one candidate loses rarely but heavily, because many samples contain no
    such loss; the interval allows for them. So a small p with an interval that includes 0 means too few items.

    Args:
        first: A key of `scores`.
        second: Another key of `scores`.
        scores: Scores by candidate.
        level: Confidence level.
        highest: The highest possible score, the lowest being 0.
        clusters: By item, its cluster if items are not independent; clusters then replace items in error, interval and
            p.
        strata: By item, the stratum from which it was drawn, such as a dataset.
    """
    check_level(level)
    first_scores, second_scores = scores[first], scores[second]
    shared = first_scores.keys() & second_scores.keys()
    by_item: dict[str, list[float]] = {}
    for key in shared:
        left, right = first_scores[key], second_scores[key]
        if left is not None and right is not None:
            by_item.setdefault(key[0], []).append(left - right)
    dropped = len({item for item, _ in shared}) - len(by_item)
    items = [item for item in by_item for _ in by_item[item]]
    cluster_of = {item: (clusters or {}).get(item, item) for item in by_item}
    by_cluster: dict[str, list[float]] = {}
    for item, values in by_item.items():
        by_cluster.setdefault(cluster_of[item], []).extend(values)
    estimate = clustered_mean(
        [value for item in by_item for value in by_item[item]],
        [cluster_of[item] for item in items],
        None if strata is None else [strata[item] for item in items],
    )
    if estimate is None:
        return Comparison(first, second, None, None, None, None, None, 0, 0, dropped, None, None, None, None)
    p, test = mean_difference_p(estimate, by_cluster)
    interval = (
        extend_to_zero(estimate.bounded_interval(-highest, highest, level=level), p, level)
        if estimate.se is not None
        else None
    )
    means = [math.fsum(values) / len(values) for values in by_item.values()]
    won = sum(mean > _DIFFERENCE_ROUNDING for mean in means) / len(means)
    lost = sum(mean < -_DIFFERENCE_ROUNDING for mean in means) / len(means)
    tied = sum(abs(mean) <= _DIFFERENCE_ROUNDING for mean in means) / len(means)
    return Comparison(
        first,
        second,
        estimate.mean,
        interval,
        estimate.se,
        p,
        p,
        len(by_item),
        estimate.n,
        dropped,
        won,
        tied,
        lost,
        test,
        estimate.clusters,
    )


def mean_difference_p(mean: ClusteredMean, by_item: Mapping[str, Sequence[float]]) -> tuple[float | None, Test | None]:
    """Return the two-sided p-value of a mean of 0 and its test, as in `compare`; None below two items.

    If items are in clusters, `by_item` must have the differences by cluster.
    """
    if mean.se is None:
        return None, None
    if mean.clusters <= MAX_SIGN_FLIPS:
        items = sorted(by_item)  # signs are drawn by position
        return sign_flip_p(np.array([math.fsum(by_item[item]) for item in items])), "sign flips"
    ratio = abs(mean.mean) / mean.se if mean.se else math.inf if mean.mean else 0.0
    smallest = max(sys.float_info.min, math.ldexp(1.0, 1 - mean.clusters))
    return max(smallest, 2.0 * float(student_tail(ratio, mean.freedom))), "t"


@dataclass(slots=True, frozen=True)
class Shortfall:
    """Shortfall of `first` below `second` on the `n` items on which both are scored.

    `first` and `second` are means over these items, all weighing the same. `p` is the one-sided p-value of a fall by
    more than the allowed margin; 1 for a single item, which has no spread.
    """

    first: float
    second: float
    p: float
    n: int


def measure_shortfall(first: Scores, second: Scores, margin: float = 0.0) -> Shortfall | None:
    """Test one-sidedly whether `first` lies below `second` by more than `margin`; None without common items.

    An item's scores are averaged first. Unchanged items say nothing about the direction, so up to `MAX_SIGN_FLIPS`
    *changed* items are tested by sign flips: the false-alarm rate is at most `p` if the two are exchangeable, however
    skewed their scores and however many the ties. Beyond, Student's t is used, whose error falls with the number of
    items. If most items fall a little and a few rise far, small samples look like a fall although the mean stays.
    """
    first_means, second_means = _item_means(first), _item_means(second)
    shared = sorted(first_means.keys() & second_means.keys())  # signs are drawn by position
    if not shared:
        return None
    n = len(shared)
    differences = np.array([first_means[item] - second_means[item] + margin for item in shared])
    if not np.isfinite(differences).all():
        raise ValueError("scores are not finite; leave out unscored items")
    total = math.fsum(differences)
    p = 1.0
    if n > 1:
        scale = max(margin, *(abs(means[item]) for means in (first_means, second_means) for item in shared))
        changed = differences[np.abs(differences) > _DIFFERENCE_ROUNDING * scale]
        if len(changed) <= MAX_SIGN_FLIPS:
            both = sign_flip_p(changed) if len(changed) else 1.0
        else:
            spread = math.sqrt(math.fsum((differences - total / n) ** 2) / (n - 1) * n)
            both = 2.0 * float(student_tail(abs(total) / spread, n - 1)) if spread else 0.0
            both = max(both, sys.float_info.min, math.ldexp(1.0, 1 - n))
        p = both / 2 if total < 0 else 1.0 - both / 2
    first_mean, second_mean = (math.fsum(means[item] for item in shared) / n for means in (first_means, second_means))
    return Shortfall(first_mean, second_mean, p, n)


def _item_means(scores: Scores) -> dict[str, float]:
    by_item: dict[str, list[float]] = {}
    for (item, _), score in scores.items():
        if score is not None:
            by_item.setdefault(item, []).append(score)
    return {
        item: values[0] if len(values) == 1 else math.fsum(values) / len(values) for item, values in by_item.items()
    }


def compare_all(
    scores: Mapping[str, Scores],
    correction: Correction = "holm",
    level: float = 0.95,
    *,
    clusters: Mapping[str, str] | None = None,
    strata: Mapping[str, str] | None = None,
) -> list[Comparison]:
    """Compare every pair of candidates, in the order of `scores`, with p-values corrected over the pairs.

    With more than `MAX_PAIRED` candidates, only those with the highest means are compared. Since the scores chose them,
    p-values are then corrected over the pairs of all candidates.
    """
    names = list(scores)
    if len(names) > MAX_PAIRED:
        means = {name: _mean_score(own) for name, own in scores.items()}
        best = set(sorted(names, key=lambda name: -means[name])[:MAX_PAIRED])
        names = [name for name in names if name in best]
    comparisons = [
        compare(first, second, scores, level, clusters=clusters, strata=strata)
        for first, second in combinations(names, 2)
    ]
    untested = math.comb(len(scores), 2) - len(comparisons)
    ps = adjust_p_values([comparison.p for comparison in comparisons], correction, untested)
    return [replace(comparison, p_corrected=p) for comparison, p in zip(comparisons, ps, strict=True)]


def _mean_score(scores: Scores) -> float:
    values = _item_means(scores).values()
    return math.fsum(values) / len(values) if values else -math.inf


def adjust_p_values(
    ps: Sequence[float | None], correction: Correction = "holm", untested: int = 0
) -> list[float | None]:
    """Correct p-values for multiple tests, in the same order; None (no test) stays None.

    `untested` hypotheses count as tests with p = 1, because the data chose which ones were tested.

    `holm`                 Holm 1979, step-down Bonferroni: bounds the chance of at least one false finding under every
                           dependence between tests. The default: one false "better" spoils a table of models.
    `benjamini-hochberg`   Benjamini and Hochberg 1995: bounds the expected fraction of false findings
                           (scipy.stats.false_discovery_control), for independent or positively dependent tests.
    """
    defined = [p for p in ps if p is not None]
    for p in defined:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p is {p}; p-values must lie between 0 and 1")
    if correction == "holm":
        adjusted = _holm(defined, untested)
    elif correction == "benjamini-hochberg":
        from scipy.stats import false_discovery_control

        padded = [*defined, *[1.0] * untested]
        adjusted = [float(p) for p in false_discovery_control(padded, method="bh")] if defined else []
    else:
        raise ValueError(f"correction {correction!r}; expected holm or benjamini-hochberg")
    following = iter(adjusted)
    return [None if p is None else next(following) for p in ps]


def _holm(ps: Sequence[float], untested: int) -> list[float]:
    """Return each p-value times the number of p-values not below it, in rank order, made monotone."""
    adjusted, reached = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        reached = max(reached, min(1.0, (len(ps) + untested - rank) * ps[index]))
        adjusted[index] = reached
    return adjusted


@dataclass(slots=True, frozen=True)
class Effect:
    """Effect with its interval and two-sided p-value (None if nothing is tested), over `n` cases."""

    value: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int


NO_EFFECT = Effect(None, None, None, None, 0)


def mean_effect(values: Mapping[str, float], *, wins: bool = False, level: float = 0.95) -> Effect:
    """Return the mean over cases of values from -1 to 1, which is 0 without an effect.

    The interval is Student's; for `wins`, which may be rare, the bounded one (`ClusteredMean.bounded_interval`). p
    comes from sign flips up to 100 cases, else from Student's t.
    """
    cases = sorted(values)
    mean = clustered_mean([values[case] for case in cases], cases)
    if mean is None:
        return NO_EFFECT
    ends = mean.bounded_interval(-1.0, 1.0, level=level) if wins else _student_interval(mean, level)
    p, _ = mean_difference_p(mean, {case: [values[case]] for case in cases})
    return Effect(mean.mean, ends.low, ends.high, p, mean.n)


def balanced_effect(values: Mapping[str, float], truth: Mapping[str, int], level: float = 0.95) -> Effect:
    """Return the mean of values from -1 to 1, with the same weight for the cases of each truth (-1 or 1).

    A judge without bias errs equally often in either direction, so its effect is 0 for any error rate and any mix of
    truths (equal opportunity). The effect is half the sum of the two means, with Welch's interval and t-test. Cases
    without a truth are left out. The effect is undefined if a truth has fewer than two cases.

    Source: Hardt et al. 2016; for self-preference, Wataoka et al. 2024.
    """
    sides = [[values[case] for case in sorted(values) if truth.get(case) == side] for side in (1, -1)]
    if min(map(len, sides)) < 2:
        return Effect(None, None, None, None, sum(map(len, sides)))
    means = [math.fsum(side) / len(side) for side in sides]
    # An extra quarter keeps the error above 0 if all cases of a side are equal.
    errors = [
        (math.fsum((value - mean) ** 2 for value in side) + 0.25) / (len(side) * (len(side) - 1))
        for side, mean in zip(sides, means, strict=True)
    ]
    value, error = sum(means) / 2, math.sqrt(sum(errors)) / 2
    freedom = sum(errors) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(errors, sides, strict=True))
    half = student_half(error, freedom, level)
    p = 2.0 * float(student_tail(abs(value) / error, freedom))
    return Effect(value, max(-1.0, value - half), min(1.0, value + half), p, sum(map(len, sides)))


def spread_effect(grades: Mapping[str, Sequence[float]], level: float = 0.95) -> Effect:
    """Return the mean over cases of the standard deviation of repeated grades from 0 to 1; no test.

    Cases with fewer than two grades are left out.
    """
    spreads = {case: _standard_deviation(values) for case, values in grades.items() if len(values) > 1}
    cases = sorted(spreads)
    mean = clustered_mean([spreads[case] for case in cases], cases)
    if mean is None:
        return NO_EFFECT
    ends = _student_interval(mean, level)
    return Effect(mean.mean, max(0.0, ends.low), ends.high, None, mean.n)


def _student_interval(mean: ClusteredMean, level: float) -> Estimate:
    """Return Student's interval; the bounded one for a single case."""
    return mean.interval(level) or mean.bounded_interval(-1.0, 1.0, level=level)


def _standard_deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return min(1.0, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)))
