"""Events for others: numbered, as records, with texts; readers that fail, fall behind or come late harm nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from small_runs import SAMPLING, after_calls, results, small_run, three_questions

from viva.engine.conversation import Conversation
from viva.engine.events import (
    CallFinished,
    ConversationFailed,
    ConversationFinished,
    ConversationStarted,
    Event,
    ListenerFailed,
    Noted,
    RunFinished,
    StepComputed,
)
from viva.engine.journal_reader import History
from viva.engine.messages import View
from viva.engine.runner import Runner
from viva.engine.stream import EventStream, Subscription, all_events, past_events


def _raise(event: Event) -> None:
    if isinstance(event, ConversationFinished):
        raise ValueError("a fault in a display")


@pytest.mark.parametrize("first", [True, False])
def test_a_listener_that_raises_is_detached_and_reported_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    handles: list[Any] = []
    heard: list[Event] = []

    def prepare(runner: Runner, stream: EventStream) -> None:
        if first:
            handles.append(stream.listen(_raise))
        stream.listen(heard.append)
        if not first:
            handles.append(stream.listen(_raise))

    with caplog.at_level(logging.WARNING, "viva"):
        outcome, events = small_run(tmp_path, count=5, prepare=prepare)
    assert (outcome.how, outcome.finished, outcome.failed) == ("done", 5, 0)
    assert [failed for _, failed, _ in results(tmp_path)] == [False] * 5
    [report] = [event for event in events if isinstance(event, ListenerFailed)]
    at = f"{__file__}:{_raise.__code__.co_firstlineno + 2} in _raise"
    assert report.listener.endswith("_raise")
    assert report.error == {"type": "ValueError", "message": "a fault in a display", "at": at}
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert heard == events
    assert "_raise: a listener raised and is not called any more: ValueError: a fault in a display" in caplog.text
    assert isinstance(handles[0].error, ValueError)


def test_a_listener_can_be_stopped(tmp_path: Path) -> None:
    heard: list[Event] = []

    def prepare(runner: Runner, stream: EventStream) -> None:
        def hear(event: Event) -> None:
            heard.append(event)
            if len(heard) == 3:
                handle.stop()

        handle = stream.listen(hear)

    _, events = small_run(tmp_path, count=2, prepare=prepare)
    assert heard == events[:3]


def test_every_event_is_plain_json_data(tmp_path: Path) -> None:
    async def converse(conversation: Conversation, payload: int) -> Any:
        conversation.note("verdict", {"scores": (1, 2), "who": Path("somewhere")})
        await conversation.compute("metric", str, payload)
        return await three_questions(conversation, payload)

    _, events = small_run(tmp_path, converse=converse, count=1)
    records = [event.to_record() for event in events]
    assert orjson.loads(orjson.dumps(records)) == records
    assert [record["event"] for record in records] == [type(event).__name__ for event in events]
    assert records[2] == {
        "event": "Noted",
        "sequence": 3,
        "at": events[2].at,
        "conversation": "talk-0",
        "kind": "verdict",
        "payload": {"scores": [1, 2], "who": "somewhere"},
    }
    assert records[3]["text"] is None
    assert records[4]["role"] == "candidate"


def test_texts_come_only_where_a_reader_asked_for_them(tmp_path: Path) -> None:
    handles: list[Any] = []

    def prepare(runner: Runner, stream: EventStream) -> None:
        handles.append(stream.listen(lambda event: None, texts=True))
        after_calls(2, lambda runner: handles[0].stop())(runner, stream)

    _, events = small_run(tmp_path, count=1, prepare=prepare)
    texts = [event.text for event in events if isinstance(event, CallFinished)]
    [(_, _, said)] = results(tmp_path)
    assert texts == [said[0], said[1], None]


def test_a_lossy_subscription_holds_nobody_back_and_counts_what_it_lost(tmp_path: Path) -> None:
    subscriptions: list[Subscription] = []

    def prepare(runner: Runner, stream: EventStream) -> None:
        subscriptions.append(stream.subscribe(4, lossy=True))

    async def rest(subscription: Subscription) -> list[Event]:
        subscription.finish()
        return [event async for event in subscription]

    outcome, events = small_run(tmp_path, prepare=prepare)
    assert outcome.finished == 20
    assert subscriptions[0].dropped == len(events) - 4
    assert anyio.run(rest, subscriptions[0]) == events[-4:]


def test_leaving_a_subscription_frees_the_run_and_one_that_is_not_read_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    readers: list[asyncio.Task[None]] = []

    async def read_two(stream: EventStream) -> None:
        async with stream.subscribe(2) as subscription:
            async for event in subscription:
                if isinstance(event, CallFinished):
                    break
            await anyio.sleep(100)  # the buffer is full for long

    def prepare(runner: Runner, stream: EventStream) -> None:
        readers.append(asyncio.get_running_loop().create_task(read_two(stream)))

    with caplog.at_level(logging.WARNING, "viva"):
        outcome, _ = small_run(tmp_path, prepare=prepare)
    assert (outcome.how, outcome.finished) == ("done", 20)
    assert caplog.text.count("waits for a subscriber of its events that has not read for 30 s") == 1


async def _with_steps(conversation: Conversation, payload: int) -> Any:
    await conversation.compute("metric", str, payload)
    view = View()
    view.append("user", f"question {payload}")
    text = (await conversation.generate("candidate", view, SAMPLING)).text
    if payload == 2:
        raise ValueError("a fault")
    return text


def test_the_past_is_in_the_journal_in_one_order_whatever_the_concurrency(tmp_path: Path) -> None:
    past = []
    for concurrency in (1, 4):
        folder = tmp_path / str(concurrency)
        small_run(folder, converse=_with_steps, count=4, model="simulated:m?latency=1", concurrency=concurrency)
        with History(folder / "journal.sqlite") as history:
            past.append(list(past_events(history)))
    for events in past:
        said = [result for _, _, result in results(tmp_path / "1")]
        assert [type(event) for event in events[:4]] == [
            ConversationStarted,
            StepComputed,
            CallFinished,
            ConversationFinished,
        ]
        assert [event.conversation for event in events] == [f"talk-{n}" for n in range(4) for _ in range(4)]
        assert [event.text for event in events if isinstance(event, CallFinished)][:2] == said[:2]
        assert [event.number for event in events if isinstance(event, ConversationFailed)] == [2]
        assert {event.sequence for event in events} == {0}


def _kinds(events: list[Event]) -> list[tuple[Any, ...]]:
    """What happened in conversations, in an order that does not depend on who was faster."""
    found = []
    for event in events:
        match event:
            case CallFinished():
                found.append((event.conversation, 1, event.role, event.ordinal, event.text))
            case ConversationStarted():
                found.append((event.conversation, 0))
            case ConversationFinished():
                found.append((event.conversation, 2))
            case Noted():
                found.append((event.conversation, 3))
    return sorted(found)


def _catching(folder: Path, moment: int, caught: list[Event]) -> tuple[Any, Any]:
    """``prepare`` and ``last`` of a run with a reader who comes when so many calls have finished."""
    tasks: list[asyncio.Task[None]] = []

    async def catch(runner: Runner, stream: EventStream) -> None:
        events = all_events(stream, folder / "journal.sqlite", runner.flush, capacity=3, texts=True)
        caught.extend([event async for event in events])

    def prepare(runner: Runner, stream: EventStream) -> None:
        def begin(runner: Runner) -> None:
            tasks.append(asyncio.get_running_loop().create_task(catch(runner, stream)))

        def end(event: Event) -> None:
            if isinstance(event, RunFinished):
                stream.close()

        after_calls(moment, begin)(runner, stream)
        stream.listen(end)

    async def last() -> None:
        await asyncio.gather(*tasks)

    return prepare, last


@pytest.mark.parametrize("moment", [1, 17, 40])
def test_a_late_reader_gets_past_and_present_without_gap_or_double(tmp_path: Path, moment: int) -> None:
    """Also where the run was resumed: one half of it was held by another process."""
    model = "simulated:m?latency=1"
    small_run(tmp_path, model=model, prepare=after_calls(23, Runner.halt))
    caught: list[Event] = []
    prepare, last = _catching(tmp_path, moment, caught)
    finished, _ = small_run(tmp_path, model=model, resume=True, prepare=prepare, last=last)
    assert finished.finished == 20
    with History(tmp_path / "journal.sqlite") as history:
        assert _kinds(caught) == _kinds(list(past_events(history)))


def test_a_late_reader_hears_of_failed_conversations_that_are_tried_again(tmp_path: Path) -> None:
    small_run(tmp_path, model="simulated:m?fail=1&retries=0", count=12)
    caught: list[Event] = []
    prepare, last = _catching(tmp_path, 10, caught)
    small_run(
        tmp_path, model="simulated:m?latency=1", count=12, resume=True, retry_failed=True, prepare=prepare, last=last
    )
    finished = [event.conversation for event in caught if isinstance(event, ConversationFinished)]
    assert sorted(finished) == sorted(f"talk-{number}" for number in range(12))
    assert sum(isinstance(event, CallFinished) for event in caught) == 36
