"""The latest events of a run in a ring, and any number of readers that never hold the run back.

The run's cost does not depend on its readers: it puts an event into the ring, and readers are woken together, the more
of them the less often. One who is slow, or was away, goes on where it was if the ring still holds that, and is told
how many events it has lost otherwise. What never belongs here: HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson

from viva.engine.events import Event

CAPACITY = 4096  # events
_TICK_SECONDS = 0.05
_TICK_PER_READER = 0.002
_BATCH = 256  # events that a reader is handed at once
_KEEP_ALIVE_SECONDS = 15.0
_ALIVE = b": \n\n"


class RecentEvents:
    """The ring of one run. ``epoch`` begins the ids of its events: a later server carries the run under another one."""

    def __init__(self, epoch: str, capacity: int = CAPACITY) -> None:
        self.epoch = epoch
        self._capacity = capacity
        self._events: list[Event | None] = [None] * capacity
        self._encoded: list[tuple[int, bytes]] = [(0, b"")] * capacity
        self._latest_block: tuple[tuple[int, int], bytes, int] = ((0, 0), b"", 0)
        self._last = 0
        self._readers = 0
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    def hear(self, event: Event) -> None:
        """The listener of a run: takes the event, and waits for nobody."""
        self._last = event.sequence
        self._events[event.sequence % self._capacity] = event
        if self._readers and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._wake)

    def close(self) -> None:
        """No event comes any more: readers end when they have read what is here."""
        self.closed = True
        self._wake()

    def place_of(self, id_: str | None) -> int | None:
        """Which event an id names; None for one of another epoch, or none at all."""
        epoch, _, number = (id_ or "").rpartition("-")
        if epoch != self.epoch or not number.isascii() or not number.isdecimal() or len(number) > 18:
            return None
        return min(int(number), self._last)

    @property
    def _pause(self) -> float:
        return max(_TICK_SECONDS, _TICK_PER_READER * self._readers)

    @property
    def last(self) -> int:
        """The latest event's number."""
        return self._last

    async def read(self, place: int) -> AsyncIterator[bytes]:
        """The events behind a place, as server-sent events in blocks, until the run has ended; with ``Gap`` events that
        say how many are lost, and comments that keep the connection alive.
        """
        self._readers += 1
        try:
            while True:
                while place < self._last:
                    block, place = self._block(place)
                    yield block
                    if place < self._last and not self.closed:
                        await asyncio.sleep(self._pause)  # one who lags behind takes no more of the loop than others
                if self.closed:
                    return
                news = self._news
                try:
                    async with asyncio.timeout(_KEEP_ALIVE_SECONDS):
                        await news.wait()
                except TimeoutError:
                    yield _ALIVE
        finally:
            self._readers -= 1

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _block(self, place: int) -> tuple[bytes, int]:
        key = (place, self._last)
        if self._latest_block[0] == key:  # most readers are at the same place
            return self._latest_block[1:]
        parts = []
        oldest = max(1, self._last - self._capacity + 1)
        if place + 1 < oldest:
            parts.append(server_sent("Gap", {"lost": oldest - place - 1}, f"{self.epoch}-{oldest - 1}"))
            place = oldest - 1
        end = min(self._last, place + _BATCH)
        parts += [self._text(number) for number in range(place + 1, end + 1)]
        self._latest_block = (key, b"".join(parts), end)
        return self._latest_block[1:]

    def _text(self, number: int) -> bytes:
        """An event as it is sent, put into words once for all readers."""
        slot = number % self._capacity
        known, text = self._encoded[slot]
        if known != number:
            event = self._events[slot]
            if event is None or event.sequence != number:  # published before anybody listened
                return b""
            text = server_sent(type(event).__name__, event.to_record(), f"{self.epoch}-{number}")
            self._encoded[slot] = (number, text)
        return text


def server_sent(name: str, data: object, id_: str | None = None) -> bytes:
    """One server-sent event; JSON has no line ends outside of strings, so its data is one line."""
    head = b"" if id_ is None else b"id: %b\n" % id_.encode()
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS))
