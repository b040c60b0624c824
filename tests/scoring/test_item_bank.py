"""Item banks: planted parameters, another implementation's estimates, negative items, misfit, and hostile matrices."""

from __future__ import annotations

import numpy as np
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize

from viva.scoring.item_bank import (
    GRID,
    LEAST_ANSWERS,
    LEAST_MODELS,
    Bank,
    Scale,
    fit_bank,
    misfits,
    negative_items,
    negative_rest_correlations,
)

Floats = NDArray[np.float64]


def planted(models: int, slopes: Floats, thresholds: Floats, seed: int = 1) -> Floats:
    """Right and wrong answers of models of normal ability."""
    draw = np.random.default_rng(seed)
    ability = draw.normal(size=(models, 1))
    reached = draw.random((models, len(slopes))) < 1.0 / (1.0 + np.exp(-(ability * slopes + thresholds)))
    return reached.astype(np.float64)


def graded(models: int, slopes: Floats, centres: Floats, draw: np.random.Generator) -> Floats:
    """Scores on four levels: a latent response, cut at one below, at and one above each item's centre."""
    latent = slopes * (draw.normal(size=(models, 1)) - centres) + draw.logistic(size=(models, len(slopes)))
    scores: Floats = (latent[:, :, None] > slopes[:, None] * np.array([-1.0, 0.0, 1.0])).sum(axis=2) / 3
    return scores


def on_models(bank: Bank) -> tuple[Floats, Floats]:
    """Discriminations and difficulties on the scale on which abilities have mean 0 and standard deviation 1."""
    mean, spread = bank.ability_moments()
    return bank.slopes * spread, (bank.difficulties() - mean) / spread


def test_planted_parameters_of_right_and_wrong_answers_are_found() -> None:
    draw = np.random.default_rng(2)
    slopes, difficulties = draw.uniform(0.6, 2.2, 30), draw.uniform(-1.5, 1.5, 30)
    bank = fit_bank(planted(3000, slopes, -slopes * difficulties))
    fitted, located = on_models(bank)
    assert np.abs(fitted - slopes).max() < 0.35
    assert np.abs(located - difficulties).max() < 0.2
    spread = bank.ability_moments()[1]
    # Errors of discriminations and difficulties are those that they have; 30 items leave room for chance.
    assert 0.6 < np.std((fitted - slopes) / (bank.slope_errors * spread)) < 1.6
    assert 0.6 < np.std((located - difficulties) / (bank.difficulty_errors / spread)) < 1.8


def test_planted_parameters_of_graded_scores_are_found() -> None:
    draw = np.random.default_rng(3)
    slopes, centres = draw.uniform(0.8, 2.0, 12), draw.uniform(-1.0, 1.0, 12)
    bank = fit_bank(graded(3000, slopes, centres, draw))
    fitted, located = on_models(bank)
    assert len(bank.scale.means) == 4
    assert np.abs(fitted - slopes).max() < 0.3
    assert np.abs(located - centres).max() < 0.15


def test_parameters_maximise_the_marginal_likelihood_as_a_general_optimiser_does() -> None:
    slopes, thresholds = np.array([1.0, 1.6, 0.8, 1.2]), np.array([0.5, -0.3, 0.0, 1.0])
    scores = planted(400, slopes, thresholds, seed=4)
    bank = fit_bank(scores)

    def loss(parameters: Floats) -> float:
        reached = 1.0 / (1.0 + np.exp(-(GRID[:, None] * parameters[:4] + parameters[4:])))
        logs = scores @ np.log(reached).T + (1.0 - scores) @ np.log1p(-reached).T
        prior = 0.5 * ((parameters[:4] - 1.0) ** 2).sum() + 0.5 * (parameters[4:] ** 2).sum() / 9.0
        return float(prior - np.log(np.exp(logs) @ bank.ability).sum())

    best = minimize(loss, np.concatenate([np.ones(4), np.zeros(4)]), method="BFGS")
    assert np.concatenate([bank.slopes, bank.thresholds[:, 0]]) == pytest.approx(best.x, abs=0.02)


