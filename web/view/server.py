"""HTTP server of the viewer (``viva view``): pages, and updates as server-sent events.

It only answers GET and HEAD. A request must name a host that this server is known by, so that no page of
another site can read it through a DNS name that leads here.

A reader of updates has no queue: it is woken, and sent what is new since the last event it got. The last
``_KEPT_EVENTS`` events are kept for all readers together; one that comes back later (``Last-Event-ID``) is told
to reload its page.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import orjson
from aiohttp import web

from viva.engine.errors import ConfigurationError, VivaError

from ..listening import known_hosts, name_of, serve_until_signal
from .findings import AnswerUpdater
from .index import Indexer, index_file, open_index
from .pages import TEMPLATES, PageContext, PageNotFound, Pages, ServedLinks
from .queries import Filter, IndexReader
from .runs import check_root

_log = logging.getLogger("viva")
_KEPT_EVENTS = 128  # events
_MOST_NAMED = 100  # conversations that one event names
_TICK_SECONDS = 1.0  # between events
_PATIENCE_SECONDS = 30.0  # for a reader that takes nothing
_ALIVE_SECONDS = 15.0


class LiveUpdates:
    """Gathers changes and tells its readers, every ``tick`` seconds at most. ``overview`` makes the overview's live
    part; ``on_news`` is called, in the event loop, when readers are told something.
    """

    def __init__(self, tick: float = _TICK_SECONDS) -> None:
        self._tick = tick
        self.overview: Callable[[], str] | None = None
        self.on_news: Callable[[], None] = lambda: None
        self.readers = 0
        # Number of the event before, own number, for all pages, for the overview.
        self._events: deque[tuple[int, int, bytes, bytes]] = deque(maxlen=_KEPT_EVENTS)
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
            if len(self._changed) >= _MOST_NAMED:
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
                plain, whole = (
                    _update_event(self.latest, data),
                    _update_event(self.latest, data | {"overview": fragment}),
                )
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
            return _update_event(self.latest, {"reset": True}), self.latest
        # Each holds all of the overview: the latest will do.
        last = kept[-1][3] if whole else kept[-1][2]
        return b"".join([*(event[2] for event in kept[:-1]), last]), kept[-1][1]


def _update_event(number: int, data: dict[str, object]) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (number, orjson.dumps(data))


T = TypeVar("T")
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
    "img-src 'self' data:"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ASSETS = {"view.js": "text/javascript", "view.css": "text/css"}
_MOST_READERS = 2_000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Viewer:
    """The pages of the runs below a folder, as a web application. ``names`` are hosts that it is known by besides
    this machine's own.
    """

    def __init__(
        self, root: Path, *, index: Path | None = None, host: str = "127.0.0.1", names: list[str] | None = None
    ):
        check_root(root)
        self.root = root
        self.file = index_file(root, index)
        self.live = LiveUpdates()
        self.hosts = known_hosts(host, names or [])
        # One thread has the index and the journals: questions are short, and memory stays that of one.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="viva-view-pages")
        self._pages: Pages | None = None
        self.indexer = Indexer(root, self.file, self.live.changed)
        self.answering = AnswerUpdater(root, self.file.with_suffix(".report.html"), self.live.touch)

    def application(self) -> web.Application:
        """The application; everything starts and ends with it."""
        app = web.Application(middlewares=[self._guard], client_max_size=1024)
        app.router.add_get("/", self._overview)
        app.router.add_get("/conversations", self._conversations)
        app.router.add_get(r"/c/{run:.+}/{number:\d{1,15}}", self._conversation)
        app.router.add_get("/compare", self._compare)
        app.router.add_get("/report", self._report)
        app.router.add_get("/events", self._events)
        app.router.add_get("/asset/{name}", self._asset)
        app.cleanup_ctx.append(self._running)
        app.on_shutdown.append(self._shut_down)
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        open_index(self.file).close()
        await self._in_thread(self._open)
        assert self._pages is not None
        self.live.overview, self.live.on_news = self._overview_part, self.answering.want
        self.live.start(self._pages.reader.version)
        self.indexer.start()
        self.answering.want()
        yield
        await asyncio.to_thread(self.indexer.stop)
        await self.answering.close()
        await self._in_thread(self._pages.close)
        self._thread.shutdown()

    async def _shut_down(self, app: web.Application) -> None:
        await self.live.close()

    def _open(self) -> None:
        self._pages = Pages(self.root, IndexReader(self.file), lambda depth: ServedLinks(), lambda: self.live.latest)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or name_of(hosts[0]) not in self.hosts:
            return web.Response(status=421, text="viva view: this server is not known by that name\n", headers=_HEADERS)
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="viva view: pages can only be read\n", headers=_HEADERS)
        try:
            response = await handler(request)
        except PageNotFound as error:
            response = await self._problem(404, "Not here", str(error))
        except web.HTTPNotFound:
            response = await self._problem(404, "Not here", f"{request.path[:200]}: no such page")
        except ConfigurationError as error:
            response = await self._problem(400, "This cannot be shown", str(error))
        except VivaError as error:
            response = await self._problem(500, "This cannot be shown", str(error))
        if not response.prepared:
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    # -- pages ----------------------------------------------------------------------------------------------------

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        pages = self._ready()
        self.answering.want()
        return _html(await self._in_thread(lambda: pages.overview(self._shown())))

    async def _conversations(self, request: web.Request) -> web.StreamResponse:
        chosen = Filter.from_query(request.query)
        return _html(await self._in_thread(lambda: self._ready().conversations(chosen)))

    async def _conversation(self, request: web.Request) -> web.StreamResponse:
        run, number = request.match_info["run"], int(request.match_info["number"])
        chosen, at = Filter.from_query(request.query), request.query.get("at", "")
        place = int(at) if at.isascii() and at.isdigit() and len(at) < 12 else None
        return _html(await self._in_thread(lambda: self._ready().conversation(run, number, chosen, place)))

    async def _compare(self, request: web.Request) -> web.StreamResponse:
        left, right = (_parse_conversation(request.query.get(name, ""), name) for name in ("a", "b"))
        return _html(await self._in_thread(lambda: self._ready().compare(left, right)))

    async def _report(self, request: web.Request) -> web.StreamResponse:
        problem = await self.answering.report()
        if problem:
            return await self._problem(500, "The report cannot be made", problem)
        text = await asyncio.to_thread(self.answering.page.read_text, "utf-8")
        # The report carries its own policy, stricter than this server's but for its own script and style.
        policy = {"Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"}
        return web.Response(text=text, content_type="text/html", headers=policy)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if request.method == "HEAD":
            return web.Response(content_type="text/event-stream")
        if self.live.readers >= _MOST_READERS:
            return web.Response(status=503, text="viva view: too many readers\n")
        return await self.live.serve(request)

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in _ASSETS:
            raise PageNotFound(f"no such file: {name[:80]}")
        made = self._ready().style if name == "view.css" else (TEMPLATES / name).read_text
        return web.Response(text=await self._in_thread(made), content_type=_ASSETS[name])

    async def _problem(self, status: int, title: str, text: str) -> web.Response:
        response = _html(await self._in_thread(lambda: self._ready().problem(title, text)))
        response.set_status(status)
        return response

    # -- what pages are made with ---------------------------------------------------------------------------------

    def _overview_part(self) -> str:
        """The overview's live part, made in the pages' thread; called in another one."""
        return self._thread.submit(lambda: self._ready().overview_part(self._shown())).result()

    def _shown(self) -> PageContext:
        return PageContext(self.answering.answer, self.answering.busy or not self.indexer.caught_up.is_set())

    def _ready(self) -> Pages:
        assert self._pages is not None
        return self._pages

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)


def _parse_conversation(text: str, name: str) -> tuple[str, int]:
    run, _, number = text.rpartition("/")
    if not run or not (number.isascii() and number.isdigit() and len(number) < 16):
        raise ConfigurationError(f"{name}: expected RUN/NUMBER, found '{text[:80]}'")
    return run, int(number)


def _html(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html")


_NICE = 5  # a run on the same machine comes first


def serve(root: Path, *, host: str, port: int, names: list[str], index: Path | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM; the address is told on stderr.

    :raises ConfigurationError: there is nothing to look at, or nobody can listen at that address.
    """
    asyncio.run(_serve(Viewer(root, index=index, host=host, names=names), host, port))


async def _serve(viewer: Viewer, host: str, port: int) -> None:
    os.nice(_NICE)
    await serve_until_signal(viewer.application(), host, port, _announce)


def _announce(address: str) -> None:
    print(f"viva view: {address}/  (Ctrl-C ends it)", file=sys.stderr, flush=True)
