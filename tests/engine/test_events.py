"""Events for others: numbered, as records, readers that fail or fall behind harm nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from small_runs import results, small_run, three_questions

from viva.engine.conversation import Conversation
from viva.engine.events import (
    CallFinished,
    ConversationFinished,
    Event,
    ListenerFailed,
)
from viva.engine.runner import Runner
from viva.engine.stream import EventStream


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
    assert "_raise: a listener raised and is not called again: ValueError: a fault in a display" in caplog.text
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
    assert caplog.text.count("is waiting for a subscriber to its events that has not read for 30 s") == 1
