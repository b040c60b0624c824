"""The regression of one score on another: lines, correlations, and which points are said to lie off the line."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from viva.scoring.correlation import Point, departures, independent_errors, pearson, robust_line

NAMES = "abcdefgh"


def points(xs: list[float], ys: list[float], error: float = 0.0) -> list[Point]:
    return [Point(name, x, y, error, error) for name, x, y in zip(NAMES, xs, ys, strict=False)]


def test_two_cheaters_of_six_are_found_below_the_line_of_the_others() -> None:
    # As the lab's ideal examinees score: four on a line, two at full accuracy that talk like the second.
    found = robust_line(points([46, 63, 82, 100, 100, 100], [32, 60, 82, 100, 63, 59], 2.0))
    assert found.below == ["e", "f"]
    assert found.above == []
    assert found.slope == pytest.approx(stats.linregress([46, 63, 82, 100], [32, 60, 82, 100]).slope)
    # Least squares through all six would leave the worse of both within its spread.
    plain = stats.linregress([46, 63, 82, 100, 100, 100], [32, 60, 82, 100, 63, 59])
    residuals = [
        y - plain.intercept - plain.slope * x for x, y in [(46, 32), (63, 60), (82, 82), (100, 100), (100, 59)]
    ]
    assert abs(residuals[-1]) < 2 * stats.tstd(residuals)


def test_a_point_above_the_line_is_no_suspect() -> None:
    found = robust_line(points([10, 20, 30, 40, 50], [11, 19, 31, 90, 49]))
    assert (found.below, found.above) == ([], ["d"])


def test_a_points_own_error_is_part_of_what_is_expected_of_it() -> None:
    perfect = points([10, 20, 30, 40], [10, 20, 30, 39])
    assert robust_line(perfect).below == ["d"]
    unsure = [*perfect[:3], Point("d", 40, 39, 0, 2)]
    assert robust_line(unsure).below == []
    # An error in x counts as far as the line is steep.
    assert robust_line([*perfect[:3], Point("d", 40, 39, 2, 0)]).below == []


@given(st.lists(st.integers(0, 100), min_size=3, max_size=8, unique=True), st.integers(-5, 5), st.integers(-50, 50))
def test_points_on_a_line_give_that_line_and_no_outlier(xs: list[int], slope: int, intercept: int) -> None:
    made = points([float(x) for x in xs], [float(intercept + slope * x) for x in xs], 1e-6)
    found = robust_line(made)
    assert found.slope == pytest.approx(slope, abs=1e-9)
    assert found.intercept == pytest.approx(intercept, abs=1e-7)
    assert found.below == found.above == []


coordinates = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=3, max_size=8)


@given(coordinates, st.randoms(use_true_random=False))
def test_the_order_of_the_points_does_not_matter_and_the_scale_only_scales(
    pairs: list[tuple[int, int]], chance: random.Random
) -> None:
    assume(len({x for x, _ in pairs}) > 1)
    made = points([float(x) for x, _ in pairs], [float(y) for _, y in pairs], 1.0)
    found = robust_line(made)
    other = robust_line(chance.sample(made, len(made)))
    assert other.slope == pytest.approx(found.slope, abs=1e-9)
    assert set(other.below) == set(found.below)
    doubled = robust_line([Point(p.name, p.x, 2 * p.y, p.x_error, 2 * p.y_error) for p in made])
    assert doubled.slope == pytest.approx(2 * found.slope, abs=1e-9)
    assert doubled.deviations == pytest.approx(found.deviations, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5), st.integers(1, 40)), min_size=5, max_size=5))
def test_independent_errors_add_up_by_their_weights_in_the_line(errors: list[tuple[float, float, int]]) -> None:
    xs = [20.0, 40.0, 60.0, 80.0, 90.0]
    made = [Point(name, x, x - 40 * (name == "e"), *own[:2]) for name, x, own in zip("abcde", xs, errors, strict=True)]
    line = robust_line([Point(point.name, point.x, point.y) for point in made])
    counts = {name: own[2] for name, own in zip("abcde", errors, strict=True)}
    test = departures(line, made, independent_errors(made, counts), scatter=5.0)["e"]
    fitted = xs[:4]
    mean = sum(fitted) / 4
    total = sum((x - mean) ** 2 for x in fitted)
    weights = [1 / 4 + (90 - mean) * (x - mean) / total for x in fitted]
    variance = 25 * (1 + 1 / 4 + (90 - mean) ** 2 / total)
    # An answer by itself leaves no scatter, but its error is known.
    for weight, own in zip([*weights, -1.0], errors, strict=True):
        variance += weight**2 * (own[0] ** 2 + own[1] ** 2)
    assert test.value == pytest.approx(-40)
    assert test.se == pytest.approx(variance**0.5)


def test_what_cannot_have_a_line_is_refused() -> None:
    for wrong, problem in [
        (points([1, 2], [1, 2]), "2 points"),
        (points([5, 5, 5], [1, 2, 3]), "all points have the value 5"),
        ([Point("a", x, x) for x in (1.0, 2.0, 3.0)], "same name"),
    ]:
        with pytest.raises(ValueError, match=problem):
            robust_line(wrong)


def test_pearson_is_scipys_and_nothing_where_there_is_no_spread() -> None:
    found = pearson([1, 2, 3, 5], [2, 1, 4, 6])
    assert found == pytest.approx(tuple(stats.pearsonr([1, 2, 3, 5], [2, 1, 4, 6])))
    assert pearson([1, 1, 1], [1, 2, 3]) is None
    assert pearson([1, 2], [1, 2]) is None
    with pytest.raises(ValueError, match="2 values against 3"):
        pearson([1, 2], [1, 2, 3])
