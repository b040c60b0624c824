"""``viva review``: verdicts go out as a table for people, and their corrections come back.

What never belongs here: how tables are written and read, and what a correction changes (a scenario's business).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .exit_codes import guarded, print_note


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    app.command("review")(guarded(_review))


def _review(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.tsv", help="Write all graded outputs to this table.")
    ] = None,
    apply: Annotated[
        Path | None, typer.Option("--apply", metavar="FILE.tsv", help="Take over the corrections in this table.")
    ] = None,
) -> None:
    """Export all verdicts for people to look at (--out), and take their corrections back (--apply)."""
    from viva.engine.errors import ConfigurationError
    from viva.engine.folder import RunFolder
    from viva.orchestration.launch import recorded_settings

    from .output import print_text
    from .targets import check_targets

    if (out is None) == (apply is None):
        raise ConfigurationError("give either --out FILE.tsv (export) or --apply FILE.tsv (take corrections back)")
    folder = RunFolder.open(run)
    which, _ = recorded_settings(folder)
    if which.review is None:
        raise ConfigurationError(f"{run}: a run of {which.name} has no verdicts to review")
    if out is not None:
        check_targets({"--out": out})
        count = which.review.write(folder, out)
        *columns, last = (f"'{name}'" for name in which.review.columns)
        print_text(
            f"{out}: {count} graded outputs; fill in {', '.join(columns)} and {last}, then:\n"
            f"viva review {run} --apply {out}\n"
        )
        return
    assert apply is not None
    applied = which.review.apply(folder, apply)
    print_text(f"{run}: {applied.added} corrections added, {applied.known} were there already\n")
    for note in applied.notes:
        print_note(note)
