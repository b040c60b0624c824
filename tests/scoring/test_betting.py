"""Confidence sequences: against the definition, covering at every look, narrow enough to be of use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from viva.scoring.confidence_sequences import MAX_LOSS, TARGETS, ConfidenceSequences

relaxed = settings(deadline=None, max_examples=40)
Floats = NDArray[np.float64]
scores = st.lists(st.one_of(st.floats(0, 100), st.sampled_from([0.0, 100.0])), max_size=40)


def capital(mean: float, values: Sequence[float], level: float, side: int) -> list[float]:
    """What a player of one side owns after each value, of 1 staked: the definition, for one mean."""
    owned, seen, spread, total = [1.0 / len(TARGETS)] * len(TARGETS), 0, 0.25, 0.5
    history = []
    room = mean if side > 0 else 1 - mean
    for value in values:
        for place, target in enumerate(TARGETS):
            bet = math.sqrt(2 * math.log(2 * len(TARGETS) / (1 - level)) / (target * spread / (seen + 1)))
            if room:
                bet = min(bet, MAX_LOSS / room)
            owned[place] *= 1 + side * bet * (value - mean)
        seen, total = seen + 1, total + value
        spread += (value - total / (seen + 1)) ** 2
        history.append(sum(owned))
    return history


@relaxed
@given(scores, st.sampled_from([0.8, 0.95, 0.999]))
def test_the_interval_holds_the_means_that_no_player_got_rich_on(values: list[float], level: float) -> None:
    sequence = ConfidenceSequences(1, level=level, steps=50)
    for value in values:
        sequence.add([value])
    unit = [value / 100 for value in values]
    enough = 2 / (1 - level)
    grid = [place / 50 for place in range(51)]
    below = [m for m in grid if max(capital(m, unit, level, 1), default=0) >= enough * (1 + 1e-9)]
    above = [m for m in grid if max(capital(m, unit, level, -1), default=0) >= enough * (1 + 1e-9)]
    assert sequence.lows[0] == pytest.approx(100 * max(below, default=0.0))
    assert sequence.highs[0] == pytest.approx(100 * min(above, default=1.0))


@relaxed
@given(st.lists(st.lists(st.floats(0, 100) | st.just(math.nan), min_size=3, max_size=3), max_size=30))
def test_rows_are_apart_only_narrow_and_learn_nothing_from_no_score(table: list[list[float]]) -> None:
    together, alone = ConfidenceSequences(3), [ConfidenceSequences(1) for _ in range(3)]
    for row in table:
        before = together.lows, together.highs
        together.add(row)
        assert (together.lows >= before[0]).all()
        assert (together.highs <= before[1]).all()
        for one, value in zip(alone, row, strict=True):
            if not math.isnan(value):
                one.add([value])
    assert together.lows.tolist() == [one.lows[0] for one in alone]
    assert together.highs.tolist() == [one.highs[0] for one in alone]
    assert together.counts.tolist() == [one.counts[0] for one in alone]


def test_a_finer_grid_only_makes_it_narrower_and_by_less_than_two_steps() -> None:
    chance = np.random.default_rng(5)
    coarse, fine = ConfidenceSequences(20, steps=100), ConfidenceSequences(20, steps=2000)
    for values in chance.uniform(0, 100, (150, 20)):
        coarse.add(values)
        fine.add(values)
        assert (coarse.lows <= fine.lows + 1e-9).all()
        assert (coarse.highs >= fine.highs - 1e-9).all()
        assert ((coarse.highs - coarse.lows) - (fine.highs - fine.lows) < 2.0 + 1e-9).all()


def sampled(kind: str, shape: tuple[int, int], chance: np.random.Generator) -> tuple[Floats, float]:
    """Scores as interviews have them, and their mean, which lies on a grid of 20 steps."""
    if kind == "coin":
        return np.where(chance.random(shape) < 0.9, 100.0, 0.0), 90.0
    if kind == "narrow":
        return 100 * chance.beta(12, 8, shape), 60.0
    share, talked = chance.random(shape), 100 * chance.beta(2.4, 0.6, shape)
    return np.where(share < 0.1, 0.0, np.where(share < 0.25, 100.0, talked)), 75.0  # skewed, heaped at both ends


@pytest.mark.parametrize("kind", ["coin", "narrow", "skewed"])
def test_watched_after_every_score_the_interval_covers(kind: str) -> None:
    values, mean = sampled(kind, (300, 2000), np.random.default_rng(11))
    sequence = ConfidenceSequences(2000, steps=20)
    for row in values:
        sequence.add(row)
    # Ends are excluded means, and intervals only narrow: what is outside at last was outside at some look.
    missed = (sequence.lows >= mean) | (sequence.highs <= mean)
    assert missed.mean() <= 0.05


@pytest.mark.parametrize(("kind", "most"), [("coin", 1.5), ("narrow", 1.85), ("skewed", 1.5)])
def test_it_is_not_much_wider_than_an_interval_looked_at_once(kind: str, most: float) -> None:
    values, _ = sampled(kind, (500, 100), np.random.default_rng(12))
    sequence = ConfidenceSequences(100, steps=1000)
    for n, row in enumerate(values, 1):
        sequence.add(row)
        if n in (50, 100, 200, 500):
            student = stats.t.ppf(0.975, n - 1) * values[:n].std(axis=0, ddof=1).mean() / math.sqrt(n)
            assert (sequence.highs - sequence.lows).mean() / 2 < most * student


def test_scores_that_fit_no_mean_leave_a_point() -> None:
    sequence = ConfidenceSequences(1)
    for value in [0.0] * 200 + [100.0] * 2000:
        sequence.add([value])
    assert sequence.lows[0] == sequence.highs[0]
    assert 0 < sequence.lows[0] < 100


def test_what_is_no_score_is_refused() -> None:
    sequence = ConfidenceSequences(2, low=-10, high=10)
    for wrong in ([0.0, 10.5], [-11.0, math.nan], [0.0, math.inf]):
        with pytest.raises(ValueError, match="they must lie in -10–10"):
            sequence.add(wrong)
    with pytest.raises(ValueError, match="one score for each of 2 rows"):
        sequence.add([1.0])
    with pytest.raises(ValueError, match="low is 5, high is 5"):
        ConfidenceSequences(1, low=5, high=5)
    with pytest.raises(ValueError, match="level is 1"):
        ConfidenceSequences(1, level=1.0)
