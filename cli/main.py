"""The ``viva`` command: puts the groups together. Each command lives in a file of its own group.

What never belongs here: work. Commands import what they need when they run, so that ``viva`` starts fast.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from viva.engine.descriptors import raise_limit
from viva.engine.permissions import OPTION
from viva.engine.plugins import registered

from . import (
    bench,
    compact,
    correlate,
    data,
    exchange,
    judge,
    lab,
    listing,
    meta,
    plan,
    report,
    review,
    run,
    serve,
    show,
    sweep,
    validate,
    view,
)
from .exit_codes import complain
from .lazy_command import HELP, MODELS
from .output import Unwritten, forsake_stdout, show_log, steady_streams
from .topics import Topics


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
        typer.Option(OPTION, metavar="MODULE|FILE.py", help="Python code that files may name; anywhere, repeatable."),
    ] = None,
) -> None:
    """Examine language models by talking with them."""


app = typer.Typer(
    name="viva",
    cls=Topics,
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
plan.register(app)
report.register(app)
show.register(app)
view.register(app)
review.register(app)
data.register(app)
listing.register(app)
validate.register(app)
lab.register(app)
serve.register(app)
correlate.register(app)
meta.register(app)
judge.register(app)
bench.register(app)
exchange.register(app)
for point in registered("viva.commands").values():
    app.add_typer(point.load(), name=point.name)


def _asked_for_more(words: list[str]) -> bool:
    """Whether ``-v`` stands among the words of the command, behind whichever verb; it is taken out."""
    end = words.index("--") if "--" in words else len(words)
    found = [at for at in range(1, end) if words[at] in ("-v", "--verbose")]
    for at in reversed(found):
        del words[at]
    return bool(found)


def main() -> None:
    """The command, once its modules are loaded (``start``)."""
    steady_streams()
    show_log(verbose=_asked_for_more(sys.argv))
    raise_limit()
    try:
        app()
    except Unwritten as error:  # help and version are printed outside of any command
        forsake_stdout()
        complain(error)
