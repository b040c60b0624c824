"""``viva suite export``: the tables of a suite's results as a database, CSV, Parquet or JSON lines.

What never belongs here: what stands in the tables (``results``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a suite's run.")],
    csv: Annotated[Path | None, typer.Option("--csv", help="Folder for a CSV file a table.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Likewise, Parquet (extra `parquet`).")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Likewise, JSON lines.")] = None,
) -> None:
    """Write results.sqlite into the run folder (conversations, turns, messages, tool_calls, metrics), and copies."""
    from ..results import export as write
    from ..results import write_results

    typer.echo(write_results(run))
    for kind, folder in (("csv", csv), ("parquet", parquet), ("json", json)):
        if folder is not None:
            for file in write(run, folder, kind):
                typer.echo(file)
