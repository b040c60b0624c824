"""Server of rooms, where people answer in place of a model: secret links, pages, live updates, answers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from viva.engine.backends.human_queue import AnswerQueue
from viva.engine.json_data import strip_surrogates

from ..application import listening, serve_until_signal
from ..auth import FORM, hash_token
from ..page_server import PageServer, html_response, page_application, read_form, see_other, wants_json
from ..problems import Refusal
from ..sessions import SECRET_FILE, Session, Sessions, read_or_make_secret
from .pages import ASSETS, Reader, RejectedForm, RoomPages, read_answer, room_templates

_MAX_NAME = 80  # maximum characters


class RoomAccess:
    """The link and the sessions of one room, whose pages are below `path`."""

    def __init__(self, folder: Path, path: str, *, secure: bool = False) -> None:
        """Read or create the room's link. `secure`: users connect over https, so the cookie is sent over https only."""
        secret = read_or_make_secret(folder / SECRET_FILE)
        digest = hmac.digest(secret, b"viva room link", hashlib.sha256)
        self.token = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        self._link = hash_token(self.token)
        self._path, self._secure = path, secure
        self._sessions = Sessions(secret, purpose="room")

    def check_link(self, token: str) -> None:
        if not hmac.compare_digest(hash_token(token).encode(), self._link.encode()):
            raise Refusal(403, "This link does not work", "Please ask for the room's link again.", code="link")

    def start(self, response: web.StreamResponse, name: str) -> None:
        """Start a session of this room for the browser, under the person's name."""
        name = strip_surrogates(" ".join(name.split())[:_MAX_NAME])
        self._sessions.start(response, name, self._link, path=self._path, expires=None, secure=self._secure)

    def session_of(self, request: web.Request) -> Session | None:
        """Return the session of a request if it belongs to this room's link."""
        session = self._sessions.read(request)
        return session if session is not None and session.link == self._link else None

    def session(self, request: web.Request) -> Session:
        """Return the session of a request."""
        session = self.session_of(request)
        if session is None:
            raise Refusal(
                403,
                "Please open your link",
                "These pages are for people who have the room's link. Your text is kept in this browser.",
                code="session",
            )
        return session

    def form_token(self, session: Session) -> str:
        """Return the token that each form of the session carries."""
        return self._sessions.form_token(session)

    def require_form(self, session: Session, seal: object) -> None:
        if not self._sessions.is_of_form(session, seal):
            raise Refusal(
                403,
                "Please try again",
                "This page belongs to an earlier session; reload it and try again.",
                code="form",
            )


T = TypeVar("T")
_MAX_BYTES = 4_000_000  # maximum bytes of a form; an answer may be a long text
_SUBMISSION_ID = re.compile(r"[\w-]{8,64}", re.ASCII)


@dataclass(slots=True, frozen=True)
class _ServedRoom:
    pages: RoomPages
    entry: RoomAccess


