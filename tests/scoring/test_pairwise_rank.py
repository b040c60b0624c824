"""Ranks from comparisons: strengths as choix fits them, ratings, rates at equal length, and pairs that tell most."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from viva.scoring.pairwise_rank import (
    LENGTH_PRIOR,
    Comparisons,
    Interval,
    bradley_terry,
    elo,
    elo_ratings,
    fit_bradley_terry,
    informative_pairs,
    length_controlled_rate,
)

CHOIX = json.loads((Path(__file__).parent / "choix.json").read_text())["cases"]


def _wins(models: int, entries: list[int]) -> np.ndarray:
    matrix = np.array(entries[: models * models], dtype=np.float64).reshape(models, models) / 2
    np.fill_diagonal(matrix, 0.0)
    return matrix


MATRICES = st.integers(2, 6).flatmap(
    lambda models: st.lists(st.integers(0, 8), min_size=models**2, max_size=models**2).map(
        lambda entries: _wins(models, entries)
    )
)


def _planted(strengths: list[float], prompts: int, seed: int, length: float = 0.0) -> Comparisons:
    """Comparisons of every two models on each prompt; the longer answer wins more often by `length`."""
    generator = np.random.default_rng(seed)
    rows = []
    for prompt in range(prompts):
        for i in range(len(strengths)):
            for j in range(i + 1, len(strengths)):
                longer = float(generator.normal(100.0 if i == 0 else 0.0, 50.0))
                logit = strengths[i] - strengths[j] + length * math.tanh(longer / 75.0)
                rows.append((str(prompt), i, j, float(generator.random() < 1 / (1 + math.exp(-logit))), longer))
    return Comparisons.from_rows(len(strengths), rows)


def _ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


@pytest.mark.parametrize("case", CHOIX, ids=lambda case: f"seed {case['seed']}")
def test_strengths_are_those_of_choix(case: dict) -> None:
    fitted = fit_bradley_terry(np.array(case["wins"]))
    assert fitted is not None
    assert np.abs(fitted - np.array(case["strengths"])).max() < 1e-6


@given(MATRICES, st.randoms(use_true_random=False))
def test_strengths_solve_their_equations_in_any_numbering(wins: np.ndarray, random) -> None:
    fitted = fit_bradley_terry(wins)
    order = list(range(len(wins)))
    random.shuffle(order)
    renumbered = fit_bradley_terry(wins[np.ix_(order, order)])
    reached = wins > 0  # Warshall: chains of wins in both directions are what a finite maximum needs
    for k in range(len(wins)):
        reached |= np.outer(reached[:, k], reached[k])
    assert (fitted is None) == (renumbered is None) == (not (reached | np.eye(len(wins), dtype=bool)).all())
    if fitted is None or renumbered is None:
        return
    chances = 1 / (1 + np.exp(fitted[np.newaxis] - fitted[:, np.newaxis]))
    expected = ((wins + wins.T) * chances).sum(axis=1)
    assert np.allclose(expected, wins.sum(axis=1), atol=1e-6)  # each model wins as often as the model expects
    assert abs(fitted.sum()) < 1e-9
    assert np.allclose(fitted[order], renumbered, atol=1e-6)


def test_intervals_cover_planted_strengths_and_widen_with_fewer_prompts() -> None:
    strengths = [0.8, 0.1, -0.9]
    many, few = (bradley_terry(_planted(strengths, prompts, 3), 7) for prompts in (200, 20))
    assert many is not None
    assert few is not None
    for at, strength in enumerate(strengths):
        (low, high), wide = _ends(many.interval(at)), _ends(few.interval(at))
        assert low < strength < high
        assert high - low < wide[1] - wide[0]
    assert many.above().tolist() == [[False, True, True], [False, False, True], [False, False, False]]
    equal = bradley_terry(_planted([0.0, 0.0, 0.0], 100, 3), 7)
    assert equal is not None
    assert not equal.above().any()


def test_a_model_without_a_defeat_has_no_strength_and_a_rare_defeat_no_interval() -> None:
    rows = [(str(prompt), 0, 1, 1.0, 0.0) for prompt in range(30)]
    assert bradley_terry(Comparisons.from_rows(2, rows), 1) is None
    once = bradley_terry(Comparisons.from_rows(2, [*rows, ("lost", 0, 1, 0.0, 0.0)]), 1)
    assert once is not None
    assert once.values[0] == pytest.approx(math.log(30) / 2)
    assert not once.above().any()
    assert once.interval(0).low is once.interval(0).high is None  # a third of the resamples lack the defeat


def test_elo_exchanges_points_and_averages_over_orders() -> None:
    comparisons = Comparisons.from_rows(2, [("p", 0, 1, 1.0, 0.0), ("q", 0, 1, 0.5, 0.0)])
    [[first, second]] = elo_ratings(comparisons, np.array([[0, 1]]))
    after_win = 32 * 0.5
    expected = 1 / (1 + 10 ** (-2 * after_win / 400))
    assert first - 1000 == pytest.approx(after_win + 32 * (0.5 - expected))
    assert first + second == pytest.approx(2000)
    planted = elo(_planted([0.8, 0.1, -0.9], 60, 3), 7)
    assert [rating.value for rating in planted] == sorted((rating.value for rating in planted), reverse=True)
    assert sum(rating.value for rating in planted) == pytest.approx(3000)
    assert planted == elo(_planted([0.8, 0.1, -0.9], 60, 3), 7)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(-500, 500)), min_size=2, max_size=30))
def test_the_rate_at_equal_length_maximizes_its_likelihood(rows: list[tuple[float, float]]) -> None:
    scores, longer = (np.array(column) for column in zip(*rows, strict=True))
    rate = length_controlled_rate(scores, longer, np.arange(len(rows)), 1, 2)
    assert rate is not None
    if scores.mean() in (0.0, 1.0):
        assert rate.value == scores.mean()
        return
    terms = np.tanh(longer / longer.std()) if longer.std() > 0 else np.zeros(len(rows))

    def loss(point: np.ndarray) -> float:
        logits = point[0] + point[1] * terms
        return float(np.sum(np.logaddexp(0, logits) - scores * logits) + point[1] ** 2 / (2 * LENGTH_PRIOR**2))

    best = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000})
    assert rate.value == pytest.approx(1 / (1 + math.exp(-best.x[0])), abs=1e-4)
    if np.ptp(longer) == 0:
        assert rate.value == pytest.approx(scores.mean())


def test_length_control_removes_a_planted_bias_and_nothing_else() -> None:
    biased = _planted([0.0, 0.0], 400, 5, length=2.0).of_model(0)
    low, high = _ends(length_controlled_rate(biased[0], biased[2], biased[1], 7))
    assert biased[0].mean() > 0.7  # the longer answers of the first model win
    assert low < 0.5 < high
    fair = _planted([0.7, 0.0], 400, 5).of_model(0)
    low, high = _ends(length_controlled_rate(fair[0], fair[2], fair[1], 7))
    assert low < 1 / (1 + math.exp(-0.7)) < high
    assert length_controlled_rate(fair[0], np.full(len(fair[0]), math.nan), fair[1], 7) is None


def test_pairs_that_tell_most_are_close_or_rarely_met() -> None:
    wins = np.full((4, 4), 10.0)
    wins[0, 1:], wins[1:, 0] = 19.9, 0.1  # the first model is far better; the others are close
    prompts = [f"p{at}" for at in range(12)]
    chosen = informative_pairs(wins, prompts, 1, 7)
    assert all(0 not in pair for [pair] in chosen)
    assert {pair for [pair] in chosen} == {(1, 2), (1, 3), (2, 3)}
    unmet = np.full((3, 3), 10.0)
    unmet[0, 1] = unmet[1, 0] = 1.0
    assert informative_pairs(unmet, ["p"], 1, 7) == [[(0, 1)]]
    assert informative_pairs(wins, prompts, 2, 7) == informative_pairs(wins, prompts, 2, 7)
    assert all(len(set(pairs)) == 2 for pairs in informative_pairs(wins, prompts, 2, 7))
    assert informative_pairs(np.zeros((3, 3)), ["p"], 9, 1) == [[(0, 1), (0, 2), (1, 2)]]


def test_comparisons_of_wrong_models_are_refused() -> None:
    for row in (("p", 0, 0, 1.0, 0.0), ("p", 0, 2, 1.0, 0.0)):
        with pytest.raises(ValueError, match="two different models"):
            Comparisons.from_rows(2, [row])
    with pytest.raises(ValueError, match="scores from 0 to 1"):
        Comparisons.from_rows(2, [("p", 0, 1, 2.0, 0.0)])
