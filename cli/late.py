"""Commands whose options are made only when they are called: what they are made from takes a while to import.

What never belongs here: any particular command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

# Everything behind the command's name is handed on, --help included.
_ALL_OF_IT = {"ignore_unknown_options": True, "allow_extra_args": True}


def add_late(app: typer.Typer, name: str, summary: str, make: Callable[[], Callable[..., Any]]) -> None:
    """Add the command that ``make`` gives; the list of commands shows ``summary`` without asking for it."""

    def command(context: typer.Context) -> None:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(make())
        typer.main.get_command(alone).main(args=context.args, prog_name=context.command_path)

    app.command(name, help=summary, add_help_option=False, context_settings=_ALL_OF_IT)(command)
