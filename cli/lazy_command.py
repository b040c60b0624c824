"""Commands whose options are made only when they are called, because their settings take a while to import."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

HELP = {"help_option_names": ["-h", "--help"]}
# \b keeps click from filling the lines of a paragraph.
MODELS = """\b
How models are named: kind:where#name?option=value, in quotes because of ? and &
  openai:gpt-4o                           the public API, key in OPENAI_API_KEY
  'openai:http://127.0.0.1:8000/v1#name'  any OpenAI-compatible endpoint
  anthropic:NAME, gemini:NAME             key in ANTHROPIC_API_KEY, GEMINI_API_KEY
  llama:model.gguf                        a local file, computed in this process
  'simulated:student?knowledge=0.6'       costs nothing, for trying things out"""
_LONGEST_SUMMARY = 1000  # letters of a summary
# Everything behind the command's name is handed on, --help included.
ALL_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


class CommandGroup(TyperGroup):
    """A group whose help shows each command's summary whole, over as many lines as it takes."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in self.sections(ctx).items():
            if not names:
                continue
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(_LONGEST_SUMMARY)) for name in names])

    def sections(self, ctx: Any) -> dict[str, list[str]]:
        """Return the names of the commands to show, by title."""
        return {"Commands": [name for name in self.list_commands(ctx) if not self.commands[name].hidden]}


def example_epilog(*commands: str, models: bool = False) -> str:
    """What stands at the end of a command's help: calls of it, and how models are named where they are."""
    calls = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExample{'s' * (len(commands) > 1)}:\n{calls}" + (f"\n\n{MODELS}" if models else "")


def typed_words() -> list[str]:
    """The words of the command, or, while the shell asks how it might go on, of what has been typed of it."""
    typed = f"{os.environ.get('COMP_WORDS', '')} {os.environ.get('_TYPER_COMPLETE_ARGS', '')}".split()
    return typed if is_completing() else sys.argv


def is_completing() -> bool:
    """Whether the shell asks how a command might go on."""
    return "_VIVA_COMPLETE" in os.environ


def add_lazy_command(
    app: typer.Typer,
    name: str,
    summary: str,
    make: Callable[[], Callable[..., Any]],
    example: Callable[[], str] | None = None,
) -> None:
    """Add the command that ``make`` gives; the list of commands shows ``summary`` without asking for it.

    What ``example`` gives stands at the end of its help.
    """

    if is_completing() and name in typed_words():
        app.command(name, help=summary)(make())
        return

    def command(context: typer.Context) -> None:
        run_lazy_command(context, make(), None if example is None else example())

    app.command(name, help=summary, add_help_option=False, context_settings=ALL_ARGUMENTS)(command)


def run_lazy_command(context: typer.Context, command: Callable[..., Any], epilog: str | None = None) -> None:
    """Run a command with the arguments that stand in the context; its help ends in ``epilog``."""
    alone = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, context_settings=HELP, rich_markup_mode=None
    )
    alone.command(context.info_name, epilog=epilog)(command)
    typer.main.get_command(alone).main(args=context.args, prog_name=context.command_path)
