"""``viva grade sit``: the pages on which people answer in the place of a model (``human:ROOM``).

What never belongs here: what is on a page (``web.rooms``), and how a run waits for answers (the engine).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

PORT = 7790
EXAMPLE = """\b
Examples:
  viva grade sit room                      # human:room, as in `viva run … --candidate human:room`
  viva grade sit ada grace --port 8080     # two rooms, with a link each"""


def sit(
    room: Annotated[
        list[Path],
        typer.Argument(metavar="ROOM...", help="Folder of a room, as in human:ROOM; made if it is not there."),
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A host name by which pages may be asked for.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Address that people use, where it is a proxy's: https://HOST.")
    ] = None,
) -> None:
    """Serve the pages of rooms: people answer what is asked of human:ROOM. Prints a secret link for each."""
    from viva.web.rooms.serving import ServerOptions, serve
    from viva.web.server.hosts import is_loopback

    if not is_loopback(host) and not (url or "").startswith("https:"):
        print("viva: note: over plain http, links and answers can be read on the way; put a proxy with https before "
              "the pages, and name its address with --url", file=sys.stderr)  # fmt: skip
    serve(room, ServerOptions(host, port, tuple(name or ()), url), _announce)


def _announce(links: Mapping[str, str]) -> None:
    for folder, link in links.items():
        print(f"viva grade: {folder}: {link}")
    print("Whoever has a link can answer there (Ctrl-C ends it)", flush=True)
