"""Everything that a server of pages shows to somebody who follows its links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import HTTPCookieProcessor, Request, build_opener

_LINKS = re.compile(rb'(?:href|src|action)="([^"#]+)')
_SECONDS = 30.0  # far beyond what a page takes
_EVENTS = "/events"  # a stream without end


class Visitor:
    """Somebody at ``url``. ``seen``: each answer that came, with its headers, by its address."""

    def __init__(self, url: str) -> None:
        self.url, self.seen = url.rstrip("/"), dict[str, bytes]()
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def ask(self, path: str, data: bytes | None = None, form: str = "application/json") -> bytes:
        """The answer of a path, whatever its status."""
        address = urljoin(self.url + "/", path)
        sent = Request(address, data, {"Content-Type": form, "Origin": self.url} if data is not None else {})
        try:
            answer = self._opener.open(sent, timeout=_SECONDS)
        except HTTPError as error:
            answer = error
        with answer:
            body: bytes = answer.read()
            self.seen[f"{address} {len(self.seen)}"] = str(answer.headers).encode() + body
        return body

    def follow(self, starts: Sequence[str], most: int = 40) -> None:
        """Ask for these paths, and for what their pages lead to."""
        known, waiting = set[str](), [urljoin(self.url + "/", path) for path in starts]
        while waiting and len(known) < most:
            address = waiting.pop(0)
            if address in known or not address.startswith(self.url + "/") or address.endswith(_EVENTS):
                continue
            known.add(address)
            body = self.ask(address)
            waiting += [urljoin(address, link.decode().replace("&amp;", "&")) for link in _LINKS.findall(body)]