# Estimates of girth 0.8.0 (twopl_mml and grm_mml), run once on the matrices that the test makes again.
GIRTH_SLOPES = [0.754, 1.415, 1.373, 0.824, 0.704, 2.211, 0.649, 0.813]
GIRTH_DIFFICULTIES = [1.182, 0.264, -0.395, -0.14, 0.397, -0.519, -1.026, 0.651]
GIRTH_GRADED_SLOPES = [0.954, 1.978, 1.315, 0.954, 1.152, 1.146]
GIRTH_GRADED_DIFFICULTIES = [0.240, -0.600, 0.595, 0.666, -0.908, 0.010]  # means over the three thresholds


def test_estimates_are_those_of_girth() -> None:
    draw = np.random.default_rng(11)
    slopes, centres = draw.uniform(0.6, 2.0, 8), draw.uniform(-1.2, 1.2, 8)
    ability = draw.normal(size=(800, 1))
    right = (draw.random((800, 8)) < 1 / (1 + np.exp(-slopes * (ability - centres)))).astype(float)
    fitted, located = on_models(fit_bank(right))
    # Our priors shrink a little: a discrimination of 2.2 by 7%.
    assert fitted == pytest.approx(GIRTH_SLOPES, rel=0.08)
    assert located == pytest.approx(GIRTH_DIFFICULTIES, abs=0.03)
    draw = np.random.default_rng(12)
    slopes, centres = draw.uniform(0.8, 2.0, 6), draw.uniform(-0.8, 0.8, 6)
    fitted, located = on_models(fit_bank(graded(800, slopes, centres, draw)))
    assert fitted == pytest.approx(GIRTH_GRADED_SLOPES, rel=0.04)
    assert located == pytest.approx(GIRTH_GRADED_DIFFICULTIES, abs=0.03)


def test_missing_scores_are_left_out() -> None:
    draw = np.random.default_rng(5)
    slopes, difficulties = draw.uniform(0.8, 1.8, 20), draw.uniform(-1.0, 1.0, 20)
    scores = planted(2000, slopes, -slopes * difficulties, seed=6)
    # Weak models skip items more often, so that treating gaps as wrong answers, or dropping rows, would show.
    weak = scores.mean(axis=1) < 0.5
    scores[(draw.random(scores.shape) < 0.4) & weak[:, None]] = np.nan
    bank = fit_bank(scores)
    fitted, located = on_models(bank)
    assert (bank.counts == (~np.isnan(scores)).sum(axis=0)).all()
    assert np.abs(located - difficulties).max() < 0.25
    assert np.abs(fitted - slopes).max() < 0.35


def test_items_on_which_better_models_do_worse_are_listed_at_the_stated_rate() -> None:
    draw = np.random.default_rng(7)
    false, true = 0, 0
    for seed in range(2):
        slopes = np.concatenate([np.full(20, -0.8), draw.uniform(0.0, 0.05, 80), draw.uniform(0.8, 1.6, 100)])
        items = negative_items(fit_bank(planted(300, slopes, draw.normal(size=200), seed=100 + seed)))
        true += sum(item < 20 for item in items)
        false += sum(item >= 20 for item in items)
    assert true >= 0.97 * 40
    # Items that tell nothing at all are the hardest to keep out; chance allows about two standard errors.
    assert false / (true + false) <= 0.05 + 2 * (0.05 * 0.95 / (true + false)) ** 0.5


def test_items_that_better_models_fail_show_in_their_rest_correlation_at_the_stated_rate() -> None:
    slopes = np.where(np.arange(60) % 2, 1.2, 0.0)  # half of the items tell nothing: the worst case of the null
    worlds = [planted(24, slopes, np.linspace(-2.0, 2.0, 60), seed) for seed in range(200)]
    claims = sum(bool(negative_rest_correlations(scores)[0]) for scores in worlds)
    assert claims <= 0.05 * 200 + 3 * (0.05 * 0.95 * 200) ** 0.5
    wrong = planted(100, np.array([-1.5, *[1.5] * 59]), np.zeros(60))
    wrong[::7, 3] = np.nan
    assert negative_rest_correlations(wrong) == ([0], 60)
    assert negative_rest_correlations(wrong[: LEAST_ANSWERS - 1]) == ([], 0), "too few models to tell"
    wrong[LEAST_ANSWERS - 1 :, 0] = np.nan
    assert negative_rest_correlations(wrong) == ([], 59)


