"""Members told from others, and the gap between two sets, against scikit-learn and scipy; intervals that hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import NormalDist, fmean

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_ind
from sklearn.metrics import roc_auc_score, roc_curve

from viva.scoring.aggregates import Mean
from viva.scoring.contamination import (
    auc,
    loss_gap,
    tpr_at_fpr,
)

relaxed = settings(deadline=None, max_examples=60)
# Few values, so that ties are many.
labelled = st.lists(st.tuples(st.integers(-4, 4).map(float), st.booleans()), min_size=2, max_size=40).filter(
    lambda pairs: len({member for _, member in pairs}) == 2
)
Pairs = list[tuple[float, bool]]


def mean_of(values: Sequence[float]) -> Mean:
    mean = Mean()
    for value in values:
        mean.add(value)
    return mean


def split(pairs: Pairs) -> tuple[list[float], list[bool]]:
    return [score for score, _ in pairs], [member for _, member in pairs]


# --- telling members from others --------------------------------------------------------------------------------------


@relaxed
@given(labelled)
def test_auc_is_that_of_scikit_learn_and_of_counting_pairs(pairs: Pairs) -> None:
    scores, member = split(pairs)
    inside = [score for score, is_member in pairs if is_member]
    outside = [score for score, is_member in pairs if not is_member]
    wins = sum((a > b) + (a == b) / 2 for a in inside for b in outside)
    found = auc(scores, member)
    assert found.value == pytest.approx(wins / (len(inside) * len(outside)))
    assert found.value == pytest.approx(roc_auc_score(member, scores))
    assert 0.0 <= found.low <= found.high <= 1.0


@relaxed
@given(labelled, st.randoms(use_true_random=False))
def test_auc_does_not_depend_on_the_order_of_items(pairs: Pairs, chance: Random) -> None:
    found = auc(*split(pairs))
    shuffled = list(pairs)
    chance.shuffle(shuffled)
    assert auc(*split(shuffled)) == found


def test_auc_sees_only_ranks() -> None:
    member = [True, True, False, True, False, False]
    wild = [math.inf, 1e308, -1e308, 5e-324, 0.0, -math.inf]
    assert auc(wild, member) == auc([5, 4, 1, 3, 2, 0], member)
    assert auc(wild, np.asarray(member, dtype=int)) == auc(wild, member)


def test_a_higher_level_makes_a_wider_interval() -> None:
    scores, member = two_normals(60, 60, Random(5))
    first, wider = auc(scores, member), auc(scores, member, level=0.99)
    assert wider.low < first.low < first.value < first.high < wider.high


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    truth = NormalDist().cdf(1 / math.sqrt(2))  # of N(1, 1) against N(0, 1)
    covered = 0
    for number in range(120):
        found = auc(*two_normals(40, 40, Random(number)))
        covered += found.low <= truth <= found.high
    assert 0.88 <= covered / 120 <= 0.99


def two_normals(inside: int, outside: int, chance: Random) -> tuple[list[float], list[bool]]:
    scores = [chance.gauss(1, 1) for _ in range(inside)] + [chance.gauss(0, 1) for _ in range(outside)]
    return scores, [True] * inside + [False] * outside


@pytest.mark.parametrize("size", [2, 10, 40])
def test_line_6h_the_interval_has_a_width_where_members_part_completely(size: int) -> None:
    found = auc([*range(size, 2 * size), *range(size)], [True] * size + [False] * size)
    assert (found.value, found.high) == (1.0, 1.0)
    # Newcombe's equation at a value of 1, its common root taken out: 1 - A = z² · A · shape / n².
    area, z = found.low, NormalDist().inv_cdf(0.975)
    shape = 1 + (size - 1) * ((1 - area) / (2 - area) + area / (1 + area))
    assert 1 - area == pytest.approx(z**2 * area * shape / size**2)
    turned = auc([*range(size, 2 * size), *range(size)], [False] * size + [True] * size)
    assert (turned.value, turned.low) == (0.0, 0.0)
    assert turned.high == pytest.approx(1 - found.low)


def test_line_6h_the_interval_covers_near_1() -> None:
    truth = NormalDist().cdf(2.5 / math.sqrt(2))  # of N(2.5, 1) against N(0, 1): 0.961
    covered = 0
    for number in range(150):
        scores, member = two_normals(20, 20, Random(number))
        found = auc([score + 1.5 * inside for score, inside in zip(scores, member, strict=True)], member)
        covered += found.low <= truth <= found.high
    assert covered / 150 >= 0.92  # a percentile bootstrap: 0.87


@relaxed
@given(labelled, st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 1.0]))
def test_tpr_at_fpr_is_the_best_threshold_within_the_bound(pairs: Pairs, bound: float) -> None:
    inside = [score for score, is_member in pairs if is_member]
    outside = [score for score, is_member in pairs if not is_member]
    best = 0.0
    for threshold in {score for score, _ in pairs}:
        if sum(score >= threshold for score in outside) / len(outside) <= bound:
            best = max(best, sum(score >= threshold for score in inside) / len(inside))
    assert tpr_at_fpr(*split(pairs), bound) == best


def test_tpr_at_fpr_looks_at_every_threshold_on_a_straight_curve() -> None:
    # One member and one other at each score: scikit-learn's curve leaves out what lies between the first and the last.
    scores, member = [4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0], [True, False] * 4
    assert tpr_at_fpr(scores, member, 0.6) == 0.5
    assert tpr_at_fpr(scores, member, 0.2) == 0.0


def test_tpr_at_five_percent_false_positives_beside_the_published_way() -> None:
    scores, member = two_normals(300, 200, Random(8))
    false, true, _ = roc_curve(member, scores)
    assert tpr_at_fpr(scores, member) == pytest.approx(true[np.where(false <= 0.05)[0][-1]])
    assert 0.15 < tpr_at_fpr(scores, member) < 0.40


# --- two sets ---------------------------------------------------------------------------------------------------------

losses = st.lists(st.integers(0, 1000).map(lambda n: n / 100), min_size=2, max_size=30)


def test_the_gap_is_test_minus_train() -> None:
    # KIEval, Table 3: the model that saw the test set in pre-training has 3.88 on train, 2.02 on test.
    gap = loss_gap(mean_of([3.78, 3.98]), mean_of([1.92, 2.12]))
    assert gap.value == pytest.approx(-1.86)
    assert gap.low < -1.86 < gap.high < 0


@relaxed
@given(losses, losses)
def test_the_gap_has_the_interval_of_welch(train: list[float], test: list[float]) -> None:
    assume(len(set(train)) > 1)
    assume(len(set(test)) > 1)
    gap = loss_gap(mean_of(train), mean_of(test), level=0.9)
    interval = ttest_ind(test, train, equal_var=False).confidence_interval(0.9)
    assert (gap.low, gap.high) == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-9)
    assert gap.value == pytest.approx(fmean(test) - fmean(train), abs=1e-12)


@relaxed
@given(losses, losses, st.integers(1, 29), st.randoms(use_true_random=False))
def test_the_gap_does_not_depend_on_order_or_parts(train: list[float], test: list[float], at: int, r: Random) -> None:
    whole = loss_gap(mean_of(train), mean_of(test))
    shuffled = list(train)
    r.shuffle(shuffled)
    first, second = mean_of(shuffled[at:]), mean_of(shuffled[:at])
    first.merge(second)
    assert loss_gap(first, mean_of(test[::-1])) == whole


def test_the_interval_keeps_its_shape_at_any_scale() -> None:
    train, test = [1.0, 2.0, 4.0], [3.0, 5.0, 5.5, 9.0]
    gap = loss_gap(mean_of(train), mean_of(test))
    small = loss_gap(mean_of([x * 2.0**-300 for x in train]), mean_of([x * 2.0**-300 for x in test]))
    assert (small.low * 2.0**300, small.high * 2.0**300) == pytest.approx((gap.low, gap.high), rel=1e-12)


def test_without_spread_the_interval_is_the_point() -> None:
    gap = loss_gap(mean_of([2.0, 2.0]), mean_of([1.5, 1.5]))
    assert (gap.value, gap.low, gap.high) == (-0.5, -0.5, -0.5)
