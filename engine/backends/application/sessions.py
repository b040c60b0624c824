"""The sessions of an application: for each conversation an identifier, and its cookies.

An identifier follows from the conversation's key, branch and role alone, so that a resumed run continues the session.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from ...journal import role_in_branch
from ...messages import Request
from ..endpoint import Body

_NAMESPACE = uuid.UUID("6f1c0d1e-0f0b-5a53-9d3e-8f3a2f6f4c11")


@dataclass(slots=True)
class Session:
    """One conversation's session. ``asked``: the application has heard of it."""

    id: str
    jar: aiohttp.CookieJar | None
    opened: bool = False
    asked: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def cookie_header(self, url: str) -> dict[str, str]:
        """The header that sends the cookies kept for a URL; empty where there are none."""
        cookies = self.jar.filter_cookies(URL(url)) if self.jar is not None else {}
        text = "; ".join(f"{name}={cookie.coded_value}" for name, cookie in cookies.items())
        return {"Cookie": text} if text else {}

    def keep_cookies(self, body: Body) -> None:
        """Keep the cookies of an answer, where cookies are kept."""
        if self.jar is not None:
            self.jar.update_cookies(body.response.cookies, body.response.url)


class Sessions:
    """The sessions of the conversations under way. ``salt`` makes other identifiers; ``cookies``: keep them."""

    def __init__(self, salt: str, *, cookies: bool) -> None:
        self._salt, self._cookies = salt, cookies
        self._open: dict[str, dict[str, Session]] = {}

    def of(self, request: Request) -> Session:
        """The session of the conversation, branch and role that a request belongs to."""
        roles = self._open.setdefault(request.affinity, {})
        role = role_in_branch(request.branch, request.role)
        session = roles.get(role)
        if session is None:
            jar = aiohttp.CookieJar(unsafe=True) if self._cookies else None  # unsafe: those of bare addresses, too
            session = roles[role] = Session(self.identifier(request.conversation, role), jar)
        return session

    def identifier(self, conversation: str, role: str) -> str:
        """A UUID that follows from the salt, the conversation's key and the role in its branch."""
        return str(uuid.uuid5(_NAMESPACE, "\x1f".join((self._salt, conversation, role))))

    def forget(self, affinity: str) -> list[Session]:
        """Let go of a conversation's sessions; returns those that the application has heard of."""
        return [session for session in self._open.pop(affinity, {}).values() if session.asked]
