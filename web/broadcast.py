"""Server-sent events to any number of readers; no reader delays the sender or another reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import orjson

_KEEP_ALIVE_SECONDS = 15.0
_KEEP_ALIVE = b": \n\n"
EVENT_STREAM = "text/event-stream"


class Broadcast:
    """Readers that are woken together when there are new events. A reader has only a position, no queue."""

    def __init__(self) -> None:
        self.readers = 0
        self.closed = False
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Wake all readers."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        """Announce that no events will follow; readers end after the last event."""
        self.closed = True
        self.wake()

    async def read(
        self,
        position: int,
        after: Callable[[int], tuple[bytes, int]],
        pause: Callable[[int], float] = lambda position: 0.0,
    ) -> AsyncGenerator[bytes, None]:
        """Iterate over the events after a position, with comments that keep the connection alive.

        Args:
            position: Position of the last event that the reader has.
            after: Returns the events after a position, and the position of the last of them.
            pause: Seconds to wait at each position, so that a reader that is behind uses no more of the event loop than
                the other readers.
        """
        self.readers += 1
        try:
            while True:
                news = self._news
                data, following = after(position)
                if following != position:
                    position = following
                    yield data
                    if not self.closed:
                        await asyncio.sleep(pause(position))
                elif self.closed:
                    return
                else:
                    try:
                        async with asyncio.timeout(_KEEP_ALIVE_SECONDS):
                            await news.wait()
                    except TimeoutError:
                        yield _KEEP_ALIVE
        finally:
            self.readers -= 1


def server_sent_event(data: object, id_: str | None = None, name: str | None = None) -> bytes:
    """Encode one event. Its JSON data is one line, because JSON needs no line breaks."""
    head = b"" if id_ is None else b"id: %b\n" % id_.encode()
    head += b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS))
