"""The ``viva`` command: the modules that add its commands, and its start and end."""

from __future__ import annotations

import sys

from viva.engine.file_descriptors import raise_descriptor_limit
from viva.engine.imports import load_entry_points

from . import exchange, judge, judge_compare, judge_load, lab, listing, report, run, serve, show, sweep, validate  # noqa: F401
from .app import app
from .exit_codes import exit_with_error
from .output import StdoutError, discard_stdout, protect_streams, show_log

run.add_scenarios()
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
