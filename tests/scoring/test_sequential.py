"""Stop rules: what may be written, the decision on the longest finished prefix in any order, and its errors."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from viva.scoring.aggregates import ItemClusters
from viva.scoring.confidence_sequences import ConfidenceSequences
from viva.scoring.early_stopping import StoppingRule, StoppingWatch

relaxed = settings(deadline=None, max_examples=40)
Addition = tuple[str, int, float | None]
Floats = NDArray[np.float64]


@case_table(
    ("written", "rule"),
    [
        ("decided", StoppingRule(decided=True)),
        ({"decided": True}, StoppingRule(decided=True)),
        ({"decided": True, "level": 0.9}, StoppingRule(decided=True, level=0.9)),
        ({"half_width": 2}, StoppingRule(half_width=2.0)),
        ({"half_width": 2.5, "level": 0.99, "decided": False}, StoppingRule(half_width=2.5, level=0.99)),
    ],
)
def test_a_rule_is_read_and_written_back(written: Any, rule: StoppingRule) -> None:
    assert StoppingRule.parse(written) == rule
    assert StoppingRule.parse(rule.to_record()) == rule


@case_table(
    ("written", "problem"),
    [
        ("settled", "until: 'settled'; allowed is 'decided'"),
        (None, "until: None; allowed is"),
        (2.0, "until: 2.0; allowed is"),
        ({}, "neither half_width nor decided; allowed is exactly one"),
        ({"decided": False}, "neither half_width nor decided"),
        ({"half_width": 2, "decided": True}, "both half_width and decided"),
        ({"half_width": 2, "widht": 1}, "until.widht: no such field"),
        ({"half_width": "2"}, "until.half_width: '2'; allowed is a number"),
        ({"half_width": True}, "until.half_width: True; allowed is a number"),
        ({"half_width": 0}, "until.half_width: 0.0; allowed is a number of points above 0"),
        ({"half_width": math.nan}, "until.half_width: nan"),
        ({"decided": "yes"}, "until.decided: 'yes'; allowed is true or false"),
        ({"half_width": 2, "level": 95}, "until.level: 95.0; allowed is a share between 0 and 1"),
        ({"half_width": 2, "level": "high"}, "until.level: 'high'"),
    ],
)
def test_what_is_no_rule_is_refused_by_name(written: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        StoppingRule.parse(written)


def told(watch: StoppingWatch, additions: list[Addition]) -> StoppingWatch:
    for addition in additions:
        watch.add(*addition)
    return watch


def talks(count: int, places: int, seed: int, apart: float, spread: float = 20.0) -> list[Addition]:
    """Conversations of ``count`` candidates, each ``apart`` better than the one before; some unscored."""
    chance = np.random.default_rng(seed)
    hard = chance.normal(0, 20, places)
    made: list[Addition] = []
    for number in range(count):
        values = np.clip(50 + apart * number + hard + chance.normal(0, spread, places), 0, 100)
        missing = chance.random(places) < 0.05
        made += [(f"c{number}", p, None if missing[p] else float(values[p])) for p in range(places)]
    return made


@relaxed
@given(st.integers(0, 999), st.sampled_from(["decided", {"half_width": 9.0}]), st.randoms(use_true_random=False))
def test_any_order_of_the_same_conversations_gives_the_same_decision(
    seed: int, written: Any, chance: random.Random
) -> None:
    additions = talks(3, 60, seed, apart=25.0, spread=5.0)
    some = chance.sample(additions, chance.randint(0, len(additions)))
    watches = []
    for _ in range(3):
        chance.shuffle(some)
        watches.append(told(StoppingWatch(StoppingRule.parse(written), ["c0", "c1", "c2"], 60), some))
    assert watches[0].to_record() == watches[1].to_record() == watches[2].to_record()
    # It is the decision of a watch that sees the finished prefix only, one item at a time.
    prefix = next(p for p in range(61) if any((f"c{c}", p) not in {a[:2] for a in some} for c in range(3)))
    plain = StoppingWatch(StoppingRule.parse(written), ["c0", "c1", "c2"], 60)
    for addition in sorted((a for a in some if a[1] < prefix), key=lambda a: a[1]):
        plain.add(*addition)
    assert (plain.stopped_at, plain.intervals, plain.better) == (
        watches[0].stopped_at,
        watches[0].intervals,
        watches[0].better,
    )


def test_a_gap_withholds_the_decision_and_what_lies_beyond_is_overshoot() -> None:
    watch = StoppingWatch(StoppingRule(half_width=20.0), ["one"], 200)
    for place in range(1, 60):
        watch.add("one", place, 80.0)
    assert (watch.stopped_at, watch.saved, watch.overshoot, watch.prefix) == (None, None, 0, 0)
    assert watch.intervals == {"one": (0.0, 100.0)}
    watch.add("one", 0, 80.0)
    stopped = watch.stopped_at
    assert stopped is not None
    assert 2 < stopped < 59
    low, high = watch.intervals["one"]
    assert low < 80 < high
    assert (high - low) / 2 <= 20.0
    assert (watch.overshoot, watch.saved) == (60 - stopped, 200 - stopped)
    before = watch.intervals
    told(watch, [("one", place, 0.0) for place in range(60, 120)])
    assert (watch.stopped_at, watch.intervals) == (stopped, before)
    assert (watch.overshoot, watch.saved) == (120 - stopped, 200 - stopped)


def test_unscored_conversations_take_their_place_and_teach_nothing() -> None:
    scored = told(
        StoppingWatch(StoppingRule(half_width=12.0), ["one"], 400), [("one", p, 60.0 + p % 7) for p in range(200)]
    )
    mixed = StoppingWatch(StoppingRule(half_width=12.0), ["one"], 400)
    for place in range(200):
        mixed.add("one", 2 * place, 60.0 + place % 7)
        mixed.add("one", 2 * place + 1, None)
    assert scored.stopped_at is not None
    assert mixed.stopped_at == 2 * scored.stopped_at - 1
    assert mixed.intervals == scored.intervals
    assert mixed.to_record()["intervals"]["one"]["n"] == scored.stopped_at
    nothing = told(StoppingWatch(StoppingRule(half_width=12.0), ["one"], 50), [("one", p, None) for p in range(50)])
    assert (nothing.stopped_at, nothing.intervals) == (None, {"one": (0.0, 100.0)})


def test_every_candidate_has_to_be_known_well_enough() -> None:
    chance = random.Random(4)
    even = [("even", p, 70.0) for p in range(300)]
    uneven = [("uneven", p, chance.choice([0.0, 100.0])) for p in range(300)]
    until = StoppingRule(half_width=10.0)
    alone = told(StoppingWatch(until, ["uneven"], 300), uneven).stopped_at
    assert alone is not None
    assert told(StoppingWatch(until, ["even"], 300), even).stopped_at != alone
    assert told(StoppingWatch(until, ["even", "uneven"], 300), even + uneven).stopped_at == alone


def test_every_pair_is_told_apart_and_named_with_its_difference() -> None:
    additions = talks(3, 300, 3, apart=20.0)
    watch = told(StoppingWatch(StoppingRule.parse("decided"), ["c1", "c0", "c2"], 300), additions)
    assert watch.stopped_at is not None
    assert watch.stopped_at < 150
    assert [(winner, loser) for winner, loser, _, _ in watch.better] == [("c1", "c0"), ("c2", "c1"), ("c2", "c0")]
    for _, _, low, high in watch.better:
        assert 0 <= low < high <= 100
    record = watch.to_record()
    assert record["saved"] == watch.overshoot == 900 - 3 * watch.stopped_at  # all were told
    assert record["better"][0] == {
        "better": "c1",
        "worse": "c0",
        "low": round(watch.better[0][2], 6),
        "high": round(watch.better[0][3], 6),
    }


def test_two_that_score_the_same_are_not_told_apart() -> None:
    additions = talks(1, 300, 8, apart=0.0)
    both = additions + [("other", place, score) for _, place, score in additions]
    watch = told(StoppingWatch(StoppingRule.parse("decided"), ["c0", "other"], 300), both)
    assert (watch.stopped_at, watch.better, watch.saved, watch.prefix) == (None, [], None, 300)


def test_what_does_not_belong_is_refused() -> None:
    watch = StoppingWatch(StoppingRule(half_width=2.0), ["one"], 10)
    watch.add("one", 0, 50.0)
    watch.add("one", 5, None)
    for wrong, problem in [
        (("two", 0, 50.0), "unknown candidate 'two'; expected one of"),
        (("one", 10, 50.0), "position 10 of 10 planned items"),
        (("one", -1, 50.0), "position -1"),
        (("one", 1, 100.5), "'one' at position 1: score 100.5; scores must lie in 0–100"),
        (("one", 1, math.nan), "score nan"),
        (("one", 0, 50.0), "'one' at position 0: reported twice"),
        (("one", 5, 50.0), "reported twice"),
    ]:
        with pytest.raises(ValueError, match=problem):
            watch.add(*wrong)
    watch.add("one", 1, 50.0)
    assert watch.prefix == 2
    for until, names in [
        (StoppingRule(decided=True), ["one"]),
        (StoppingRule(half_width=1.0), []),
        (StoppingRule(half_width=1.0), "aa"),
    ]:
        with pytest.raises(ValueError, match="one"):
            StoppingWatch(until, list(names), 10)


RUNS, PLANNED = 2000, 300


def simulated(apart: float, candidates: int, runs: int, seed: int) -> Floats:
    """Scores by place, candidate, run: an item's difficulty is shared, noise is each candidate's own, 0 and 100 bind.

    The mean true difference of neighbours, after that binding, is a little below ``apart``.
    """
    chance = np.random.default_rng(seed)
    hard = chance.normal(0, 18, (PLANNED, 1, runs))
    own = chance.normal(0, 18, (PLANNED, candidates, runs))
    return np.clip(68 + hard + own + apart * np.arange(candidates)[None, :, None], 0, 100)


def decisions(first: Floats, second: Floats, level: float) -> tuple[Floats, NDArray[np.int64]]:
    """By run: 1 where the second is named better, -1 where the first is, 0 where neither; and after how many items."""
    sequence = ConfidenceSequences(
        first.shape[1], low=-100, high=100, level=level, steps=20
    )  # a difference of 0 is on the grid
    named, when = np.zeros(first.shape[1]), np.full(first.shape[1], PLANNED)
    for place in range(PLANNED):
        sequence.add(second[place] - first[place])
        now = np.where(sequence.lows >= 0, 1.0, np.where(sequence.highs <= 0, -1.0, 0.0))
        new = (named == 0) & (now != 0)
        named[new], when[new] = now[new], place + 1
    return named, when


@pytest.mark.parametrize(("apart", "least"), [(0.0, 0.0), (5.0, 0.25), (10.0, 0.7)])
def test_decided_is_wrong_in_at_most_one_run_of_twenty_and_saves(apart: float, least: float) -> None:
    scores = simulated(apart, 2, RUNS, 21)
    named, when = decisions(scores[:, 0], scores[:, 1], 0.95)
    wrong = named != 0 if apart == 0 else named == -1
    assert wrong.mean() <= 0.05
    assert 1 - when.mean() / PLANNED >= least
    # The watch decides just so.
    for run in range(12):
        watch = StoppingWatch(StoppingRule.parse("decided"), ["low", "high"], PLANNED)
        for place in range(PLANNED):
            watch.add("low", place, scores[place, 0, run])
            watch.add("high", place, scores[place, 1, run])
        winner = [winner for winner, *_ in watch.better]
        assert winner == {1: ["high"], -1: ["low"], 0: []}[int(named[run])]
        assert watch.stopped_at == (int(when[run]) if named[run] else None)


def test_of_four_equal_candidates_hardly_ever_two_are_told_apart() -> None:
    scores = simulated(0.0, 4, 500, 22)
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    named = [decisions(scores[:, one], scores[:, other], 1 - 0.05 / len(pairs))[0] for one, other in pairs]
    assert (np.abs(np.array(named)).max(axis=0) > 0).mean() <= 0.05


def test_line_6b_candidates_alike_are_not_told_apart_where_items_come_in_clusters() -> None:
    """30 passages with ten items each, two candidates of the same skill that know different passages."""
    runs, passages, size = 400, 30, 10
    chance = np.random.default_rng(7)
    known = chance.normal(0, 30 * 0.9**0.5, (passages, 1, runs))
    items = np.clip(known + chance.normal(0, 30 * 0.1**0.5, (passages, size, runs)), -100, 100)
    alone = ConfidenceSequences(runs, low=-100, high=100, steps=20)
    whole = ConfidenceSequences(runs, low=-100, high=100, steps=20)
    wrong = {"alone": np.zeros(runs, dtype=bool), "whole": np.zeros(runs, dtype=bool)}
    flat = items.reshape(-1, runs)
    for place in chance.permutation(len(flat)):
        alone.add(flat[place])
        wrong["alone"] |= (alone.lows >= 0) | (alone.highs <= 0)
    for passage in items:
        whole.add(passage.mean(axis=0), np.ones(runs))
        wrong["whole"] |= (whole.lows >= 0) | (whole.highs <= 0)
    assert wrong["alone"].mean() > 0.3  # nominal: 0.05
    assert wrong["whole"].mean() <= 0.05


def test_line_6b_clusters_of_uneven_size_cover_the_mean_over_items() -> None:
    """Small clusters score high, so the mean over clusters is another than the mean over items."""
    runs, sizes = 200, [1, 2, 3, 20] * 40
    chance = np.random.default_rng(11)
    means = np.array([70.0 if size < 10 else 40.0 for size in sizes])
    truth = float(np.average(means, weights=sizes))
    sequence = ConfidenceSequences(runs, steps=200)
    ever = np.zeros(runs, dtype=bool)
    orders = np.argsort(chance.random((runs, len(sizes))), axis=1)
    shares = np.array(sizes) / max(sizes)
    for column in orders.T:
        sequence.add(np.clip(means[column] + chance.normal(0, 5, runs), 0, 100), shares[column])
        ever |= (sequence.lows > truth) | (sequence.highs < truth)
    assert ever.mean() <= 0.05
    assert (sequence.highs - sequence.lows).mean() < 25
    assert not ((sequence.lows < means.mean()) & (means.mean() < sequence.highs)).any()


@relaxed
@given(st.integers(0, 999), st.randoms(use_true_random=False))
def test_line_6b_a_rule_over_clusters_decides_where_one_ends_in_any_order(seed: int, chance: random.Random) -> None:
    clusters = ItemClusters("subject", tuple(chance.randint(1, 7) for _ in range(30)))
    places = sum(clusters.sizes)
    additions = talks(2, places, seed, apart=30.0, spread=5.0)
    some = chance.sample(additions, chance.randint(0, len(additions)))
    names = ["c0", "c1"]
    watches = []
    for _ in range(2):
        chance.shuffle(some)
        watches.append(told(StoppingWatch(StoppingRule.parse("decided"), names, places, clusters=clusters), some))
    assert watches[0].to_record() == watches[1].to_record()
    ends = set(np.cumsum(clusters.sizes).tolist())
    assert watches[0].prefix in ends | {0}
    assert watches[0].to_record()["independent"] == "subject"
    # Means are those of the conversations before the prefix; observations count clusters.
    for name in names:
        scores = [score for who, place, score in some if who == name and place < watches[0].prefix]
        known = [score for score in scores if score is not None]
        record = watches[0].to_record()["intervals"][name]
        assert record["n"] == len(known)
        assert record["mean"] == (round(sum(known) / len(known), 6) if known else None)
        assert record["observations"] <= sum(end <= watches[0].prefix for end in ends)


def test_clusters_have_to_be_those_of_the_items() -> None:
    with pytest.raises(ValueError, match="clusters have 9 items; expected at least one in each, and 10 in all"):
        StoppingWatch(StoppingRule(half_width=2.0), ["one"], 10, clusters=ItemClusters("subject", (4, 5)))
    with pytest.raises(ValueError, match="weights"):
        ConfidenceSequences(2).add([50.0, 50.0], [1.0, 1.5])


def test_line_6c_after_a_half_width_stop_the_sequence_covers_and_students_interval_does_not() -> None:
    from scipy.stats import t

    runs, places, share = 300, 400, 0.93
    chance = np.random.default_rng(5)
    scores = np.where(chance.random((places, runs)) < share, 100.0, 0.0)
    sequence = ConfidenceSequences(runs, steps=200)
    stopped = np.zeros(runs, dtype=np.int64)
    ends = np.zeros((2, runs))
    for place in range(places):
        sequence.add(scores[place])
        now = (stopped == 0) & (sequence.highs - sequence.lows <= 24)
        stopped[now] = place + 1
        ends[:, now] = np.array([sequence.lows, sequence.highs])[:, now]
    assert (stopped > 0).mean() > 0.9
    covered = {"sequence": [], "student": []}
    for run in np.flatnonzero(stopped):
        n, truth = int(stopped[run]), 100 * share
        seen = scores[:n, run]
        half = float(t.ppf(0.975, n - 1)) * float(seen.std(ddof=1)) / n**0.5
        covered["sequence"].append(ends[0, run] <= truth <= ends[1, run])
        covered["student"].append(abs(float(seen.mean()) - truth) <= half)
    assert np.mean(covered["sequence"]) >= 0.95
    assert np.mean(covered["student"]) < 0.88


def test_line_28_what_a_rule_records_does_not_depend_on_what_was_in_flight() -> None:
    additions = [("one", place, 60.0 + place % 7) for place in range(400)]
    exact = StoppingWatch(StoppingRule(half_width=12.0), ["one"], 400)
    for addition in additions:
        if exact.stopped_at is None:
            exact.add(*addition)
    late = told(StoppingWatch(StoppingRule(half_width=12.0), ["one"], 400), additions[: (exact.stopped_at or 0) + 17])
    assert (exact.overshoot, late.overshoot) == (0, 17)
    assert exact.to_record() == late.to_record()
    assert exact.saved == late.saved == 400 - (exact.stopped_at or 0)
