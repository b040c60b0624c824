"""The KIEval scorers against hand-computed scores, an independent recomputation and the laws a score must obey."""

from __future__ import annotations

import math
from typing import get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.scenarios.kieval.score import ASPECTS, SCORERS, Interview, Round, Scorer, ScorerName

relaxed = settings(deadline=None)
W = [math.exp(-0.2 * turn) for turn in range(5)]

values = st.lists(st.none() | st.integers(1, 4), max_size=5)
scorers = st.builds(Scorer, st.sampled_from(SCORERS), st.booleans(), st.booleans())


def interview(*scores: int | None, flags: dict[int, str] | None = None, ended_by: str = "rounds") -> Interview:
    """An interview of five planned rounds whose every aspect has the given score; ``flags`` by round."""
    flags = flags or {}
    rounds = [Round(None if score is None else [score] * 6, flags.get(turn)) for turn, score in enumerate(scores)]
    return Interview("model", "item", 5, rounds=rounds, ended_by=ended_by)


def naive(name: ScorerName, decay: bool, scores: list[int | None], lost: int) -> float | None:
    """The protocol's text, written down once more without looking at the code."""
    if all(score is None for score in scores):
        return 0.0 if lost and name == "corrected" else None
    grade = {1: 25.0, 2: 50.0, 3: 75.0, 4: 100.0} if name == "linear" else {1: 10.0, 2: 30.0, 3: 70.0, 4: 100.0}
    pairs: list[tuple[int, float]] = []
    place = 0
    for turn, score in enumerate(scores):
        if score is not None:
            pairs.append((turn if name == "corrected" else place, grade[score]))
            place += 1
    if name == "corrected":
        pairs += [(len(scores) + turn, 0.0) for turn in range(lost)]
    weight = [math.exp(-turn / 5) if decay else 1.0 for turn, _ in pairs]
    return sum(w * g for w, (_, g) in zip(weight, pairs, strict=True)) / sum(weight)


def test_the_published_oracle() -> None:
    score = Scorer("official").score
    assert score(interview(4, 3, 2, 1)) == pytest.approx(60.21, abs=0.005)
    assert score(interview(4, 4, 4, 4, 4)) == pytest.approx(100.0)
    assert score(interview(1)) == pytest.approx(10.0)
    assert Scorer() == Scorer("official")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("official", 10 * (10 + 7 * W[1] + 3 * W[2] + 1 * W[3]) / sum(W[:4])),
        ("linear", 25 * (4 + 3 * W[1] + 2 * W[2] + 1 * W[3]) / sum(W[:4])),
        ("corrected", 10 * (10 + 7 * W[1] + 3 * W[2] + 1 * W[3]) / sum(W[:4])),
    ],
)
def test_a_talk_without_gaps(name: ScorerName, expected: float) -> None:
    assert Scorer(name).score(interview(4, 3, 2, 1)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("official", 10 * (10 + 1 * W[1]) / (1 + W[1])),  # the last round moves up into the gap
        ("linear", 10 * (10 + 2.5 * W[1]) / (1 + W[1])),
        ("corrected", 10 * (10 + 1 * W[2]) / (1 + W[2])),  # the last round keeps its own weight
    ],
)
def test_an_unscored_round_in_the_middle(name: ScorerName, expected: float) -> None:
    assert Scorer(name).score(interview(4, None, 1)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("official", 100.0), ("linear", 100.0), ("corrected", 100 * (W[0] + W[1]) / sum(W))],
)
@pytest.mark.parametrize("ended_by", ["evaluator", "detector"])
def test_an_early_stop_costs_rounds_only_when_corrected(name: ScorerName, expected: float, ended_by: str) -> None:
    flags = {1: "off_topic"} if ended_by == "evaluator" else {}
    stopped = interview(4, 4, flags=flags, ended_by=ended_by)
    assert Scorer(name).score(stopped) == pytest.approx(expected)


@pytest.mark.parametrize("ended_by", ["budget", "operator", "transcript", "rounds"])
def test_rounds_that_are_absent_for_other_reasons_are_not_lost(ended_by: str) -> None:
    assert Scorer("corrected").score(interview(4, 4, ended_by=ended_by)) == pytest.approx(100.0)


@pytest.mark.parametrize("name", SCORERS)
def test_unscored_is_not_zero(name: ScorerName) -> None:
    assert Scorer(name).score(interview(None, None, None)) is None
    assert Scorer(name).score(interview()) is None


