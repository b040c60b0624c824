"""Commands whose options are made only when they are called: what they are made from takes a while to import.

What never belongs here: any particular command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

HELP = {"help_option_names": ["-h", "--help"]}
# \b keeps click from filling the lines of a paragraph.
MODELS = """\b
How models are named: kind:where#name?option=value, in quotes because of ? and &
  openai:gpt-4o                           the public API, key in OPENAI_API_KEY
  'openai:http://127.0.0.1:8000/v1#name'  any OpenAI-compatible endpoint
  llama:model.gguf                        a local file, computed in this process
  'simulated:student?knowledge=0.6'       costs nothing, for trying things out"""
# Everything behind the command's name is handed on, --help included.
ALL_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


def add_late(
    app: typer.Typer,
    name: str,
    summary: str,
    make: Callable[[], Callable[..., Any]],
    example: Callable[[], str] | None = None,
) -> None:
    """Add the command that ``make`` gives; the list of commands shows ``summary`` without asking for it.

    What ``example`` gives stands at the end of its help.
    """

    def command(context: typer.Context) -> None:
        run_late(context, make(), None if example is None else example())

    app.command(name, help=summary, add_help_option=False, context_settings=ALL_ARGUMENTS)(command)


def run_late(context: typer.Context, command: Callable[..., Any], epilog: str | None = None) -> None:
    """Run a command with the arguments that stand in the context; its help ends in ``epilog``."""
    alone = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, context_settings=HELP, rich_markup_mode=None
    )
    alone.command(context.info_name, epilog=epilog)(command)
    typer.main.get_command(alone).main(args=context.args, prog_name=context.command_path)
