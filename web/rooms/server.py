"""The HTTP server of rooms: pages, news for open pages, and taking answers.

What never belongs here: what is on a page (``pages``), who may enter (``entry``), what is kept (the room itself).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from viva.engine.backends.human.room import Room

from ..people.guarding import Refusal, wants_json
from ..people.layout import application
from ..people.links import Session
from .entry import Entry
from .pages import FILES, Filled, Reader, RoomPages, read_answer, templates

T = TypeVar("T")
_MOST_BYTES = 4_000_000  # of a form: an answer may be a whole text
_SUBMISSION = re.compile(r"[\w-]{8,64}", re.ASCII)
_MISSING = Refusal(404, "Not here", "There is no such question in this room.", code="missing")


@dataclass(slots=True, frozen=True)
class _Served:
    pages: RoomPages
    entry: Entry


class Rooms:
    """The pages of one or several rooms, as a web application."""

    def __init__(self, folders: Iterable[Path], hosts: frozenset[str], *, secure: bool = False) -> None:
        """Open the rooms, making those that are not there yet. ``hosts`` are the names that the server is known by;
        ``secure``: people come over https.

        :raises ConfigurationError: one cannot be used as a room.
        """
        self._hosts, self._templates = hosts, templates()
        # One thread has all rooms: questions are short, and one may write while others wait for the disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="viva-room-pages")
        self._served: dict[str, _Served] = {}
        for folder in dict.fromkeys(folder.resolve() for folder in folders):
            name = _name_of(folder, self._served)
            room = Room(folder)
            self._served[name] = _Served(
                RoomPages(room, name, self._templates), Entry(folder, f"/{name}/", secure=secure)
            )

    @property
    def links(self) -> dict[str, str]:
        """The path of each room's secret link, by the room's folder."""
        return {str(one.pages.room.folder): f"/{name}/open/{one.entry.token}" for name, one in self._served.items()}

    def application(self) -> web.Application:
        """The application; it closes the rooms when it ends."""
        app = application(self._templates, self._hosts, files=FILES, most_bytes=_MOST_BYTES)
        app.router.add_get("/{room}/open/{token}", self._look)
        app.router.add_post("/{room}/open/{token}", self._open)
        app.router.add_get("/{room}/name", self._name)
        app.router.add_post("/{room}/name", self._rename)
        app.router.add_get("/{room}/", self._list)
        app.router.add_get("/{room}/waiting", self._waiting)
        app.router.add_get("/{room}/q/{name}", self._request)
        app.router.add_post("/{room}/q/{name}", self._answer)
        app.router.add_get("/{room}/q/{name}/state", self._state)
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        yield
        for one in self._served.values():
            await self._in_thread(one.pages.room.close)
        self._thread.shutdown()

    # -- entering -------------------------------------------------------------------------------------------------

    async def _look(self, request: web.Request) -> web.StreamResponse:
        """The link itself; looking at it, as programs for messages do, begins nothing."""
        room, token = self._room(request), request.match_info["token"]
        room.entry.check_link(token)
        known = room.entry.known(request)
        name = "" if known is None else known.holder
        return _html(await self._in_thread(lambda: room.pages.entrance(name, f"open/{token}")))

    async def _open(self, request: web.Request) -> web.StreamResponse:
        room = self._room(request)
        room.entry.check_link(request.match_info["token"])
        return await self._entered(request)

    async def _name(self, request: web.Request) -> web.StreamResponse:
        room, reader = self._inside(request)
        return _html(await self._in_thread(lambda: room.pages.entrance(reader.name, "name", reader.token)))

    async def _rename(self, request: web.Request) -> web.StreamResponse:
        room = self._room(request)
        room.entry.require_form(room.entry.session(request), (await _form(request)).get("token"))
        return await self._entered(request)

    async def _entered(self, request: web.Request) -> web.StreamResponse:
        response = web.Response(status=303, headers={"Location": f"/{request.match_info['room']}/"})
        self._room(request).entry.start(response, (await _form(request)).get("name", ""))
        return response

    # -- reading --------------------------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.StreamResponse:
        room, reader = self._inside(request)
        return _html(await self._in_thread(lambda: room.pages.listed(reader, time.time())))

    async def _waiting(self, request: web.Request) -> web.StreamResponse:
        """The live part of the list; without a body where the page has it already."""
        room, _ = self._inside(request)
        html, fingerprint = await self._in_thread(lambda: room.pages.waiting(time.time()))
        if request.query.get("seen") == fingerprint:
            return web.Response(status=204)
        return web.json_response({"html": html, "fingerprint": fingerprint})

    async def _request(self, request: web.Request) -> web.StreamResponse:
        return await self._shown(request, None)

    async def _state(self, request: web.Request) -> web.StreamResponse:
        room, reader = self._inside(request)
        found = await self._in_thread(lambda: room.pages.state(request.match_info["name"], reader))
        if found is None:
            raise _MISSING
        return web.json_response(found)

    async def _shown(self, request: web.Request, filled: Filled | None) -> web.Response:
        room, reader = self._inside(request)
        name = request.match_info["name"]
        html = await self._in_thread(lambda: room.pages.request(name, reader, time.time(), filled))
        if html is None:
            raise _MISSING
        return _html(html, 422 if filled is not None else 200)

    # -- answering ------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        room = self._room(request)
        session = room.entry.session(request)
        form = await _form(request)
        room.entry.require_form(session, form.get("token"))
        submission = form.get("submission", "")
        if not _SUBMISSION.fullmatch(submission):
            raise Refusal(400, "Not a form of this page", "Please load the page again; what you wrote is kept.")
        name = request.match_info["name"]
        receipt, errors = await self._in_thread(lambda: _taken(room.pages.room, name, submission, form, session.holder))
        if wants_json(request):
            return web.json_response({"receipt": receipt, "errors": errors}, status=422 if errors else 200)
        if errors:
            return await self._shown(request, Filled(form, errors))
        return web.Response(status=303, headers={"Location": request.path})

    # -- what handlers share --------------------------------------------------------------------------------------

    def _room(self, request: web.Request) -> _Served:
        found = self._served.get(request.match_info["room"])
        if found is None:
            raise web.HTTPNotFound
        return found

    def _inside(self, request: web.Request) -> tuple[_Served, Reader]:
        room = self._room(request)
        return room, _reader(room, room.entry.session(request))

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)


def _taken(
    room: Room, name: str, submission: str, form: Mapping[str, str], who: str
) -> tuple[str | None, dict[str, str]]:
    """What became of a form: the room's receipt, or what is wrong with it."""
    found = room.request(name)
    if found is None:
        raise _MISSING
    text, calls, errors = read_answer(found[1], form)
    return (None, errors) if errors else (room.answer(name, submission, text, calls, who), {})


def _reader(room: _Served, session: Session) -> Reader:
    return Reader(session.holder, room.entry.form_token(session))


def _name_of(folder: Path, taken: Iterable[str]) -> str:
    """A room's name in addresses: its folder's, told from those of others."""
    name = re.sub(r"[^\w-]+", "-", folder.name, flags=re.ASCII).strip("-") or "room"
    name = f"{name}-room" if name == "asset" else name
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


async def _form(request: web.Request) -> dict[str, str]:
    if request.content_type != "application/x-www-form-urlencoded":
        raise Refusal(415, "Not a form", "A form is expected.")
    return {name: value for name, value in (await request.post()).items() if isinstance(value, str)}


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, content_type="text/html", status=status)
