"""``viva view``: runs, sweeps and folders of them as pages, served while they go on or written as files.

What never belongs here: what is on a page (the room ``web``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .exit_codes import guarded

PORT = 7788


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    app.command("view")(guarded(_view))


def _view(
    folder: Annotated[Path, typer.Argument(metavar="RUN|SWEEP|FOLDER", help="What to look at; a run may go on.")],
    export: Annotated[
        Path | None, typer.Option("--export", metavar="DIR", help="Write the pages as files instead of serving them.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = PORT,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. Whoever can reach it can read all transcripts.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A further host name by which pages may be asked for.")
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", metavar="DIR", help="Folder of the viewer's own index; else in your cache."),
    ] = None,
) -> None:
    """Look at runs in a browser: what was found, every conversation, live while a run goes on.

    Nothing in the run's folder is changed. Examples: `viva view runs/sweep`, `viva view runs --port 0`,
    `viva view runs/sweep --export pages`.
    """
    if export is not None:
        from viva.web.view.export import export_pages

        from .output import print_text

        count = export_pages(folder, export, index=index)
        print_text(f"{export / 'index.html'}: {count:,} conversations\n")
        return
    from viva.web.view.serving import serve

    serve(folder, host=host, port=port, names=name or [], index=index)
