"""The ``viva`` command: its groups put together, listed by topic in ``viva --help``.

Commands import what they need when they run, so that ``viva`` starts fast.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from viva.engine.file_descriptors import raise_descriptor_limit
from viva.engine.imports import load_entry_points
from viva.engine.permissions import PYTHON_TOOLS_OPTION, begin_command

from . import bench, compact, correlate, exchange, judge, lab, listing, report, run, serve, show, sweep, validate
from .exit_codes import exit_with_error
from .lazy_command import HELP, MODELS, CommandGroup
from .output import StdoutError, discard_stdout, protect_streams, show_log

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
run.register(app)
compact.register(app)
sweep.register(app)
sweep.register_plan(app)
report.register(app)
show.register(app)
show.register_view(app)
report.register_review(app)
listing.register_data(app)
listing.register(app)
validate.register(app)
lab.register(app)
serve.register(app)
correlate.register_correlate(app)
correlate.register_meta(app)
judge.register(app)
bench.register(app)
exchange.register(app)
for point in load_entry_points("viva.commands").values():
    app.add_typer(point.load(), name=point.name)


def _pop_verbose(words: list[str]) -> bool:
    """Whether ``-v`` stands among the words of the command, behind whichever verb; it is taken out."""
    end = words.index("--") if "--" in words else len(words)
    found = [at for at in range(1, end) if words[at] in ("-v", "--verbose")]
    for at in reversed(found):
        del words[at]
    return bool(found)


def main() -> None:
    """The command, once its modules are loaded (``start``)."""
    protect_streams()
    show_log(verbose=_pop_verbose(sys.argv))
    raise_descriptor_limit()
    try:
        app()
    except StdoutError as error:  # help and version are printed outside of any command
        discard_stdout()
        exit_with_error(error)
