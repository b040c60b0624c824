"""HTTP server of the viewer (`viva view`): pages, and updates as server-sent events.

It answers only GET and HEAD, unless the operator may steer runs (`steering`). The last `_KEPT_EVENTS` events are kept
for all readers together; a reader that reconnects too late (`Last-Event-ID`) is told to reload its page.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from aiohttp import web

from viva.engine.errors import ConfigurationError

from ..application import listening, serve_until_signal
from ..auth import READ_AND_SEND, READ_ONLY, SECURITY_HEADERS
from ..broadcast import EVENT_STREAM, Broadcast, server_sent_event
from ..page_server import PageServer, html_response, page_application, see_other
from ..problems import Refusal
from ..report.html_page import frame_html
from .filters import Filter
from .findings import AnswerUpdater, ReportPieces
from .index import index_file, is_damage, open_index, private_file
from .index_figures import FiguresUpdater
from .indexer import Indexer
from .live import LiveAnswer, RunAsker, RunUpdates
from .matrix import MatrixView
from .pages import Links, PageContext, Pages, viewer_templates
from .queries import IndexReader
from .report_site import report_site
from .run_figures import RunFigures
from .runs import check_root
from .selections import Selection, download_name, parse_conversation, selection_lines
from .steering import Steering, confirmation, read_request

_log = logging.getLogger("viva")
_KEPT_EVENTS = 128  # events
_MOST_NAMED = 100  # maximum conversations that one event names
_TICK_SECONDS = 1.0  # seconds between events
_PATIENCE_SECONDS = 30.0  # seconds for a reader that accepts no data


class LiveUpdates(Broadcast):
    """Collects changes and sends them to its readers, at most every `tick` seconds.

    `overview` renders the overview's live part; `on_news` is called, in the event loop, when readers get an event.
    """

    def __init__(self, tick: float = _TICK_SECONDS) -> None:
        super().__init__()
        self._tick = tick
        self.overview: Callable[[], str] | None = None
        self.on_news: Callable[[], None] = lambda: None
        # (number of the previous event, its own number, data for all pages, data for the overview)
        self._events: deque[tuple[int, int, bytes, bytes]] = deque(maxlen=_KEPT_EVENTS)
        self.latest = 0  # number of the last event
        self._changed: dict[tuple[str, int], None] = {}
        self._overflowed = False
        self._version: int | None = None
        self._dirty = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, version: int) -> None:
        """Begin to send events in this event loop; `version` is the current version of the index."""
        self._loop = asyncio.get_running_loop()
        self.latest = version
        self._task = self._loop.create_task(self._tell())

    async def stop(self) -> None:
        """Disconnect all readers."""
        self.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def changed(self, version: int, conversations: list[tuple[str, int]]) -> None:
        """Record a change; may be called from any thread."""
        self.call(self._note, version, conversations)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the event loop; may be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def notify_changed(self) -> None:
        """Send the overview again, because findings are new while the index is not. Call it in the event loop."""
        self._note(self.latest, [])

    def _note(self, version: int, conversations: list[tuple[str, int]]) -> None:
        self._version = version
        for conversation in conversations:
            if len(self._changed) >= _MOST_NAMED:
                self._overflowed = True
                break
            self._changed[conversation] = None
        self._dirty.set()

    async def _tell(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(self._tick)
            self._dirty.clear()
            data = {"changed": [f"{quote(run)}/{number}" for run, number in self._changed], "many": self._overflowed}
            self._changed.clear()
            self._overflowed = False
            before, self.latest = self.latest, max(self.latest + 1, self._version or 0)
            if self.readers:
                self.on_news()
                fragment = await asyncio.to_thread(self._overview)
                plain, with_overview = (
                    server_sent_event(record, str(self.latest)) for record in (data, data | {"overview": fragment})
                )
                self._events.append((before, self.latest, plain, with_overview))
            else:
                self._events.clear()  # a returning reader reloads its page
            self.wake()

    def _overview(self) -> str:
        """Render the overview's live part; return "" if this fails, so that the page stays unchanged."""
        try:
            return "" if self.overview is None else self.overview()
        except Exception:
            _log.warning("viva view: cannot render the overview", exc_info=True)
            return ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one reader until it disconnects."""
        is_overview = request.query.get("page") == "overview"
        latest = _last_event(request, self.latest)
        return await _stream(request, self, latest, lambda position: self._since(position, is_overview))

    def _since(self, latest: int, is_overview: bool) -> tuple[bytes, int]:
        """Return the events after event `latest`, and the number of the newest one."""
        if latest == self.latest:
            return b"", latest
        events = [event for event in self._events if event[1] > latest]
        if not events or events[0][0] > latest:  # no longer kept, or sent by an earlier server
            return server_sent_event({"reset": True}, str(self.latest)), self.latest
        # Each event has the whole overview, so the latest is enough.
        last = events[-1][3] if is_overview else events[-1][2]
        return b"".join([*(event[2] for event in events[:-1]), last]), events[-1][1]


def _last_event(request: web.Request, default: int) -> int:
    """Return the number of a reader's latest event, which its page sends: there may be newer ones by now."""
    last_id = request.headers.get("Last-Event-ID") or request.query.get("since", "")
    return int(last_id) if last_id.isascii() and last_id.isdigit() and len(last_id) < 18 else default


