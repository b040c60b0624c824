"""The course of an exam: rules and waves as they are written and read, and what its answers say."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.scoring.adaptive_exam import LEAST_FIT, Calibration, Exams
from viva.scoring.exam_course import ExamCourse, ExamRule, Wave, forecast_exams, separated, subject_groups
from viva.scoring.item_bank import fit_bank

ITEMS = [f"item-{number}" for number in range(40)]
POSITIONS = {name: number for number, name in enumerate(ITEMS)}


def _course(rule: ExamRule, limit: int = 40, largest: int = 8) -> ExamCourse:
    generator = np.random.default_rng(1)
    skills, difficulties = generator.normal(size=(80, 1)), generator.normal(size=40)
    scores = (generator.random((80, 40)) < 1 / (1 + np.exp(-2 * (skills - difficulties)))).astype(float)
    return ExamCourse(Exams(fit_bank(scores)), rule, limit, largest, Calibration())


COURSE = _course(ExamRule(half_width=12.0))


def _sit(course: ExamCourse, ability: float, seed: int) -> str:
    """Answer waves until the exam ends; why it ended."""
    generator = np.random.default_rng(seed)
    while (end := course.end()) is None:
        wave = course.draw(generator.random(8).tolist())
        course.record(wave, [float(generator.random() < ability) for _ in wave.items])
    return end


@given(st.floats(0.01, 99.0), st.sampled_from(["half_width", "above"]))
def test_a_rule_is_read_as_it_was_written(points: float, name: str) -> None:
    for written in (f"{name}={points}", f" {name} = {points} ", {name: points}):
        assert getattr(ExamRule.parse(written), name) == points
    assert ExamRule.parse(str(ExamRule.parse("decided"))) == ExamRule(decided=True)


@case_table(
    "rule",
    [
        "",
        "soon",
        "half_width",
        "half_width=",
        "above=-1",
        "above=nan",
        "decided=3",
        3,
        None,
        {},
        {"above": [1]},
        {"above": 50, "half_width": 3},
        {"above": True},
        {"half_width": 100},
    ],
)
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    with pytest.raises(ValueError, match="half_width=3, decided or above=60"):
        ExamRule.parse(rule)


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.floats(0.0, 1.0))
def test_a_replay_from_records_gives_the_same_waves_and_estimates(seed: int, ability: float) -> None:
    course, again = COURSE.another(), COURSE.another()
    _sit(course, ability, seed)
    generator = np.random.default_rng(seed)
    for wave in course.waves:
        read = Wave.from_record(orjson.loads(orjson.dumps(wave.to_record(ITEMS))), POSITIONS)
        assert read == wave
        assert again.draw(generator.random(8).tolist()) == wave
        again.record(read, [float(generator.random() < ability) for _ in read.items])
    assert again.end() == course.end()
    for name in ("model_based", "assumption_free"):
        ours, theirs = getattr(course, name)(), getattr(again, name)()
        assert (ours.values, ours.lows, ours.highs) == (theirs.values, theirs.lows, theirs.highs)


_WAVE = {"wave": 1, "items": ["item-1", "item-2"], "probabilities": [0.5, 0.5], "predictions": [0.1, 1], "known": 0.5}


@case_table(
    "change",
    [
        {"items": ["item-1", "item-99"]},
        {"items": ["item-1", "item-1"]},
        {"items": []},
        {"items": [[], 1]},
        {"probabilities": [0.5]},
        {"probabilities": [0.5, 0.0]},
        {"probabilities": [0.5, 1.1]},
        {"predictions": [0.1, float("nan")]},
        {"known": "much"},
        {"known": -0.1},
        {"wave": None},
    ],
)
def test_a_damaged_wave_is_refused(change: dict[str, Any]) -> None:
    assert Wave.from_record(_WAVE, POSITIONS).items == [1, 2]
    with pytest.raises(ValueError, match=r"a wave of an exam|is not a wave"):
        Wave.from_record(_WAVE | change, POSITIONS)


def test_waves_come_in_order_and_repeat_no_item() -> None:
    course = COURSE.another()
    first = course.draw([0.3] * 8)
    course.record(first, [1.0])
    with pytest.raises(ValueError, match="does not follow"):
        course.record(first, [1.0])
    with pytest.raises(ValueError, match="repeats items"):
        course.record(Wave(2, first.items, [0.5], [0.5], 0.5), [1.0])


def test_an_exam_without_any_score_goes_on_to_its_limit() -> None:
    course = _course(ExamRule(half_width=50.0), limit=9)
    while course.end() is None:
        wave = course.draw([0.4] * 8)
        course.record(wave, [None] * len(wave.items))
    assert (course.end(), course.length, course.answered) == ("limit", 9, 0)


def test_only_models_apart_from_all_others_are_separated() -> None:
    courses = [_course(ExamRule(decided=True), limit=30) for _ in range(3)]
    for seed, (course, ability) in enumerate(zip(courses, [0.95, 0.35, 0.3], strict=True)):
        _sit(course, ability, seed)
    assert separated(courses) == [True, False, False]
    assert separated([courses[0], COURSE.another()]) == [False, False], "a model without answers"


# -- answers that contradict the bank ---------------------------------------------------------------------------------


def _answered(course: ExamCourse, *, upside_down: bool, seed: int = 4) -> str:
    """Answer as a model of middle ability of the bank, or right where it would be wrong; why the exam ended."""
    generator = np.random.default_rng(seed)
    while (end := course.end()) is None:
        wave = course.draw(generator.random(8).tolist())
        right = np.array(wave.predictions) > 0.5
        course.record(wave, (right != upside_down).astype(float).tolist())
    return end


@case_table("rule", [ExamRule(half_width=12.0), ExamRule(above=70.0)])
def test_no_rule_ends_an_exam_whose_answers_are_implausible(rule: ExamRule) -> None:
    honest, strange = _course(rule), _course(rule)
    assert _answered(honest, upside_down=False) == ("above" if rule.above else "half_width")
    assert honest.person_fit() > 0.0
    assert _answered(strange, upside_down=True) == "all_items"
    assert strange.length == 40 > honest.length
    assert strange.person_fit() < LEAST_FIT


def test_a_model_whose_answers_are_implausible_is_not_separated() -> None:
    honest, strange = (_course(ExamRule(decided=True), limit=30) for _ in range(2))
    _answered(honest, upside_down=False)
    _answered(strange, upside_down=True)
    assert not strange.is_plausible()
    assert separated([honest, strange])[1] is False


def test_models_of_the_bank_seldom_seem_implausible() -> None:
    generator = np.random.default_rng(6)
    exams = COURSE._exams.another(2000)
    answer = COURSE.answer_as_bank(2000, generator)
    fits = []
    for _ in range(3):
        items = exams.draw(8, generator.random((2000, 8))).items
        exams.record(items, answer(np.arange(2000), items))
        fits.append(exams.person_fit())
    for fit in fits:
        assert abs(fit.mean()) < 0.1
        assert 0.9 < fit.std() < 1.1
        assert 0.001 < (fit < LEAST_FIT).mean() < 0.03
    silent = COURSE.another()
    silent.record(silent.draw([0.5] * 8), [None])
    assert silent.person_fit() == 0.0


# -- forecasts --------------------------------------------------------------------------------------------------------


@case_table("rule", [ExamRule(half_width=12.0), ExamRule(above=70.0)])
def test_a_forecast_is_what_exams_of_the_banks_models_take(rule: ExamRule) -> None:
    course = _course(rule, limit=35, largest=4)
    forecast = forecast_exams(course, 3, seed=1)
    assert forecast == forecast_exams(course, 3, seed=1)
    assert forecast != forecast_exams(course, 3, seed=2)
    generator, lengths = np.random.default_rng(8), []
    answer = course.answer_as_bank(60, generator)
    for model in range(60):
        own = course.another()
        while own.end() is None:
            wave = own.draw(generator.random(8).tolist())
            own.record(wave, answer(np.array([model]), np.array([wave.items]))[0].tolist())
        lengths.append(own.length)
    each = forecast.each
    assert each.low <= np.median(lengths) <= each.high <= 35
    assert abs(np.median(lengths) - each.value) <= 5
    assert np.mean([each.low <= length <= each.high for length in lengths]) > 0.85
    assert each.low * 3 <= forecast.total.low <= forecast.total.value <= forecast.total.high <= each.high * 3


def test_a_forecast_of_decided_compares_the_models() -> None:
    course = _course(ExamRule(decided=True), limit=30)
    two, five = (forecast_exams(course, models, seed=1) for models in (2, 5))
    assert two.each.value < five.each.value <= 30, "five models are harder to tell apart"
    assert 2 * two.each.low <= two.total.value <= 60


@case_table(
    "subjects, groups",
    [
        (["b"] * 10 + ["a"] * 10, [1] * 10 + [0] * 10),
        (["b"] * 10 + [""] * 10, [1] * 10 + [0] * 10),
        (["b"] * 20, None),
        (["b"] * 10 + ["a"] * 9, None),
        ([str(number) for number in range(50)], None),
    ],
)
def test_exams_spread_over_subjects_that_are_large_enough(subjects: list[str], groups: list[int] | None) -> None:
    assert subject_groups(subjects) == groups
