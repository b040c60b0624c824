"""``viva data``: looking at benchmark files before a run. No model is ever called here.

What never belongs here: reading files and counting (``data``).
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .exit_codes import DONE, FAILED, guarded
from .lazy_command import CommandGroup, example_of

Source = Annotated[
    str,
    typer.Argument(
        metavar="DATASET", help="NAME (viva list datasets), FILE, form:PATH[:split] or hf:owner/name[:split]."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    data = typer.Typer(cls=CommandGroup, help="Look at benchmark files.", no_args_is_help=True)
    data.callback()(_group)
    data.command("check", epilog=example_of("viva data check items.jsonl"))(guarded(_check))
    app.add_typer(data, name="data")


def _group() -> None:
    """Look at benchmark files."""


def _check(source: Source, json: Json = False) -> None:
    """Read a dataset from end to end: counts, answers, lengths, repeats and bad lines (then the exit code is 1)."""
    from viva.data.statistics import Check

    from .output import print_json, print_tables

    check = Check(source)
    if json:
        print_json(check.report())
    else:
        print_tables(check.tables())
    sys.exit(DONE if check.sound else FAILED)
