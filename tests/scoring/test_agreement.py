"""Agreement of raters: textbook figures, scikit-learn, and brute force over all pairs of ratings."""

from __future__ import annotations

import random
import warnings
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import f_oneway
from sklearn.metrics import cohen_kappa_score

from viva.scoring.agreement import (
    Agreement,
    Rating,
    Row,
    Scale,
    Voting,
    cohen_kappa,
    count_votes,
    fleiss_kappa,
    krippendorff_alpha,
    majority_ratings,
    share_within,
)

relaxed = settings(deadline=None, max_examples=80)
rating = st.integers(1, 4)
rows_of_three = st.lists(st.tuples(*[st.none() | rating] * 3), max_size=12)

# Krippendorff 2011, "Computing Krippendorff's alpha-reliability", section C: four observers, twelve units, gaps.
OBSERVERS: list[list[int | None]] = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
]
UNITS = list(zip(*OBSERVERS, strict=True))


@pytest.mark.parametrize(("scale", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_is_that_of_krippendorffs_own_example(scale: Scale, alpha: float) -> None:
    found = krippendorff_alpha(UNITS, scale)
    assert found.value == pytest.approx(alpha, abs=5e-4)
    assert found.n == 11  # one unit has a single rating


def apart(one: float, other: float, scale: Scale, pooled: list[float]) -> float:
    if scale == "nominal":
        return float(one != other)
    if scale == "interval":
        return (one - other) ** 2
    low, high = min(one, other), max(one, other)
    between = sum(low <= value <= high for value in pooled)
    return (between - (pooled.count(low) + pooled.count(high)) / 2) ** 2 if low != high else 0.0


@relaxed
@given(rows_of_three, st.sampled_from(["nominal", "ordinal", "interval"]))
def test_alpha_is_the_disagreement_of_pairs_over_that_of_all(rows: list[Row], scale: Scale) -> None:
    units = [[float(r) for r in row if r is not None] for row in rows]
    units = [unit for unit in units if len(unit) > 1]
    pooled = [value for unit in units for value in unit]
    found = krippendorff_alpha(rows, scale)
    assert found.n == len(units)
    if len(set(pooled)) < 2:
        assert found.value is None
        return
    seen = sum(apart(a, b, scale, pooled) / (len(unit) - 1) for unit in units for a, b in permutations(unit, 2))
    chance = sum(apart(a, b, scale, pooled) for a, b in permutations(pooled, 2)) / (len(pooled) - 1)
    assert found.value == pytest.approx(1 - seen / chance)


@relaxed
@given(st.lists(st.tuples(st.none() | rating, st.none() | rating), max_size=20), st.sampled_from([None, "quadratic"]))
def test_cohens_kappa_is_chance_corrected_agreement(pairs: list[tuple[int | None, int | None]], weights: str) -> None:
    found = cohen_kappa([a for a, _ in pairs], [b for _, b in pairs], [1, 2, 3, 4], weights)  # type: ignore[arg-type]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    assert found.n == len(both)
    if len({value for pair in both for value in pair}) < 2:
        assert found.value is None
        return
    cost = (lambda a, b: (a - b) ** 2) if weights else (lambda a, b: float(a != b))
    seen = np.mean([cost(a, b) for a, b in both])
    expected = np.mean([cost(a, b) for a, _ in both for _, b in both])
    assert found.value == pytest.approx(1 - seen / expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = cohen_kappa_score([a for a, _ in both], [b for _, b in both], labels=[1, 2, 3, 4], weights=weights)
    assert found.value == pytest.approx(other)


def test_quadratic_weights_go_by_places_on_the_whole_scale() -> None:
    first, second = [1, 1, 4, 4, 2], [1, 4, 4, 4, 2]
    assert cohen_kappa(first, second, [1, 2, 3, 4], "quadratic").value == pytest.approx(
        1 - np.mean([0, 9, 0, 0, 0]) / np.mean([(a - b) ** 2 for a in first for b in second])
    )
    assert cohen_kappa(["no", "yes"], ["no", "yes"], ["no", "yes"]) == Agreement(1.0, 2)


# Fleiss 1971 in the form of Fleiss, Levin and Paik: fourteen raters, ten things, five categories.
COUNTS = [
    (0, 0, 0, 0, 14),
    (0, 2, 6, 4, 2),
    (0, 0, 3, 5, 6),
    (0, 3, 9, 2, 0),
    (2, 2, 8, 1, 1),
    (7, 7, 0, 0, 0),
    (3, 2, 6, 3, 0),
    (2, 5, 3, 2, 2),
    (6, 5, 2, 1, 0),
    (0, 2, 2, 3, 7),
]


def test_fleiss_kappa_is_that_of_the_known_example() -> None:
    rows = [[category for category, count in enumerate(counts) for _ in range(count)] for counts in COUNTS]
    assert fleiss_kappa(rows).value == pytest.approx(0.210, abs=5e-4)
    # What lacks a rating is left out and not counted.
    assert fleiss_kappa([*rows, [None, *rows[0][1:]]]) == fleiss_kappa(rows)
    assert fleiss_kappa(rows).n == 10


@relaxed
@given(rows_of_three)
def test_fleiss_kappa_is_the_agreement_of_pairs_beyond_that_of_all(rows: list[Row]) -> None:
    whole = [row for row in rows if None not in row]
    found = fleiss_kappa(rows)
    assert found.n == len(whole)
    pooled = [value for row in whole for value in row]
    if len(set(pooled)) < 2:
        assert found.value is None
        return
    seen = np.mean([a == b for row in whole for a, b in permutations(row, 2)])
    expected = np.mean([a == b for a in pooled for b in pooled])
    assert found.value == pytest.approx((seen - expected) / (1 - expected))


@relaxed
@given(rows_of_three, st.randoms(use_true_random=False))
def test_neither_the_order_of_things_nor_that_of_raters_matters(rows: list[Row], chance: random.Random) -> None:
    turned = [tuple(chance.sample(list(row), 3)) for row in chance.sample(rows, len(rows))]
    for scale in ("nominal", "ordinal", "interval"):
        one, other = krippendorff_alpha(rows, scale), krippendorff_alpha(turned, scale)  # type: ignore[arg-type]
        assert other.n == one.n
        assert other.value == pytest.approx(one.value)
    assert fleiss_kappa(turned) == fleiss_kappa(rows)
    assert count_votes(turned) == count_votes(rows)


def test_votes_say_when_they_tie() -> None:
    assert majority_ratings([3, 4, 3]) == [3]
    assert majority_ratings([4, None, 1, None]) == [1, 4]
    assert majority_ratings([None, None]) == []
    assert majority_ratings(["yes", "no", "yes", "no", "maybe"]) == ["no", "yes"]
    rows: list[list[Rating | None]] = [[3, 3, 3], [3, 4, 3], [1, 2, None], [None, None, 2], [None, None, None]]
    assert count_votes(rows) == Voting(items=4, unanimous=2, decided=3, tied=1)


def test_where_chance_agrees_fully_there_is_no_coefficient() -> None:
    same: list[tuple[int | None, ...]] = [(3, 3), (3, 3), (None, 3)]
    assert krippendorff_alpha(same) == Agreement(None, 2)
    assert fleiss_kappa(same) == Agreement(None, 2)
    assert cohen_kappa([3, 3, None], [3, 3, 3], [1, 2, 3, 4]) == Agreement(None, 2)
    assert krippendorff_alpha([]) == fleiss_kappa([]) == Agreement(None, 0)
    assert cohen_kappa([], [], [1, 2]) == Agreement(None, 0)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rows of \[2, 3\] ratings"):
        krippendorff_alpha([(1, 2), (1, 2, 3)])
    with pytest.raises(ValueError, match="1 rater; agreement needs at least two"):
        fleiss_kappa([(1,), (2,)])
    with pytest.raises(ValueError, match="rating 'a' is not a finite number; ordinal and interval scales need numbers"):
        krippendorff_alpha([("a", "b"), ("b", "b")], "ordinal")
    with pytest.raises(ValueError, match="rating nan"):
        krippendorff_alpha([(1.0, float("nan")), (2.0, 3.0)], "interval")
    with pytest.raises(ValueError, match=r"rating 5 is not on the scale \[1, 2\]"):
        cohen_kappa([1, 2], [1, 5], [1, 2])
    with pytest.raises(ValueError, match="1 ratings against 2"):
        cohen_kappa([1], [1, 2], [1, 2])


@relaxed
@given(
    units=st.lists(st.lists(st.integers(0, 10), min_size=3, max_size=3), min_size=3, max_size=8),
    scale=st.floats(0.5, 20.0),
)
def test_the_share_within_units_is_that_of_the_analysis_of_variance(units: list[list[int]], scale: float) -> None:
    clusters = [str(at) for at in range(len(units))]
    share = share_within(units, clusters)
    if len({value for unit in units for value in unit}) == 1:
        assert share is None
        return
    assert share is not None
    assert 0.0 <= share.low <= share.value <= share.high <= 1.0
    scaled = share_within([[scale * value + 1.0 for value in unit] for unit in units], clusters)
    assert scaled is not None
    assert scaled.value == pytest.approx(share.value, abs=1e-9)
    if all(len(set(unit)) == 1 for unit in units):
        assert share.value == 0.0
        return
    ratio = f_oneway(*units).statistic
    assert share.value == pytest.approx(min(1.0, 3 / (3 + ratio - 1)), abs=1e-9)


def test_the_interval_of_the_share_covers_a_planted_one() -> None:
    source = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        units = source.normal(size=(30, 1)) * 0.7**0.5 + source.normal(size=(30, 4)) * 0.3**0.5
        share = share_within(units.tolist(), [str(at) for at in range(30)])
        assert share is not None
        covered += share.low <= 0.3 <= share.high
    assert covered / 300 > 0.91  # 0.95 within three standard errors


def test_clusters_widen_the_interval_of_the_share_and_few_leave_none() -> None:
    source = np.random.default_rng(5)
    units = (source.normal(size=(40, 1)) + source.normal(size=(40, 3))).repeat(2, axis=0).tolist()
    alone = share_within(units, [str(at) for at in range(80)])
    pairs = share_within(units, [str(at // 2) for at in range(80)])
    few = share_within(units, [str(at // 20) for at in range(80)])
    assert alone is not None
    assert pairs is not None
    assert few is not None
    assert pairs.high - pairs.low > 1.2 * (alone.high - alone.low)
    assert (few.value, few.low, few.high) == (alone.value, 0.0, 1.0)
    assert share_within([[1.0, 2.0], [3.0]], ["a", "b"]) is None
