"""Worth of several judges' votes: effective votes and their coverage, shared errors, the majority."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from vote_worlds import ballots_of, exchangeable_errors

from viva.scoring.votes import (
    Ballots,
    contested_items,
    effective_votes,
    independent_majority,
    jury_worth,
    majority_credit,
    shared_errors,
)


@st.composite
def _errors(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    judges, items = draw(st.integers(2, 5)), draw(st.integers(6, 30))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=judges, max_size=judges), min_size=items, max_size=items))
    clusters = draw(st.lists(st.integers(0, items - 1), min_size=items, max_size=items))
    _, codes = np.unique(clusters, return_inverse=True)
    return np.array(rows), codes


@settings(max_examples=60, deadline=None)
@given(_errors())
def test_effective_votes_lie_between_one_and_all_and_do_not_depend_on_order(
    case: tuple[np.ndarray, np.ndarray],
) -> None:
    errors, clusters = case
    found = effective_votes(errors, clusters)
    if not errors.any() or len(set(clusters.tolist())) < 5:
        assert found is None
        return
    assert found is not None
    judges = errors.shape[1]
    assert 1.0 <= found.low <= found.value <= found.high <= judges
    variance = errors.var(axis=0).sum()
    if variance > 0 and errors.sum(axis=1).var() > 0:
        expected = judges * variance / errors.sum(axis=1).var()
        assert found.value == pytest.approx(min(judges, expected), rel=1e-9, abs=1e-2)
    turned = effective_votes(errors[::-1, ::-1], clusters[::-1])
    assert turned is not None
    assert turned.value == pytest.approx(found.value)


def test_copies_are_one_vote_and_the_formula_is_that_of_the_design_effect() -> None:
    draw = np.random.default_rng(1)
    one = draw.random((400, 1)) < 0.3
    copies = effective_votes(np.repeat(one, 4, axis=1), np.arange(400))
    assert copies is not None
    assert copies.value == pytest.approx(1.0)
    assert copies.high < 1.1
    errors = exchangeable_errors(draw, 200_000, 5, 0.25, 0.4)
    many = effective_votes(errors, np.arange(200_000) // 100)
    assert many is not None
    assert many.value == pytest.approx(5 / (1 + 4 * 0.4), abs=0.03)


@pytest.mark.parametrize(
    ("judges", "rate", "correlation"), [(3, 0.1, 0.0), (3, 0.1, 0.3), (5, 0.25, 0.7), (9, 0.2, 0.3)]
)
def test_the_interval_covers_the_known_number_on_fifty_items(judges: int, rate: float, correlation: float) -> None:
    draw, covered, count = np.random.default_rng(5), 0, 200
    truth = judges / (1 + (judges - 1) * correlation)
    for _ in range(count):
        found = effective_votes(exchangeable_errors(draw, 50, judges, rate, correlation), np.arange(50))
        covered += found is None or found.low <= truth <= found.high
    assert binomtest(covered, count, 0.93, alternative="less").pvalue > 0.01


def test_items_of_one_cluster_count_once() -> None:
    draw = np.random.default_rng(3)
    errors = exchangeable_errors(draw, 60, 4, 0.25, 0.4)
    alone = effective_votes(errors, np.arange(60))
    repeated = effective_votes(np.repeat(errors, 5, axis=0), np.repeat(np.arange(60), 5))
    assert alone is not None
    assert repeated is not None
    assert repeated.value == pytest.approx(alone.value)
    # Five copies of every item say nothing new: the interval stays nearly as wide.
    assert repeated.high - repeated.low > 0.8 * (alone.high - alone.low)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=20))
def test_a_tie_is_broken_at_random(rows: list[list[int]]) -> None:
    truth = [row[0] for row in rows]
    votes = [row[1:] for row in rows]
    expected = []
    for label, row in zip(truth, votes, strict=True):
        most = max(row.count(vote) for vote in row)
        winners = [vote for vote in set(row) if row.count(vote) == most]
        expected.append(float(Fraction(int(label in winners), len(winners))))
    assert majority_credit(np.array(votes), np.array(truth)).tolist() == pytest.approx(expected)


def test_independent_votes_are_condorcets() -> None:
    draw = np.random.default_rng(2)
    rates = np.array([0.1, 0.2, 0.3, 0.35, 0.4])
    ballots = ballots_of(draw, draw.random((4_000, 5)) < rates)
    accuracies = ballots.right.mean(axis=0)
    exact = sum(
        np.prod([rate if at in right else 1 - rate for at, rate in enumerate(accuracies)])
        for size in (3, 4, 5)
        for right in itertools.combinations(range(5), size)
    )
    found = independent_majority(ballots, seed=1, draws=100)
    assert found.value == pytest.approx(exact, abs=0.005)
    assert found.low < exact < found.high


def test_error_correlation_is_phi_and_needs_errors() -> None:
    draw = np.random.default_rng(4)
    errors = exchangeable_errors(draw, 300, 3, 0.3, 0.5)
    errors[:, 2] = False
    [first, second, _] = shared_errors(ballots_of(draw, errors))
    assert first.correlation is not None
    assert first.correlation.value == pytest.approx(np.corrcoef(errors[:, 0], errors[:, 1])[0, 1])
    assert first.both_wrong == pytest.approx((errors[:, 0] & errors[:, 1]).mean())
    assert second.correlation is None  # a judge that never errs shares no error


@case_table("rate, correlation", [(0.1, 0.0), (0.1, 0.3), (0.25, 0.5), (0.4, 0.8)])
def test_the_interval_of_an_error_correlation_covers_it(rate: float, correlation: float) -> None:
    draw, covered, count = np.random.default_rng(7), 0, 200
    for _ in range(count):
        [pair] = shared_errors(ballots_of(draw, exchangeable_errors(draw, 60, 2, rate, correlation)))
        found = pair.correlation
        covered += found is None or found.low <= correlation <= found.high
    assert binomtest(covered, count, 0.93, alternative="less").pvalue > 0.01


def test_a_jury_that_shares_its_errors_is_below_independence_and_no_better_than_its_best() -> None:
    draw = np.random.default_rng(6)
    shared = jury_worth(ballots_of(draw, exchangeable_errors(draw, 300, 5, 0.3, 0.8)), resamples=300)
    assert shared.majority.value < shared.independent.low
    assert shared.gain_low is not None
    assert shared.gain_low <= 0.0
    alone = jury_worth(ballots_of(draw, exchangeable_errors(draw, 300, 5, 0.3, 0.0)), resamples=300)
    assert alone.gain_low is not None
    assert alone.gain_low > 0.0  # independent judges gain
    assert alone.independent.low <= alone.majority.value <= alone.independent.high
    assert shared.effective is not None
    assert alone.effective is not None
    assert shared.effective.high < alone.effective.low


def test_ballots_need_equal_lengths_and_a_jury_two_judges() -> None:
    with pytest.raises(ValueError, match="each judge needs one vote on each item"):
        Ballots.from_labels({"a": ["x"]}, ["x", "y"])
    ballots = Ballots.from_labels({"a": ["x", "y"], "b": ["x", "x"]}, ["x", "y"], ["q", "q"])
    assert contested_items(ballots.votes).tolist() == [False, True]
    assert ballots.cluster_count == 1
    with pytest.raises(ValueError, match="a jury needs two judges"):
        jury_worth(Ballots.from_labels({"a": ["x"]}, ["x"]))
