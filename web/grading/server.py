"""Server of a folder's grading pages (`viva grade serve`): secret links, routes, and the folder's lock."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from viva.engine.errors import ConfigurationError
from viva.grading.assignments import grader_progress
from viva.grading.records import Grader, Progress
from viva.grading.store import GradeStore

from ..application import listening, serve_until_signal
from ..auth import PageAccess, hash_token
from ..page_server import PageServer, html_response, page_application, render, see_other
from ..problems import Refusal
from ..sessions import SECRET_FILE, Sessions, read_or_make_secret
from .adjudicator_pages import AdjudicatorPages
from .admin_pages import AdminPages
from .grader_pages import GraderPages
from .question_form import MAX_BYTES
from .site import ADDRESS_KEY, NewLink, Site, StoreWorker, check_link, make_missing_links


@dataclass(slots=True, frozen=True)
class _OpenedLink:
    grader: Grader
    expires: float | None
    standing: Progress
    link: str


class LinkPages:
    """The pages that can be opened without a session."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._root),
            web.get("/link/{token}", self._look),
            web.post("/link/{token}", self._enter),
        ]

    async def _root(self, request: web.Request) -> web.Response:
        raise Refusal(200, self._site.title, "Every grader has a personal link. Please open yours.")

    async def _look(self, request: web.Request) -> web.Response:
        opened = await self._opened_link(request)
        return html_response(render(self._site.templates, "welcome.html", site=self._site, opened_link=opened))

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        opened = await self._opened_link(request)
        path = f"/g/{opened.grader.number}/"
        answer = see_other(path)
        self._site.sessions.start(
            answer, str(opened.grader.number), opened.link, path=path, expires=opened.expires, secure=self._site.secure
        )
        return answer

    async def _opened_link(self, request: web.Request) -> _OpenedLink:
        link = hash_token(request.match_info["token"])

        def look(store: GradeStore) -> _OpenedLink:
            opened = store.by_token(link)
            if opened is None:
                raise Refusal(
                    404, "This link does not work", "It may be incomplete, or replaced by a newer one. Copy "
                    "the whole link, or ask for a new one.",
                )  # fmt: skip
            grader, expires = opened
            check_link(store, grader, expires)
            return _OpenedLink(grader, expires, grader_progress(store, grader), link)

        return await self._site.worker.read(look)


LOCK_FILE = "serving.lock"
_ASSETS = ("people.css", "mark.svg", "grading.css", "grading.js", "queue.js", "deciding.js")


def serve(
    folder: Path, server: PageServer, announce: Callable[[str, list[NewLink]], None], *, expires: str = "never"
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        folder: The grading folder.
        server: The address at which the pages are served.
        announce: Called as soon as the pages can be opened, with the address and any new links.
        expires: How long links created at the start stay valid (`7d`, `never`).

    Raises:
        ConfigurationError: The folder is no grading folder, another process serves it, or the port is not available.
    """
    access = server.access()
    with _open_store(folder) as store, serving_lock(folder):
        sessions = Sessions(read_or_make_secret(folder / SECRET_FILE), purpose="grading", clock=store.clock)
        site = Site(StoreWorker(store), sessions, str(store.meta("title")), secure=server.secure)

        def ready(address: str) -> None:
            url = server.public_address(address)
            # This thread may use the store until the worker starts.
            store.set_meta(ADDRESS_KEY, url)
            announce(url, make_missing_links(store, url, expires))
            site.worker.start()

        pages = listening(grading_application(site, access), server.host, server.port)
        asyncio.run(serve_until_signal(pages, ready))


def grading_application(site: Site, access: PageAccess) -> web.Application:
    """Make the application; the store's thread starts when the application listens, and ends with it."""
    every = (LinkPages(site), GraderPages(site), AdjudicatorPages(site), AdminPages(site))
    routes = [route for pages in every for route in pages.routes()]
    app = page_application(site.templates, access, routes, _ASSETS, most_bytes=MAX_BYTES)

    async def running(app: web.Application) -> AsyncIterator[None]:
        yield
        await site.worker.close()

    app.cleanup_ctx.append(running)
    return app


@contextmanager
def serving_lock(folder: Path) -> Iterator[None]:
    """Prevent other processes from serving this folder while the context is entered.

    Raises:
        ConfigurationError: Another process serves the folder, or the folder is not writable.
    """
    file = folder / LOCK_FILE
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{file}: the folder cannot be served: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"{folder}: another process is serving this folder; stop it first") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _open_store(folder: Path) -> Iterator[GradeStore]:
    store = GradeStore.open(folder)
    try:
        yield store
    finally:
        store.close()
