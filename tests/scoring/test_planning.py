"""How many items are needed: against the equations solved by scipy, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from viva.scoring.sample_size import items_for_difference, items_for_half_width, paired_test_power

relaxed = settings(deadline=None, max_examples=40)


def half_width(n: int, variance: float, level: float) -> float:
    return float(stats.t.interval(level, n - 1)[1]) * math.sqrt(variance / n)


@relaxed
@given(st.floats(0.5, 20), st.floats(0, 2500), st.sampled_from([0.8, 0.95, 0.99]))
def test_so_many_items_are_enough_and_one_less_is_not(wanted: float, variance: float, level: float) -> None:
    n = items_for_half_width(wanted, variance, level)
    assert half_width(n, variance, level) <= wanted * (1 + 1e-12)
    assert n == 2 or half_width(n - 1, variance, level) > wanted


def test_known_figures() -> None:
    # 1.96² · 25² / 2² = 600.25 by the normal distribution; Student's quantile asks for a little more.
    assert items_for_half_width(2.0, 625.0) == 603
    # Cohen 1988, table 2.4.1 and G*Power: d = 0.5 at power 0.8 takes 34 pairs, d = 0.2 takes 199.
    assert items_for_difference(5.0, 100.0) == 34
    assert items_for_difference(-2.0, 100.0) == 199
    assert items_for_difference(5.0, 0.0) == items_for_half_width(5.0, 0.0) == 2


def by_integration(effect: float, n: int, level: float) -> float:
    """The power by integrating over the sample's standard deviation, without the noncentral t."""
    critical, shift = stats.t.ppf((1 + level) / 2, n - 1), effect * math.sqrt(n)

    def found(u: float) -> float:
        bound = critical * math.sqrt(u / (n - 1))
        return float((stats.norm.sf(bound - shift) + stats.norm.cdf(-bound - shift)) * stats.chi2.pdf(u, n - 1))

    spread = 12 * math.sqrt(2 * n)
    return float(integrate.quad(found, max(0.0, n - 1 - spread), n - 1 + spread, limit=400)[0])


@case_table("effect", [0.0, 0.1, 0.5, 1.5])
@case_table("n", [5, 30, 400])
def test_power_is_the_chance_of_a_finding(effect: float, n: int) -> None:
    assert paired_test_power(effect, n, 0.95) == pytest.approx(by_integration(effect, n, 0.95), abs=1e-6)
    assert paired_test_power(-effect, n, 0.95) == paired_test_power(effect, n, 0.95)


@relaxed
@given(st.floats(0.05, 3), st.sampled_from([0.5, 0.8, 0.95]), st.sampled_from([0.9, 0.95, 0.999]))
def test_so_many_items_have_the_power_and_one_less_has_not(effect: float, power: float, level: float) -> None:
    n = items_for_difference(10 * effect, 100.0, power, level)
    assert power <= paired_test_power(effect, n, level) <= 1
    assert n == 2 or paired_test_power(effect, n - 1, level) < power


def test_far_out_the_power_is_one_not_an_error() -> None:
    assert paired_test_power(50.0, 3) == pytest.approx(1.0)
    assert paired_test_power(3.0, 100_000) == pytest.approx(1.0)
    assert items_for_difference(1000.0, 1e-6) in (2, 3)


def test_simulated_studies_of_the_planned_size_find_the_difference_as_often_as_planned() -> None:
    chance = np.random.default_rng(3)
    n = items_for_difference(5.0, 400.0, power=0.9)
    differences = chance.normal(5.0, 20.0, (4000, n))
    share = float(np.mean(stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05))
    assert share == pytest.approx(0.9, abs=0.015)


def test_what_cannot_be_planned_is_refused() -> None:
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="half_width is"):
            items_for_half_width(wrong, 100.0)
    for variance in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="variance is"):
            items_for_half_width(2.0, variance)
    with pytest.raises(ValueError, match=r"difference is 0\.0"):
        items_for_difference(0.0, 100.0)
    with pytest.raises(ValueError, match=r"power is 1\.0; it must be at least 0\.05"):
        items_for_difference(5.0, 100.0, power=1.0)
    with pytest.raises(ValueError, match=r"power is 0\.01"):
        items_for_difference(5.0, 100.0, power=0.01)
    with pytest.raises(ValueError, match="level is 2"):
        items_for_half_width(2.0, 100.0, level=2)
    with pytest.raises(ValueError, match="1 items; a test needs at least two"):
        paired_test_power(0.5, 1)
