"""The `viva` command: imports the modules that add commands, and runs the app."""

from __future__ import annotations

import sys

from viva.engine.file_descriptors import raise_descriptor_limit
from viva.engine.imports import load_entry_points

from . import (  # noqa: F401
    bank,
    control,
    exchange,
    invariance,
    judge,
    judge_compare,
    judge_load,
    lab,
    listing,
    report,
    run,
    serve,
    show,
    sweep,
    validate,
    verify,
)
from .app import app
from .exit_codes import exit_with_error
from .output import StdoutError, discard_stdout, protect_streams, show_log

run.add_scenarios()
for point in load_entry_points("viva.commands").values():
    app.add_typer(point.load(), name=point.name)


def _pop_verbose(words: list[str]) -> bool:
    """Remove `-v` from anywhere in the command's words; return True if it was there."""
    end = words.index("--") if "--" in words else len(words)
    positions = [position for position in range(1, end) if words[position] in ("-v", "--verbose")]
    for position in reversed(positions):
        del words[position]
    return bool(positions)


def main() -> None:
    """Run the command (its modules are loaded by `start`)."""
    protect_streams()
    show_log(verbose=_pop_verbose(sys.argv))
    raise_descriptor_limit()
    try:
        app()
    except StdoutError as error:  # raised outside of any command, by help and version
        discard_stdout()
        exit_with_error(error)
