"""Severity of graders and agreement between them: planted values are recovered, coefficients are those of packages."""

from __future__ import annotations

import math
import warnings
from random import Random

import krippendorff as reference
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irrCAC.raw import CAC

from viva.scenarios.lalaeval.candidate_grades import GradeSums, corrected_grades, grade_candidates
from viva.scoring.agreement import krippendorff_alpha
from viva.scoring.graders import (
    AgreementCoefficient,
    GradeRow,
    GradeTable,
    fit_severity,
    grader_agreement,
    mean_coefficient,
)

GRADERS = "uvwx"
PLANTED = dict(zip(GRADERS, (-0.3, -0.1, 0.0, 0.4), strict=True))
MATRICES = st.lists(
    st.lists(st.none() | st.sampled_from([0.0, 1.0, 2.0, 3.0]), min_size=4, max_size=4), min_size=2, max_size=15
)


def round_of(draws: np.random.Generator, questions: int, overlap: int, unfair: bool = False) -> GradeTable:
    """Three candidates, the later the better; graders of the planted severities. ``unfair``: the severest never grades
    the first candidate.
    """
    rows = []
    for k in range(questions):
        chosen, easy = draws.permutation(list(GRADERS))[:overlap], draws.normal(0, 0.5)
        for q in range(3):
            deserved = 4 + q + easy + draws.normal(0, 0.4)
            rows += [
                GradeRow("d", f"k{k}", f"q{q}", i, deserved - PLANTED[i] + draws.normal(0, 0.5), 9.0)
                for i in chosen
                if not (unfair and i == "x" and q == 0)
            ]
    return GradeTable.from_rows(rows, graders=GRADERS, candidates=["q0", "q1", "q2"])


def test_planted_severities_lie_in_their_intervals() -> None:
    draws, held, trials = np.random.default_rng(2), 0, 60
    for _ in range(trials):
        for one in fit_severity(round_of(draws, 25, 3)).graders:
            assert one.low is not None
            assert one.high is not None
            held += one.low <= PLANTED[one.grader] <= one.high
    assert held >= 0.93 * trials * len(GRADERS)


def test_corrected_grades_do_not_depend_on_who_graded() -> None:
    # The severest grader never saw the first candidate, who therefore looks better than deserved.
    draws, raw, corrected, held = np.random.default_rng(4), [], [], 0
    for _ in range(60):
        table = round_of(draws, 25, 3, unfair=True)
        raw.append(grade_candidates(GradeSums(table, None))[0].grade["overall"].value)
        figure = corrected_grades(table, fit_severity(table))[0]["overall"]
        corrected.append(figure.value)
        assert figure.low is not None
        assert figure.high is not None
        held += figure.low <= 100 * 4 / 9 <= figure.high
    assert np.mean(raw) > 100 * 4 / 9 + 0.8
    assert np.mean(corrected) == pytest.approx(100 * 4 / 9, abs=0.7)
    assert held >= 0.93 * 60


def test_difficult_questions_make_nobody_severe() -> None:
    rows = [
        GradeRow("d", f"k{k}", q, i, value - (i == "x"), 9.0)
        for k, value in enumerate((1.0, 8.0, 2.0, 9.0))
        for q in "AB"
        for i in ("ux" if k % 2 else "uvw")
    ]
    found = {one.grader: one.severity for one in fit_severity(GradeTable.from_rows(rows)).graders}
    assert found["u"] == pytest.approx(found["v"], abs=1e-9)
    assert (found["x"] or 0) - (found["u"] or 0) == pytest.approx(1.0)
    assert sum(value or 0.0 for value in found.values()) == pytest.approx(0.0, abs=1e-9)


def test_groups_that_share_nothing_are_told_and_not_compared() -> None:
    rows = [GradeRow("d", f"k{k}", "A", i, value, 3.0) for k, i, value in (
        (0, "u", 1.0), (0, "v", 2.0), (1, "u", 0.0), (1, "v", 2.0), (2, "w", 3.0), (2, "x", 1.0), (3, "y", 2.0),
    )]  # fmt: skip
    fit = fit_severity(GradeTable.from_rows(rows))
    assert fit.groups == 2
    assert [one.group for one in fit.graders] == [1, 1, 2, 2, None]
    assert [one.severity for one in fit.graders] == [
        pytest.approx(0.75), pytest.approx(-0.75), pytest.approx(-1.0), pytest.approx(1.0), None
    ]  # fmt: skip


def test_full_agreement_of_few_is_not_certain() -> None:
    rows = [GradeRow("d", f"k{k}", "A", i, 2.0 * (k % 2), 3.0) for k in range(4) for i in "uv"]
    for one in fit_severity(GradeTable.from_rows(rows)).graders:
        assert one.severity == pytest.approx(0.0, abs=1e-12)
        assert one.high is not None
        assert one.high > 0.5


def test_models_are_measured_against_people() -> None:
    rows = [GradeRow("d", f"k{k}", "A", i, v, 3.0) for k in range(5) for i, v in (("u", 2.0), ("v", 2.0), ("m", 1.0))]
    found = fit_severity(GradeTable.from_rows(rows, models=["m"])).graders
    assert [one.severity for one in found] == [pytest.approx(0.0, abs=1e-12), pytest.approx(0.0, abs=1e-12), 1.0]


