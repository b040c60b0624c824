"""What an application of such pages is made of: templates, style, files, and the guard around everything.

An application's templates extend ``base.html``; they may use the filters ``model`` and ``written`` for what models
wrote. What never belongs here: any particular page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from viva.reports.controls import harmless
from viva.scoring.plots.style import COLOURS

from .guarding import Refusal, guard, usual_headers
from .markdown import model_text

TEMPLATES = Path(__file__).with_name("templates")
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_MOST_BYTES = 64_000  # of a form


def environment(*folders: Path) -> Environment:
    """The templates of these folders and the shared ones; what stands in them is text, with controls made visible."""
    made = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: harmless(value) if type(value) is str else value,
    )
    made.filters |= {"model": model_text, "written": lambda text: model_text(text, plain=True)}
    return made


def rendered(templates: Environment, template: str, /, **values: Any) -> str:
    """A template filled in, as text that can be sent."""
    return templates.get_template(template).render(**values).encode("utf-8", "replace").decode()


def application(
    templates: Environment, hosts: frozenset[str], *, files: Mapping[str, Path], most_bytes: int = _MOST_BYTES
) -> web.Application:
    """An application that is guarded, with its files under ``/asset/NAME`` (``people.css`` is there); routes come next.

    ``hosts`` are the names that it is known by (``known_hosts``), ``most_bytes`` the size of a form.
    """
    texts = {name: (file.read_text(encoding="utf-8"), _TYPES[file.suffix]) for name, file in files.items()}
    texts["people.css"] = (templates.get_template("people.css").render(colours=COLOURS), "text/css")
    texts["mark.svg"] = ((TEMPLATES / "mark.svg").read_text(encoding="utf-8"), "image/svg+xml")

    async def asset(request: web.Request) -> web.Response:
        found = texts.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        return web.Response(text=found[0], content_type=found[1], headers={"Cache-Control": "no-cache"})

    def refused(refusal: Refusal) -> str:
        return rendered(templates, "refused.html", refusal=refusal)

    app = web.Application(middlewares=[guard(hosts, refused)], client_max_size=most_bytes)
    app.on_response_prepare.append(usual_headers)
    app.router.add_get("/asset/{name}", asset)
    return app
