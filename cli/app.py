"""The ``viva`` command's app: its commands by topic, and how commands are added to it.

Commands import what they need when they run, so that ``viva`` starts fast; those whose options take a while to
import make them only when they are called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from viva.engine.permissions import PYTHON_TOOLS_OPTION, begin_command

from .exit_codes import handle_errors

F = TypeVar("F", bound=Callable[..., Any])
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


_RUNNING = "Running"
_TOPICS = {
    "run": _RUNNING,
    "resume": _RUNNING,
    "sweep": _RUNNING,
    "demo": _RUNNING,
    "plan": _RUNNING,
    "compact": _RUNNING,
    "report": "Looking",
    "show": "Looking",
    "view": "Looking",
    "score": "Looking",
    "list": "Looking",
    "judge": "Judging",
    "bench": "Judging",
    "review": "Judging",
    "meta": "Judging",
    "correlate": "Judging",
    "serve": "Serving",
    "export": "Exchange",
    "import": "Exchange",
    "data": "Data",
    "validate": "Data",
    "lab": "Data",
}
_ORDER = (_RUNNING, "Looking", "Judging", "Serving", "Exchange", "Data")


class TopicGroup(CommandGroup):
    """Commands by topic, and within one in the order of the topic's; what systems bring of their own is running."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Permit the code that the words of the command name; ``--python-tools`` may stand behind whichever verb."""
        begin_command(args, _pop_option(PYTHON_TOOLS_OPTION, args))
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def list_commands(self, ctx: Any) -> list[str]:
        known = list(_TOPICS)

        def place(name: str) -> tuple[int, int]:
            return _ORDER.index(_topic(name)), known.index(name) if name in known else len(known)

        return sorted(super().list_commands(ctx), key=place)

    def sections(self, ctx: Any) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.list_commands(ctx):
            if not self.commands[name].hidden:
                found.setdefault(_topic(name), []).append(name)
        return found


def _pop_option(option: str, words: list[str]) -> list[str]:
    """Remove an option from a command's words, wherever it stands; returns its values."""
    values, at = [], 0
    while at < len(words) and words[at] != "--":
        if words[at].startswith(f"{option}="):
            values.append(words.pop(at).partition("=")[2])
        elif words[at] == option and at + 1 < len(words):
            values.append(words[at + 1])
            del words[at : at + 2]
        else:
            at += 1
    return values


def _topic(name: str) -> str:
    return _TOPICS.get(name, _RUNNING)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"viva {version('viva-exam')}")
        raise typer.Exit


def _viva(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say more on stderr, e.g. how local models are loaded; anywhere.")
    ] = False,
    python_tools: Annotated[
        list[str] | None,
        typer.Option(
            PYTHON_TOOLS_OPTION, metavar="MODULE|FILE.py", help="Python code that files may name; anywhere, repeatable."
        ),
    ] = None,
) -> None:
    """Examine language models by talking with them."""


app = typer.Typer(
    name="viva",
    cls=TopicGroup,
    callback=_viva,
    epilog=MODELS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP,
    rich_markup_mode=None,  # its boxes cut the names of options at 80 columns
)


def command(
    name: str, *examples: str, models: bool = False, group: typer.Typer = app, **options: Any
) -> Callable[[F], F]:
    """Add the decorated function as a command whose help ends in these calls of it."""

    def add(function: F) -> F:
        epilog = example_epilog(*examples, models=models) if examples else None
        group.command(name, epilog=epilog, **options)(handle_errors(function))
        return function

    return add


def command_group(name: str, summary: str, parent: typer.Typer = app) -> typer.Typer:
    group = typer.Typer(cls=CommandGroup, no_args_is_help=True, context_settings=HELP, rich_markup_mode=None)
    group.callback(help=summary)(lambda: None)
    parent.add_typer(group, name=name, help=summary)
    return group
