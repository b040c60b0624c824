"""Aggregates over interviews: what is counted, what never enters a mean, and that any split merges to equal bytes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.scenarios.kieval.interview_report import CachedScorer, InterviewAggregate
from viva.scenarios.kieval.score import ASPECTS, SCORERS, Interview, Round, Scorer

relaxed = settings(deadline=None, max_examples=60)
counts = st.lists(st.integers(0, 10**6), min_size=3, max_size=3)
reasons = st.sampled_from(["off_topic", "repetition", "empty_response"])
rounds = st.builds(
    Round,
    st.none() | st.lists(st.integers(1, 4), min_size=6, max_size=6),
    st.none() | reasons,
    st.integers(0, 2),
)
interviews = st.builds(
    Interview,
    candidate=st.just("model"),
    item=st.text(max_size=3),
    planned=st.just(5),
    choice=st.none() | st.integers(0, 3),
    right=st.booleans(),
    rounds=st.lists(rounds, max_size=5),
    ended_by=st.sampled_from(["rounds", "evaluator", "detector", "budget", "operator", "transcript"]),
    reason=reasons,
    usage=st.dictionaries(st.sampled_from(["candidate", "interactor", "evaluator"]), counts),
    discarded=counts,
)
failures = st.fixed_dictionaries({"type": st.sampled_from(["Unavailable", "TimedOut"]), "message": st.text(max_size=3)})
outcomes = st.lists(st.tuples(interviews | failures, st.integers(0, 3)), max_size=12)
scorers = st.builds(Scorer, st.sampled_from(SCORERS), st.booleans(), st.booleans())
PRICES = {"candidate": [1.0, 2.0], "interactor": [3.0, 4.0]}


def aggregate(scorer: Scorer, seen: list[Any]) -> InterviewAggregate:
    result = InterviewAggregate(scorer)
    for outcome in seen:
        if isinstance(outcome, Interview):
            result.add(outcome)
        else:
            result.failures.add(outcome)
    return result


def as_bytes(aggregated: InterviewAggregate) -> bytes:
    return orjson.dumps(aggregated.to_dict(PRICES))


def talk(*held: Round, **fields: Any) -> Interview:
    return Interview("model", "item", 5, rounds=list(held), **fields)


def scored(score: int, stop: str | None = None, failures: int = 0) -> Round:
    return Round([score] * 6, stop, failures)


UNSCORED = Round(None, None, 2, "it is empty")


@relaxed
@given(scorers, outcomes, st.permutations(range(4)))
def test_any_split_merges_to_the_same_bytes(scorer: Scorer, seen: list[tuple[Any, int]], order: list[int]) -> None:
    parts = [aggregate(scorer, [outcome for outcome, part in seen if part == number]) for number in range(4)]
    before = [as_bytes(part) for part in parts]
    merged = InterviewAggregate(scorer)
    for number in order:
        merged.merge(parts[number])
    assert as_bytes(merged) == as_bytes(aggregate(scorer, [outcome for outcome, _ in seen]))
    assert [as_bytes(part) for part in parts] == before


@relaxed
@given(scorers, outcomes)
def test_the_counts_add_up(scorer: Scorer, seen: list[tuple[Any, int]]) -> None:
    found = aggregate(scorer, [outcome for outcome, _ in seen]).to_dict()
    assert found["interviews"] == found["scored"] + found["unscored_interviews"] == sum(found["ends"].values())
    assert found["interviews"] + found["failed"] == len(seen)
    assert found["failed"] == sum(found["failures"].values())
    assert found["unscored_rounds"] <= found["verdicts"]


def test_parse_failures_and_unscored_rounds_are_rates_of_different_things() -> None:
    # Three rounds read at once, one after a repair (two texts), one never (two texts): seven texts, three unreadable.
    held = [scored(4), scored(3), scored(2), scored(2, failures=1), UNSCORED]
    found = aggregate(Scorer(), [talk(*held)]).to_dict()
    assert (found["verdicts"], found["unscored_rounds"], found["parse_failures"]) == (5, 1, 3)
    assert found["unscored_rate"] == pytest.approx(1 / 5)
    assert found["parse_failure_rate"] == pytest.approx(3 / 7, abs=1e-6)


def test_rates_of_nothing_are_not_zero() -> None:
    found = InterviewAggregate(Scorer()).to_dict()
    assert found["unscored_rate"] is None
    assert found["parse_failure_rate"] is None
    assert found["score"] == {"mean": None, "se": None, "n": 0}


def test_an_unscored_interview_stays_out_of_the_mean() -> None:
    found = aggregate(Scorer(), [talk(scored(4)), talk(UNSCORED, UNSCORED), talk(scored(1))]).to_dict()
    assert found["score"]["n"] == found["scored"] == 2
    assert found["score"]["mean"] == pytest.approx(55.0)
    assert found["score"]["se"] == pytest.approx(45.0)
    assert found["unscored_interviews"] == 1
    assert found["interviews"] == 3


def test_a_failure_is_counted_by_type_and_never_scored() -> None:
    failed = [{"type": "Unavailable", "message": "502"}, {"type": "TimedOut"}, {"type": "Unavailable"}, {}]
    with_failures = aggregate(Scorer(), [talk(scored(4), right=True, choice=0), *failed]).to_dict()
    without = aggregate(Scorer(), [talk(scored(4), right=True, choice=0)]).to_dict()
    assert with_failures["failures"] == {"TimedOut": 1, "Unavailable": 2, "unknown": 1}
    assert with_failures["failed"] == 4
    assert {key for key in without if with_failures[key] != without[key]} == {"failures", "failed"}


def test_accuracy_counts_an_unanswered_question_as_not_right_and_names_it() -> None:
    seen = [talk(choice=1, right=True), talk(choice=2), talk(choice=None), talk(choice=1, right=True)]
    found = aggregate(Scorer(), seen).to_dict()
    assert found["accuracy"]["mean"] == pytest.approx(50.0)
    assert found["unanswered"] == 1


def test_how_talks_ended() -> None:
    seen = [
        talk(scored(4)),
        talk(scored(1, "off_topic"), ended_by="evaluator", reason="off_topic"),
        talk(scored(2), ended_by="detector", reason="repetition"),
        talk(scored(2), ended_by="budget", reason="the budget of 9 tokens is used up"),
        talk(scored(2), ended_by="transcript"),
    ]
    found = aggregate(Scorer(), seen).to_dict()
    assert found["ends"] == {"budget": 1, "detector": 1, "evaluator": 1, "rounds": 1, "transcript": 1}
    reasons = {"off_topic": 1, "repetition": 1, "the budget of 9 tokens is used up": 1, "transcript": 1}
    assert found["stop_reasons"] == reasons
    assert found["rounds"] == {"mean": 1.0, "se": 0.0, "n": 5}


def test_rounds_after_a_flag_are_not_counted_with_early_stop_on() -> None:
    recorded = talk(scored(4), scored(1, "off_topic"), UNSCORED, scored(4))
    cut, whole = (aggregate(Scorer(early_stop=on), [recorded]).to_dict() for on in (True, False))
    assert (cut["verdicts"], cut["unscored_rounds"], cut["rounds"]["mean"]) == (2, 0, 2.0)
    assert (whole["verdicts"], whole["unscored_rounds"], whole["rounds"]["mean"]) == (4, 1, 4.0)
    assert cut["stop_reasons"] == {"off_topic": 1}


def test_usage_is_summed_by_role_and_priced() -> None:
    one = talk(scored(4), usage={"candidate": [2, 100, 10]}, discarded=[1, 1000, 500])
    other = talk(scored(4), usage={"interactor": [1, 7, 3], "candidate": [1, 900, 90]})
    found = aggregate(Scorer(), [one, other]).to_dict(PRICES)
    assert found["usage"] == {
        "candidate": {"calls": 3, "prompt_tokens": 1000, "completion_tokens": 100, "cost": 0.0012},
        "interactor": {"calls": 1, "prompt_tokens": 7, "completion_tokens": 3, "cost": 0.000033},
    }
    assert found["discarded_questions"]["cost"] == pytest.approx(0.005)
    assert one.usage == {"candidate": [2, 100, 10]}


@relaxed
@given(st.lists(interviews, max_size=8), scorers)
def test_what_is_remembered_is_what_the_scorer_says(held: list[Interview], scorer: Scorer) -> None:
    remembering = CachedScorer(scorer)
    for one in held + held[::-1]:
        expected = [scorer.score(one, aspect) for aspect in range(len(ASPECTS))]
        assert remembering.scores(one) == expected
        assert remembering.overall(one) == expected[-1]