class RoomsApplication:
    """The pages of one or more rooms, as a web application."""

    def __init__(self, folders: Iterable[Path], server: PageServer) -> None:
        """Open the rooms, creating those that do not exist."""
        self._access, self._templates = server.access(), room_templates()
        # One thread runs the queries of all rooms, because queries are short.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="viva-room-pages")
        self._served: dict[str, _ServedRoom] = {}
        for folder in dict.fromkeys(folder.resolve() for folder in folders):
            name = _unique_name(folder, self._served)
            room = AnswerQueue(folder)
            self._served[name] = _ServedRoom(
                RoomPages(room, name, self._templates), RoomAccess(folder, f"/{name}/", secure=server.secure)
            )

    @property
    def links(self) -> dict[str, str]:
        """The path of each room's secret link, by the room's folder."""
        return {str(room.pages.room.folder): f"/{name}/open/{room.entry.token}" for name, room in self._served.items()}

    def application(self) -> web.Application:
        """Return the application, which closes the rooms when it ends."""
        routes = [
            web.get("/{room}/open/{token}", self._look),
            web.post("/{room}/open/{token}", self._open),
            web.get("/{room}/name", self._name),
            web.post("/{room}/name", self._rename),
            web.get("/{room}/", self._list),
            web.get("/{room}/waiting", self._waiting),
            web.get("/{room}/q/{name}", self._question_page),
            web.post("/{room}/q/{name}", self._answer),
            web.get("/{room}/q/{name}/state", self._state),
        ]
        app = page_application(self._templates, self._access, routes, ASSETS, most_bytes=_MAX_BYTES)
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        yield
        for served in self._served.values():
            await self._in_thread(served.pages.room.close)
        self._thread.shutdown()

    # -- entering -------------------------------------------------------------------------------------------------

    async def _look(self, request: web.Request) -> web.StreamResponse:
        """Show the page behind a link. This starts no session, so that link previews have no effect."""
        room, token = self._room(request), request.match_info["token"]
        room.entry.check_link(token)
        session = room.entry.session_of(request)
        name = "" if session is None else session.holder
        return html_response(await self._in_thread(lambda: room.pages.entrance(name, f"open/{token}")))

    async def _open(self, request: web.Request) -> web.StreamResponse:
        room = self._room(request)
        room.entry.check_link(request.match_info["token"])
        return await self._entered(request)

    async def _name(self, request: web.Request) -> web.StreamResponse:
        room, reader = self._inside(request)
        return html_response(await self._in_thread(lambda: room.pages.entrance(reader.name, "name", reader.token)))

    async def _rename(self, request: web.Request) -> web.StreamResponse:
        room = self._room(request)
        room.entry.require_form(room.entry.session(request), (await _read_form(request)).get("token"))
        return await self._entered(request)

    async def _entered(self, request: web.Request) -> web.StreamResponse:
        response = see_other(f"/{request.match_info['room']}/")
        self._room(request).entry.start(response, (await _read_form(request)).get("name", ""))
        return response

    # -- reading --------------------------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.StreamResponse:
        room, reader = self._inside(request)
        return html_response(await self._in_thread(lambda: room.pages.listed(reader, time.time())))

    async def _waiting(self, request: web.Request) -> web.StreamResponse:
        """Return the live part of the list, without a body if the page already has it."""
        room, _ = self._inside(request)
        html, fingerprint = await self._in_thread(lambda: room.pages.render_waiting(time.time()))
        if request.query.get("seen") == fingerprint:
            return web.Response(status=204)
        return web.json_response({"html": html, "fingerprint": fingerprint})

    async def _state(self, request: web.Request) -> web.StreamResponse:
        room, reader = self._inside(request)
        state = await self._in_thread(lambda: room.pages.state(request.match_info["name"], reader))
        if state is None:
            raise _no_such_question()
        return web.json_response(state)

    async def _question_page(self, request: web.Request, filled: RejectedForm | None = None) -> web.Response:
        room, reader = self._inside(request)
        name = request.match_info["name"]
        html = await self._in_thread(lambda: room.pages.request(name, reader, time.time(), filled))
        if html is None:
            raise _no_such_question()
        return html_response(html, 422 if filled is not None else 200)

    # -- answering ------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        room = self._room(request)
        session = room.entry.session(request)
        form = await _read_form(request)
        room.entry.require_form(session, form.get("token"))
        submission = form.get("submission", "")
        if not _SUBMISSION_ID.fullmatch(submission):
            raise Refusal(400, "Not a form of this page", "Please reload the page; your text is kept.")
        name = request.match_info["name"]
        receipt, errors = await self._in_thread(
            lambda: _submit_answer(room.pages.room, name, submission, form, session.holder)
        )
        if wants_json(request):
            return web.json_response({"receipt": receipt, "errors": errors}, status=422 if errors else 200)
        if errors:
            return await self._question_page(request, RejectedForm(form, errors))
        return see_other(request.path)

    # -- shared by handlers ----------------------------------------------------------------------------------------

    def _room(self, request: web.Request) -> _ServedRoom:
        room = self._served.get(request.match_info["room"])
        if room is None:
            raise web.HTTPNotFound
        return room

    def _inside(self, request: web.Request) -> tuple[_ServedRoom, Reader]:
        room = self._room(request)
        session = room.entry.session(request)
        return room, Reader(session.holder, room.entry.form_token(session))

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)


def _submit_answer(
    room: AnswerQueue, name: str, submission: str, form: Mapping[str, str], reader: str
) -> tuple[str | None, dict[str, str]]:
    """Submit a form; return the room's receipt, or the errors."""
    record = room.request(name)
    if record is None:
        raise _no_such_question()
    text, calls, errors = read_answer(record[1], form)
    return (None, errors) if errors else (room.answer(name, submission, text, calls, reader), {})


def _no_such_question() -> Refusal:
    return Refusal(404, "Not found", "There is no such question in this room.", code="missing")


def _unique_name(folder: Path, names: Iterable[str]) -> str:
    """Return a room's name for addresses: the name of its folder, made unique."""
    name = re.sub(r"[^\w-]+", "-", folder.name, flags=re.ASCII).strip("-") or "room"
    name = f"{name}-room" if name == "asset" else name
    candidate, number = name, 1
    while candidate in names:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


async def _read_form(request: web.Request) -> dict[str, str]:
    if request.content_type != FORM:
        raise Refusal(415, "Not a form", "Please send a form.")
    return {name: value for name, value in (await read_form(request)).items() if isinstance(value, str)}


def serve(folders: Sequence[Path], server: PageServer, announce: Callable[[Mapping[str, str]], None]) -> None:
    """Serve until Ctrl-C or SIGTERM. `announce` gets each room's secret link, by folder."""
    rooms = RoomsApplication(folders, server)

    def ready(address: str) -> None:
        url = server.public_address(address)
        announce({folder: f"{url}{path}" for folder, path in rooms.links.items()})

    site = listening(rooms.application(), server.host, server.port)
    asyncio.run(serve_until_signal(site, ready))