def test_misfit_is_near_zero_under_the_model_and_shows_an_item_that_departs_from_it() -> None:
    draw = np.random.default_rng(8)
    slopes, thresholds = draw.uniform(0.8, 1.8, 40), draw.uniform(-1.0, 1.0, 40)
    scores = planted(2000, slopes, thresholds, seed=9)
    ability = scores.mean(axis=1)
    # One item that only models in the middle get right.
    scores[:, 0] = (np.abs(ability - np.median(ability)) < 0.15).astype(float)
    found = misfits(fit_bank(scores), scores)
    assert found[0] > 0.2
    assert found[1:].max() < 0.05


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(1, 12), st.integers(0, 2**32 - 1), st.floats(0.0, 0.6), st.integers(2, 9))
def test_any_matrix_gives_finite_parameters_and_probabilities(
    models: int, items: int, seed: int, gaps: float, levels: int
) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, levels, (models, items)) / (levels - 1)
    scores[draw.random(scores.shape) < gaps] = np.nan
    known = scores[~np.isnan(scores)]
    if models < LEAST_MODELS or len(np.unique(known)) < 2:
        with pytest.raises(ValueError, match=r"models|scores"):
            fit_bank(scores)
        return
    bank = fit_bank(scores)
    assert all(np.isfinite(part).all() for part in (bank.slopes, bank.thresholds, bank.slope_errors, bank.ability))
    assert (np.diff(bank.thresholds, axis=1) < 0.0).all()
    probabilities = bank.probabilities()
    assert probabilities.min() > 0.0
    assert probabilities.sum(axis=2) == pytest.approx(1.0)
    means, variances = bank.expected_scores()
    assert means.min() >= 0.0
    assert means.max() <= 1.0
    assert variances.min() >= -1e-12
    assert bank.ability.sum() == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=200))
def test_levels_keep_the_order_of_scores_and_average_to_their_mean(values: list[float]) -> None:
    scores = np.array(values)
    if len(np.unique(scores)) < 2:
        return
    scale = Scale.from_scores(scores)
    levels = scale.levels(scores)
    assert 2 <= len(scale.means) <= 5
    assert len(scale.cuts) == len(scale.means) - 1
    order = np.argsort(scores, kind="stable")
    assert (np.diff(levels[order]) >= 0).all()
    assert scale.means[levels].mean() == pytest.approx(scores.mean())
    assert list(scale.levels([np.nan])) == [-1]


@case_table(
    "scores, said",
    [
        (np.full((20, 5), np.nan), "there must be some"),
        (np.ones((1, 5)), "1 models; a bank needs the scores of at least 10"),
        (np.full((20, 5), 0.5), "all scores are 0.5"),
        (np.full((20, 5), 3.0), "between 0 and 1"),
        (np.full((20, 5), np.inf), "between 0 and 1"),
        (np.zeros(20), "0 models"),
    ],
    ids=lambda case: str(case)[-20:],
)
def test_a_matrix_that_says_nothing_is_refused(scores: Floats, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fit_bank(scores)


def test_items_without_scores_and_items_that_all_get_right_have_parameters() -> None:
    scores = planted(100, np.ones(6), np.zeros(6))
    scores[:, 0], scores[:, 1] = np.nan, 1.0
    bank = fit_bank(scores)
    assert bank.counts.tolist() == [0, *[100] * 5]
    assert np.isfinite(bank.slopes).all()
    assert bank.expected_scores()[0][30, 1] > 0.95
    assert negative_items(bank) == []
    assert misfits(bank, scores)[0] == 0.0
