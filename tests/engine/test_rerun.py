"""A recorded conversation held again: calls that overlap, calls that were asked anew, and calls without an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from viva.engine.conversation import Conversation
from viva.engine.conversation_replay import Exchange, Replay, replay_conversation
from viva.engine.journal_reader import RecordedCall
from viva.engine.messages import Completion, Sampling, View, request_digest
from viva.engine.seeds import ConversationSeeds

_SEED, _KEY = 7, "one/task"
_SAMPLING = Sampling(max_tokens=8)


def _view(text: str) -> View:
    view = View()
    view.append("user", text)
    return view


def _recorded(role: str, ordinal: int, asked: str, answer: str) -> RecordedCall:
    digest = request_digest(_view(asked), _SAMPLING, ConversationSeeds(_SEED, _KEY).seed(role, ordinal))
    return RecordedCall(role, ordinal, digest, Completion(answer), 0.0)


def _held(protocol: Any, *recorded: RecordedCall) -> Replay:
    return asyncio.run(replay_conversation(protocol, None, recorded, seed=_SEED, number=3, key=_KEY, label="one"))


def _exchanges(rerun: Replay) -> list[tuple[str, str, bool]]:
    """Role, answer, and whether what was sent is known."""
    told = [one for one in rerun.lines if isinstance(one, Exchange)]
    return [(one.role, one.completion.text, one.messages is not None) for one in told if one.completion is not None]


async def _side_by_side(conversation: Conversation, task: Any) -> None:
    """``left`` asks once, ``right`` twice, and waits for something else in between."""

    async def left() -> None:
        await conversation.generate("left", _view("l0"), _SAMPLING)

    async def right() -> None:
        await conversation.generate("right", _view("r0"), _SAMPLING)
        await anyio.lowlevel.checkpoint()
        await conversation.generate("right", _view("r1"), _SAMPLING)

    async with anyio.create_task_group() as group:
        group.start_soon(left)
        group.start_soon(right)


_LEFT = _recorded("left", 0, "l0", "L0")
_RIGHT = [_recorded("right", number, f"r{number}", f"R{number}") for number in range(2)]


def test_overlapping_calls_stand_in_the_order_of_asking_whichever_was_answered_first() -> None:
    told = [("left", "L0", True), ("right", "R0", True), ("right", "R1", True)]
    assert _exchanges(_held(_side_by_side, _LEFT, *_RIGHT)) == told
    assert _exchanges(_held(_side_by_side, *_RIGHT, _LEFT)) == told


def test_an_unanswered_call_does_not_hide_what_was_answered_beside_it() -> None:
    rerun = _held(_side_by_side, *_RIGHT)
    assert _exchanges(rerun) == [("right", "R0", True), ("right", "R1", True)]
    assert rerun.problem is None
    assert [(one.role, one.ordinal) for one in rerun.unanswered] == [("left", 0)]


async def _two(conversation: Conversation, task: Any) -> None:
    for number in range(2):
        await conversation.generate("left", _view(f"l{number}"), _SAMPLING)


def test_of_a_call_that_was_asked_anew_the_later_answer_counts_and_nothing_that_followed_the_earlier() -> None:
    stale = [_recorded("left", number, f"old {number}", f"stale {number}") for number in range(3)]
    anew = [_recorded("left", number, f"l{number}", f"L{number}") for number in range(2)]
    rerun = _held(_two, *stale, *anew)
    assert _exchanges(rerun) == [("left", "L0", True), ("left", "L1", True)]
    assert rerun.problem is None


def test_where_one_call_is_asked_otherwise_the_others_are_known() -> None:
    rerun = _held(_two, _recorded("left", 0, "other words", "L0"), _recorded("left", 1, "l1", "L1"))
    assert _exchanges(rerun) == [("left", "L0", False), ("left", "L1", True)]
    assert rerun.problem == "the request left #0 differs from the recorded one"
    rerun = _held(_two, *(_recorded("left", number, f"l{number}", f"L{number}") for number in range(3)))
    assert _exchanges(rerun)[-1] == ("left", "L2", False)
    assert rerun.problem == "the scenario's code now makes fewer calls than were recorded"


def test_what_ended_the_recorded_conversation_is_no_problem_of_its_prompts() -> None:
    async def raising(conversation: Conversation, task: Any) -> None:
        await _two(conversation, task)
        raise ValueError(f"number {conversation.number}")

    known = [_recorded("left", number, f"l{number}", f"L{number}") for number in range(3)]
    assert _held(raising, *known[:2]).problem is None
    assert _held(raising, *known).problem == "ValueError: number 3"


@pytest.mark.parametrize("raised", [SystemExit(3), type("Own", (BaseException,), {})(), asyncio.CancelledError()])
def test_whatever_a_protocol_raises_when_it_is_held_again_its_transcript_is_there(raised: BaseException) -> None:
    async def raising(conversation: Conversation, task: Any) -> None:
        await _two(conversation, task)
        raise raised

    known = [_recorded("left", number, f"l{number}", f"L{number}") for number in range(2)]
    assert len(_exchanges(_held(raising, *known))) == 2
