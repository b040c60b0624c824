"""The app of the `viva` command, its help, and the functions that add commands to it.

Commands import what they need when they run, so that `viva` starts fast. A command whose options are slow to import
is lazy: it is made when it is called.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from viva.engine.errors import did_you_mean
from viva.engine.permissions import PYTHON_TOOLS_OPTION, begin_command

from .exit_codes import handle_errors, print_error, print_note
from .old_spellings import modernize

F = TypeVar("F", bound=Callable[..., Any])
HELP = {"help_option_names": ["-h", "--help"]}
# \b keeps click from rewrapping a paragraph.
MODELS = """\b
Model names: kind:where#name?option=value, in quotes because of ? and &
  openai:gpt-4o                           OpenAI; key: OPENAI_API_KEY
  'openai:http://127.0.0.1:8000/v1#name'  any OpenAI-compatible endpoint
  anthropic:NAME                          Anthropic; key: ANTHROPIC_API_KEY
  gemini:NAME                             Google; key: GEMINI_API_KEY
  llama:model.gguf                        a local file, on this machine
  'simulated:student?knowledge=0.6'       a simulation, which costs nothing"""
_LONGEST_SUMMARY = 1000  # characters
MISSPELLING_CUTOFF = 0.75  # similarity to a known option from which an unknown one counts as misspelt
# Every argument is passed on, --help included.
ALL_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


_SECONDS = ("seconds", "timeout", "grace")  # options whose value is in seconds
_TYPE = re.compile(r" (?!-)(\S.*)$")  # the type that follows an option's names
_TRAILING_ZERO = re.compile(r"\.0$")  # the end of a float that is a whole number
_RANGE = re.compile(r" ?range", re.IGNORECASE)
_WORDS = {"int": "N", "integer": "N", "path": "FILE", "file": "FILE"}


def _argument_words(param: Any) -> str:
    words = str(param.metavar or str(param.name).rstrip("_").upper())
    return words.removeprefix("[").removesuffix("]").removesuffix("...")


def _option_words(param: Any, typer_text: str) -> str:
    """Return an option's names and the word for its value; `typer_text` is typer's text for both."""
    names = ", ".join(sorted(param.opts, key=lambda name: name.startswith("--"))) + "".join(
        f" / {name}" for name in param.secondary_opts
    )
    if param.is_flag:
        return names
    words = param.metavar
    if words is None:
        match = _TYPE.search(typer_text)
        kind = _RANGE.sub("", match[1] if match else "").strip("<>[] ").removeprefix("list[").lower()
        last = str(param.name).strip("_").rpartition("_")[2]
        numeric = "SECONDS" if last in _SECONDS else "NUMBER"
        words = kind if "|" in kind else _WORDS.get(kind, numeric if kind == "float" else last.upper())
    return f"{names} {words}" + " (repeatable)" * bool(param.multiple)


def _help_text(param: Any, typer_text: str) -> str:
    """Return an option's help with its default in parentheses; bounds are left to error messages."""
    text = param.help or ""
    extra = typer_text.removeprefix(text).strip().lstrip("\\[").removesuffix("]")  # early typer escapes the bracket
    required = "required" if param.param_type_name == "option" else None  # the usage line shows it for arguments
    parts = [
        _TRAILING_ZERO.sub("", part) for part in extra.split("; ") if part.startswith("default: ") or part == required
    ]
    return text + (f" ({'; '.join(parts)})" if parts else "")


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:
            continue
        is_argument = param.param_type_name == "argument"
        words = _argument_words(param) if is_argument else _option_words(param, record[0])
        sections["Arguments" if is_argument else "Options"].append((words, _help_text(param, record[1])))
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # of click, or of typer's own copy of click


