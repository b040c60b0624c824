"""Witnesses of contamination: against all permutations on small cases, on clean and contaminated models; refusals."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, pairwise, permutations, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import fisher_exact, mannwhitneyu, rankdata, ttest_1samp

from viva.scoring.evidence.context_gain import context_falls, context_gain
from viva.scoring.evidence.evidence import Evidence, compare_models
from viva.scoring.evidence.exchangeability import exchangeability, sharded_t
from viva.scoring.evidence.guessing import guessing, is_match, normalize, rouge_l
from viva.scoring.evidence.option_order import option_order
from viva.scoring.evidence.peakedness import edit_distance, peak, peakedness
from viva.scoring.evidence.permutation import compare_sets, exchange_between, exchange_within

BENCH = Path(__file__).parents[2] / "benches" / "court_nulls.py"
Numbers = NDArray[np.float64]
relaxed = settings(deadline=None, max_examples=40)
# Few values, so that ties are many.
values = st.integers(-3, 3).map(float)
rows = st.lists(st.lists(values, min_size=2, max_size=4), min_size=1, max_size=5)
samples = st.lists(values, min_size=1, max_size=5)
tokens = st.lists(st.sampled_from("abc"), max_size=9)


def share_at_least(sums: Sequence[float], observed: float) -> float:
    return sum(value >= observed - 1e-9 for value in sums) / len(sums)


# --- exchanges --------------------------------------------------------------------------------------------------------


@relaxed
@given(rows)
def test_exchanges_within_rows_are_all_tried(table: list[list[float]]) -> None:
    statistic, p = exchange_within(table)
    sums = [math.fsum(choice) for choice in product(*table)]
    observed = math.fsum(row[0] for row in table)
    assert p == pytest.approx(share_at_least(sums, observed), rel=1e-12)
    spread = float(np.std(sums))
    assert statistic == pytest.approx((observed - np.mean(sums)) / spread if spread else 0.0, abs=1e-9)


@relaxed
@given(samples, samples)
def test_exchanges_between_sets_are_all_tried(own: list[float], other: list[float]) -> None:
    pooled = own + other
    sums = [math.fsum(pooled[index] for index in indices) for indices in combinations(range(len(pooled)), len(own))]
    assert exchange_between(own, other) == pytest.approx(share_at_least(sums, math.fsum(own)), rel=1e-9)


@relaxed
@given(st.lists(st.booleans(), min_size=1, max_size=300), st.lists(st.booleans(), min_size=1, max_size=300))
def test_exchanges_of_yes_and_no_are_fishers_test(own: list[bool], other: list[bool]) -> None:
    table = [[sum(own), len(own) - sum(own)], [sum(other), len(other) - sum(other)]]
    assert exchange_between(own, other) == pytest.approx(fisher_exact(table, alternative="greater").pvalue, rel=1e-6)


def test_exchanges_of_ranks_are_the_mann_whitney_test() -> None:
    chance = np.random.default_rng(3)
    own, other = chance.normal(0.5, 1.0, 12), chance.normal(size=15)
    ranks = rankdata([*own, *other])
    exact = mannwhitneyu(own, other, alternative="greater", method="exact").pvalue
    assert exchange_between(ranks[:12], ranks[12:]) == pytest.approx(exact, rel=1e-9)


def test_random_exchanges_agree_with_all_exchanges() -> None:
    chance = np.random.default_rng(5)
    table = chance.normal(size=(30, 4))
    table[:, 0] += 0.4
    _, p = exchange_within(list(table))  # 4^30 sums
    sums = table[np.arange(30), chance.integers(0, 4, (40_000, 30))].sum(1)
    assert p == pytest.approx(share_at_least(sums.tolist(), table[:, 0].sum()), abs=0.006)
    own, other = chance.normal(0.3, 1.0, 40), chance.normal(size=50)
    pooled = np.concatenate([own, other])
    sums = np.array([chance.permutation(pooled)[:40].sum() for _ in range(20_000)])
    assert exchange_between(own, other) == pytest.approx(share_at_least(sums.tolist(), own.sum()), abs=0.008)


def test_a_p_value_is_never_0() -> None:
    ones, zeros = np.ones(900), np.zeros(900)
    assert 0.0 < exchange_between(ones, zeros) < 1e-300
    assert exchange_within([[0.0, -1.0]] * 60)[1] == pytest.approx(2.0**-60)
    chance = np.random.default_rng(7)
    assert exchange_between(chance.random(60) + 2, chance.random(60)) == 1e-4
    assert exchange_within(list(chance.random((60, 4)) + np.array([2, 0, 0, 0])))[1] == 1e-4


@case_table("size", [3, 40])  # all exchanges, and random ones
def test_neither_the_order_of_units_nor_their_scale_matters(size: int) -> None:
    chance = np.random.default_rng(size)
    table, own, other = chance.normal(size=(size, 5)), chance.normal(size=size), chance.normal(size=size + 2)
    mixed = chance.permutation(table)
    mixed[:, 1:] = mixed[:, :0:-1]
    assert exchange_within(list(mixed))[1] == exchange_within(list(table))[1]
    assert exchange_within(list(mixed))[0] == pytest.approx(exchange_within(list(table))[0])
    assert exchange_within(list(8 * table - 1000))[1] == pytest.approx(exchange_within(list(table))[1], abs=2e-4)
    assert exchange_between(own[::-1], chance.permutation(other)) == exchange_between(own, other)
    names, others = [f"a{index // 2}" for index in range(size)], [f"b{index // 3}" for index in range(size + 2)]
    result = compare_sets("w", own, other, names, others)
    renamed = compare_sets("w", own, other, [name + "x" for name in names], [name + "y" for name in others])
    assert renamed == result


def test_clusters_are_units_and_common_clusters_are_pairs() -> None:
    own, other = [1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0]
    result = compare_sets("w", own, other, ["a", "a", "b", "c"], ["d", "d", "e"])
    means, others = [0.5, 1.0, 1.0], [0.0, 1.0]
    assert (result.n, result.statistic, result.effect) == (3, pytest.approx(5 / 6), pytest.approx(5 / 6 - 0.5))
    assert result.p == exchange_between(means, others)
    pairs = compare_sets("w", own, other, ["a", "a", "b", "c"], ["c", "b", "a"])
    assert (pairs.n, pairs.p) == (3, exchange_within([[0.5, 1.0], [1.0, 0.0], [1.0, 0.0]])[1])
    with pytest.raises(ValueError, match=r"clusters: 'b' is in one set only"):
        compare_sets("w", [1.0, 2.0], [1.0], ["a", "b"], ["a"])
    with pytest.raises(ValueError, match=r"reference_clusters: missing"):
        compare_sets("w", [1.0, 2.0], [1.0], ["a", "b"])
    with pytest.raises(ValueError, match=r"reference_clusters: 2 for 1 values"):
        compare_sets("w", [1.0], [1.0], ["a"], ["b", "c"])


def test_a_model_among_clean_models_has_its_rank() -> None:
    result = compare_models("w", 0.5, [0.1, 0.5, 0.9, 0.2])
    assert (result.witness, result.statistic, result.p, result.n) == ("w", 0.5, 3 / 5, 4)
    assert result.effect == pytest.approx(0.5 - 1.7 / 4)
    assert compare_models("w", 1.0, [0.1] * 19).p == 1 / 20


# --- exchangeability --------------------------------------------------------------------------------------------------


def likelihood(order: Sequence[int], single: Numbers, pairs: Numbers) -> float:
    return -100 + math.fsum(single[item] for item in order) + math.fsum(pairs[step] for step in pairwise(order))


@case_table("items, shards", [(3, 1), (3, 2), (4, 2), (3, 4), (5, 1)])
def test_exchangeability_is_the_permutation_test_over_all_orders(items: int, shards: int) -> None:
    chance = np.random.default_rng([items, shards])
    every: list[list[float]] = []
    for _ in range(shards):
        single, pairs = chance.normal(size=items), chance.normal(size=(items, items))
        pairs[np.arange(items - 1), np.arange(1, items)] += 0.5
        # The first of all orders is the published one.
        every.append([likelihood(order, single, pairs) for order in permutations(range(items))])
    result = exchangeability([orders[0] for orders in every], [orders[1:] for orders in every])
    sums = [math.fsum(choice) for choice in product(*every)]
    assert result.p == pytest.approx(share_at_least(sums, math.fsum(orders[0] for orders in every)), rel=1e-12)
    assert result.n == shards
    assert result.effect == pytest.approx(np.mean([orders[0] - np.mean(orders[1:]) for orders in every]))


def test_one_shard_has_the_rank_of_its_published_order() -> None:
    assert exchangeability([-5.0], [[-6.0, -5.0, -4.0, -9.0]]).p == pytest.approx(3 / 5)


def test_the_sharded_t_is_students() -> None:
    chance = np.random.default_rng(2)
    published, shuffled = chance.normal(-100, 2, 12), chance.normal(-101, 2, (12, 30))
    t, p = sharded_t(published, list(shuffled))
    expected = ttest_1samp(published - shuffled.mean(1), 0.0, alternative="greater")
    assert (t, p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    assert sharded_t([-1.0, -1.0], [[-1.0], [-1.0]]) == (0.0, 0.5)
    with pytest.raises(ValueError, match="published_order: one shard"):
        sharded_t([-1.0], [[-2.0]])


# --- option order -----------------------------------------------------------------------------------------------------


def test_option_order_by_hand() -> None:
    # An item is right in the published order alone, another one in all but one order, a third one always.
    result = option_order([1, 1, 1], [[0, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert result.p == pytest.approx(1 / 4 * 3 / 4)
    assert (result.effect, result.n) == (pytest.approx((1 + 1 / 3) / 3), 3)
    assert option_order([0, 1], [[0, 0], [1, 1]]) == Evidence("option order", 0.0, 1.0, 0.0, 2)


# --- context gain -----------------------------------------------------------------------------------------------------


def test_context_gain_by_hand() -> None:
    falls = context_falls([-1.0, -1.0, -1.0], [-1.5, -1.0, -0.5])
    assert falls == [True, False, False]
    result = context_gain([True, True, True, False], [False, False, True, False, False])
    assert (result.statistic, result.effect, result.n) == (0.75, pytest.approx(0.55), 4)
    assert result.p == pytest.approx(fisher_exact([[3, 1], [1, 4]], alternative="greater").pvalue)


# --- guessing ---------------------------------------------------------------------------------------------------------


@case_table(
    "answer, choice, match",
    [
        ("B) The  Cat.", "the cat", True),
        ("(c) “12”", "12", True),
        ("-1", "1", False),
        ("a cat", "cat", False),
        ("A. B", "b", True),
        ("B.", "b", True),
        ("", ".", False),
        ("the cat sat", "the cat", False),
    ],
)
def test_matches_are_word_for_word(answer: str, choice: str, match: bool) -> None:
    assert is_match(answer, choice) is match


@relaxed
@given(st.text(alphabet="ab .\"'AB()", max_size=12))
def test_a_choice_matches_itself_unless_it_is_empty(text: str) -> None:
    assert is_match(text, text) == bool(normalize(text))
    assert is_match(f"  {text.upper()}\n", text) == bool(normalize(text))


@case_table(
    "answer, choice, f1",
    [
        ("the cat sat", "the dog sat", 2 / 3),
        ("b a", "a b", 1 / 2),
        ("x", "y", 0.0),
        ("", "y", 0.0),
        ("A B", "a b", 1.0),
    ],
)
def test_rouge_l_counts_the_longest_common_subsequence(answer: str, choice: str, f1: float) -> None:
    assert rouge_l(answer, choice) == pytest.approx(f1)


@relaxed
@given(tokens, tokens)
def test_rouge_l_is_that_of_all_subsequences(first: list[str], second: list[str]) -> None:
    parts = [{part for size in range(10) for part in combinations(words, size)} for words in (first, second)]
    longest = max(map(len, parts[0] & parts[1]))
    f1 = 2 * longest / (len(first) + len(second)) if longest else 0.0
    answer, choice = (" ".join(f"w{token}" for token in words) for words in (first, second))
    assert rouge_l(answer, choice) == pytest.approx(f1)


def test_choices_of_several_items_say_nothing() -> None:
    choices, reference = ["red fox", "none", "blue", "four"], ["None.", "six", "ten"]
    result = guessing(["red fox", "none", "blue", "5"], choices, ["none", "six", "9"], reference)
    assert (result.n, result.statistic, result.effect) == (3, pytest.approx(2 / 3), pytest.approx(2 / 3 - 1 / 2))
    assert result.p == pytest.approx(fisher_exact([[2, 1], [1, 1]], alternative="greater").pvalue)
    overlap = guessing(["a red fox", "none", "x", "y"], choices, ["none", "x", "y"], reference, overlap=True)
    assert (overlap.n, overlap.effect) == (3, pytest.approx(4 / 5 / 3))


def test_a_rephrased_item_may_keep_its_choice_and_pairs_stay_whole() -> None:
    # "none" is a choice of two items, so both sides of the second pair are left out.
    result = guessing(
        ["red", "x", "none"],
        ["red", "blue", "none"],
        ["y", "x", "4"],
        ["red", "none", "four"],
        list("abc"),
        list("abc"),
    )
    assert (result.n, result.statistic, result.effect, result.p) == (1, 1.0, 1.0, 0.5)


# --- peakedness -------------------------------------------------------------------------------------------------------


@relaxed
@given(tokens, tokens, st.integers(0, 10))
def test_edit_distance_is_that_of_the_whole_table(first: list[str], second: list[str], limit: int) -> None:
    table = np.add.outer(np.arange(len(first) + 1), np.arange(len(second) + 1))
    for line, column in product(range(1, len(first) + 1), range(1, len(second) + 1)):
        change = table[line - 1, column - 1] + (first[line - 1] != second[column - 1])
        table[line, column] = min(change, table[line - 1, column] + 1, table[line, column - 1] + 1)
    assert edit_distance(first, second, limit) == min(int(table[-1, -1]), limit + 1)


def test_a_peak_by_hand() -> None:
    greedy = list(range(40))
    samples = [greedy, greedy[1:], [*greedy[:-3], 1, 1, 1], greedy[3:], [0]]
    assert peak(greedy, samples) == 2 / 5  # at most 2 of 40 tokens differ
    assert peak(greedy, samples, alpha=0.0) == 1 / 5
    assert peak(greedy, samples, alpha=0.08) == 4 / 5
    # The longest answer counts; tokens beyond the 100th do not.
    assert peak(greedy, [greedy[3:], [*greedy, *range(60)]]) == 1 / 2
    assert peak([*range(100), 1], [[*range(100), 2, 3, 4, 5, 6, 7]], alpha=0.0) == 1.0


def test_peaks_are_compared_with_a_second_set() -> None:
    result = peakedness([1.0, 0.5, 0.75], [0.0, 0.25, 0.0, 0.5])
    assert (result.statistic, result.effect, result.n) == (0.75, pytest.approx(0.75 - 0.1875), 3)
    assert result.p == pytest.approx(2 / math.comb(7, 3))  # one 0.5 may be exchanged for the other


# --- error rates ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH.parent))
        yield runpy.run_path(str(BENCH), run_name="loaded")


def test_clean_models_are_accused_no_more_often_than_stated_and_cheaters_are_seen(bench: dict[str, Any]) -> None:
    # `benches/court_nulls.py` does the same with 2,000 clean models.
    for name in bench["WORLDS"]:
        ps = np.array(bench["p_values"](name, 200))
        assert ((ps > 0) & (ps <= 1)).all()
        for level in bench["LEVELS"]:
            assert (ps <= level).mean() <= bench["bound"](level, 200), (name, level)
        assert (ps <= 0.5).mean() > 0.2, f"{name}: so conservative that it can hardly accuse anybody"
        assert max(bench["p_values"](name, 10, 1.0)) < 0.05, name


# --- refusals ---------------------------------------------------------------------------------------------------------


@case_table(
    "call, message",
    [
        (lambda: exchangeability([], []), r"published_order: shape \(0,\)"),
        (lambda: exchangeability([-1.0], []), r"shuffled_orders: 0 for 1 shards"),
        (lambda: exchangeability([-1.0], [[]]), r"shuffled_orders\[0\]: shape \(0,\)"),
        (lambda: exchangeability([-1.0, 2.0], [[-1.0]] * 2), r"published_order\[1\] is 2"),
        (lambda: exchangeability([-1.0], [[-2.0, math.nan]]), r"shuffled_orders\[0\]\[1\] is nan"),
        (lambda: option_order([1.0], []), r"permuted_orders: 0 for 1 items"),
        (lambda: option_order([math.inf], [[1.0]]), r"published_order\[0\] is inf"),
        (lambda: option_order([1.0], [[]]), r"permuted_orders\[0\]: shape"),
        (lambda: context_falls([-1.0], [-1.0, -2.0]), r"in_context: 2 for 1 items"),
        (lambda: context_falls([0.5], [-1.0]), r"alone\[0\] is 0.5"),
        (lambda: context_gain([], [True]), r"falls: shape"),
        (lambda: context_gain([True], []), r"reference_falls: shape"),
        (lambda: guessing(["x"], [], ["x"], ["y"]), r"^choices: 0 for 1 answers"),
        (lambda: guessing(["x"], ["x"], [], []), r"reference_answers: none"),
        (lambda: guessing(["x"], [" ."], ["x"], ["y"]), r"^choices\[0\] is ' \.'"),
        (lambda: guessing(["x"], ["x"], ["x"], ["X"]), r"^choices: each is that of another item"),
        (lambda: guessing(["x"], ["z"], ["x", "x"], ["y", "Y"]), r"^reference_choices: each is that of another item"),
        (lambda: guessing(["x"], ["x"], ["x"], ["y"], ["a"], []), r"reference_clusters: 0 for 1 answers"),
        (lambda: peak(["a"], []), r"samples: none"),
        (lambda: peak("a text", [["a"]]), r"greedy: a text"),
        (lambda: peak(["a"], [["a"]], alpha=1.0), r"alpha is 1.0"),
        (lambda: peakedness([1.5], [0.0]), r"peaks\[0\] is 1.5"),
        (lambda: peakedness([0.5], [-0.1]), r"reference_peaks\[0\] is -0.1"),
        (lambda: compare_models("w", math.nan, [0.0]), r"value\[0\] is nan"),
        (lambda: compare_models("w", 0.0, []), r"reference: shape"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@relaxed
@given(st.randoms(use_true_random=False))
def test_witnesses_do_not_depend_on_the_order_of_items(chance: Random) -> None:
    answers = [chance.choice(["x y", "z", "u v w"]) for _ in range(12)]
    choices = [chance.choice(["x y", "z", "u v w", f"own {index}"]) for index in range(12)] + ["a", "b"]
    answers += ["a", "c"]
    pairs = list(zip(answers, choices, strict=True))
    chance.shuffle(pairs)
    reference = (["q", "r"], ["q", "s"])
    for test in (guessing, partial(guessing, overlap=True)):
        result = test(answers, choices, *reference)
        other = test([answer for answer, _ in pairs], [choice for _, choice in pairs], *reference)
        assert (other.p, other.n, other.statistic) == (result.p, result.n, pytest.approx(result.statistic))
