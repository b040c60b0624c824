"""``viva grade serve``: the grading pages of a folder, until Ctrl-C.

What never belongs here: pages (the room ``web``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from viva.web.grading.links import NewLink

PORT = 7789
EXAMPLE = """\b
Examples:
  viva grade serve project/rounds/first
  viva grade serve queue --host 0.0.0.0 --name grades.example.org --url https://grades.example.org"""


def serve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A host name by which pages may be asked for.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Address that graders use, where it is a proxy's: https://HOST.")
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="7d", help="For how long new links are good: 12h, 7d, 2w, never.")
    ] = "never",
) -> None:
    """Serve the grading pages of a folder; prints a secret link for each person who has none yet."""
    from viva.web.grading.server import ServerOptions, serve
    from viva.web.server.hosts import is_loopback

    if not is_loopback(host) and not (url or "").startswith("https:"):
        print("viva: note: over plain http, links and grades can be read on the way; put a proxy with https before the "
              "pages, and name its address with --url", file=sys.stderr)  # fmt: skip
    serve(folder, ServerOptions(host, port, tuple(name or ()), url, expires), _announce)


def _announce(address: str, links: list[NewLink]) -> None:
    for link in links:
        print(f"{link.grader.name} ({link.grader.role}): {link.url}")
    if links:
        print("These links are shown this once: send each person theirs, or keep this text safe.")
    print(f"viva grade: {address}/  (Ctrl-C ends it)", flush=True)
