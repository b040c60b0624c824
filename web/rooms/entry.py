"""Who may enter a room: its secret link, and the session of whoever has opened it.

The link follows from the room's secret (``pages.secret`` in its folder), so it stays the same however often the pages
are served; whoever deletes that file ends the link and all sessions. What never belongs here: what a room shows.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

from aiohttp import web

from viva.engine.escapes import readable

from ..people.guarding import Refusal
from ..people.links import SECRET_FILE, Session, Sessions, hashed, signing_secret

_LONGEST_NAME = 80  # characters


class Entry:
    """The link and the sessions of one room, whose pages stand below ``path``."""

    def __init__(self, folder: Path, path: str, *, secure: bool = False) -> None:
        """``secure``: people come over https, so the cookie is sent over that alone.

        :raises ConfigurationError: the secret cannot be read or made.
        """
        secret = signing_secret(folder / SECRET_FILE)
        digest = hmac.digest(secret, b"viva room link", hashlib.sha256)
        self.token = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        self._link = hashed(self.token)
        self._path, self._secure = path, secure
        self._sessions = Sessions(secret, purpose="room")

    def check_link(self, token: str) -> None:
        """:raises Refusal: it is no token of this room."""
        if not hmac.compare_digest(hashed(token).encode(), self._link.encode()):
            raise Refusal(403, "This link opens nothing", "Please ask for the link of the room once more.", code="link")

    def start(self, response: web.StreamResponse, name: str) -> None:
        """Give the browser a session of this room, for somebody of this name."""
        name = readable(" ".join(name.split())[:_LONGEST_NAME])
        self._sessions.start(response, name, self._link, path=self._path, expires=None, secure=self._secure)

    def known(self, request: web.Request) -> Session | None:
        """The session of a request, if it has one of this room's link."""
        session = self._sessions.read(request)
        return session if session is not None and session.link == self._link else None

    def session(self, request: web.Request) -> Session:
        """The session of a request.

        :raises Refusal: it has none of this room's link.
        """
        session = self.known(request)
        if session is None:
            raise Refusal(
                403,
                "Please open your link",
                "These pages are for people who have the room's link. What you have written is kept in this browser.",
                code="session",
            )
        return session

    def form_token(self, session: Session) -> str:
        """What each form of the session carries."""
        return self._sessions.form_token(session)

    def require_form(self, session: Session, given: object) -> None:
        """:raises Refusal: the form is none of this session's pages."""
        if not self._sessions.is_of_form(session, given):
            raise Refusal(
                403, "Please try again", "The page was older than your session. Send it once more.", code="form"
            )
