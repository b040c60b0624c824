"""Everything that happens in a run, as typed records on one stream.

The streaming scorer, the progress bar, a live view and an embedding program all read this one stream. Two ways to
read it: a *listener* is called at once and must be quick; a *subscription* is an async iterator with a bounded buffer,
and a conversation waits at its next call while any buffer is full, so nothing is lost and nothing grows without end.

What never belongs here: scores and verdicts as such. A protocol reports them as ``Noted`` with a payload of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Event:
    """Base of all events. ``at`` is the clock's wall time, ``conversation`` a key or "" for the run itself."""

    at: float
    conversation: str


@dataclass(slots=True)
class RunStarted(Event):
    """The run begins (or is resumed): ``total`` conversations if known, ``done`` of them ended before."""

    total: int | None
    done: int


@dataclass(slots=True)
class ConversationStarted(Event):
    """A conversation was admitted."""

    number: int


@dataclass(slots=True)
class CallFinished(Event):
    """A model call was answered; ``replayed`` means from the journal, at no cost."""

    role: str
    ordinal: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    latency: float
    attempts: int
    replayed: bool


@dataclass(slots=True)
class StepComputed(Event):
    """A step that is no model call ended; ``failed``: with an error as its result. ``replayed``: from the journal."""

    name: str
    ordinal: int
    failed: bool
    latency: float
    replayed: bool


@dataclass(slots=True)
class Diverged(Event):
    """A recorded call was asked differently than now; from here on the conversation is called anew."""

    role: str
    ordinal: int


@dataclass(slots=True)
class Noted(Event):
    """A protocol's own news, e.g. kind ``verdict``; the engine never looks inside."""

    kind: str
    payload: Any


@dataclass(slots=True)
class StopRequested(Event):
    """Somebody ended the conversation early: ``by`` evaluator, detector or budget."""

    by: str
    reason: str


@dataclass(slots=True)
class ConversationFinished(Event):
    """The coroutine returned; ``result`` is what the protocol records. ``restored``: read from the journal."""

    number: int
    result: Any
    restored: bool = False


@dataclass(slots=True)
class ConversationFailed(Event):
    """The conversation ended with an error, kept as data; the run goes on."""

    number: int
    error: dict[str, Any]
    restored: bool = False


@dataclass(slots=True)
class ConversationInterrupted(Event):
    """The run ended first; the conversation will go on when the run is resumed."""

    number: int


@dataclass(slots=True)
class Retried(Event):
    """A model call failed and will be tried again after ``delay`` seconds; ``error`` is the type's name."""

    model: str
    error: str
    delay: float


@dataclass(slots=True)
class LimitHit(Event):
    """A budget took effect; ``limit`` names it."""

    limit: str
    detail: str


@dataclass(slots=True)
class RunFinished(Event):
    """The run is over. ``outcome``: done, drained, halted, budget, failed."""

    outcome: str


class Subscription:
    """One reader's bounded buffer; iterate it to take events in order. Ends when the stream is closed."""

    def __init__(self, capacity: int, stream: EventStream) -> None:
        self._buffer: deque[Event] = deque()
        self._capacity = capacity
        self._stream = stream
        self._arrived = asyncio.Event()
        self.closed = False

    def put(self, event: Event) -> None:
        self._buffer.append(event)
        self._arrived.set()

    @property
    def full(self) -> bool:
        return len(self._buffer) >= self._capacity

    def close(self) -> None:
        """Stop reading; pending events are dropped and nobody waits for this reader any more."""
        self.closed = True
        self._arrived.set()
        self._stream.forget(self)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            while self._buffer:
                event = self._buffer.popleft()
                if len(self._buffer) == self._capacity - 1:
                    self._stream.drained()
                yield event
            if self.closed:
                return
            self._arrived.clear()
            await self._arrived.wait()


class EventStream:
    """The run's events. Publishing never waits; ``congested`` tells a conversation to await ``room`` first."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []
        self._subscriptions: list[Subscription] = []
        self._room = asyncio.Event()
        self.congested = False

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Have ``listener`` called with every event, in the publisher's own turn: it must be quick and not raise."""
        self._listeners.append(listener)

    def subscribe(self, capacity: int = 1024) -> Subscription:
        """A bounded buffer to iterate over. Lossless: a full buffer holds conversations back at their next call."""
        subscription = Subscription(capacity, self)
        self._subscriptions.append(subscription)
        return subscription

    def publish(self, event: Event) -> None:
        """Hand an event to every reader."""
        for listener in self._listeners:
            listener(event)
        for subscription in self._subscriptions:
            subscription.put(event)
            if subscription.full:
                self.congested = True

    async def room(self) -> None:
        """Wait until every buffer has room."""
        while self.congested:
            self._room.clear()
            await self._room.wait()

    def drained(self) -> None:
        """A reader made room (called by subscriptions)."""
        self.congested = any(subscription.full for subscription in self._subscriptions)
        if not self.congested:
            self._room.set()

    def forget(self, subscription: Subscription) -> None:
        """Drop a reader."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        self.drained()

    def close(self) -> None:
        """End every subscription once it has been read to its end."""
        for subscription in self._subscriptions:
            subscription.closed = True
            subscription._arrived.set()
