"""``viva judge``: the group of commands about judges. Each command lives in a file of its own.

What never belongs here: work.
"""

from __future__ import annotations

import typer

from . import judge_audit


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    judges = typer.Typer(help="Examine judges: audit them for biases.", no_args_is_help=True)
    judge_audit.register(judges)
    app.add_typer(judges, name="judge")
