"""``viva compact``: makes the journals of runs that nobody writes smaller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from .exit_codes import DONE, FAILURES, handle_errors
from .lazy_command import example_epilog

_HEADER = ["run", "before", "after", "texts packed"]


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    examples = example_epilog("viva compact runs/grid --dry-run", "viva compact runs/grid")
    app.command("compact", epilog=examples)(handle_errors(_compact))


def _compact(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|SWEEP", help="Folder of a run or a sweep that is not running.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; say about what it would save.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> NoReturn:
    """Make journals small: texts are packed, nothing is removed, and every command reads them as before."""
    from viva.reports.tables import one_line
    from viva.sweeps.compaction import compact

    from .output import print_json, print_tables

    found = compact(folder, dry_run=dry_run)
    done = [(one.name, one.compaction) for one in found if one.compaction is not None]
    before, after = (sum(getattr(made, name) for _, made in done) for name in ("before", "after"))
    if json:
        print_json({"compact": 1, "dry_run": dry_run, "before": before, "after": after,
                    "runs": [one.to_record() for one in found]})  # fmt: skip
    else:
        rows = [
            [name, _format_bytes(made.before), _format_bytes(made.after), f"{made.packed:,}"] for name, made in done
        ]
        about = "about " if dry_run else ""
        title = (
            f"{len(rows)} journal{'s' * (len(rows) != 1)}: {_format_bytes(before)} before, "
            f"{about}{_format_bytes(after)} after"
        )
        print_tables([(title, _HEADER, rows)])
    for name, made in done:
        if made.busy:
            said = "another program reads the journal; its file gets smaller once that has closed it"
            print(f"viva: note: {one_line(f'{name}: {said}')}", file=sys.stderr)
    for one in found:
        if one.problem:
            print(f"viva: error: {one_line(f'{one.name}: {one.problem}')}", file=sys.stderr)
    sys.exit(FAILURES if any(one.problem for one in found) else DONE)


def _format_bytes(size: int) -> str:
    """Bytes in a unit of three digits."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{size} B"
