"""Which answers are graded next has known probabilities; drift is found, and not where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.scoring.certificate import combine_probabilities, draw_answers, even_out, expected_spread, measure_drift
from viva.scoring.intervals import Floats
from viva.scoring.prediction_powered import GradedSample, corrected_mean


def _unsure(source: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """A judge that is right at both ends of the scale, and says about 50 where it cannot tell. Grades have mean 50."""
    unsure = source.random(count) < 0.25
    ends = np.where(source.random(count) < 0.5, 10.0, 90.0) + source.uniform(-10, 10, count)
    grades = np.where(unsure, source.uniform(0, 100, count), ends)
    scores = np.where(unsure, 50 + source.normal(0, 4, count), ends + source.normal(0, 2, count))
    return scores, grades


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 60))
def test_so_many_are_drawn_and_their_probabilities_add_up(seed: int, count: int) -> None:
    source = np.random.default_rng(seed)
    spreads, graded = source.exponential(1, 100), source.random(100) < 0.3
    left = int((~graded).sum())
    count = min(count, left)
    drawn = draw_answers(spreads, graded, count, seed=seed)
    assert drawn.chosen.sum() == count
    assert not (drawn.chosen & graded).any()
    assert drawn.probabilities[~graded].sum() == pytest.approx(count)
    assert ((drawn.probabilities > 0) & (drawn.probabilities <= 1)).all()
    # However little is expected of an answer, a fifth of the even probability is kept.
    assert drawn.probabilities[~graded].min() >= 0.15 * min(1.0, count / 100)


def test_answers_are_drawn_as_often_as_their_probabilities_say() -> None:
    spreads, graded = np.array([0.0, 1.0, 1.0, 2.0, 6.0, 0.5]), np.array([True, *[False] * 5])
    times = sum(draw_answers(spreads, graded, 2, seed=seed).chosen.astype(float) for seed in range(3000)) / 3000
    wanted = draw_answers(spreads, graded, 2, seed=0).probabilities
    assert times[1:] == pytest.approx(wanted[1:], abs=0.03)
    assert times[0] == 0


def test_more_labels_are_asked_for_where_the_judge_is_less_sure() -> None:
    scores, grades = _unsure(np.random.default_rng(1), 400)
    sample = GradedSample.from_arrays(scores, np.where(np.arange(400) < 80, grades, np.nan))
    spread = expected_spread(sample)
    assert spread[abs(scores - 50) < 10].mean() > 2 * spread[abs(scores - 50) > 25].mean()


def test_uneven_draws_stay_unbiased_and_make_the_interval_narrower() -> None:
    source = np.random.default_rng(2)
    covered, widths = 0, np.zeros(2)
    for seed in range(80):
        scores, grades = _unsure(source, 2500)
        first = np.where(np.arange(2500) < 40, grades, np.nan)
        sample = GradedSample.from_arrays(scores, first)
        drawn = draw_answers(expected_spread(sample), sample.graded, 60, seed=seed)
        both = combine_probabilities(np.full(2500, 40 / 2500), drawn.probabilities)
        uneven = GradedSample.from_arrays(scores, np.where(sample.graded | drawn.chosen, grades, np.nan), None, both)
        even = GradedSample.from_arrays(scores, np.where(np.arange(2500) < 100, grades, np.nan))
        ends = [corrected_mean(one).interval() for one in (uneven, even)]
        widths += [end.high - end.low for end in ends]
        covered += ends[0].low <= 50 <= ends[0].high
    assert 70 <= covered <= 80
    assert widths[0] < 0.93 * widths[1]


def test_draws_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot draw 3 answers; expected 1 to 2"):
        draw_answers(np.ones(3), np.array([True, False, False]), 3, seed=0)
    with pytest.raises(ValueError, match="floor"):
        draw_answers(np.ones(3), np.zeros(3, dtype=bool), 1, seed=0, floor=0.0)


def test_drift_is_found_soon_and_seldom_where_there_is_none() -> None:
    found: dict[float, list[int | None]] = {0.0: [], 10.0: []}
    for shift, times in found.items():
        for seed in range(30):
            source = np.random.default_rng(seed)
            known = np.clip(np.round(source.normal(-5, 10, 80)), -100, 100)
            new = np.clip(np.round(source.normal(-5 + shift, 10, 80)), -100, 100)
            result = measure_drift(known, new, low=-100, high=100)
            assert result is not None
            assert (result.found_at is not None) == (result.p <= 0.05)
            assert result.gap.low <= result.gap.value <= result.gap.high
            times.append(result.found_at)
    assert sum(at is not None for at in found[0.0]) <= 2
    soon = [at for at in found[10.0] if at is not None]
    assert len(soon) >= 28
    assert np.median(soon) < 30


def test_a_judge_that_errs_more_to_both_sides_has_drifted_too() -> None:
    source = np.random.default_rng(3)
    result = measure_drift(source.normal(0, 3, 100), np.clip(source.normal(0, 20, 60), -99, 99), low=-100, high=100)
    assert result is not None
    assert result.found_at is not None


def test_drift_of_nothing_is_none_and_gaps_out_of_bounds_are_refused() -> None:
    assert measure_drift([], [1.0], low=-1, high=1) is None
    assert measure_drift([1.0], [], low=-1, high=1) is None
    with pytest.raises(ValueError, match="gaps must lie in"):
        measure_drift([2.0], [0.0], low=-1, high=1)


def test_labels_are_thinned_to_even_probabilities() -> None:
    weights = np.repeat([1.0, 4.0], 5000)
    kept = even_out(weights)
    assert kept[5000:].all()
    assert kept[:5000].mean() == pytest.approx(0.25, abs=0.03)
