"""`viva verify`: the check whether recorded conversations fit the scenario's code of today."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from .app import command
from .exit_codes import DONE, FAILED
from .options import Json, RunArgument


@command("verify", "viva verify runs/debate", "viva verify runs/interviews --pack prompts.yaml")
def _verify(
    run: RunArgument,
    pack: Annotated[
        str | None,
        typer.Option("--pack", metavar="PACK", help="Prompt pack to check with (default: the recorded prompts)."),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            "--scenario", metavar="FILE.py", help="Scenario file to check with (default: the file that the run names)."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check whether recorded conversations fit the scenario's code of today.

    The code runs against the recorded answers, and no model is called. The exit code is 1 if a conversation differs.
    """
    from viva.orchestration.verification import verify
    from viva.reports.tables import escape_controls

    from .output import print_json, print_paragraphs, print_text

    with redirect_stdout(sys.stderr):  # what the scenario prints is no part of the answer
        verification = verify(run, pack=pack, scenario=scenario)
    if json:
        print_json(verification.to_record())
    else:
        if verification.file:
            file = Path(verification.file)
            below = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            print_text(escape_controls(f"Scenario file: {below}") + "\n")
        print_paragraphs(verification.sentences())
    sys.exit(DONE if verification.fits else FAILED)
