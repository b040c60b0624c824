"""News of an index as server-sent events: any number of readers, none of which anybody waits for.

A reader has no queue: it is woken, and sent what is new since the last event it got. The last ``_KEPT`` events are kept
for all of them together; one that comes back after more (``Last-Event-ID``) is told to load its page anew.
What never belongs here: what changed (``indexing``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from urllib.parse import quote

import orjson
from aiohttp import web

_log = logging.getLogger("viva")
_KEPT = 128  # events
_NAMED = 100  # conversations that one event names
_TICK_SECONDS = 1.0  # between events
_PATIENCE_SECONDS = 30.0  # for a reader that takes nothing
_ALIVE_SECONDS = 15.0


class Live:
    """Gathers changes and tells its readers, every ``tick`` seconds at most. ``overview`` makes the overview's live
    part; ``on_news`` is called, in the event loop, when readers are told something.
    """

    def __init__(self, tick: float = _TICK_SECONDS) -> None:
        self._tick = tick
        self.overview: Callable[[], str] | None = None
        self.on_news: Callable[[], None] = lambda: None
        self.readers = 0
        # Number of the event before, own number, for all pages, for the overview.
        self._events: deque[tuple[int, int, bytes, bytes]] = deque(maxlen=_KEPT)
        self.latest = 0  # the number of the last event
        self._changed: dict[tuple[str, int], None] = {}
        self._many = False
        self._version: int | None = None
        self._news = asyncio.Event()
        self._dirty = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closing = False

    def start(self, version: int) -> None:
        """Begin to tell, in this event loop; ``version`` is that of the index now."""
        self._loop = asyncio.get_running_loop()
        self.latest = version
        self._task = self._loop.create_task(self._tell())

    async def close(self) -> None:
        """Send every reader away."""
        self.closing = True
        self._news.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def changed(self, version: int, conversations: list[tuple[str, int]]) -> None:
        """Take in a change; may be called by any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, version, conversations)

    def touch(self) -> None:
        """Tell the overview anew though the index is the same: an answer has come. In the event loop alone."""
        self._note(self.latest, [])

    def _note(self, version: int, conversations: list[tuple[str, int]]) -> None:
        self._version = version
        for one in conversations:
            if len(self._changed) >= _NAMED:
                self._many = True
                break
            self._changed[one] = None
        self._dirty.set()

    async def _tell(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(self._tick)
            self._dirty.clear()
            places = [f"{quote(run)}/{number}" for run, number in self._changed]
            data = {"changed": places, "many": self._many}
            self._changed.clear()
            self._many = False
            before, self.latest = self.latest, max(self.latest + 1, self._version or 0)
            if self.readers:
                self.on_news()
                fragment = await asyncio.to_thread(self._overview)
                plain, whole = _event(self.latest, data), _event(self.latest, data | {"overview": fragment})
                self._events.append((before, self.latest, plain, whole))
            else:
                self._events.clear()  # one that comes back loads its page anew
            self._news.set()
            self._news = asyncio.Event()

    def _overview(self) -> str:
        """The overview's live part; where it cannot be made now, nothing, and the page stays as it is."""
        try:
            return "" if self.overview is None else self.overview()
        except Exception:
            _log.warning("viva view: the overview cannot be made", exc_info=True)
            return ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one reader until it goes."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        whole = request.query.get("page") == "overview"
        # A page says itself up to which event it knows all: something may have come before it asked for events.
        given = request.headers.get("Last-Event-ID") or request.query.get("since", "")
        seen = int(given) if given.isascii() and given.isdigit() and len(given) < 18 else self.latest
        self.readers += 1
        try:
            await response.prepare(request)
            await response.write(b"retry: 2000\n: hello\n\n")
            while not self.closing:
                news = self._news
                data, seen = self._since(seen, whole)
                if data:
                    async with asyncio.timeout(_PATIENCE_SECONDS):
                        await response.write(data)
                    continue
                try:
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        await news.wait()
                except TimeoutError:
                    async with asyncio.timeout(_PATIENCE_SECONDS):
                        await response.write(b": alive\n\n")
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.readers -= 1
        return response

    def _since(self, seen: int, whole: bool) -> tuple[bytes, int]:
        """The events behind one, and the number of the last of them."""
        if seen == self.latest:
            return b"", seen
        kept = [event for event in self._events if event[1] > seen]
        if not kept or kept[0][0] > seen:  # forgotten, or told by a server before this one
            return _event(self.latest, {"reset": True}), self.latest
        # Each holds all of the overview: the latest will do.
        last = kept[-1][3] if whole else kept[-1][2]
        return b"".join([*(event[2] for event in kept[:-1]), last]), kept[-1][1]


def _event(number: int, data: dict[str, object]) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (number, orjson.dumps(data))
