"""Means over clustered scores: the sandwich against its definition, Student, and how often they cover."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from viva.scoring.aggregates import Mean
from viva.scoring.clustered_means import ClusteredMean, clustered_mean, coded_clustered_mean
from viva.scoring.intervals import Estimate

relaxed = settings(deadline=None, max_examples=60)
labelled = st.lists(st.tuples(st.floats(0, 100), st.sampled_from("abcdef")), min_size=1, max_size=40)


def sandwich(values: Sequence[float], labels: Sequence[str]) -> float:
    """(X'X)^-1 (sum of X_g' u_g u_g' X_g) (X'X)^-1 of a regression on a constant, as matrices, times G/(G-1)."""
    x, y = np.ones((len(values), 1)), np.array(values)
    residuals = y - y.mean()
    bread = np.linalg.inv(x.T @ x)
    meat = np.zeros((1, 1))
    for label in set(labels):
        chosen = np.array([one == label for one in labels])
        score = x[chosen].T @ residuals[chosen]
        meat += np.outer(score, score)
    groups = len(set(labels))
    return math.sqrt(groups / (groups - 1) * (bread @ meat @ bread).item())


@relaxed
@given(labelled)
def test_the_error_is_the_sandwich_and_the_interval_students(pairs: list[tuple[float, str]]) -> None:
    values, labels = [value for value, _ in pairs], [label for _, label in pairs]
    found = clustered_mean(values, labels)
    assert found is not None
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.n, found.clusters) == (len(values), len(set(labels)))
    if found.clusters < 2:
        assert found.se is None
        assert found.interval() is None
        return
    assert found.se == pytest.approx(sandwich(values, labels), abs=1e-9)
    interval = found.interval(0.9)
    assert interval is not None
    half = stats.t.ppf(0.95, found.clusters - 1) * sandwich(values, labels)
    assert (interval.low, interval.high) == pytest.approx((found.mean - half, found.mean + half), abs=1e-8)


@relaxed
@given(labelled)
def test_an_array_has_the_mean_and_error_of_its_list(pairs: list[tuple[float, str]]) -> None:
    values, labels = [value for value, _ in pairs], [label for _, label in pairs]
    codes = np.array([3 * sorted({*labels}).index(label) for label in labels], np.intp)
    expected, made = clustered_mean(values, labels), coded_clustered_mean(np.array(values), codes)
    assert expected is not None
    assert made is not None
    assert made.mean == expected.mean
    assert made.se == (None if expected.se is None else pytest.approx(expected.se, rel=1e-9, abs=1e-9))
    assert (made.n, made.clusters) == (expected.n, expected.clusters)
    assert made.effective_clusters == expected.effective_clusters
    assert coded_clustered_mean(np.empty(0), np.empty(0, np.intp)) is None
    for bad in (np.array([math.nan]), np.array([1.0, 2.0])):
        with pytest.raises(ValueError, match="must be finite"):
            coded_clustered_mean(bad, np.zeros(1, np.intp))


@relaxed
@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
def test_with_one_value_in_each_cluster_it_is_the_ordinary_error(values: list[float]) -> None:
    plain = Mean()
    for value in values:
        plain.add(value)
    found = clustered_mean(values, [str(place) for place in range(len(values))])
    assert found is not None
    assert found.mean == pytest.approx(plain.mean, rel=1e-15)
    assert found.se == pytest.approx(plain.standard_error, rel=1e-9, abs=1e-13)


def test_saying_everything_twice_makes_nothing_surer() -> None:
    values = [10.0, 40.0, 45.0, 90.0]
    once = clustered_mean(values, ["a", "b", "c", "d"])
    twice = clustered_mean(values * 2, ["a", "b", "c", "d"] * 2)
    assert once is not None
    assert twice is not None
    assert (twice.mean, twice.se, twice.n) == (once.mean, pytest.approx(once.se), 8)


@relaxed
@given(labelled, st.randoms(use_true_random=False))
def test_the_order_does_not_matter_to_the_last_bit(pairs: list[tuple[float, str]], chance: random.Random) -> None:
    other = chance.sample(pairs, len(pairs))
    one, two = list(zip(*pairs, strict=True)), list(zip(*other, strict=True))
    assert clustered_mean(*one) == clustered_mean(*two)


def test_where_nothing_varies_the_interval_is_a_point_and_of_nothing_there_is_none() -> None:
    same = clustered_mean([70.0] * 6, list("aabbcc"))
    assert same == ClusteredMean(70.0, 0.0, 6, 3, 3.0)
    assert same.interval() == Estimate(70.0, 70.0, 70.0)
    assert clustered_mean([], []) is None


def test_what_cannot_be_averaged_is_refused() -> None:
    with pytest.raises(ValueError, match="2 values with 1 labels"):
        clustered_mean([1.0, 2.0], ["a"])
    with pytest.raises(ValueError, match="nan in cluster 'b' is not finite"):
        clustered_mean([1.0, math.nan], ["a", "b"])
    found = clustered_mean([1.0, 2.0], ["a", "b"])
    assert found is not None
    for level in (0.0, 1.0, 95.0):
        with pytest.raises(ValueError, match="level"):
            found.interval(level)


@pytest.mark.parametrize("items", [50, 150])
def test_in_2000_simulated_sweeps_the_interval_covers_as_often_as_it_says(items: int) -> None:
    """Items × 3 seeds, scores skewed and heaped at 0 and 100, the item having most of the say."""
    chance = np.random.default_rng(17)
    sweeps, seeds = 2000, 3

    def scores(shape: tuple[int, int]) -> np.ndarray:
        ability = chance.normal(1.1, 1.0, shape)[..., None] + chance.normal(0, 0.6, (*shape, seeds))
        return 100 * np.clip(0.5 + 0.28 * ability, 0, 1)

    truth = float(scores((1000, 1000)).mean())
    labels = [f"{place}" for place in range(items) for _ in range(seeds)]
    inside = plain = 0
    for sweep in scores((sweeps, items)):
        found = clustered_mean(sweep.ravel().tolist(), labels)
        assert found is not None
        assert found.se is not None
        # The half-width is Student's quantile times se, which the test above compares with scipy's.
        half = QUANTILES[items] * found.se
        inside += abs(found.mean - truth) <= half
        plain += abs(found.mean - truth) <= 1.96 * sweep.std() / math.sqrt(sweep.size)
    assert 0.93 <= inside / sweeps <= 0.97
    assert plain / sweeps < 0.85  # taking each conversation for independent, as one must not


QUANTILES = {items: float(stats.t.ppf(0.975, items - 1)) for items in (50, 150)}
