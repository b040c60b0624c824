"""``viva review``: what a judge said goes out as a table for people, and their corrections come back.

What never belongs here: how tables are written and read, and what a correction changes (``scenarios.functionchat``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .failing import guarded


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    app.command("review")(guarded(_review))


def _review(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.tsv", help="Write the judged outputs to this table.")
    ] = None,
    apply: Annotated[
        Path | None, typer.Option("--apply", metavar="FILE.tsv", help="Take over the corrections in this table.")
    ] = None,
) -> None:
    """Export what the judge decided for a person to look at (--out), and take corrections back (--apply)."""
    from viva.engine.errors import ConfigurationError
    from viva.engine.folder import RunFolder
    from viva.orchestration.launch import recorded_settings
    from viva.scenarios.functionchat import review
    from viva.scenarios.functionchat.judged import judged_outputs

    from .output import print_text
    from .targets import check_targets

    if (out is None) == (apply is None):
        raise ConfigurationError("give either --out FILE.tsv (export) or --apply FILE.tsv (take corrections back)")
    folder = RunFolder.open(run)
    recorded_settings(folder)  # checks the manifest
    if out is not None:
        check_targets({"--out": out})
        count = review.write_tsv(out, judged_outputs(folder))
        print_text(
            f"{out}: {count} judged outputs; fill in 'corrected verdict', 'reviewer' and 'reason', then:\n"
            f"viva review {run} --apply {out}\n"
        )
        return
    assert apply is not None
    known = {one.id for one in judged_outputs(folder)}
    read = review.read_corrections(apply, known)
    added = review.apply(folder.path, read)
    print_text(f"{run}: {len(added)} corrections added, {len(read) - len(added)} were there already\n")
    for id_ in review.disputed(review.recorded(folder.path)):
        print(f"viva: note: reviewers disagree on {id_}; the latest correction counts", file=sys.stderr)
