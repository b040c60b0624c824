"""Corrected pass rates and correlations: the formulas, what must not change them, and how often they hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.scoring.certificate import GradeRange, Proportion, certify, judge_confusion, rogan_gladen, ungraded_pass_rate
from viva.scoring.correlation import pearson, spearman
from viva.scoring.prediction_powered import (
    GradedSample,
    corrected_mean,
    corrected_pearson,
    corrected_spearman,
    from_fisher,
)

shares = st.floats(0.6, 0.99)


def _passes(seed: int, labels: int = 60, count: int = 300, rate: float = 0.8) -> GradedSample:
    source = np.random.default_rng(seed)
    good = source.random(count) < rate
    scores = np.where(good, source.random(count) < 0.95, source.random(count) < 0.4).astype(float)
    grades = np.where(np.arange(count) < labels, good.astype(float), np.nan)
    return GradedSample.from_arrays(scores, grades)


@given(st.floats(0, 1), shares, shares)
def test_rogan_and_gladen_undo_the_errors_of_a_judge(rate: float, sensitivity: float, specificity: float) -> None:
    judged = rate * sensitivity + (1 - rate) * (1 - specificity)
    many = 1e7
    found = rogan_gladen(Proportion(judged, many), Proportion(sensitivity, many), Proportion(specificity, many))
    assert found.value == pytest.approx(rate, abs=1e-9)
    assert found.low <= rate <= found.high
    assert found.high - found.low < 0.02


def test_a_judge_that_tells_nothing_leaves_the_rate_open() -> None:
    found = rogan_gladen(Proportion(0.7, 300), Proportion(0.7, 30), Proportion(0.3, 30))
    assert found.low < 0.05
    assert found.high > 0.95


def test_shares_near_1_have_an_interval_with_a_width() -> None:
    found = rogan_gladen(Proportion(0.97, 300), Proportion(1.0, 29), Proportion(1.0, 1))
    assert found.low < 0.93
    sample = GradedSample.from_arrays(np.ones(300), np.where(np.arange(300) < 30, 1.0, np.nan))
    end = certify({"a": sample}, GradeRange(passes=True)).candidates["a"].corrected
    assert end is not None
    assert 0.85 < end.low < 0.97
    assert end.high == pytest.approx(1.0)


def test_the_predictive_rate_weighs_what_people_say_of_passed_and_failed() -> None:
    sample = _passes(1)
    told = judge_confusion(sample)
    share = float(sample.scores.mean())
    by_hand = share * told.passed.value + (1 - share) * told.failed.value
    found = certify({"a": sample}, GradeRange(passes=True)).candidates["a"].corrected
    assert found is not None
    assert found.value == pytest.approx(by_hand)
    assert told.passed.n + told.failed.n == 60
    assert ungraded_pass_rate(sample).n == 240


def test_answers_of_one_cluster_are_worth_less() -> None:
    sample = _passes(2)
    alike = GradedSample(
        *(np.repeat(part, 3) for part in (sample.scores, sample.grades, sample.weights)), np.repeat(np.arange(300), 3)
    )
    assert judge_confusion(alike).passed.n == pytest.approx(judge_confusion(sample).passed.n, rel=0.06)


def test_scores_that_are_not_pass_or_fail_are_refused() -> None:
    with pytest.raises(ValueError, match="scores and grades of 0"):
        judge_confusion(GradedSample.from_arrays([0.5, 1.0], [1.0, np.nan]))


def test_pass_rates_and_their_differences_hold() -> None:
    covered = apart = plain = 0
    for seed in range(60):
        samples = {"a": _passes(seed), "b": _passes(seed + 1000, rate=0.6)}
        found = certify(samples, GradeRange(0, 1, passes=True))
        one, pair = found.candidates["a"], found.differences["a", "b"]
        assert one.corrected is not None
        assert pair.corrected is not None
        covered += one.corrected.low <= 0.8 <= one.corrected.high
        apart += pair.corrected.low <= 0.2 <= pair.corrected.high
        plain += one.judged.low <= 0.8 <= one.judged.high
    assert 53 <= covered <= 60
    assert 53 <= apart <= 60
    assert plain < 45


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.5])
def test_clustered_pass_rates_with_whole_items_labelled_hold(rate: float) -> None:
    covered, studies = 0, 150
    for seed in range(studies):
        source = np.random.default_rng(seed)
        easy = np.repeat(source.beta(2 * rate, 2 * (1 - rate), 100), 4)
        failed = source.random(400) < easy
        scores = (~failed | (source.random(400) < 0.7)).astype(float)
        grades = np.where(np.arange(400) < 60, (~failed).astype(float), np.nan)
        end = corrected_mean(GradedSample.from_arrays(scores, grades, np.arange(400) // 4)).interval(low=0.0, high=1.0)
        covered += end.low <= 1.0 - rate <= end.high
    assert covered >= 0.92 * studies


def _related(seed: int, labels: int = 60, count: int = 300) -> tuple[np.ndarray, GradedSample]:  # type: ignore[type-arg]
    source = np.random.default_rng(seed)
    known = source.normal(size=count)
    grades = 0.5 * known + source.normal(size=count)
    scores = grades + 0.5 * known + source.normal(0, 0.7, count)
    return known, GradedSample.from_arrays(scores, np.where(np.arange(count) < labels, grades, np.nan))


def test_without_a_judge_the_correlations_are_those_of_the_labels() -> None:
    known, sample = _related(1)
    silent = GradedSample(np.zeros(300), sample.grades, sample.weights, sample.clusters)
    here, grades = known[:60].tolist(), sample.grades[:60].tolist()
    linear, ranked = pearson(here, grades), spearman(here, grades)
    assert linear is not None
    assert ranked is not None
    assert from_fisher(corrected_pearson(known, silent).interval()).value == pytest.approx(linear[0])
    assert from_fisher(corrected_spearman(known, silent).interval()).value == pytest.approx(ranked.value)


def test_ranks_do_not_ask_how_far_apart_values_are() -> None:
    known, sample = _related(2)
    other = GradedSample(np.exp(sample.scores), np.exp(sample.grades), sample.weights, sample.clusters)
    one, same = corrected_spearman(known, sample), corrected_spearman(known**3, other)
    assert one.value == pytest.approx(same.value)
    assert one.se == pytest.approx(same.se)


def test_correlations_hold_where_those_of_the_judge_do_not() -> None:
    truth = 0.5 / np.sqrt(1.25)
    covered = plain = 0
    for seed in range(200):
        known, sample = _related(seed)
        end = from_fisher(corrected_pearson(known, sample).interval())
        covered += end.low <= truth <= end.high
        judged = GradedSample.from_arrays(sample.scores, sample.scores)
        alone = from_fisher(corrected_pearson(known, judged).interval())
        plain += alone.low <= truth <= alone.high
    assert 180 <= covered <= 199
    assert plain < 20


def test_labels_without_spread_are_refused() -> None:
    known, sample = _related(3)
    flat = GradedSample(sample.scores, np.where(sample.graded, 1.0, np.nan), sample.weights, sample.clusters)
    for compute in (corrected_pearson, corrected_spearman):
        with pytest.raises(ValueError, match="no spread"):
            compute(known, flat)
