"""``viva grade sit``: the pages on which people answer in the place of a model (``human:ROOM``).

What never belongs here: what is on a page (``web.rooms``), and how a run waits for answers (the engine).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PORT = 7790
EXAMPLE = """\b
Examples:
  viva run kieval --candidate human:room --interactor simulated:asker --evaluator simulated:judge -n 1
  viva grade sit room"""


def sit(
    room: Annotated[
        list[Path],
        typer.Argument(metavar="ROOM...", help="Folder of a room, as in human:ROOM; made if it is not there."),
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = PORT,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. Whoever can reach it still needs the link.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A further host name by which pages may be asked for.")
    ] = None,
) -> None:
    """Serve the pages of rooms: people answer what is asked of human:ROOM. Prints a secret link for each."""
    from viva.web.rooms.serving import serve

    serve(room, host=host, port=port, names=name or [])
