"""The guarded application behind pages that people act on: host and origin checks, headers, refusals, templates."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from viva.engine.errors import ConfigurationError, VivaError
from viva.reports.plot_style import COLOURS
from viva.reports.tables import escape_controls

from ..listening import is_address, is_foreign, name_of
from .markdown import render_model_text

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SECURITY_HEADERS = {
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
_FORM_TYPES = ("application/x-www-form-urlencoded", "application/json")
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
            _check_request(request, hosts)
            return await handler(request)
        except ConnectionError:  # the client has gone
            raise
        except Exception as error:
            return _refusal_response(request, _to_refusal(error), page)

    return guarded


async def set_security_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Called before the headers of any answer are sent, streams included."""
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)


def wants_json(request: web.Request) -> bool:
    """Whether a script asks rather than a person."""
    return request.headers.get("Accept", "").startswith("application/json")


def _check_request(request: web.Request, hosts: frozenset[str]) -> None:
    named = request.headers.getall("Host", [])
    if len(named) != 1 or not ((name := name_of(named[0])) in hosts or is_address(name)):
        raise Refusal(421, "Unknown name", "This server has another name; its operator can add one with --name.")
    if request.method not in ("GET", "HEAD", "POST"):
        raise Refusal(405, "Not here", "Pages can be read, and forms can be sent.")
    if request.method == "POST":
        if is_foreign(request.headers):
            raise Refusal(403, "Not from here", "A page of another site cannot send this form.")
        if request.content_type not in _FORM_TYPES:
            raise Refusal(415, "Not a form", "A form is expected.")
        if (request.charset or "utf-8").lower() != "utf-8":  # other ones may fail to decode, or give half characters
            raise Refusal(415, "Not UTF-8", "A form in UTF-8 is expected.")


def _to_refusal(error: Exception) -> Refusal:
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


def _refusal_response(request: web.Request, refusal: Refusal, page: Callable[[Refusal], str]) -> web.Response:
    if wants_json(request):
        told = {"title": refusal.title, "text": refusal.text, "code": refusal.code}
        return web.json_response(told, status=refusal.status)
    return web.Response(text=page(refusal), content_type="text/html", status=refusal.status)


TEMPLATES = Path(__file__).with_name("templates")
_CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_MAX_BYTES = 64_000  # of a form


def template_environment(*folders: Path) -> Environment:
    """The templates of these folders and the shared ones; what stands in them is text, with controls made visible."""
    made = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escape_controls(value) if type(value) is str else value,
    )
    made.filters |= {"model": render_model_text, "written": lambda text: render_model_text(text, plain=True)}
    return made


def render(templates: Environment, template: str, /, **values: Any) -> str:
    """A template filled in, as text that can be sent."""
    return templates.get_template(template).render(**values).encode("utf-8", "replace").decode()


def guarded_application(
    templates: Environment, hosts: frozenset[str], *, files: Mapping[str, Path], most_bytes: int = _MAX_BYTES
) -> web.Application:
    """An application that is guarded, with its files under ``/asset/NAME`` (``people.css`` is there); routes come next.

    ``hosts`` are the names that it is known by (``known_hosts``), ``most_bytes`` the size of a form.
    """
    texts = {name: (file.read_text(encoding="utf-8"), _CONTENT_TYPES[file.suffix]) for name, file in files.items()}
    texts["people.css"] = (templates.get_template("people.css").render(colours=COLOURS), "text/css")
    texts["mark.svg"] = ((TEMPLATES / "mark.svg").read_text(encoding="utf-8"), "image/svg+xml")

    async def asset(request: web.Request) -> web.Response:
        found = texts.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        return web.Response(text=found[0], content_type=found[1], headers={"Cache-Control": "no-cache"})

    def refused(refusal: Refusal) -> str:
        return render(templates, "refused.html", refusal=refusal)

    app = web.Application(middlewares=[guard(hosts, refused)], client_max_size=most_bytes)
    app.on_response_prepare.append(set_security_headers)
    app.router.add_get("/asset/{name}", asset)
    return app
