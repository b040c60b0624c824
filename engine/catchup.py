"""The events of a run's past, read back from its journal, and the way to join them to the stream of a running one.

Works on any run folder, of a finished run, a stopped one, or one that another process runs right now. What was not
recorded is not told again: retries, notes of protocols, stops asked for, limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from .events import (
    CallFinished,
    ConversationFailed,
    ConversationFinished,
    ConversationStarted,
    Diverged,
    Event,
    StepComputed,
)
from .history import EndedConversation, History, RecordedCall
from .steps import RAISED, STEP_PREFIX
from .stream import EventStream


def past_events(history: History) -> Iterator[Event]:
    """What the journal holds, as events: conversation by conversation by ascending number, each with its
    ``ConversationStarted``, its calls and steps in the order in which they were recorded (``replayed``, with texts, at
    no cost), and its end if it has one (``restored``). Lazy; one conversation is in memory at a time.

    ``sequence`` is 0. Beginnings and ends are not timed in the journal: ``at`` is when the first call was asked, or the
    last one answered; 0 in a conversation without calls. A call asked anew after a divergence is told once, as it was
    asked last. Damaged records are left out, and named by ``history``.
    """
    ended = history.ended()
    end = next(ended, None)
    for number in history.numbers():
        while end is not None and end.number < number:
            end = next(ended, None)
        started = history.started(number)
        if started is None:
            continue
        key = started[0]
        latest = {(call.branch, call.role, call.ordinal): call for call in history.calls(number)}
        calls = sorted(latest.values(), key=lambda call: call.at)
        yield ConversationStarted(calls[0].at - calls[0].completion.latency if calls else 0.0, key, number)
        for call in calls:
            yield _told(call, key)
        if end is not None and end.number == number:
            yield _end(end, calls[-1].at if calls else 0.0)


async def all_events(
    stream: EventStream,
    journal: Path,
    flush: Callable[[], Awaitable[None]],
    *,
    capacity: int = 1024,
    texts: bool = False,
) -> AsyncIterator[Event]:
    """The events of a run that goes on in this process, from its beginning to its end, without gap or double: the past
    from its journal, then the stream. ``flush`` is that of the runner (``Runner.flush``), which makes sure that what
    was published before is recorded. Lossless: the run waits for a reader who is slow, also while it reads the past.

    An event of the stream is a double where the past had it. Calls are known by conversation, branch, role and ordinal,
    steps by conversation, branch, name and ordinal, beginnings and ends by conversation; keys of conversations are
    unique in a run. The journal is opened and checked in the event loop, which takes a while for one of gigabytes.
    """
    async with stream.subscribe(capacity, texts=texts) as subscription:
        await flush()
        with History(journal) as history:
            told = _Told(stream.published)
            for event in past_events(history):
                told.add(event)
                yield event
                if isinstance(event, ConversationStarted):
                    await asyncio.sleep(0)
        async for event in subscription:
            if not told.has(event):
                yield event


class _Told:
    """Which events were told already. Of an ended conversation no more than its key is kept.

    ``window`` is the sequence number of the latest event that may have been recorded when the journal was opened.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._ended: set[str] = set()
        self._begun: dict[str, set[tuple[object, ...]]] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, ConversationFinished | ConversationFailed):
            self._begun.pop(event.conversation, None)
            self._ended.add(event.conversation)
        else:
            self._begun.setdefault(event.conversation, set()).add(_identity(event))

    def has(self, event: Event) -> bool:
        identity, key = _identity(event), event.conversation
        if isinstance(event, Diverged):  # its calls are asked anew, under the same ordinals
            self._begun.pop(key, None)
        if not identity:
            return False
        if getattr(event, "replayed", False) or getattr(event, "restored", False):
            return True  # it stood in the journal before it was published
        if key in self._ended:
            if event.sequence <= self._window:
                return True
            self._ended.discard(key)  # it failed before, and is tried again
        return identity in self._begun.get(key, ())


def _identity(event: Event) -> tuple[object, ...]:
    """What tells an event of a conversation from its others; nothing for those that the journal does not hold."""
    match event:
        case CallFinished():
            return ("call", event.branch, event.role, event.ordinal)
        case StepComputed():
            return ("step", event.branch, event.name, event.ordinal)
        case ConversationStarted():
            return ("started",)
        case ConversationFinished() | ConversationFailed():
            return ("ended",)
    return ()


def _told(call: RecordedCall, key: str) -> Event:
    completion = call.completion
    if call.role.startswith(STEP_PREFIX):
        name = call.role.removeprefix(STEP_PREFIX)
        failed = completion.finish == RAISED
        text, latency = completion.text, completion.latency
        return StepComputed(call.at, key, name, call.ordinal, failed, latency, True, text, call.branch)
    return CallFinished(
        call.at,
        key,
        call.role,
        call.ordinal,
        completion.prompt_tokens,
        completion.completion_tokens,
        0.0,
        completion.latency,
        completion.attempts,
        True,
        completion.text,
        call.branch,
    )


def _end(end: EndedConversation, at: float) -> Event:
    made = ConversationFailed if end.failed else ConversationFinished
    return made(at, end.key, end.number, end.result, True)
