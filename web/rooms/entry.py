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

from ..people.guarding import Refusal
from ..people.links import SECRET_FILE, Session, Sessions, hashed, signing_secret

_LONGEST_NAME = 80  # characters


class Entry:
    """The link and the sessions of one room, whose pages stand below ``path``."""

    def __init__(self, folder: Path, path: str) -> None:
        """:raises ConfigurationError: the secret cannot be read or made."""
        secret = signing_secret(folder / SECRET_FILE)
        digest = hmac.digest(secret, b"viva room link", hashlib.sha256)
        self.token = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        self._link = hashed(self.token)
        self._path = path
        self._sessions = Sessions(secret, purpose="room")

    def open(self, request: web.Request, response: web.StreamResponse, token: str) -> Session:
        """Give the browser a session for the link's token; it keeps the name that it had.

        :raises Refusal: it is no token of this room.
        """
        if not hmac.compare_digest(hashed(token).encode(), self._link.encode()):
            raise Refusal(403, "This link opens nothing", "Please ask for the link of the room once more.", code="link")
        known = self._sessions.read(request)
        return self._start(request, response, known.holder if known is not None and known.link == self._link else "")

    def rename(self, request: web.Request, response: web.StreamResponse, name: str) -> Session:
        """Give whoever asks a name."""
        return self._start(request, response, " ".join(name.split())[:_LONGEST_NAME])

    def _start(self, request: web.Request, response: web.StreamResponse, name: str) -> Session:
        return self._sessions.start(
            response, name, self._link, path=self._path, expires=None, secure=request.scheme == "https"
        )

    def session(self, request: web.Request) -> Session:
        """The session of a request.

        :raises Refusal: it has none of this room's link.
        """
        session = self._sessions.read(request)
        if session is None or session.link != self._link:
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
