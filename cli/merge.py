"""``viva merge``: shards that several processes have held become the runs of their sweep.

What never belongs here: what is joined and what is refused (``orchestration.sweep.merge``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from .exit_codes import DONE, FAILURES, guarded
from .lazy_command import example_of

CellName = Annotated[
    str | None,
    typer.Option("--cell", metavar="ID", help="One cell: its folder, or its number from 1 in the file's order."),
]
_HEADER = ["cell", "state", "shards", "done"]


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    app.command("merge", epilog=example_of("viva merge runs/grid", "viva merge runs/grid --partial"))(guarded(_merge))


def _merge(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep that was held with --shard.")],
    cell: CellName = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Merge what there is; missing conversations are no error.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> NoReturn:
    """Join the shards of a sweep; refuses missing and doubled conversations."""
    from viva.orchestration.sweep.merge import merge_sweep
    from viva.reports.controls import one_line

    from .output import print_json, print_tables

    merged = merge_sweep(folder, cell=cell, partial=partial)
    if json:
        print_json({"merge": 1, "cells": [one.to_record() for one in merged]})
    else:
        rows = [[one.cell.name, one.state, str(one.shards), f"{one.ended}/{one.planned or '?'}"] for one in merged]
        print_tables([(f"{len(rows)} cells", _HEADER, rows)])
    for one in merged:
        for problem in one.problems:
            print(f"viva: error: {one_line(f'{one.cell.name}: {problem}')}", file=sys.stderr)
    sys.exit(FAILURES if any(one.problems for one in merged) else DONE)
