"""Who may ask: Host and Origin headers, content types and tokens, checked before any handler sees a request.

A page of another site can make a browser send requests to localhost. Its name in the Host header gives it away where
its DNS entry was pointed at this machine; its Origin header where it posts across sites. No answer has CORS headers
unless an origin is allowed by name. What never belongs here: what a request is about.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from viva.engine.permissions import Permissions, bounded

from .hosts import is_address, is_own_origin
from .problems import Problem, problem_of
from .tokens import Tokens

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@]+)(?::\d{1,5})?")
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Access:
    """What is let in. ``hosts`` are further names for the Host header; IP addresses and localhost always do, for
    neither can be another site's name. ``origins`` are sites whose pages may ask, as browsers name them.
    """

    tokens: Tokens
    hosts: Collection[str] = ()
    origins: Collection[str] = ()

    def check(self, request: web.Request) -> None:
        """:raises Problem: the request is not let in."""
        host = self._host(request)
        self._check_origin(request, host)
        if self.tokens:
            self._check_token(request)
        known = request.match_info.http_exception is None
        if known and request.method in _WITH_BODY and request.content_type != "application/json":
            found = request.headers.get(hdrs.CONTENT_TYPE, "none")
            raise Problem(
                415, f"expected the header Content-Type: application/json, with an empty body too; found {found}"
            )

    def _host(self, request: web.Request) -> str:
        hosts = request.headers.getall(hdrs.HOST, [])
        if len(hosts) != 1 or not request.raw_path.startswith("/"):
            raise Problem(400, f"expected one Host header and a path; found {len(hosts)} Host headers")
        found = _HOST.fullmatch(hosts[0])
        name = found[1].lower() if found else ""
        if name == "localhost" or name in self.hosts or is_address(name):
            return hosts[0].lower()
        raise Problem(421, f"this server does not answer to the name {hosts[0]!r}; allow it with --allow-host")

    def _check_origin(self, request: web.Request, host: str) -> None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None:
            if origin not in self.origins and not is_own_origin(origin, host):
                raise Problem(403, f"pages of {origin} may not ask this server; allow them with --allow-origin")
        elif request.headers.get("Sec-Fetch-Site") == "cross-site":
            raise Problem(403, "another site's page may not ask this server")

    def _check_token(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer" or not self.tokens.accepts(token.strip()):
            raise Problem(
                401,
                "expected a valid token, as Authorization: Bearer TOKEN",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def guard(access: Access, granted: Permissions) -> Middleware:
    """The middleware that checks each request, and answers every error in the form of its path. What a request names
    means no more than is ``granted``, for all that follows from it.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get(hdrs.ORIGIN)
        try:
            if request.method == "OPTIONS" and origin in access.origins:
                answer: web.StreamResponse = _preflight()
            else:
                access.check(request)
                with bounded(granted):
                    answer = await handler(request)
        except ConnectionError:  # the client has gone
            raise
        except Exception as error:
            answer = problem_of(error).answer(request.path)
        return answer

    return guarded


def usual_headers(access: Access) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """What is called before the headers of any answer are sent, streams included."""

    async def add(request: web.Request, answer: web.StreamResponse) -> None:
        answer.headers.update({"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"})
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and origin in access.origins:
            answer.headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin"})

    return add


def _preflight() -> web.Response:
    allowed = {"Access-Control-Allow-Methods": "GET, POST", "Access-Control-Max-Age": "600"}
    allowed["Access-Control-Allow-Headers"] = "Authorization, Content-Type, Last-Event-ID"
    return web.Response(status=204, headers=allowed)