async def _stream(
    request: web.Request, source: Broadcast, latest: int, since: Callable[[int], tuple[bytes, int]]
) -> web.StreamResponse:
    """Send the events of a source to one reader until it disconnects."""
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    try:
        await response.prepare(request)
        await response.write(b"retry: 2000\n: hello\n\n")
        async with aclosing(source.read(latest, since)) as events:
            async for data in events:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await response.write(data)
    except (TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()
    return response


T = TypeVar("T")
_POLICY = SECURITY_HEADERS["Content-Security-Policy"].replace("img-src 'self'", "img-src 'self' data:")
_MOST_READERS = 2_000
_MOST_FORM_BYTES = 64_000
_LINES_AT_ONCE = 500


class Viewer:
    """The pages of the runs below a folder, as a web application. `control`: the operator may steer runs."""

    def __init__(self, root: Path, server: PageServer, *, index: Path | None = None, control: bool = False) -> None:
        check_root(root, may_be_empty=True)
        self.root, self.server = root, server
        self.file = index_file(root, index)
        self.live = LiveUpdates()
        self.asker = RunAsker()
        self.watched = RunUpdates(self._run_part, _stream)
        self.steering = Steering(secure=server.secure) if control else None
        # A single thread uses the index and the journals: queries are short, and this needs the least memory.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="viva-view-pages")
        self._pages: Pages | None = None
        self._is_prepared = False
        self.indexer = Indexer(root, self.file, self._changed)
        page = self.file.with_suffix(".report.html")
        for file in (page, page.with_suffix(".key")):
            try:
                private_file(file)  # in a folder of others it could be a link
            except OSError as error:
                advice = "choose another folder with --index"
                raise ConfigurationError(f"{file}: cannot be written: {error.strerror}; {advice}") from None
        self.answering = AnswerUpdater(root, page, self.live.notify_changed)
        self.figures = FiguresUpdater(self.file, self.live.notify_changed)

    def application(self) -> web.Application:
        """Make the application; the threads and the updates start and end with it."""
        routes = [
            web.get("/", self._overview),
            web.get("/conversations", self._conversations),
            web.get(r"/c/{run:[\s\S]+}/{number:\d{1,15}}", self._conversation),
            web.get(r"/call/{run:[\s\S]+}/{number:\d{1,15}}/{turn:\d{1,9}}", self._call),
            web.get("/compare", self._compare),
            web.get(r"/run/{run:[\s\S]+}", self._run),
            web.get("/matrix", self._matrix),
            web.get("/selection", self._selection),
            web.get("/selection.jsonl", self._selection_file),
            web.get("/report", self._report),
            web.get("/events", self._events),
        ]
        if self.steering is not None:
            routes += [web.post(r"/run/{run:[\s\S]+}", self._steer), web.get("/link/{token}", self.steering.open_link)]
        templates = viewer_templates()
        templates.globals |= {"link": Links(), "root": self.root.resolve().name}
        app = page_application(
            templates,
            self.server.access(READ_ONLY if self.steering is None else READ_AND_SEND),
            routes,
            ("view.js", "table.js", "view.css"),
            most_bytes=1024 if self.steering is None else _MOST_FORM_BYTES,
            headers={"Content-Security-Policy": _POLICY},
        )
        app.cleanup_ctx.append(self._running)
        app.on_shutdown.append(self._shut_down)
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        open_index(self.file).close()
        await self._in_thread(self._open)
        assert self._pages is not None
        self.live.overview, self.live.on_news = self._overview_part, self._want
        self.live.start(self._pages.reader.version)
        self.indexer.start()
        self._want()
        yield
        await asyncio.to_thread(self.indexer.stop)
        await self.answering.close()
        await self.figures.close()
        await self._in_thread(self._pages.close)
        self._thread.shutdown()
        self.asker.close()

    async def _shut_down(self, app: web.Application) -> None:
        await self.watched.stop()
        await self.live.stop()

    def _open(self) -> None:
        self._pages = Pages(self.root, IndexReader(self.file), latest=lambda: self.live.latest)

    # -- pages ----------------------------------------------------------------------------------------------------

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        self._want()
        await self.figures.wait(_FIGURES_SECONDS)
        return await self._page(lambda pages: pages.overview(self._page_context()))

    async def _conversations(self, request: web.Request) -> web.StreamResponse:
        chosen = Filter.from_query(request.query)
        return await self._page(lambda pages: pages.conversations(chosen, not self.indexer.caught_up.is_set()))

    async def _conversation(self, request: web.Request) -> web.StreamResponse:
        run, number = request.match_info["run"], int(request.match_info["number"])
        chosen, at = Filter.from_query(request.query), request.query.get("at", "")
        position = int(at) if at.isascii() and at.isdigit() and len(at) < 12 else None
        part = _part(request)
        return await self._indexed_page(lambda pages: pages.conversation(run, number, chosen, position, part=part))

    async def _run(self, request: web.Request) -> web.StreamResponse:
        run = request.match_info["run"]
        figures = await self._indexed(lambda pages: pages.run_figures(run))
        live = await self._ask(figures)
        form = None if self.steering is None else self.steering.form_token(request)
        answer = None
        if self.steering is not None and form is not None:
            answer = self.steering.answer(run, request.query.get("answer", ""))
        busy = not self.indexer.caught_up.is_set()
        stopped = self._stopped(run)
        return await self._page(lambda pages: pages.run(run, live, busy=busy, steered=self.steering is not None,
                                                        form=form, answer=answer, stopped=stopped))  # fmt: skip

    async def _run_part(self, run: str) -> str:
        """Render the live part of a run's page, after asking the run; refuse a run that is not in the index."""
        figures = await self._in_thread(lambda: self._ready().run_figures(run))
        live = await self._ask(figures)
        busy, stopped = not self.indexer.caught_up.is_set(), self._stopped(run)
        return await self._in_thread(lambda: self._ready().run_part(run, live, busy, stopped))

    def _stopped(self, run: str) -> str:
        return "" if self.steering is None else self.steering.ended_by(run)

    async def _ask(self, figures: RunFigures) -> LiveAnswer | None:
        """Return what a run in progress says of itself; None for another one."""
        if not figures.running:
            return None
        path = await self._in_thread(lambda: self._ready().run_path(figures.name))
        live = await self.asker.status(path)
        if self.steering is not None and live.status is not None:
            self.steering.note_status(figures.name, live.status)
        return live

    async def _steer(self, request: web.Request) -> web.StreamResponse:
        """Send the request of a form to a run, after confirmation if it ends work; then show what it answered."""
        assert self.steering is not None
        fields = await self.steering.fields(request)
        run = request.match_info["run"]
        path = await self._indexed(lambda pages: pages.run_path(run))
        control = read_request(fields)
        if (question := confirmation(control, fields)) is not None:
            form = self.steering.form_token(request)
            return await self._page(lambda pages: pages.confirmation(run, question, form or ""))
        try:
            sentence, done = await self.asker.steer(path, control), True
            if control.do in ("stop", "drain"):
                self.steering.note_end(run, control.do)
        except ConfigurationError as error:
            figures = await self._in_thread(lambda: self._ready().run_figures(run))
            sentence, done = str(error) if figures.running else "it is no longer in progress", False
        return see_other(self.steering.keep_answer(run, sentence, done=done))

    async def _call(self, request: web.Request) -> web.StreamResponse:
        run, number, turn = (
            request.match_info["run"],
            int(request.match_info["number"]),
            int(request.match_info["turn"]),
        )
        return await self._indexed_page(lambda pages: pages.call(run, number, turn))

    async def _compare(self, request: web.Request) -> web.StreamResponse:
        left, right = (parse_conversation(request.query.get(name, ""), name) for name in ("a", "b"))
        part = _part(request)
        return await self._indexed_page(lambda pages: pages.compare(left, right, part))

    async def _matrix(self, request: web.Request) -> web.StreamResponse:
        view = MatrixView.from_query(request.query)
        return await self._page(lambda pages: pages.matrix(view))

    async def _selection(self, request: web.Request) -> web.StreamResponse:
        selection = Selection.from_query(request.query)
        return await self._page(lambda pages: pages.selection(selection))

    async def _selection_file(self, request: web.Request) -> web.StreamResponse:
        """Send the selected conversations as JSON lines, some at a time, so that other pages need not wait."""
        selection = Selection.from_query(request.query)
        run, only = (request.query.get(name, "") for name in ("of", "only"))
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        response.headers["Content-Disposition"] = f'attachment; filename="{download_name(run, _plain_word(only))}"'
        lines = await self._in_thread(lambda: selection_lines(selection.conversations(self._ready().reader, run, only)))
        await response.prepare(request)
        if request.method != "HEAD":
            while part := await self._in_thread(lambda: b"".join(islice(lines, _LINES_AT_ONCE))):
                await response.write(part)
        return response

    async def _report(self, request: web.Request) -> web.StreamResponse:
        # The report has its own content policy; except for its own script and style, it is stricter than this server's.
        policy = {"Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"}
        report = await self.answering.report()
        if isinstance(report, str) or request.method == "HEAD":
            response = html_response(report if isinstance(report, str) else "")
            response.headers.update(policy)
            return response
        return await self._report_as_computed(request, report, policy)

    async def _report_as_computed(
        self, request: web.Request, report: ReportPieces, policy: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send the page's frame at once, then each piece; a browser shows them without a script."""
        frame = await asyncio.to_thread(
            frame_html, f"Report of {self.root.resolve().name}", report_site(self.root, Links())
        )
        response = web.StreamResponse(headers={"Content-Type": "text/html; charset=utf-8", **policy})
        try:
            await response.prepare(request)
            waiting = '<div class="waiting" role="status">\n<p>The report is being computed …</p>\n'
            await response.write(f"{frame}{waiting}".encode("utf-8", "replace"))
            async for piece in report.read():
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await response.write(piece)
            if report.cut:
                text = "</div><p>The report is incomplete: its computation has ended early; load the page again.</p>"
                await response.write(text.encode())
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if request.method == "HEAD":
            return web.Response(content_type=EVENT_STREAM)
        if self.live.readers + self.watched.readers >= _MOST_READERS:
            return web.Response(status=503, text="viva view: too many readers\n")
        if request.query.get("page") == "run":
            return await self.watched.serve(request, request.query.get("run", ""), _last_event(request, 0))
        return await self.live.serve(request)

    # -- page data ------------------------------------------------------------------------------------------------

    def _overview_part(self) -> str:
        """Render the overview's live part in the pages' thread; call it from another thread."""
        return self._thread.submit(lambda: self._ready().overview_part(self._page_context())).result()

    def _want(self) -> None:
        self.answering.want()
        self.figures.want()

    def _changed(self, version: int, conversations: list[tuple[str, int]]) -> None:
        """Pass on a change of the index. When it is complete, prepare the overview before somebody asks for it."""
        self.live.changed(version, conversations)
        if self.indexer.caught_up.is_set() and not self._is_prepared:
            self._is_prepared = True
            self.live.call(self._want)
            self._thread.submit(lambda: self._ready().overview_part(self._page_context()))

    def _page_context(self) -> PageContext:
        reading = not self.indexer.caught_up.is_set()
        return PageContext(self.answering.answer, self.answering.busy or reading, self.figures.figures, reading)

    def _ready(self) -> Pages:
        assert self._pages is not None
        return self._pages

    async def _page(self, make: Callable[[Pages], str]) -> web.Response:
        return html_response(await self._in_thread(lambda: make(self._ready())))

    async def _indexed_page(self, make: Callable[[Pages], str]) -> web.Response:
        return html_response(await self._indexed(make))

    async def _indexed(self, ask: Callable[[Pages], T]) -> T:
        """Ask the pages; if something is not found at startup, wait for the index to catch up and ask again."""
        try:
            return await self._in_thread(lambda: ask(self._ready()))
        except Refusal:
            if self.indexer.caught_up.is_set():
                raise
        await asyncio.to_thread(self.indexer.caught_up.wait, _CATCH_UP_SECONDS)
        return await self._in_thread(lambda: ask(self._ready()))

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._with_rebuild, ask)

    def _with_rebuild(self, ask: Callable[[], T]) -> T:
        """Ask; if the index is damaged, wait until it was made again and ask again."""
        try:
            return ask()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
        self.indexer.rebuild()
        self.indexer.caught_up.wait(_CATCH_UP_SECONDS)
        return ask()


def _part(request: web.Request) -> int:
    """Return which part of the turns is requested."""
    text = request.query.get("turns", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1


def _plain_word(text: str) -> str:
    return text if text in ("open", "finished", "failed") else ""


_FIGURES_SECONDS = 0.05  # seconds that the overview waits for figures of the index; later ones reach it as an event
_SWITCH_SECONDS = 0.001  # a page waits so long, once for each row of a query, for a thread that computes or indexes
_NICE = 5  # niceness: a run on the same machine has a higher priority
_STOP_SECONDS = 5.0  # seconds after a signal in which the process ends, even if a thread reads a file without end
_CATCH_UP_SECONDS = 10.0  # seconds that a link opened at startup waits


def serve(root: Path, server: PageServer, *, index: Path | None = None, control: bool = False) -> None:
    """Serve until Ctrl-C or SIGTERM; print the address on stderr, and with `control` the link for steering runs."""

    async def main() -> None:
        os.nice(_NICE)
        sys.setswitchinterval(_SWITCH_SECONDS)

        def announce(address: str) -> None:
            print(f"viva view: {address}/  (Ctrl-C to stop)", file=sys.stderr)
            if viewer.steering is not None:
                link = f"{server.public_address(address)}{viewer.steering.path}"
                print(f"viva view: to steer runs, open {link}", file=sys.stderr)
            sys.stderr.flush()

        pages = listening(viewer.application(), server.host, server.port)
        await serve_until_signal(pages, announce, stop_seconds=_STOP_SECONDS)

    viewer = Viewer(root, server, index=index, control=control)  # not in the loop: Ctrl-C ends a long search
    asyncio.run(main())
