"""Which option is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.scoring.accuracy import choose_letter, choose_normalized, choose_raw, choose_unconditional
from viva.scoring.aggregates import Mean
from viva.scoring.intervals import welch

relaxed = settings(deadline=None, max_examples=60)


def test_the_likeliest_is_chosen_and_length_can_change_it() -> None:
    sums, texts = [-6.0, -9.0, -7.0], ["iron", "carbon dioxide", "oxygen"]
    assert choose_letter(sums) == choose_raw(sums) == 0
    assert choose_normalized(sums, [len(text) for text in texts]) == 1


def test_characters_and_bytes_are_different_lengths() -> None:
    sums, texts = [-6.0, -6.0], ["水是液体", "H2O 0"]
    assert choose_normalized(sums, [len(text) for text in texts]) == 1
    assert choose_normalized(sums, [len(text.encode()) for text in texts]) == 0


# Few values, so that ties are many.
@relaxed
@given(st.lists(st.tuples(st.integers(-4, 0).map(float), st.integers(1, 3)), min_size=1, max_size=8))
def test_of_equals_the_first_is_chosen(options: list[tuple[float, int]]) -> None:
    sums, lengths = [total for total, _ in options], [length for _, length in options]
    assert choose_letter(sums) == choose_raw(sums) == sums.index(max(sums))
    ratios = [total / length for total, length in options]
    assert choose_normalized(sums, lengths) == ratios.index(max(ratios))


def test_an_option_that_cannot_be_said_is_not_chosen() -> None:
    assert choose_letter([-math.inf, -3.0]) == 1
    assert choose_normalized([-math.inf, -3.0], [9, 1]) == 1


def one_number() -> Mean:
    mean = Mean()
    mean.add(1.0)
    return mean


@case_table(
    ("call", "said"),
    [
        (lambda: choose_letter([]), r"options: shape \(0,\)"),
        (lambda: choose_letter([-1.0, math.nan]), "options: .*nan"),
        (lambda: choose_raw([3.5, -1.0]), "options: .*3.5"),
        (lambda: choose_raw([-math.inf, -math.inf]), "options: all are -inf"),
        (lambda: choose_normalized([-1.0, -2.0], [3]), "lengths: 1 for 2 options"),
        (lambda: choose_normalized([-1.0, -2.0], [3, 0]), r"lengths: \[3, 0\]"),
        (lambda: welch(one_number(), one_number()), "first: 1 numbers"),
    ],
)
def test_what_has_no_value_is_refused_by_name(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_the_option_that_the_question_raises_most_is_chosen_whatever_its_own_likelihood() -> None:
    assert choose_unconditional([-3.0, -9.0], [-1.0, -9.5]) == 1
    assert choose_unconditional([-3.0, -9.0], [-3.0, -9.0]) == 0
    with pytest.raises(ValueError, match="each option needs one"):
        choose_unconditional([-3.0, -9.0], [-3.0])
    with pytest.raises(ValueError, match="possible without the question"):
        choose_unconditional([-3.0, -9.0], [-3.0, -math.inf])
