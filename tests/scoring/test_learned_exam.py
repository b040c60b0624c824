"""Exams that learn their bank: draws of known probability, rules by the assumption-free interval, what is learned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from viva.scoring.exam_course import ExamRule
from viva.scoring.item_bank import fit_bank, learn_bank
from viva.scoring.learned_exam import BankLearner, LearnedCourse, answers_of, bounds_apart, starting_exams

MODELS, ITEMS = 20, 40


def _scores(seed: int, models: int = MODELS, items: int = ITEMS) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    skills, easiness = generator.normal(size=(models, 1)), generator.normal(0.5, 1.5, items)
    return (generator.random((models, items)) < 1 / (1 + np.exp(-1.5 * skills - easiness))).astype(float)


def _sit(
    scores: NDArray[np.float64], generator: np.random.Generator, limit: int, rule: ExamRule | None = None
) -> list[LearnedCourse]:
    """Exams of all models in step until they end; nan is no score."""
    models, items = scores.shape
    first = LearnedCourse(starting_exams(items), rule or ExamRule(half_width=0.01), limit, 8, models)
    courses, learner = [first.another() for _ in range(models)], BankLearner(items)
    while going := [row for row, course in enumerate(courses) if course.end() is None]:
        learner.teach(courses)
        waves = {row: courses[row].draw(generator.random(8).tolist()) for row in going}
        for row, wave in waves.items():
            answers = scores[row, list(wave.items)]
            courses[row].record(wave, [None if np.isnan(answer) else answer for answer in answers])
    return courses


def test_corrected_values_have_the_mean_of_all_items_as_their_expectation() -> None:
    """Whatever was learned on the way, from the first random wave to the last chosen one."""
    scores = _scores(1)
    values = []
    for seed in range(40):
        courses = _sit(scores, np.random.default_rng([7, seed]), 22, ExamRule(decided=True))
        values.append([course._corrected for course in courses])
    errors = np.array(values) - scores.mean(axis=1)[:, None]  # seeds × models × draws
    chosen = {course.has_bank for course in courses}
    assert chosen == {True}
    by_seed = errors.mean(axis=1)  # models of one seed share a bank
    standardised = by_seed.mean(axis=0) / (by_seed.std(axis=0, ddof=1) / np.sqrt(len(by_seed)))
    assert np.abs(standardised).max() < 3.8  # of 22 draws
    assert (standardised**2).mean() < 2.0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(20, 60), st.floats(0.0, 0.5))
def test_items_are_random_if_there_are_few_models(seed: int, models: int, items: int, missing: float) -> None:
    """Every value lies in the range of the confidence sequence, also if answers have no score."""
    generator = np.random.default_rng(seed)
    scores = _scores(seed, models, items)
    scores[generator.random(scores.shape) < missing] = np.nan
    for course in _sit(scores, generator, items):
        left = [items - sum(len(own.items) for own in course.waves[: wave.number - 1]) for wave in course.waves]
        expected = [[1 / (rest - position) for position in range(len(wave.items))]
                    for rest, wave in zip(left, course.waves, strict=True)]  # fmt: skip
        assert [list(wave.probabilities) for wave in course.waves] == expected
        known = [value for value in course._corrected if not np.isnan(value)]
        assert all(-1e-9 <= value <= 1 + 1e-9 for value in known)
        assert not course.has_bank
        assert np.isnan(course.model_based().values[0])


def test_the_first_items_of_each_model_differ_and_later_ones_follow_the_bank() -> None:
    courses = _sit(_scores(3), np.random.default_rng(3), 30)
    firsts = {tuple(course.waves[0].items) for course in courses}
    assert len(firsts) == MODELS
    even = [len({round(chance, 9) for chance in wave.probabilities}) for wave in courses[0].waves]
    assert [len(wave.items) for wave in courses[0].waves[:2]] == [8, 2]
    assert courses[0].waves[0].predictions == [0.5] * 8
    assert len(set(courses[0].waves[2].predictions)) == even[2] > 1


def test_a_replay_has_the_same_bank_whenever_it_begins() -> None:
    courses = _sit(_scores(4), np.random.default_rng(4), 26)
    for course in courses:
        course._limit = 40
    replayed = [course.another() for course in courses]
    for course, copy in zip(courses, replayed, strict=True):
        for wave, answers in zip(course.waves, course.answers, strict=True):
            copy.record(wave, answers)
    for own in (replayed, courses):
        BankLearner(ITEMS).teach(own)
    uniforms = np.linspace(0.05, 0.95, 8).tolist()
    assert [copy.draw(uniforms) for copy in replayed] == [course.draw(uniforms) for course in courses]


def test_rules_look_at_the_assumption_free_interval() -> None:
    scores = np.repeat([[0.0], [1.0]], 10, axis=0) * np.ones((20, 120))
    scores[:, ::7] = 1.0 - scores[:, ::7]
    for course in _sit(scores, np.random.default_rng(5), 120, ExamRule(half_width=15.0)):
        low, high = course.bounds()
        assert course.end() == "half_width"
        assert high - low <= 30.0
        assert low == pytest.approx(100 * course.assumption_free().lows[0])
    for row, course in enumerate(_sit(scores, np.random.default_rng(5), 120, ExamRule(above=50.0))):
        assert course.end() == "above"
        assert (course.bounds()[0] > 50.0) == (row >= 10)


def test_models_are_apart_if_no_interval_overlaps() -> None:
    scores = np.zeros((3, 120))
    scores[1, ::2] = scores[2] = 1.0
    courses = _sit(scores, np.random.default_rng(6), 110, ExamRule(decided=True))
    assert bounds_apart(courses) == [True] * 3
    scores[1] = 1.0
    assert bounds_apart(_sit(scores, np.random.default_rng(6), 60, ExamRule(decided=True))) == [True, False, False]


# -- the bank ---------------------------------------------------------------------------------------------------------


def test_few_answers_are_drawn_towards_the_average_item() -> None:
    """Items without answers are the average item, and those with few lie nearer to it than a bank of its own says."""
    generator = np.random.default_rng(8)
    full = _scores(8, 100, 80)
    scores = np.where(generator.random(full.shape) < 0.15, full, np.nan)
    scores[:, :5] = np.nan
    learned, fitted = learn_bank(scores), fit_bank(scores)
    assert learned.counts[:5].tolist() == [0] * 5
    assert len({*learned.thresholds[:5, 0]}) == 1
    assert learned.thresholds[0, 0] == pytest.approx(learned.thresholds[5:, 0].mean(), abs=0.05)
    assert learned.thresholds[5:, 0].std() < fitted.thresholds[5:, 0].std()
    assert learned.slopes[5:].std() < fitted.slopes[5:].std()
    easy = full[:, 5:].mean(axis=0)
    assert np.corrcoef(easy, learned.thresholds[5:, 0])[0, 1] > 0.8


def test_scores_of_several_levels_are_learned() -> None:
    generator = np.random.default_rng(9)
    scores = np.clip(generator.random((30, 1)) + generator.normal(0, 0.2, (30, 40)), 0, 1)
    scores[generator.random(scores.shape) < 0.5] = np.nan
    bank = learn_bank(scores)
    assert bank.thresholds.shape == (40, 4)
    assert (np.diff(bank.thresholds, axis=1) < 0).all()


def test_equal_scores_teach_nothing() -> None:
    courses = _sit(np.ones((MODELS, ITEMS)), np.random.default_rng(10), 20)
    assert not any(course.has_bank for course in courses)
    with pytest.raises(ValueError, match="all scores are 1"):
        learn_bank(answers_of(courses, ITEMS))
