"""The viewer's HTTP server: pages, events, and who may ask for them.

It only answers questions: GET and HEAD. A request must name a host that this server is known by, so that no page of
another site can read it through a name that leads here. What never belongs here: what is on a page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from viva.engine.errors import ConfigurationError, VivaError

from ..server.hosts import known_hosts, name_of
from .answering import Answering
from .filters import Filter
from .index import index_file, open_index
from .indexing import Indexer
from .links import ServedLinks
from .live import Live
from .pages import TEMPLATES, NotFound, Pages, Shown
from .query import IndexReader
from .runs import check_root

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
        self.live = Live()
        self.hosts = known_hosts(host, names or [])
        # One thread has the index and the journals: questions are short, and memory stays that of one.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="viva-view-pages")
        self._pages: Pages | None = None
        self.indexer = Indexer(root, self.file, self.live.changed)
        self.answering = Answering(root, self.file.with_suffix(".report.html"), self.live.touch)

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
        except NotFound as error:
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
        left, right = (_place(request.query.get(name, ""), name) for name in ("a", "b"))
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
            raise NotFound(f"no such file: {name[:80]}")
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

    def _shown(self) -> Shown:
        return Shown(self.answering.answer, self.answering.busy or not self.indexer.caught_up.is_set())

    def _ready(self) -> Pages:
        assert self._pages is not None
        return self._pages

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)


def _place(text: str, name: str) -> tuple[str, int]:
    run, _, number = text.rpartition("/")
    if not run or not (number.isascii() and number.isdigit() and len(number) < 16):
        raise ConfigurationError(f"{name}: expected RUN/NUMBER, found '{text[:80]}'")
    return run, int(number)


def _html(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html")
