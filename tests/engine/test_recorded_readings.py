"""Readings in the journal: their records, by what they are known, and a run of them that was halted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from small_runs import after_calls, small_run

from viva.engine.clock import RealClock
from viva.engine.conversation import Conversation
from viva.engine.journal import Journal
from viva.engine.journal_reader import History
from viva.engine.likelihood import Likelihood, Reading
from viva.engine.messages import Completion
from viva.engine.runner import Runner

_CLOCK = RealClock()
FOUR = Reading("Which is a metal?\nAnswer:", (" tin", " fog", " a song", " an old song"), "One more. A: B\n\n")
_LOGPROBS = st.lists(st.just(-math.inf) | st.floats(min_value=-1e9, max_value=0.0), max_size=20)
_MOMENTS = st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20)


@given(logprobs=_LOGPROBS, greedy=st.booleans(), means=_MOMENTS, deviations=_MOMENTS)
def test_a_likelihood_is_the_same_after_its_record(
    logprobs: list[float], greedy: bool, means: list[float] | None, deviations: list[float] | None
) -> None:
    likelihood = Likelihood(logprobs, greedy, means, deviations)
    again = Likelihood.from_record(orjson.loads(orjson.dumps(likelihood.to_record())))
    assert again == likelihood
    assert again.total == likelihood.total


def test_a_reading_is_known_by_all_that_is_asked() -> None:
    readings = [
        FOUR,
        Reading(FOUR.context, FOUR.continuations),
        Reading(FOUR.context, FOUR.continuations[:3], FOUR.shared),
        Reading(FOUR.context, tuple(reversed(FOUR.continuations)), FOUR.shared),
        Reading(FOUR.context + " ", FOUR.continuations, FOUR.shared),
        Reading("", (FOUR.context,), FOUR.shared),
        Reading("", (FOUR.context,), FOUR.shared, moments=True),
    ]
    assert len({reading.digest() for reading in readings}) == len(readings)
    assert Reading(*(FOUR.context, FOUR.continuations, FOUR.shared), hint={"id": 1}).digest() == FOUR.digest()


async def three_readings(conversation: Conversation, payload: Any) -> list[list[list[float]]]:
    """A protocol of three readings by one role."""
    told = []
    for number in range(3):
        likelihoods = await conversation.read("candidate", Reading(f"{number} of {payload}?", (" yes", " no, never")))
        told.append([likelihood.logprobs for likelihood in likelihoods])
    return told


def test_recorded_readings_are_not_made_again_after_a_halt(tmp_path: Path) -> None:
    model = "simulated:m?latency=1"
    small_run(tmp_path / "whole", converse=three_readings, count=12, model=model)
    outcome, _ = small_run(
        tmp_path / "part",
        converse=three_readings,
        count=12,
        model=model,
        prepare=after_calls(20, Runner.halt),
        concurrency=4,
    )
    assert outcome.how == "halted"
    resumed, events = small_run(tmp_path / "part", converse=three_readings, count=12, model=model, resume=True)
    assert (resumed.how, resumed.finished) == ("done", 12)
    assert not [event for event in events if type(event).__name__ == "Diverged"]
    with History(tmp_path / "whole" / "journal.sqlite") as whole, History(tmp_path / "part" / "journal.sqlite") as part:
        assert [one.result for one in part.ended()] == [one.result for one in whole.ended()]
        for number in range(12):
            mine, others = part.calls(number), whole.calls(number)
            assert [call.completion.likelihoods for call in mine] == [call.completion.likelihoods for call in others]
            assert len(mine) == 3  # none was asked twice


def test_what_cannot_be_said_comes_back_from_the_journal(tmp_path: Path) -> None:
    told = [Likelihood([-1.5, -math.inf], False, [-2.0, -3.0], [0.5, 0.0]), Likelihood([-0.25], True)]

    async def main() -> None:
        async with Journal(tmp_path / "journal.sqlite", _CLOCK) as journal:
            journal.record_call(0, "candidate", 0, b"digest", Completion("", likelihoods=told), 0.0)

    _CLOCK.run(main)
    with History(tmp_path / "journal.sqlite") as history:
        [call] = history.calls(0)
    assert call.completion.likelihoods == told
    assert call.completion.likelihoods[0].total == -math.inf
