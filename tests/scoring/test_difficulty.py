"""How hard items are and what they tell: by hand, against scipy, with gaps."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from viva.scoring.accuracy import ItemDifficulty, item_difficulties

relaxed = settings(deadline=None, max_examples=40)
Scores = dict[str, dict[str, float | None]]


def test_a_case_by_hand() -> None:
    scores: Scores = {
        "weak": {"easy": 1.0, "fair": 0.0, "turned": 1.0, "hard": 0.0},
        "middling": {"easy": 1.0, "fair": 0.0, "turned": 1.0, "hard": None},
        "strong": {"easy": 1.0, "fair": 1.0, "turned": 0.0, "hard": 0.0},
        "expert": {"easy": 1.0, "fair": 1.0, "turned": 0.0, "hard": 0.0},
    }
    found = item_difficulties(scores, solved=1.0)
    assert [(one.item, one.mean, one.n, one.solved_by) for one in found] == [
        ("hard", 0.0, 3, "nobody"),
        ("fair", 0.5, 4, None),
        ("turned", 0.5, 4, None),
        ("easy", 1.0, 4, "everybody"),
    ]
    told = {one.item: one.discrimination for one in found}
    assert told["easy"] is None
    assert told["hard"] is None
    # The others: easy is at its mean for all, fair half above or below, hard at its mean where there is a score.
    assert told["turned"] == pytest.approx(stats.pearsonr([1, 1, 0, 0], [-1 / 6, -1 / 4, 1 / 6, 1 / 6]).statistic)


tables = st.integers(3, 6).flatmap(
    lambda items: st.lists(
        st.lists(st.integers(0, 4).map(lambda v: 25.0 * v), min_size=items, max_size=items), min_size=3, max_size=7
    )
)


@relaxed
@given(tables)
def test_without_gaps_discrimination_is_the_correlation_with_the_mean_of_the_others(table: list[list[float]]) -> None:
    scores: Scores = {f"c{i}": {f"i{j}": v for j, v in enumerate(row)} for i, row in enumerate(table)}
    array = np.array(table)
    for one in item_difficulties(scores, solved=75.0):
        place = int(one.item[1:])
        column, rest = array[:, place], np.delete(array, place, axis=1).mean(axis=1)
        assert one.mean == pytest.approx(column.mean())
        assert one.n == len(table)
        assert one.solved_by == ("nobody" if column.max() < 75 else "everybody" if column.min() >= 75 else None)
        if np.ptp(column) < 1e-9 or np.ptp(rest) < 1e-9:
            assert one.discrimination is None
        else:
            assert one.discrimination == pytest.approx(stats.pearsonr(column, rest).statistic, abs=1e-9)


@relaxed
@given(tables, st.randoms(use_true_random=False))
def test_hardest_come_first_whatever_the_order_of_candidates_and_items(
    table: list[list[float]], chance: random.Random
) -> None:
    scores: Scores = {f"c{i}": {f"i{j}": v for j, v in enumerate(row)} for i, row in enumerate(table)}
    found = item_difficulties(scores, solved=100.0)
    assert found == sorted(found, key=lambda one: (one.mean, one.item))
    shuffled = {
        name: dict(chance.sample(list(scores[name].items()), len(scores[name])))
        for name in chance.sample(list(scores), len(scores))
    }
    assert item_difficulties(shuffled, solved=100.0) == found


def test_lacking_the_hard_items_does_not_make_a_candidate_good() -> None:
    # All are equally able, but one was not scored on the five hard items.
    chance = np.random.default_rng(2)
    items = {f"e{j}": 90.0 for j in range(5)} | {f"h{j}": 20.0 for j in range(5)}
    scores: Scores = {
        f"c{i}": {
            item: None if i == 0 and item[0] == "h" else level + float(chance.normal(0, 1))
            for item, level in items.items()
        }
        for i in range(6)
    }
    scores["c0"]["e0"] = 95.0
    told = {one.item: one.discrimination for one in item_difficulties(scores, solved=50.0)}
    naive = [np.mean([v for k, v in held.items() if v is not None and k != "e0"]) for held in scores.values()]
    assert stats.pearsonr([held["e0"] for held in scores.values()], naive).statistic > 0.9
    assert told["e0"] is not None
    assert told["e0"] < 0.8
    assert {one.n for one in item_difficulties(scores, solved=50.0) if one.item[0] == "h"} == {5}


def test_few_candidates_tell_nothing_of_discrimination_and_no_score_no_item() -> None:
    two: Scores = {"a": {"x": 0.0, "y": 1.0}, "b": {"x": 1.0, "y": 1.0, "z": None}}
    assert item_difficulties(two, solved=1.0) == [
        ItemDifficulty("x", 0.5, 2, None, None),
        ItemDifficulty("y", 1.0, 2, None, "everybody"),
    ]
    assert item_difficulties({}, solved=1.0) == item_difficulties({"a": {"x": None}}, solved=1.0) == []
    assert item_difficulties({c: {"x": v} for c, v in zip("abc", (0.0, 1.0, 1.0), strict=True)}, solved=1.0) == [
        ItemDifficulty("x", pytest.approx(2 / 3), 3, None, None)
    ]
    with pytest.raises(ValueError, match="'a' on 'x': nan is not finite"):
        item_difficulties({"a": {"x": math.nan}}, solved=1.0)