class _WordedErrors:
    """Commands that report wrong usage like other errors: the wrong word, the nearest name, and where to find help."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _print_usage_errors(tuple(args)):
            return super().make_context(info_name, args, parent, **extra)  # type: ignore[misc]

    def invoke(self, ctx: Any) -> Any:
        with _print_usage_errors():
            return super().invoke(ctx)  # type: ignore[misc]


@contextmanager
def _print_usage_errors(words: Sequence[str] = ()) -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        text = _usage_text(error, words)
        if not text:  # a group was called without a command: the error prints its help
            raise
        print_error(text)
        raise typer.Exit(2) from None


def _usage_text(error: Any, words: Sequence[str]) -> str:
    """Return what is wrong with a command's words; "" if a group was called without a command."""
    name = type(error).__name__
    if name == "NoArgsIsHelpError":
        return ""
    names: list[str] = []
    if name == "NoSuchOption":
        wrong, subject, names = error.option_name, "option", list(error.possibilities or ())
    elif match := _NO_COMMAND.match(error.format_message()):
        wrong, subject, names = match[1], "command", _command_names(error.ctx)
    else:
        wrong, subject = "", str(error.format_message()).rstrip(".")
        if name == "MissingParameter" and error.param is not None and error.param.param_type_name == "argument":
            subject = f"missing argument {_argument_words(error.param)}"
        subject = subject[:1].lower() + subject[1:] + _found_value(error, words)
        subject = _UNABLE.sub("", subject)
    if wrong:
        near = did_you_mean(wrong, names, cutoff=MISSPELLING_CUTOFF if name == "NoSuchOption" else 0.6)
        known_words = "the command's options include" if name == "NoSuchOption" else "expected one of"
        known = f"; {known_words}: {', '.join(names)}" if names and not near else ""
        if name == "NoSuchOption" and not near and ".py" in error.ctx.command_path:
            role = wrong.lstrip("-")
            known += f'; for a role of the scenario, add one="{role}" or judge="{role}" to its decorator'
        subject = f"no {subject} '{wrong}'{near}{known}"
    help_command = f"{error.ctx.command_path} -h" if error.ctx is not None else "viva -h"
    end = "" if subject.endswith("?") else ";"
    return f"{subject}{end} see {help_command}"


def _found_value(error: Any, words: Sequence[str]) -> str:
    """Return `, found 'tow'` if the error refuses an option's value without repeating the value; else ""."""
    options = getattr(getattr(error, "param", None), "opts", ())
    for word, value in zip(words, [*words[1:], ""], strict=False):
        name, sign, joined = word.partition("=")
        if name in options and repr(joined if sign else value) not in error.format_message():
            return f", found '{joined if sign else value}'"
    return ""


_UNABLE = re.compile(r", unable to parse string as an? \w+")
_NO_COMMAND = re.compile(r"No such command '([^']*)'")


def _command_names(ctx: Any) -> list[str]:
    return list(ctx.command.list_commands(ctx)) if ctx is not None else []


class WordedCommand(_WordedErrors, TyperCommand):
    """A command whose help names types in words: `MODEL (repeatable)`, `N`, `FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option in place of another option's value, which would make that option's value an argument."""
        options = {name: param for param in self.get_params(ctx) if param.param_type_name == "option"
                   for name in param.opts if name.startswith("--")}  # fmt: skip
        words = args[: args.index("--")] if "--" in args else args
        for word, value in pairwise(words):
            param: Any = options.get(word)
            if param is not None and value in options and not (param.is_flag or param.count):
                raise cast(Any, _UsageError)(f"option '{word}' requires an argument, found the option '{value}'", ctx)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = ["[OPTIONS]"]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                words = _argument_words(param) + "..." * (param.nargs != 1)
                pieces.append(words if param.required else f"[{words}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class CommandGroup(_WordedErrors, TyperGroup):
    """A group whose help shows whole summaries, over as many lines as they need."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in self.sections(ctx).items():
            if not names:
                continue
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(_LONGEST_SUMMARY)) for name in names])

    def sections(self, ctx: Any) -> dict[str, list[str]]:
        """Return the names of visible commands by section title."""
        return {"Commands": [name for name in self.list_commands(ctx) if not self.commands[name].hidden]}


def example_epilog(*commands: str, models: bool = False) -> str:
    """Return the end of a command's help: example calls and, if it takes models, how models are named."""
    calls = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExample{'s' * (len(commands) > 1)}:\n{calls}" + (f"\n\n{MODELS}" if models else "")


def typed_words() -> list[str]:
    """Return the words of the command; during shell completion, those typed so far."""
    typed = f"{os.environ.get('COMP_WORDS', '')} {os.environ.get('_TYPER_COMPLETE_ARGS', '')}".split()
    return typed if is_completing() else sys.argv


def is_completing() -> bool:
    """Return True during shell completion."""
    return "_VIVA_COMPLETE" in os.environ


def add_lazy_command(
    app: typer.Typer,
    name: str,
    summary: str,
    make: Callable[[], Callable[..., Any]],
    example: Callable[[], str] | None = None,
) -> None:
    """Add a command that `make` builds when the command is called; lists of commands show `summary`.

    `example` returns the end of its help.
    """
    if is_completing() and name in typed_words():
        app.command(name, help=summary, cls=WordedCommand)(make())
        return

    def command(context: typer.Context) -> None:
        run_lazy_command(context, make(), None if example is None else example())

    app.command(name, help=summary, add_help_option=False, context_settings=ALL_ARGUMENTS)(command)


def run_lazy_command(context: typer.Context, command: Callable[..., Any], epilog: str | None = None) -> None:
    """Run a command with the arguments of the context; its help ends with `epilog`."""
    alone = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, context_settings=HELP, rich_markup_mode=None
    )
    alone.command(context.info_name, epilog=epilog, cls=WordedCommand)(command)
    typer.main.get_command(alone).main(args=context.args, prog_name=context.command_path)


