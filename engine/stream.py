"""The stream of a run's events: published once, read by listeners and subscriptions.

A *listener* is called at once and must be quick; one that raises is detached and reported. A *subscription* is an async
iterator with a bounded buffer: while any buffer is full, conversations wait at their next call.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from .errors import user_frame
from .events import Event, ListenerFailed

Listener = Callable[[Event], Any]
_PATIENCE_SECONDS = 30.0  # wait for a subscription before a warning
_log = logging.getLogger("viva")


class Subscription:
    """A reader's bounded buffer; iterate over it to receive events in order. The iteration ends with the stream.

    A reader that stops reading must close its subscription, or the run waits forever once the buffer is full. `async
    with` closes it; leaving `async for` early does not.
    """

    def __init__(self, capacity: int, stream: EventStream) -> None:
        self._buffer: deque[Event] = deque()
        self._capacity = capacity
        self._stream = stream
        self._arrived = asyncio.Event()
        self.closed = False

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def put(self, event: Event) -> bool:
        """Add an event (called by the stream); return True if the run must now wait for this reader."""
        self._buffer.append(event)
        self._arrived.set()
        return self.full

    @property
    def full(self) -> bool:
        """True if the run must wait for this reader."""
        return len(self._buffer) >= self._capacity

    def close(self) -> None:
        """Stop reading; pending events are dropped, and the run no longer waits for this reader."""
        self._buffer.clear()
        self.finish()
        self._stream.forget(self)

    def release(self) -> None:
        """Buffer all further events without limit, so that the run no longer waits for this reader."""
        self._capacity = sys.maxsize
        self._stream.on_drained()

    def finish(self) -> None:
        """Close the subscription once its buffered events have been read (called by the stream)."""
        self.closed = True
        self._arrived.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        while not self._buffer:
            if self.closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        event = self._buffer.popleft()
        if len(self._buffer) == self._capacity - 1:
            self._stream.on_drained()
        return event


class ListenerHandle:
    """Handle of a listener: `stop` ends the calls; `error` is the exception that the listener raised, if any."""

    def __init__(self, stream: EventStream, listener: Listener) -> None:
        self.error: Exception | None = None
        self.listener = listener
        self._stream = stream

    def stop(self) -> None:
        """Stop calling the listener."""
        self._stream.forget(self)


class EventStream:
    """Events of a run. Publishing never waits or raises; if `congested`, conversations first await `wait_for_room`.

    If `detailed` is set, events of calls carry request and answer (`CallDetails`), and calls that fail are published.
    """

    def __init__(self) -> None:
        self._handles: tuple[ListenerHandle, ...] = ()  # replaced, never changed, because publishing iterates over it
        self._subscriptions: tuple[Subscription, ...] = ()
        self._single_listener: Listener | None = None  # fast path: one listener and no other reader
        self._has_several_readers = False
        self._published = 0
        self._room_available = asyncio.Event()
        self._warned = False
        self._closed = False
        self.congested = False
        self.detailed = False

    def listen(self, listener: Listener) -> ListenerHandle:
        """Call `listener` at once with every event. If it raises, it is not called again, and an event reports it."""
        handle = ListenerHandle(self, listener)
        self._set_readers((*self._handles, handle), self._subscriptions)
        return handle

    def subscribe(self, capacity: int = 1024) -> Subscription:
        """Return a buffer of `capacity` events; while it is full, conversations wait at their next call."""
        subscription = Subscription(capacity, self)
        self._set_readers(self._handles, (*self._subscriptions, subscription))
        if self._closed:
            subscription.finish()
        return subscription

    def publish(self, event: Event) -> None:
        """Assign the event its number and pass it to every reader."""
        event.sequence = self._published = self._published + 1
        if (listener := self._single_listener) is not None:
            try:
                listener(event)
            except Exception as error:
                self.publish(self._detach(listener, error, event))
        elif self._has_several_readers:
            self._publish_to_all(event)

    def _publish_to_all(self, event: Event) -> None:
        reports = []
        for handle in self._handles:
            try:
                handle.listener(event)
            except Exception as error:
                reports.append(self._detach(handle.listener, error, event))
        for subscription in self._subscriptions:
            if subscription.put(event):
                self.congested = True
        for report in reports:  # after the event itself, for all readers
            self.publish(report)

    @property
    def published(self) -> int:
        """Number of published events: the sequence number of the latest."""
        return self._published

    async def wait_for_room(self) -> None:
        """Wait until every buffer has room."""
        timer = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._warn_congested)
        try:
            while self.congested:
                self._room_available.clear()
                await self._room_available.wait()
        finally:
            timer.cancel()

    def on_drained(self) -> None:
        """Note that a reader made room (called by subscriptions)."""
        self.congested = any(subscription.full for subscription in self._subscriptions)
        if not self.congested:
            self._warned = False
            self._room_available.set()

    def forget(self, reader: Subscription | ListenerHandle) -> None:
        """Remove a reader."""
        self._set_readers(
            tuple(candidate for candidate in self._handles if candidate is not reader),
            tuple(candidate for candidate in self._subscriptions if candidate is not reader),
        )
        self.on_drained()

    def close(self) -> None:
        """End every subscription after its last event has been read."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.finish()

    def _set_readers(self, handles: tuple[ListenerHandle, ...], subscriptions: tuple[Subscription, ...]) -> None:
        self._handles, self._subscriptions = handles, subscriptions
        self._single_listener = handles[0].listener if len(handles) == 1 and not subscriptions else None
        self._has_several_readers = self._single_listener is None and bool(handles or subscriptions)

    def _detach(self, listener: Listener, error: Exception, event: Event) -> ListenerFailed:
        for handle in self._handles:
            if handle.listener is listener:
                handle.error = error
                self.forget(handle)
        name = f"{getattr(listener, '__module__', '')}.{getattr(listener, '__qualname__', repr(listener))}"
        kind, location = type(error).__name__, user_frame(error)
        _log.warning("%s: a listener raised and is not called again: %s: %s (%s)", name, kind, error, location)
        record = {"type": kind, "message": str(error), "at": location}
        return ListenerFailed(event.at, event.conversation, name, record)

    def _warn_congested(self) -> None:
        if self.congested and not self._warned:
            self._warned = True
            _log.warning(
                "the run is waiting for a subscriber to its events that has not read for %g s; close subscriptions "
                "that are no longer read",
                _PATIENCE_SECONDS,
            )
