"""``viva judge``: looking at a judge. Each of its commands lives in a module of its own.

What never belongs here: any command's work.
"""

from __future__ import annotations

import typer

from . import judge_audit, judge_certify
from .lazy_command import HELP, CommandGroup

judge = typer.Typer(cls=CommandGroup, no_args_is_help=True, context_settings=HELP, rich_markup_mode=None)
judge_audit.register(judge)
judge_certify.register(judge)


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(judge, name="judge", help="Look at a judge: how far its figures can be trusted.")