_MORE = "More"
_SECTIONS = {
    "Commands": ("run", "sweep", "report", "view", "show", "suite", "judge", "serve"),
    "People": ("grade", "review"),
    "Data": ("data", "bank", "validate", "lab", "demo"),
    "Exchange": ("export", "import"),
    _MORE: ("resume", "control", "verify", "score", "court", "invariance", "list"),
}


class TopLevelGroup(CommandGroup):
    """Group of all commands in sections; the last section has the commands of scenarios."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Permit the Python code that the command line names, and replace old spellings.

        `--python-tools` may stand anywhere.
        """
        begin_command(args, _pop_option(PYTHON_TOOLS_OPTION, args))
        if not is_completing():
            args, message = modernize(args)
            if message:
                print_note(message)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in self.sections(ctx).values() for name in names]

    def sections(self, ctx: Any) -> dict[str, list[str]]:
        present = [name for name in super().list_commands(ctx) if not self.commands[name].hidden]
        sections = {title: [name for name in names if name in present] for title, names in _SECTIONS.items()}
        sorted_names = {name for names in sections.values() for name in names}
        sections[_MORE][1:1] = [name for name in present if name not in sorted_names]
        return sections


def _pop_option(option: str, words: list[str]) -> list[str]:
    """Remove an option from a command's words and return its values."""
    values, position = [], 0
    while position < len(words) and words[position] != "--":
        if words[position].startswith(f"{option}="):
            values.append(words.pop(position).partition("=")[2])
        elif words[position] == option and position + 1 < len(words):
            values.append(words[position + 1])
            del words[position : position + 2]
        else:
            position += 1
    return values


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"viva {version('viva-exam')}")
        raise typer.Exit


def _viva(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Print more to stderr, e.g. how models are loaded. The option may stand anywhere in the command.",
        ),
    ] = False,
    python_tools: Annotated[
        list[str] | None,
        typer.Option(
            PYTHON_TOOLS_OPTION,
            metavar="MODULE|FILE.py",
            help="Python code that input files may run. The option may stand anywhere in the command.",
        ),
    ] = None,
) -> None:
    """Examine language models in conversation."""


app = typer.Typer(
    name="viva",
    cls=TopLevelGroup,
    callback=_viva,
    epilog=MODELS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP,
    rich_markup_mode=None,  # rich would truncate the names of options at 80 columns
)


def command(
    name: str, *examples: str, models: bool = False, group: typer.Typer = app, **options: Any
) -> Callable[[F], F]:
    """Return a decorator that adds a command; its help ends with `examples` and (if `models`) how models are named."""

    def add(function: F) -> F:
        options.setdefault("epilog", example_epilog(*examples, models=models) if examples else None)
        group.command(name, cls=WordedCommand, **options)(handle_errors(function))
        return function

    return add


def command_group(name: str, summary: str, parent: typer.Typer = app) -> typer.Typer:
    group = typer.Typer(cls=CommandGroup, no_args_is_help=True, context_settings=HELP, rich_markup_mode=None)
    group.callback(help=summary)(lambda: None)
    parent.add_typer(group, name=name, help=summary)
    return group
