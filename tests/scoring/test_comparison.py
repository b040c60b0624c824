"""Paired comparisons: against scipy's paired test, with clusters, gaps, and many pairs."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from viva.scoring.clustered_means import clustered_mean
from viva.scoring.comparison import MAX_PAIRED, Correction, Scores, adjust_p_values, compare, compare_all

relaxed = settings(deadline=None, max_examples=60)
score = st.none() | st.integers(0, 100).map(float)


def single(values: list[float | None]) -> dict[tuple[str, str], float | None]:
    return {(f"item-{place:03}", "7"): value for place, value in enumerate(values)}


@relaxed
@given(st.lists(st.tuples(score, score), max_size=30))
def test_one_talk_an_item_is_compared_in_pairs(pairs: list[tuple[float | None, float | None]]) -> None:
    found = compare("a", "b", {"a": single([a for a, _ in pairs]), "b": single([b for _, b in pairs])})
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    differences = [a - b for a, b in both]
    assert (found.n, found.pairs, found.dropped) == (len(both), len(both), len(pairs) - len(both))
    if not both:
        assert (found.mean, found.difference, found.p, found.won) == (None, None, None, None)
        return
    assert found.mean == pytest.approx(np.mean(differences))
    assert found.won == pytest.approx(np.mean([d > 0 for d in differences]))
    assert found.lost == pytest.approx(np.mean([d < 0 for d in differences]))
    assert found.tied == pytest.approx(np.mean([d == 0 for d in differences]))
    if len(both) < 2:
        assert (found.difference, found.se, found.p) == (None, None, None)
        return
    assert found.difference is not None
    assert found.p is not None
    assert -100 <= found.difference.low < found.difference.high <= 100
    assert found.difference.low <= found.mean <= found.difference.high  # type: ignore[operator]
    assert max(2 / 2 ** len(both), 1e-4) <= found.p <= 1.0


@relaxed
@given(st.lists(st.integers(-60, 60).map(float), min_size=2, max_size=9))
def test_line_6g_the_p_of_few_items_is_that_of_scipys_exact_permutation_test(differences: list[float]) -> None:
    found = compare(
        "a", "b", {"a": single([60.0 + d / 2 for d in differences]), "b": single([60.0 - d / 2 for d in differences])}
    )
    expected = stats.permutation_test(
        (np.array(differences),), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=np.inf
    )
    assert found.test == "sign flips"
    assert found.p == pytest.approx(expected.pvalue)


def test_line_6g_two_items_never_give_certainty() -> None:
    found = compare("a", "b", {"a": single([80.0, 80.0]), "b": single([60.0, 60.0])})
    assert (found.mean, found.p) == (20.0, 0.5)
    assert found.difference is not None
    assert found.difference.low < 0 < found.difference.high


def test_line_6g_the_interval_makes_room_for_rare_losses_that_a_few_items_do_not_show() -> None:
    chance = np.random.default_rng(3)
    wrong = refuted = 0
    for _ in range(200):
        differences = np.where(chance.random(10) < 0.1, -45.0, 5.0)  # their mean is 0
        scores = {"a": single((50 + differences).tolist()), "b": single([50.0] * 10)}
        found = compare("a", "b", scores)
        assert found.difference is not None
        assert found.p is not None
        wrong += not found.difference.low <= 0 <= found.difference.high
        refuted += found.p < 0.05
    assert wrong == 0
    assert refuted / 200 > 0.2, "as the paired t-test's: hence the note of a study"


def test_line_6g_many_items_take_t_and_no_p_is_0() -> None:
    chance = np.random.default_rng(4)
    values = np.clip(60 + chance.normal(3, 20, 150), 0, 100)
    found = compare("a", "b", {"a": single(values.tolist()), "b": single([60.0] * 150)})
    assert (found.test, found.p) == ("t", pytest.approx(stats.ttest_1samp(values - 60, 0).pvalue))
    assert found.difference is not None
    student = stats.ttest_1samp(values - 60, 0).confidence_interval()
    assert (found.difference.low, found.difference.high) == pytest.approx((student.low, student.high), abs=0.2)
    certain = compare("a", "b", {"a": single([70.0] * 2000), "b": single([60.0] * 2000)})
    assert certain.p is not None
    assert 0 < certain.p < 1e-300


def repeated(seed: int, gain: float, items: int = 40, seeds: int = 3) -> dict[str, Scores]:
    """Two candidates, several talks an item, the gain varying by item."""
    chance = np.random.default_rng(seed)
    made: dict[str, dict[tuple[str, str], float | None]] = {"a": {}, "b": {}}
    for item in range(items):
        hard, own = chance.normal(60, 20), gain + chance.normal(0, 8)
        for number in range(seeds):
            made["a"][f"{item}", f"{number}"] = float(np.clip(hard + own + chance.normal(0, 3), 0, 100))
            made["b"][f"{item}", f"{number}"] = float(np.clip(hard + chance.normal(0, 3), 0, 100))
    return dict(made)


def test_talks_on_one_item_are_one_cluster() -> None:
    scores = repeated(4, 2.0)
    found = compare("a", "b", scores)
    assert (found.n, found.pairs, found.dropped) == (40, 120, 0)
    keys = sorted(scores["a"])
    differences = [scores["a"][key] - scores["b"][key] for key in keys]  # type: ignore[operator]
    expected = clustered_mean(differences, [item for item, _ in keys])
    assert expected is not None
    assert (found.mean, found.se) == (expected.mean, expected.se)
    by_item: dict[str, list[float]] = {}
    for (item, _), difference in zip(keys, differences, strict=True):
        by_item.setdefault(item, []).append(difference)
    means = np.array([np.mean(held) for held in by_item.values()])
    assert found.p is not None
    assert found.p == pytest.approx(stats.ttest_1samp(means, 0).pvalue, rel=0.3)
    assert found.won == np.mean(means > 0)
    assert stats.ttest_1samp(differences, 0).pvalue < found.p  # as if the talks were independent


def test_only_talks_that_both_have_held_count() -> None:
    a: Scores = {("x", "1"): 50.0, ("x", "2"): None, ("y", "1"): 90.0, ("z", "1"): 10.0, ("only-a", "1"): 0.0}
    b: Scores = {("x", "1"): 40.0, ("x", "2"): 0.0, ("y", "1"): 90.0, ("z", "1"): None, ("y", "2"): 5.0}
    found = compare("a", "b", {"a": a, "b": b})
    assert (found.n, found.pairs, found.dropped, found.mean) == (2, 2, 1, 5.0)
    assert (found.won, found.tied, found.lost) == (0.5, 0.5, 0.0)


def test_a_difference_that_never_varies_is_as_sure_as_its_items_are_many() -> None:
    scores = {"a": single([50.0, 60.0, 70.0]), "b": single([40.0, 50.0, 60.0]), "c": single([50.0, 60.0, 70.0])}
    apart, same = compare("a", "b", scores), compare("a", "c", scores)
    assert (apart.mean, apart.se, apart.p) == (10.0, 0.0, 0.25)
    assert (same.mean, same.se, same.p, same.tied) == (0.0, 0.0, 1.0, 1.0)


def test_turning_the_pair_round_turns_the_difference_round() -> None:
    scores = repeated(5, 3.0)
    one, other = compare("a", "b", scores), compare("b", "a", scores)
    assert one.mean == -other.mean  # type: ignore[operator]
    assert (one.p, one.se, one.won, one.lost) == (other.p, other.se, other.lost, other.won)


def test_the_order_of_talks_does_not_matter() -> None:
    scores = repeated(6, 1.0)
    chance = random.Random(1)
    shuffled = {name: dict(chance.sample(list(held.items()), len(held))) for name, held in scores.items()}
    assert compare("a", "b", shuffled) == compare("a", "b", scores)


def test_a_table_has_every_pair_and_corrects_over_them() -> None:
    chance = np.random.default_rng(9)
    hard = chance.normal(60, 15, 50)
    scores = {
        name: single([float(v) for v in hard + gain + chance.normal(0, 9, 50)])
        for name, gain in [("d", 0.0), ("a", 0.0), ("c", 4.0), ("b", 12.0)]
    }
    scores["empty"] = {}
    table = compare_all(scores)
    assert [(one.first, one.second) for one in table][:4] == [("d", "a"), ("d", "c"), ("d", "b"), ("d", "empty")]
    assert len(table) == 10
    known = [one for one in table if one.p is not None]
    assert len(known) == 6
    assert [one.p_corrected for one in known] == adjust_p_values([one.p for one in known])
    assert all(one.p_corrected is None for one in table if one.p is None)
    loose = compare_all(scores, "benjamini-hochberg")
    assert [one.p_corrected for one in loose if one.p is not None] == pytest.approx(
        stats.false_discovery_control([one.p for one in known])
    )


@given(st.lists(st.floats(0, 1), max_size=6), st.lists(st.floats(0, 1), max_size=6))
def test_untested_pairs_are_never_taken_for_evidence(tested: list[float], untested: list[float]) -> None:
    """Their p-values are unknown: whatever they are, the correction over all is not stricter."""
    told = adjust_p_values(tested, untested=len(untested))
    everything = adjust_p_values([*tested, *untested])[: len(tested)]
    assert all(one >= other - 1e-12 for one, other in zip(told, everything, strict=True))


def test_of_many_candidates_only_the_best_are_compared() -> None:
    scores = {f"m{at}": single([float(at), at + 1.0, at + 2.0]) for at in range(MAX_PAIRED + 5)}
    table = compare_all(scores)
    assert {one.first for one in table} | {one.second for one in table} == {f"m{at}" for at in range(5, MAX_PAIRED + 5)}
    assert [one.p_corrected for one in table] == adjust_p_values(
        [one.p for one in table], untested=math.comb(MAX_PAIRED + 5, 2) - len(table)
    )


def by_hand(ps: list[float], correction: Correction) -> list[float]:
    """The smallest level at which each is found, from the definitions of the procedures, level by level."""

    def found(level: float) -> set[int]:
        order, m = sorted(range(len(ps)), key=lambda i: ps[i]), len(ps)
        if correction == "holm":
            held: set[int] = set()
            for rank, place in enumerate(order):
                if ps[place] > level / (m - rank):
                    break
                held.add(place)
            return held
        ranks = [rank for rank, place in enumerate(order, 1) if ps[place] <= level * rank / m]
        return set(order[: max(ranks, default=0)])

    levels = sorted({min(1.0, p * m / r) for p in ps for m in range(1, len(ps) + 1) for r in range(1, len(ps) + 1)})
    return [min((lv for lv in levels if place in found(lv * (1 + 1e-12))), default=1.0) for place in range(len(ps))]


@relaxed
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=6), st.sampled_from(["holm", "benjamini-hochberg"]))
def test_corrected_values_are_the_levels_at_which_the_procedures_find_them(
    ps: list[float], correction: Correction
) -> None:
    assert adjust_p_values(ps, correction) == pytest.approx(by_hand(ps, correction), rel=1e-9)


def test_what_is_no_p_value_is_refused_and_unknown_ones_stay_unknown() -> None:
    assert adjust_p_values([0.04, None, 0.01]) == [0.04, None, 0.02]
    assert adjust_p_values([None], "benjamini-hochberg") == [None]
    assert adjust_p_values([]) == []
    for wrong in (1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match="p-values must lie between 0 and 1"):
            adjust_p_values([wrong])
    with pytest.raises(ValueError, match="expected holm or benjamini-hochberg"):
        adjust_p_values([0.5], "sidak")  # type: ignore[arg-type]
