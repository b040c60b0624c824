"""Which option is chosen, and how sure the share of right ones is."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from viva.scoring.accuracy import Accuracy, ProbeAnswer, choose_letter, choose_normalized, choose_raw
from viva.scoring.aggregates import Mean
from viva.scoring.intervals import Estimate, welch, wilson

relaxed = settings(deadline=None, max_examples=60)
RIGHT, WRONG, UNANSWERED = ProbeAnswer(True), ProbeAnswer(False), ProbeAnswer(False, unanswered=True)
answers = st.lists(st.sampled_from([RIGHT, WRONG, UNANSWERED]), max_size=40)


def accuracy_of(given_answers: list[ProbeAnswer]) -> Accuracy:
    accuracy = Accuracy()
    for answer in given_answers:
        accuracy.add(answer)
    return accuracy


def facts(accuracy: Accuracy) -> tuple[int, int, int, Estimate | None, Estimate | None]:
    return accuracy.right, accuracy.wrong, accuracy.unanswered, accuracy.of_all(), accuracy.of_answered()


# --- choosing ---------------------------------------------------------------------------------------------------------


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


# --- counting ---------------------------------------------------------------------------------------------------------


def test_an_unanswered_item_is_counted_and_not_wrong() -> None:
    accuracy = accuracy_of([RIGHT, RIGHT, RIGHT, WRONG, UNANSWERED])
    assert (accuracy.right, accuracy.wrong, accuracy.unanswered) == (3, 1, 1)
    every, answered = accuracy.of_all(), accuracy.of_answered()
    assert every is not None
    assert answered is not None
    assert (every.value, answered.value) == (0.6, 0.75)


def test_nothing_has_no_accuracy() -> None:
    assert facts(Accuracy()) == (0, 0, 0, None, None)
    silent = accuracy_of([UNANSWERED])
    assert silent.of_answered() is None
    assert silent.of_all() == wilson(0, 1)


@relaxed
@given(st.lists(answers, min_size=1, max_size=4), st.permutations(range(4)))
def test_any_split_and_order_gives_the_same_accuracy(parts: list[list[ProbeAnswer]], order: list[int]) -> None:
    merged = Accuracy()
    for index in order:
        if index < len(parts):
            merged.merge(accuracy_of(parts[index]))
    assert facts(merged) == facts(accuracy_of([answer for part in parts for answer in part]))


def test_merging_leaves_the_other_as_it_was() -> None:
    one, other = accuracy_of([RIGHT]), accuracy_of([WRONG, UNANSWERED])
    before = facts(other)
    one.merge(other)
    one.add(WRONG)
    assert facts(other) == before
    assert (one.right, one.wrong, one.unanswered) == (1, 2, 1)


@relaxed
@given(st.integers(1, 20_000), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_is_that_of_wilson(whole: int, share: float, level: float) -> None:
    part = round(share * whole)
    found = wilson(part, whole, level)
    assert found is not None
    z, p = NormalDist().inv_cdf((1 + level) / 2), part / whole
    centre = (p + z * z / (2 * whole)) / (1 + z * z / whole)
    half = z * math.sqrt(p * (1 - p) / whole + z * z / (4 * whole * whole)) / (1 + z * z / whole)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), abs=1e-9)
    interval = binomtest(part, whole).proportion_ci(level, method="wilson")
    assert (found.value, found.low, found.high) == (p, interval.low, interval.high)


def one_number() -> Mean:
    mean = Mean()
    mean.add(1.0)
    return mean


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: choose_letter([]), r"options: of shape \(0,\)"),
        (lambda: choose_letter([-1.0, math.nan]), "options: .*nan"),
        (lambda: choose_raw([3.5, -1.0]), "options: .*3.5"),
        (lambda: choose_raw([-math.inf, -math.inf]), "options: all are -inf"),
        (lambda: choose_normalized([-1.0, -2.0], [3]), "lengths: 1 for 2 options"),
        (lambda: choose_normalized([-1.0, -2.0], [3, 0]), r"lengths: \[3, 0\]"),
        (lambda: ProbeAnswer(True, unanswered=True), "right and unanswered"),
        (lambda: accuracy_of([RIGHT]).of_all(1.0), "level is 1.0"),
        (lambda: Accuracy().of_answered(-1.0), "level is -1.0"),
        (lambda: wilson(3, 2), "3 of 2 is no share"),
        (lambda: welch(one_number(), one_number()), "first: 1 numbers"),
    ],
)
def test_what_has_no_value_is_refused_by_name(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
