"""Grades of candidates: the paper's sums, groups of dimensions, and intervals that hold what they promise."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.engine.errors import ConfigurationError
from viva.scenarios.lalaeval.candidate_grades import GradeSums, compare_candidates, dimension_groups, grade_candidates
from viva.scoring.graders import GradeRow, GradeTable
from viva.scoring.ratios import ratio_difference, weighted_ratio

DIMENSIONS = ["domain/facts/terms", "domain/facts/rules", "domain/wording", "general/logic"]
TOPS = dict(zip(DIMENSIONS, (3.0, 2.0, 3.0, 1.0), strict=True))
WEIGHTS = dict(zip(DIMENSIONS, (3.0, 1.0, 1.0, 2.0), strict=True))
ROWS = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from("AB"), st.sampled_from("uvw"), st.none() | st.integers(0, 3)),
    unique_by=lambda row: row[:3], max_size=70,
)  # fmt: skip
Rows = list[tuple[int, str, str, int | None]]


def row_of(k: int, q: str, i: str, value: int | None) -> GradeRow:
    dimension = DIMENSIONS[k % 4]
    top = TOPS[dimension]
    return GradeRow(dimension, f"k{k}", q, i, None if value is None else min(float(value), top), top)


def table_of(rows: Rows) -> GradeTable:
    return GradeTable.from_rows((row_of(*row) for row in rows), dimensions=DIMENSIONS, candidates="AB", graders="uvw")


def hand(rows: Rows, q: str, dimension: str) -> tuple[float | None, float | None]:
    """Grade(q,j) and accuracy as one would by hand."""
    mine = [one for row in rows if row[1] == q and (one := row_of(*row)).dimension == dimension]
    values = [one.value for one in mine if one.value is not None]
    if not values:
        return None, None
    return 100 * sum(values) / (TOPS[dimension] * len(values)), 100 * sum(value > 0 for value in values) / len(values)


@given(ROWS)
def test_grades_equal_the_sums_of_the_paper(rows: Rows) -> None:
    for found in grade_candidates(GradeSums(table_of(rows), WEIGHTS)):
        by_hand = {name: hand(rows, found.candidate, name) for name in DIMENSIONS}
        for place, figures in enumerate((found.grade, found.accuracy)):
            graded = {name: value for name in DIMENSIONS if (value := by_hand[name][place]) is not None}
            for name in DIMENSIONS:
                assert figures[name].value == pytest.approx(graded.get(name), abs=1e-9)
            for group in dimension_groups(DIMENSIONS):
                inside = [name for name in group.dimensions if name in graded]
                whole = sum(WEIGHTS[name] for name in inside)
                expected = sum(WEIGHTS[name] * graded[name] for name in inside) / whole if inside else None
                assert figures[group.name].value == pytest.approx(expected, abs=1e-9)
        mine = [row for row in rows if row[1] == found.candidate]
        assert found.grade["overall"].grades == sum(row[3] is not None for row in mine)
        assert found.grade["overall"].missing == sum(row[3] is None for row in mine)


@given(ROWS)
def test_intervals_hold_their_value_and_stay_in_bounds(rows: Rows) -> None:
    sums = GradeSums(table_of(rows), WEIGHTS)
    for found in grade_candidates(sums):
        for figure in (*found.grade.values(), *found.accuracy.values()):
            if figure.value is not None:
                assert figure.low is not None
                assert figure.high is not None
                assert 0 <= figure.low <= figure.value + 1e-9
                assert figure.value - 1e-9 <= figure.high <= 100
                assert figure.high - figure.low > 1, "no handful of questions is certain"
    for pair in compare_candidates(sums):
        assert (pair.low is None) is (pair.high is None) is (pair.p is None)
        if pair.low is None or pair.high is None:
            continue
        assert -100 <= pair.low <= pair.value + 1e-9
        assert pair.value - 1e-9 <= pair.high <= 100
        assert pair.p is None or 0 <= pair.p <= (pair.p_corrected or 0) <= 1


@given(ROWS, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_order_of_rows_and_names_of_graders_change_no_figure(rows: Rows, random: Random) -> None:
    other = dict(zip("uvw", random.sample("uvw", 3), strict=True))
    changed = [(k, q, other[i], value) for k, q, i, value in random.sample(rows, len(rows))]
    first, second = (grade_candidates(GradeSums(table_of(one), WEIGHTS)) for one in (rows, changed))
    for one, two in zip(first, second, strict=True):
        for name, figure in one.grade.items():
            for field in ("value", "low", "high", "grades", "missing", "questions"):
                assert getattr(figure, field) == pytest.approx(getattr(two.grade[name], field), abs=1e-9)


def test_groups_are_the_paths_that_dimensions_share() -> None:
    names = [one.name for one in dimension_groups(DIMENSIONS)]
    assert names == ["domain/facts", "domain", "general", "overall"]
    assert [one.name for one in dimension_groups(["a/b/x", "a/b/y", "c"])] == ["a", "overall"]
    assert [one.name for one in dimension_groups(["wording"])] == ["overall"]
    assert [one.name for one in dimension_groups(["a/x", "a/y"])] == ["overall"]


def test_published_groups_are_the_equally_weighted_means_of_their_dimensions() -> None:
    # Tables 9 and 4 of the paper: a group's figure is the mean of its dimensions, whatever their numbers of questions.
    table_9 = [66.0, 22.5, 38.5, 48.0, 19.0, 94.7, 98.0, 68.0, 64.0, 86.0, 70.0, 76.0]
    names = [
        *(f"domain/factuality/{at}" for at in range(5)),
        "domain/creativity",
        *(f"general/{at}" for at in range(6)),
    ]
    rows = (GradeRow(name, name, "A", "u", value, 100.0) for name, value in zip(names, table_9, strict=True))
    found = grade_candidates(GradeSums(GradeTable.from_rows(rows), None))[0].grade
    assert [round(found[name].value or 0, 1) for name in ("domain/factuality", "domain", "general")] == [
        38.8,
        48.1,
        77.0,
    ]
    assert found["overall"].value == pytest.approx(62.6, abs=0.05)


def test_a_dimension_without_weight_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"dimension 'domain/facts/terms' has no weight"):
        GradeSums(table_of([(3, "A", "u", 1)]), {"domain": 1.0})


def test_all_right_is_not_certain() -> None:
    rows: Rows = [(4 * k, q, i, 3) for k in range(20) for q in "AB" for i in "uvw"]
    sums = GradeSums(table_of(rows), WEIGHTS)
    figure = grade_candidates(sums)[0].grade["overall"]
    assert (figure.value, figure.questions) == (pytest.approx(100), 20)
    assert figure.low == pytest.approx(83.9, abs=0.1)  # Wilson's of 20 of 20
    pair = compare_candidates(sums)[-1]
    assert (pair.value, pair.p) == (pytest.approx(0), 1.0)
    assert pair.low < -10 < 10 < pair.high


def test_differences_are_those_of_common_questions() -> None:
    rows: Rows = [(0, "A", "u", 3), (4, "A", "u", 0), (0, "B", "u", 1), (8, "B", "u", 3)]
    pair = compare_candidates(GradeSums(table_of(rows), WEIGHTS))[-1]
    # B is better over all; on the one question that both were asked, A is.
    assert (pair.first, pair.second, pair.questions) == ("B", "A", 1)
    assert pair.value == pytest.approx(-100 * 2 / 3)


def test_intervals_cover_as_often_as_they_say() -> None:
    # Questions differ in difficulty, three graders grade each, three dimensions of unequal size and weight.
    draws, weights = np.random.default_rng(11), np.array([1.0, 2.0, 1.0])
    strata = np.repeat(np.arange(3), (6, 12, 18))
    means = np.array([0.5, 0.85, 0.8])[strata]
    attainable, cluster = np.full(len(strata), 9.0), np.arange(len(strata))
    truth = float(weights @ [0.5, 0.85, 0.8] / 4)
    held = held_differences = 0
    for _ in range(400):
        ease = draws.beta(2 * means, 2 * (1 - means))
        first, second = (draws.binomial(3, np.c_[ease, ease, ease] * fall).sum(axis=1) for fall in (1.0, 0.9))
        one, other = (weighted_ratio(given.astype(float), attainable, strata, cluster, weights)
                      for given in (first, second))  # fmt: skip
        assert one is not None
        assert other is not None
        ends, apart = one.bounded_interval(), ratio_difference(one, other).ends()
        assert apart is not None
        held += ends.low <= truth <= ends.high
        held_differences += apart.low <= 0.1 * truth <= apart.high
    assert held >= 0.92 * 400
    assert held_differences >= 0.92 * 400
    assert not math.isnan(ends.low)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 3), st.floats(0, 1))
def test_the_interval_of_a_difference_holds_0_exactly_where_p_says_that_there_may_be_none(
    seed: int, questions: int, dimensions: int, fall: float
) -> None:
    draws = np.random.default_rng(seed)
    strata = np.arange(questions) % dimensions
    first = draws.integers(0, 4, questions).astype(float)
    second = np.clip(first - (draws.random(questions) < fall) * 2.0, 0, 3)
    attainable, cluster, weights = np.full(questions, 3.0), np.arange(questions), np.ones(dimensions)
    one, other = (weighted_ratio(given, attainable, strata, cluster, weights) for given in (first, second))
    assert one is not None
    assert other is not None
    found = ratio_difference(one, other)
    for level in (0.5, 0.9, 0.95, 0.99):
        ends = found.ends(level)
        assert (ends is None) is (found.p is None) is (questions == 1)
        if ends is not None and found.p is not None:
            assert -1.0 <= ends.low <= found.value <= ends.high <= 1.0
            assert (not ends.low <= 0.0 <= ends.high) is (found.p < 1.0 - level)
            assert ends.high > ends.low


def test_dimensions_with_one_question_show_no_interval_that_their_p_contradicts() -> None:
    rows = [
        GradeRow(f"d{at}", f"q{at}", candidate, str(grader), float(value), 3.0)
        for at, values in enumerate([(3, 0), (2, 1), (3, 2), (1, 1)])
        for candidate, value in zip("AB", values, strict=True)
        for grader in range(2)
    ]
    for one in compare_candidates(GradeSums(GradeTable.from_rows(rows), None)):
        assert one.p_corrected is not None
        assert one.low is not None
        assert one.high is not None
        assert (not one.low <= 0.0 <= one.high) is (one.p_corrected < 0.05)
