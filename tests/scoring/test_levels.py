"""Judges beside people: coefficients against scipy, levels, intervals that cover, tests that keep their level."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from viva.scoring.meta_evaluation import (
    COEFFICIENTS,
    CoefficientName,
    RatedRows,
    compare_judges,
    level_figures,
    rowwise_coefficient,
    weighted_coefficient,
)

_SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
ratings = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(1, 3)), min_size=3, max_size=12)


def _expected(name: CoefficientName, xs: list[int], ys: list[int]) -> float:
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return math.nan
    return float(_SCIPY[name](xs, ys).statistic)


@given(ratings, st.sampled_from(COEFFICIENTS))
@settings(max_examples=150, deadline=None)
def test_coefficients_are_scipys_also_of_repeated_pairs(
    pairs: list[tuple[int, int, int]], name: CoefficientName
) -> None:
    xs, ys, times = map(list, zip(*pairs, strict=True))
    one, other = np.array([xs], dtype=float), np.array([ys], dtype=float)
    assert rowwise_coefficient(name, one, other)[0] == pytest.approx(_expected(name, xs, ys), abs=1e-9, nan_ok=True)
    repeated = [[value for value, count in zip(side, times, strict=True) for _ in range(count)] for side in (xs, ys)]
    found = weighted_coefficient(name, np.array([times], dtype=float), one[0], other[0])[0]
    assert found == pytest.approx(_expected(name, *repeated), abs=1e-9, nan_ok=True)


def test_long_vectors_take_another_way_to_the_same_tau() -> None:
    generator = np.random.default_rng(1)
    xs, ys = generator.integers(0, 9, (2, 700)).astype(float)
    expected = stats.kendalltau(xs, ys).statistic
    assert rowwise_coefficient("kendall", xs[None], ys[None])[0] == pytest.approx(expected, abs=1e-12)
    assert weighted_coefficient("kendall", np.ones((1, 700)), xs, ys)[0] == pytest.approx(expected, abs=1e-12)


def test_levels_by_hand() -> None:
    human = [1.0, 2.0, 3.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0]
    score = [1.0, 2.0, 3.0, 6.0, 5.0, 4.0, 1.0, 2.0, 3.0]
    rows = RatedRows.from_labels(human, list("aaabbbccc"), list("xyzxyzxyz"))
    found = level_figures(rows, score, seed=1, resamples=200)
    assert found["item", "pearson"].value == pytest.approx(stats.pearsonr(human, score).statistic)
    # Within a: 1; within b: -1; within c people say the same of all, so it has no coefficient.
    assert (found["group", "kendall"].value, found["group", "kendall"].n) == (0.0, 2)
    # Means of systems: people 8/3, 10/3, 4; scores 8/3, 3, 10/3: in one order.
    assert (found["system", "spearman"].value, found["system", "spearman"].n) == (pytest.approx(1.0), 3)


def test_equal_means_of_systems_are_ties_whatever_rounding_says() -> None:
    # 0.1 + 0.2 + 0.3 in another order is another float; people put both systems at the same mean.
    human = [0.1, 0.2, 0.3, 0.3, 0.2, 0.1, 0.9, 0.9, 0.9]
    score = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    rows = RatedRows.from_labels(human, list("abcabcabc"), list("xxxyyyzzz"))
    found = level_figures(rows, score, seed=1, resamples=100)
    assert found["system", "kendall"].value == pytest.approx(2 / math.sqrt(6))


def test_what_cannot_be_correlated_has_no_figure() -> None:
    rows = RatedRows.from_labels([1.0, 2.0, 3.0, 4.0])
    same = level_figures(rows, [2.0] * 4, seed=1, resamples=100)
    assert {key[0] for key in same} == {"item"}
    assert all((one.value, one.low, one.high) == (None, None, None) for one in same.values())
    with pytest.raises(ValueError, match="3 scores for 4 ratings"):
        level_figures(rows, [1.0, 2.0, 3.0], seed=1)
    with pytest.raises(ValueError, match="not finite"):
        level_figures(rows, [1.0, 2.0, 3.0, math.nan], seed=1)


def _study(generator: np.random.Generator, groups: int = 25, size: int = 4) -> tuple[RatedRows, np.ndarray, np.ndarray]:
    """Rows whose groups share an effect, and two judges of the same true correlation, 0.6."""
    effect = np.repeat(generator.normal(size=groups), size)
    truth = (effect + generator.normal(size=groups * size)) / math.sqrt(2)
    judges = []
    for _ in range(2):
        shared = np.repeat(generator.normal(size=groups), size)
        noise = (shared + generator.normal(size=groups * size)) / math.sqrt(2)
        judges.append(0.6 * truth + 0.8 * noise)
    names = [f"g{at}" for at in range(groups) for _ in range(size)]
    return RatedRows.from_labels(truth.tolist(), names), judges[0], judges[1]


def test_intervals_cover_and_tests_keep_their_level_where_groups_share_an_effect() -> None:
    generator = np.random.default_rng(28)
    covered = refuted = 0
    studies = 60
    for number in range(studies):
        rows, one, other = _study(generator)
        figure = level_figures(rows, one.tolist(), seed=number, resamples=200, names=["pearson"])["item", "pearson"]
        assert figure.low is not None
        assert figure.high is not None
        covered += figure.low <= 0.6 <= figure.high
        found = compare_judges(
            rows, one.tolist(), other.tolist(), seed=number, permutation="inputs", resamples=99, names=["pearson"]
        )
        p = found["item", "pearson"].p
        refuted += p is not None and p <= 0.05
    assert stats.binomtest(covered, studies, 0.92, alternative="less").pvalue > 0.01
    assert stats.binomtest(refuted, studies, 0.05, alternative="greater").pvalue > 0.01


def test_a_better_judge_is_found_and_the_seed_decides_everything() -> None:
    generator = np.random.default_rng(5)
    human = generator.normal(size=80)
    good, bad = (human + scale * generator.normal(size=80) for scale in (0.3, 3.0))
    rows = RatedRows.from_labels(
        human.tolist(), [f"g{at // 4}" for at in range(80)], [f"s{at % 4}" for at in range(80)]
    )
    found = compare_judges(rows, good.tolist(), (1000 * bad).tolist(), seed=3, resamples=500)
    one = found["item", "spearman"]
    assert one.value is not None
    assert one.low is not None
    assert one.value > one.low > 0.2
    assert one.p == pytest.approx(1 / 501)
    assert compare_judges(rows, good.tolist(), (1000 * bad).tolist(), seed=3, resamples=500) == found
    assert compare_judges(rows, good.tolist(), good.tolist(), seed=3, resamples=100)["item", "kendall"].p == 1.0