def test_a_talk_that_went_on_after_its_flag_is_cut_there() -> None:
    recorded = interview(4, 1, 4, 4, 4, flags={1: "repetition", 3: "off_topic"})
    assert [r.scores for r in Scorer(early_stop=True).rounds(recorded)] == [[4] * 6, [1] * 6]
    assert len(Scorer(early_stop=False).rounds(recorded)) == 5
    assert Scorer("official").score(recorded) == pytest.approx(10 * (10 + W[1]) / (1 + W[1]))
    assert Scorer("corrected").score(recorded) == pytest.approx(10 * (10 + W[1]) / sum(W))
    whole = 10 * (10 * (sum(W) - W[1]) + W[1]) / sum(W)
    for name in ("official", "corrected"):
        assert Scorer(name, early_stop=False).score(recorded) == pytest.approx(whole)


def test_a_stopped_talk_is_not_padded_with_early_stop_off() -> None:
    stopped = interview(4, 4, flags={1: "off_topic"}, ended_by="evaluator")
    assert Scorer("corrected", early_stop=False).score(stopped) == pytest.approx(100.0)


def test_without_decay_every_round_weighs_the_same() -> None:
    assert Scorer("official", decay=False).score(interview(4, 3, 2, 1)) == pytest.approx(10 * (10 + 7 + 3 + 1) / 4)
    stopped = interview(4, flags={0: "off_topic"}, ended_by="evaluator")
    assert Scorer("corrected", decay=False).score(stopped) == pytest.approx(20.0)


@pytest.mark.parametrize("name", SCORERS)
def test_a_perfect_talk_never_passes_100_by_a_rounding_error(name: ScorerName) -> None:
    for length in range(1, 30):
        score = Scorer(name).combine([4] * length)
        assert score == pytest.approx(100.0)
        assert score is not None
        assert score <= 100.0


def test_each_aspect_has_its_own_score() -> None:
    held = Interview("model", "item", 5, rounds=[Round([1, 2, 3, 4, 1, 4])])
    assert [Scorer().score(held, aspect) for aspect in range(6)] == pytest.approx([10, 30, 70, 100, 10, 100])
    assert ASPECTS[5] == "overall"


def test_the_scorer_and_its_switches_can_be_printed() -> None:
    assert Scorer("linear").describe() == "linear"
    assert Scorer("corrected", decay=False, early_stop=False).describe() == "corrected (no decay, no early stop)"
    assert get_args(ScorerName) == SCORERS


def test_an_interview_survives_its_record() -> None:
    held = interview(4, None, 2, flags={2: "off_topic"}, ended_by="evaluator")
    held.usage = {"candidate": [4, 100, 50]}
    held.rounds[1].failures, held.rounds[1].problem = 2, "logic.score: missing"
    assert Interview.from_record(orjson.loads(orjson.dumps(held.to_record()))) == held
    with pytest.raises(KeyError):
        Interview.from_record({"candidate": "model"})


@relaxed
@given(scorers, values, st.integers(0, 5))
def test_equals_the_naive_recomputation(scorer: Scorer, scores: list[int | None], lost: int) -> None:
    expected = naive(scorer.name, scorer.decay, scores, lost)
    found = scorer.combine(scores, lost)
    assert found is None if expected is None else found == pytest.approx(expected, rel=1e-12, abs=1e-12)


@relaxed
@given(scorers, values, st.integers(0, 5))
def test_a_score_lies_between_0_and_100(scorer: Scorer, scores: list[int | None], lost: int) -> None:
    score = scorer.combine(scores, lost)
    assert score is None or 0.0 <= score <= 100.0


@relaxed
@given(scorers, values.filter(lambda scores: any(scores)), st.integers(0, 5), st.data())
def test_a_better_round_never_lowers_the_score(
    scorer: Scorer, scores: list[int | None], lost: int, data: st.DataObject
) -> None:
    raised = list(scores)
    turn = data.draw(st.sampled_from([turn for turn, score in enumerate(scores) if score is not None]))
    raised[turn] = data.draw(st.integers(scores[turn] or 1, 4))
    before, after = scorer.combine(scores, lost), scorer.combine(raised, lost)
    assert before is not None
    assert after is not None
    assert after >= before


def test_line_6i_a_detectors_end_costs_its_rounds_whatever_the_switch_says() -> None:
    silent = interview(ended_by="detector")
    cut = interview(4, 4, ended_by="detector")
    for early_stop in (True, False):
        assert Scorer("corrected", early_stop=early_stop).score(silent) == 0.0
        expected = 100 * (W[0] + W[1]) / sum(W)
        assert Scorer("corrected", early_stop=early_stop).score(cut) == pytest.approx(expected)
        assert Scorer("official", early_stop=early_stop).score(silent) is None
    flagged = interview(4, 4, flags={1: "off_topic"}, ended_by="evaluator")
    assert Scorer("corrected", early_stop=False).score(flagged) == pytest.approx(100.0), "a flag is not held against it"
