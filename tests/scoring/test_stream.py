"""Streaming means and tallies: exactly rounded, and the same bits in any order and after any split and merge."""

from __future__ import annotations

import math
import statistics
import struct
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.scoring.aggregates import Mean, Tally

relaxed = settings(deadline=None)
anything = st.floats(allow_nan=False, allow_infinity=False)
# Squares of these are still floats; subnormal numbers are among them.
wild = st.floats(-1e150, 1e150)
SUBNORMAL = 5e-324


def mean_of(values: list[float]) -> Mean:
    mean = Mean()
    for value in values:
        mean.add(value)
    return mean


def bits(mean: Mean) -> tuple[int, list[bytes | None]]:
    results = (mean.mean, mean.variance, mean.standard_error)
    return mean.n, [None if value is None else struct.pack("<d", value) for value in results]


def test_nothing_and_one_number() -> None:
    mean = Mean()
    assert (mean.n, mean.mean, mean.variance, mean.standard_error) == (0, None, None, None)
    mean.add(3.5)
    assert (mean.n, mean.mean, mean.variance, mean.standard_error) == (1, 3.5, None, None)


def test_a_case_by_hand() -> None:
    mean = mean_of([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert mean.mean == 5.0
    assert mean.variance == pytest.approx(32 / 7)
    assert mean.standard_error == pytest.approx(math.sqrt(32 / 7 / 8))


def test_what_ordinary_sums_lose_is_kept() -> None:
    assert mean_of([1e300, 1.0, -1e300]).mean == 1 / 3
    assert mean_of([0.1] * 10).mean == 0.1
    assert mean_of([0.1] * 10).variance == 0.0
    assert mean_of([SUBNORMAL, SUBNORMAL]).mean == SUBNORMAL
    assert mean_of([1.7e308, 1.7e308]).mean == 1.7e308


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_rejected(value: float) -> None:
    mean = mean_of([1.0, 2.0])
    before = bits(mean)
    with pytest.raises(ValueError, match="is not finite"):
        mean.add(value)
    assert bits(mean) == before


@relaxed
@given(st.lists(anything, min_size=1, max_size=20))
def test_the_mean_is_exactly_rounded(values: list[float]) -> None:
    assert mean_of(values).mean == float(sum(map(Fraction, values)) / len(values)) == statistics.mean(values)


@relaxed
@given(st.lists(wild, min_size=2, max_size=20))
def test_the_variance_is_exactly_rounded(values: list[float]) -> None:
    exact = [Fraction(value) for value in values]
    centre = sum(exact) / len(exact)
    variance = float(sum((value - centre) ** 2 for value in exact) / (len(exact) - 1))
    found = mean_of(values)
    assert found.variance == variance == statistics.variance(values)
    assert found.standard_error == math.sqrt(variance / len(values))


@relaxed
@given(st.lists(wild, max_size=20), st.randoms(use_true_random=False))
def test_any_order_gives_the_same_bits(values: list[float], chance: Random) -> None:
    shuffled = list(values)
    chance.shuffle(shuffled)
    assert bits(mean_of(values)) == bits(mean_of(shuffled))


@relaxed
@given(st.lists(st.tuples(wild, st.integers(0, 3)), max_size=20), st.permutations(range(4)))
def test_any_split_and_merge_gives_the_same_bits(values: list[tuple[float, int]], order: list[int]) -> None:
    parts = [mean_of([value for value, part in values if part == number]) for number in range(4)]
    merged = Mean()
    for number in order:
        merged.merge(parts[number])
    assert bits(merged) == bits(mean_of([value for value, _ in values]))


def test_merging_leaves_the_other_as_it_was() -> None:
    one, other = mean_of([1.0, 2.0]), mean_of([5.0, 9.0])
    before = bits(other)
    one.merge(other)
    one.add(100.0)
    assert bits(other) == before


def test_a_tally_counts_merges_and_sorts() -> None:
    one, other = Tally(), Tally()
    for name in ("rounds", "evaluator", "rounds"):
        one.add(name)
    other.add("rounds", 5)
    other.add("budget")
    one.merge(other)
    assert list(one.to_dict().items()) == [("budget", 1), ("evaluator", 1), ("rounds", 7)]
    assert other.to_dict() == {"budget": 1, "rounds": 5}
    assert Tally().to_dict() == {}


@relaxed
@given(st.lists(st.tuples(st.text(max_size=3), st.integers(0, 2))))
def test_any_split_of_a_tally_merges_to_the_whole(names: list[tuple[str, int]]) -> None:
    whole, parts = Tally(), [Tally() for _ in range(3)]
    for name, part in names:
        whole.add(name)
        parts[part].add(name)
    merged = Tally()
    for tally in reversed(parts):
        merged.merge(tally)
    assert list(merged.to_dict().items()) == list(whole.to_dict().items())


def test_more_different_numbers_than_wait_are_all_in_the_sum() -> None:
    values = [number / 7 for number in range(5_000)]
    mean = mean_of(values)
    assert mean.mean == float(sum(map(Fraction, values)) / 5_000)
    assert bits(mean) == bits(mean_of(values[::-1]))
