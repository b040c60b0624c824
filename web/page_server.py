"""HTML pages: shared templates and assets, error pages, and the server of pages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from multidict import MultiDictProxy

from viva.engine.errors import ConfigurationError
from viva.reports.plot_style import COLOURS
from viva.reports.tables import escape_controls

from .application import guarded_application
from .auth import READ_AND_SEND, PageAccess, Tokens, known_hosts
from .problems import Refusal, refusal_of

_TEMPLATES = Path(__file__).with_name("templates")
_CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_MAX_BYTES = 64_000  # maximum bytes of a form


@dataclass(frozen=True, slots=True)
class PageServer:
    """Address of a page server.

    `names` are further host names; `url` is the public address if it differs from the server's own, as behind a proxy.
    """

    host: str = "127.0.0.1"
    port: int = 0
    names: Sequence[str] = ()
    url: str | None = None

    @property
    def secure(self) -> bool:
        """True if users connect over https."""
        return (self.url or "").startswith("https:")

    def access(self, methods: Collection[str] = READ_AND_SEND) -> PageAccess:
        """Return the access rules of the pages."""
        names = list(self.names)
        if self.url is not None:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
                raise ConfigurationError(
                    f"--url: expected an address such as https://grades.example.org, found '{self.url[:100]}'"
                )
            names.append(parts.hostname)
        return PageAccess(Tokens(()), known_hosts(self.host, names), methods=methods)

    def public_address(self, address: str) -> str:
        """Return the public address of the server that listens at `address`."""
        if self.url:
            return self.url.rstrip("/")
        return f"http://{self.names[0]}:{address.rpartition(':')[2]}" if self.names else address


def template_environment(*folders: Path) -> Environment:
    """Load the templates of these folders and shared templates; they escape values and show control characters."""
    return Environment(
        loader=FileSystemLoader([*folders, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escape_controls(value) if type(value) is str else value,
    )


def render(templates: Environment, template: str, /, **values: Any) -> str:
    """Render a template as text that UTF-8 can encode."""
    return templates.get_template(template).render(**values).encode("utf-8", "replace").decode()


def html_response(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, content_type="text/html", status=status)


def see_other(path: str) -> web.Response:
    """Redirect the browser to another page."""
    return web.Response(status=303, headers={"Location": path})


def wants_json(request: web.Request) -> bool:
    """Return True if a script sent the request."""
    return request.headers.get("Accept", "").startswith("application/json")


async def read_form(request: web.Request) -> MultiDictProxy[Any]:
    try:
        return await request.post()
    except UnicodeDecodeError:
        raise Refusal(415, "Not UTF-8", "Please send the form in UTF-8.") from None


def page_application(
    templates: Environment,
    access: PageAccess,
    routes: Iterable[web.RouteDef],
    assets: Sequence[str],
    *,
    most_bytes: int = _MAX_BYTES,
    headers: Mapping[str, str] | None = None,
) -> web.Application:
    """Make a guarded application of pages.

    The `assets` are templates, or files beside the templates, served under `/asset/NAME`. An error is a page made from
    the template `refused.html`, or JSON if a script sent the request.
    """
    assert templates.loader is not None
    files: dict[str, tuple[str, str]] = {}
    for name in assets:
        kind = _CONTENT_TYPES[Path(name).suffix]
        if kind == "text/css":
            files[name] = templates.get_template(name).render(colours=COLOURS), kind
        else:
            files[name] = templates.loader.get_source(templates, name)[0], kind

    async def asset(request: web.Request) -> web.Response:
        asset_file = files.get(request.match_info["name"])
        if asset_file is None:
            raise web.HTTPNotFound
        return web.Response(text=asset_file[0], content_type=asset_file[1], headers={"Cache-Control": "no-cache"})

    async def refuse(request: web.Request, error: Exception) -> web.Response:
        refusal = refusal_of(error)
        if wants_json(request):
            return refusal.for_script()
        return html_response(render(templates, "refused.html", refusal=refusal), refusal.status)

    every = [*routes, web.get("/asset/{name}", asset)]
    return guarded_application(access, every, refuse, most_bytes=most_bytes, headers=headers)
