"""The guard of pages that people act on: names, other sites' pages, sizes, headers, and refusals as pages.

A request must name a host that the server is known by (or an IP address), and a form must come from a page of the
server itself. No page loads, runs or sends anything that is not the server's own.
What never belongs here: who somebody is (``links``), and what a page shows.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Middleware

from viva.engine.errors import ConfigurationError, VivaError

from ..server.hosts import is_address, is_foreign, name_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
_FORMS = ("application/x-www-form-urlencoded", "application/json")
_log = logging.getLogger("viva.pages")


class Refusal(Exception):
    """A request that is refused, in words for the person who made it. ``code`` is a word for the page's script."""

    def __init__(self, status: int, title: str, text: str, *, code: str = "") -> None:
        super().__init__(text)
        self.status, self.title, self.text, self.code = status, title, text, code


def guard(hosts: frozenset[str], page: Callable[[Refusal], str]) -> Middleware:
    """The middleware that checks each request; ``page`` makes a refusal a page. A script gets it as JSON."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check(request, hosts)
            return await handler(request)
        except ConnectionError:  # the client has gone
            raise
        except Exception as error:
            return _answer(request, _refusal_of(error), page)

    return guarded


async def usual_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Called before the headers of any answer are sent, streams included."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def wants_json(request: web.Request) -> bool:
    """Whether a script asks rather than a person."""
    return request.headers.get("Accept", "").startswith("application/json")


def _check(request: web.Request, hosts: frozenset[str]) -> None:
    named = request.headers.getall("Host", [])
    if len(named) != 1 or not ((name := name_of(named[0])) in hosts or is_address(name)):
        raise Refusal(421, "Unknown name", "This server has another name; its operator can add one with --name.")
    if request.method not in ("GET", "HEAD", "POST"):
        raise Refusal(405, "Not here", "Pages can be read, and forms can be sent.")
    if request.method == "POST":
        if is_foreign(request.headers):
            raise Refusal(403, "Not from here", "A page of another site cannot send this form.")
        if request.content_type not in _FORMS:
            raise Refusal(415, "Not a form", "A form is expected.")
        if (request.charset or "utf-8").lower() != "utf-8":  # other ones may fail to decode, or give half characters
            raise Refusal(415, "Not UTF-8", "A form in UTF-8 is expected.")


def _refusal_of(error: Exception) -> Refusal:
    match error:
        case Refusal():
            return error
        case web.HTTPRequestEntityTooLarge():
            return Refusal(413, "Too long", "That is more text than is taken here; please shorten it.", code="too-long")
        case web.HTTPNotFound():
            return Refusal(404, "Not here", "There is no such page.")
        case web.HTTPException():
            return Refusal(error.status, HTTPStatus(error.status).phrase, "This cannot be done here.")
        case ConfigurationError():
            return Refusal(400, "This cannot be done", str(error))
    _log.error("a request failed in the server itself", exc_info=error)
    told = str(error) if isinstance(error, VivaError) else "Please try again; the server's log says what happened."
    return Refusal(500, "A fault of the server", told)


def _answer(request: web.Request, refusal: Refusal, page: Callable[[Refusal], str]) -> web.Response:
    if wants_json(request):
        told = {"title": refusal.title, "text": refusal.text, "code": refusal.code}
        return web.json_response(told, status=refusal.status)
    return web.Response(text=page(refusal), content_type="text/html", status=refusal.status)
