"""`viva verify`: the check whether recorded conversations fit the scenario's code of today."""

from __future__ import annotations

import sys
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
    json: Json = False,
) -> None:
    """Check whether recorded conversations fit the scenario's code of today.

    The code runs against the recorded answers, and no model is called. The exit code is 1 if a conversation differs.
    """
    from viva.orchestration.verification import verify

    from .output import print_json, print_paragraphs

    verification = verify(run, pack=pack)
    if json:
        print_json(verification.to_record())
    else:
        print_paragraphs(verification.sentences())
    sys.exit(DONE if verification.fits else FAILED)