def test_without_grades_there_is_no_severity() -> None:
    fit = fit_severity(GradeTable.from_rows([GradeRow("d", "k", "A", "u", None, 3.0)]))
    assert (fit.groups, fit.graders[0].severity, fit.noise) == (0, None, None)


# -- agreement --------------------------------------------------------------------------------------------------------


def table_of(matrix: list[list[float | None]]) -> GradeTable:
    return GradeTable.from_rows(
        GradeRow("d", f"k{k}", "A", i, value, 3.0)
        for k, row in enumerate(matrix)
        for i, value in zip(GRADERS, row, strict=True)
    )


@given(MATRICES)
@settings(max_examples=60, deadline=None)
def test_coefficients_are_those_of_the_packages(matrix: list[list[float | None]]) -> None:
    found = grader_agreement(table_of(matrix))
    pairable = [row for row in matrix if sum(value is not None for value in row) > 1]
    numbers = np.array([[math.nan if value is None else value for value in row] for row in matrix])
    assert found.answers == len(pairable)
    defined = len({value for row in pairable for value in row if value is not None}) > 1
    for scale, coefficient in found.alpha.items():
        ours = krippendorff_alpha(matrix, scale).value
        assert coefficient.value == (None if ours is None else pytest.approx(ours, abs=1e-9))
        if defined:
            expected = reference.alpha(reliability_data=numbers.T, level_of_measurement=scale)
            assert coefficient.value == pytest.approx(expected, abs=1e-9)
    categories = sorted({value for row in matrix for value in row if value is not None})
    rated = sum(any(value is not None for value in row) for row in matrix)
    if len(categories) > 1 and pairable and rated > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for weights, coefficient in (("identity", found.ac1), ("quadratic", found.ac2)):
                # Without being told the categories, the package takes a missing rating for one under pandas 3.
                theirs = CAC(pd.DataFrame(numbers), weights=weights, categories=categories, digits=9).gwet()
                assert coefficient.value == pytest.approx(theirs["est"]["coefficient_value"], abs=1e-8)


def test_missing_ratings_count_as_gwet_has_them() -> None:
    """By hand (Gwet 2014): pairs that agree of answers with two grades or more; shares of grades of all answers."""
    found = grader_agreement(table_of([[None, None, None, 0.0], [None, None, 0.0, 1.0]]))
    # No pair agrees; 0 has (1 + 1/2) / 2 of the grades: by chance 3/4 · 1/4 + 1/4 · 3/4 = 3/8 agree.
    assert found.ac1.value == found.ac2.value == pytest.approx((0 - 3 / 8) / (1 - 3 / 8))
    found = grader_agreement(table_of([[0.0, 0.0, 1.0, None], [2.0, 2.0, None, None], [None, 1.0, None, None]]))
    shares = [2 / 9, (1 / 3 + 1) / 3, 1 / 3]
    chance = sum(one * (1 - one) for one in shares)
    assert found.ac1.value == pytest.approx(((1 / 3 + 1) / 2 - chance / 2) / (1 - chance / 2))
    # A distance of 1 among 2 weighs 3/4: each of two disagreeing pairs of the first answer agrees by so much.
    chance *= (3 + 4 * 3 / 4) / 6
    assert found.ac2.value == pytest.approx(((1 / 3 + 2 / 3 * 3 / 4 + 1) / 2 - chance) / (1 - chance))


@given(MATRICES, st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_order_and_names_of_graders_change_no_coefficient(matrix: list[list[float | None]], random: Random) -> None:
    shuffled = [random.sample(row, 4) for row in random.sample(matrix, len(matrix))]
    one, other = (grader_agreement(table_of(each)) for each in (matrix, shuffled))
    for scale, coefficient in one.alpha.items():
        for field in ("value", "low", "high"):
            expected = getattr(other.alpha[scale], field)
            assert getattr(coefficient, field) == (None if expected is None else pytest.approx(expected, abs=1e-7))


def test_intervals_of_alpha_cover_the_value_of_many_questions() -> None:
    draws = np.random.default_rng(8)

    def graded(questions: int) -> GradeTable:
        true = draws.integers(0, 4, questions)
        grades = np.where(draws.random((questions, 4)) < 0.7, true[:, None], draws.integers(0, 4, (questions, 4)))
        return table_of([[float(value) for value in row] for row in grades])

    truth = grader_agreement(graded(4_000)).alpha["ordinal"].value or 0.0
    held = 0
    for _ in range(100):
        found = grader_agreement(graded(25)).alpha["ordinal"]
        held += (found.low or -1) <= truth <= (found.high or 1)
    assert held >= 90


def test_dimensions_are_averaged_by_their_answers() -> None:
    parts = [
        (AgreementCoefficient(0.5, 0.3, 0.7, 0.1), 30),
        (AgreementCoefficient(0.8, 0.7, 0.9, 0.05), 10),
        (AgreementCoefficient(None), 7),
    ]
    found = mean_coefficient(parts)
    assert found.value == pytest.approx(0.575)
    assert found.se == pytest.approx(math.hypot(0.1 * 30 / 40, 0.05 * 10 / 40))
