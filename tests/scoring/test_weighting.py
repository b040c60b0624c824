"""Scores joined by averages: the mean that they are, gaps, and weights fitted on other rows than they are tested on."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from viva.scoring.correlation import spearman
from viva.scoring.juries import assign_folds, average_columns, average_out_of_fold, correlation_weights

_SHARES = st.floats(0, 1, allow_nan=False)
_ROWS = st.lists(st.tuples(*[st.none() | _SHARES] * 3), min_size=1, max_size=20)


@given(_ROWS, st.lists(st.floats(0, 1), min_size=3, max_size=3))
@example([(None, 0.5, None)], [0.0, 5e-324, 0.0])
def test_an_average_lies_within_what_it_averages_and_skips_gaps(
    rows: list[tuple[float | None, ...]], weights: list[float]
) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    for row, joined in zip(rows, average_columns(columns, weights), strict=True):
        held = [value for value, weight in zip(row, weights, strict=True) if value is not None and weight > 0]
        if held:
            assert joined is not None
            assert min(held) - 1e-9 <= joined <= max(held) + 1e-9
        else:
            assert joined is None


def test_averages_by_hand() -> None:
    columns = [[0.0, 0.5, None], [1.0, None, None]]
    assert average_columns(columns) == [0.5, 0.5, None]
    assert average_columns(columns, [3.0, 1.0]) == [0.25, 0.5, None]
    with pytest.raises(ValueError, match="a weight of -1"):
        average_columns(columns, [1.0, -1.0])
    with pytest.raises(ValueError, match="1 weights for 2 columns"):
        average_columns(columns, [1.0])


def test_weights_are_correlations_and_what_runs_against_people_weighs_nothing() -> None:
    ratings = [1.0, 2.0, 3.0, 4.0, None]
    assert correlation_weights([[0.1, 0.2, 0.3, 0.4, 0.0], [4, 3, 2, 1, 9], [1, 3, 2, 4, 0]], ratings) == [
        1.0, 0.0, pytest.approx(0.8),
    ]  # fmt: skip
    assert correlation_weights([[4, 3, 2, 1, 0]], ratings) == [1.0]


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40), st.integers(2, 6), st.integers(0, 99))
def test_groups_stay_together_and_folds_are_even(groups: list[str], folds: int, seed: int) -> None:
    places = assign_folds(groups, folds, seed)
    by_group = {group: {place for one, place in zip(groups, places, strict=True) if one == group} for group in groups}
    assert all(len(found) == 1 for found in by_group.values())
    sizes = [sum(place in found for found in by_group.values()) for place in range(folds)]
    assert max(sizes) - min(sizes) <= 1


def _study(seed: int) -> tuple[list[list[float | None]], list[float | None], list[str]]:
    """40 examples: six assistants, of which two see something of the truth, each with noise of its own."""
    draw = random.Random(seed)
    truth: list[float | None] = [draw.gauss(0, 1) for _ in range(40)]
    columns: list[list[float | None]] = [
        [(0.5 if place < 2 else 0.0) * (one or 0.0) + draw.gauss(0, 1) for one in truth] for place in range(6)
    ]
    return columns, truth, [str(place) for place in range(40)]


def test_weights_fitted_on_what_they_score_look_better_than_they_are() -> None:
    inside, outside, fresh = [], [], []
    for seed in range(50):
        columns, truth, groups = _study(seed)
        weights = correlation_weights(columns, truth)
        held_out = average_out_of_fold(columns, truth, assign_folds(groups, 5, seed))
        others, other_truth, _ = _study(1000 + seed)
        for scores, rated, found in (
            (average_columns(columns, weights), truth, inside),
            (held_out, truth, outside),
            (average_columns(others, weights), other_truth, fresh),
        ):
            both = spearman([one or 0.0 for one in scores], [one or 0.0 for one in rated])
            assert both is not None
            found.append(both.value)
    means = [sum(found) / len(found) for found in (inside, outside, fresh)]
    assert means[0] - means[1] > 0.05
    # Fresh data say what weights are worth. Out of fold is nearer to it, and errs to the safe side.
    assert means[1] < means[2] < means[0]
    assert means[2] - means[1] < means[0] - means[2], means
