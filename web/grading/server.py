"""Serves the pages of one grading folder until it is told to stop: ``viva grade serve``.

One process serves a folder at a time; others may read it, and change graders, meanwhile. What never belongs here: what
is on a page.
"""

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
from viva.orchestration.grading.store import GradeStore

from ..people.layout import application
from ..people.links import SECRET_FILE, Sessions, signing_secret
from ..server.hosts import checked_url, known_hosts, outer_address
from ..server.listening import serve_until_signal
from .adjudicator_pages import AdjudicatorPages
from .admin_pages import AdminPages
from .entrance import Entrance
from .grader_pages import GraderPages
from .links import ADDRESS, NewLink, missing_links
from .site import TEMPLATES, Site
from .submitting import MOST_BYTES
from .worker import Worker

LOCK_FILE = "serving.lock"
_FILES = ("grading.css", "grading.js", "queue.js", "deciding.js")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a folder is served. ``url``: the address that people use, where it is another than the server's own, as
    behind a proxy. ``expires``: for how long links are good that are made at the start (``7d``, ``never``).
    """

    host: str = "127.0.0.1"
    port: int = 7789
    names: tuple[str, ...] = ()
    url: str | None = None
    expires: str = "never"


def serve(folder: Path, options: ServerOptions, announce: Callable[[str, list[NewLink]], None]) -> None:
    """Serve until Ctrl-C or SIGTERM. ``announce`` gets the address and the links that were made for whoever had none.

    :raises ConfigurationError: it is no grading folder, another process serves it, or nobody can listen there.
    """
    secure, named = checked_url(options.url)
    hosts = known_hosts(options.host, [*options.names, *named])
    with _opened(folder) as store, serving_lock(folder):
        sessions = Sessions(signing_secret(folder / SECRET_FILE), purpose="grading", clock=store.clock)
        site = Site(Worker(store), sessions, str(store.meta("title")), secure=secure)

        def ready(address: str) -> None:
            shown = outer_address(address, options.url, options.names)
            # The worker has not begun yet: until then the store is ours.
            store.set_meta(ADDRESS, shown)
            announce(shown, missing_links(store, shown, options.expires))
            site.worker.start()

        asyncio.run(serve_until_signal(grading_application(site, hosts), options.host, options.port, ready))


def grading_application(site: Site, hosts: frozenset[str]) -> web.Application:
    """The pages as an application; the folder's thread ends with it, and is begun by whoever listens."""
    files = {name: TEMPLATES / name for name in _FILES}
    app = application(site.templates, hosts, files=files, most_bytes=MOST_BYTES)
    for pages in (Entrance(site), GraderPages(site), AdjudicatorPages(site), AdminPages(site)):
        pages.add_to(app)

    async def running(app: web.Application) -> AsyncIterator[None]:
        yield
        await site.worker.close()

    app.cleanup_ctx.append(running)
    return app


@contextmanager
def serving_lock(folder: Path) -> Iterator[None]:
    """Keep other processes from serving this folder while entered.

    :raises ConfigurationError: one does, or the folder cannot be written.
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
            raise ConfigurationError(f"{folder}: another process serves this folder; end that one first") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _opened(folder: Path) -> Iterator[GradeStore]:
    store = GradeStore.open(folder)
    try:
        yield store
    finally:
        store.close()
