"""pass^k: the estimator's worked values, its bounds, and that it estimates what it says it does."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.scoring.aggregates import pass_hat_k

TRIALS = st.lists(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1, max_size=12
)


def test_worked_values() -> None:
    # Two tasks, four tries each: one succeeds always, one twice. C(2,2)/C(4,2) = 1/6.
    trials = [(4, 4), (4, 2)]
    assert pass_hat_k(trials, 1).mean == pytest.approx((1 + 1 / 2) / 2)
    assert pass_hat_k(trials, 2).mean == pytest.approx((1 + 1 / 6) / 2)
    assert pass_hat_k(trials, 3).mean == pytest.approx((1 + 0) / 2)
    assert pass_hat_k(trials, 4).mean == pytest.approx(0.5)


def test_tasks_tried_too_seldom_are_left_out() -> None:
    assert pass_hat_k([(1, 1), (3, 0)], 2).n == 1
    assert pass_hat_k([(1, 1)], 2).mean is None


@given(TRIALS)
def test_it_is_the_share_of_groups_of_k_tries_that_all_succeed(trials: list[tuple[int, int]]) -> None:
    for k in range(1, 5):
        shares = []
        for tried, succeeded in trials:
            tries = [True] * succeeded + [False] * (tried - succeeded)
            groups = [all(group) for group in combinations(tries, k)]
            shares += [sum(groups) / len(groups)] if groups else []
        mean = pass_hat_k(trials, k)
        assert mean.n == len(shares)
        if shares:
            assert mean.mean is not None
            assert isclose(mean.mean, sum(shares) / len(shares), abs_tol=1e-12)


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.tuples(st.just(n), st.integers(0, n)), min_size=1)))
def test_it_never_rises_with_k(trials: list[tuple[int, int]]) -> None:
    values = [pass_hat_k(trials, k).mean or 0.0 for k in range(1, trials[0][0] + 1)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(values))


@pytest.mark.parametrize(("trials", "k"), [([(3, 1)], 0), ([(3, 4)], 1), ([(3, -1)], 1)])
def test_impossible_counts_are_refused(trials: list[tuple[int, int]], k: int) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        pass_hat_k(trials, k)
