"""The ``viva`` command: puts the groups together. Each command lives in a file of its own group.

What never belongs here: work. Commands import what they need when they run, so that ``viva`` starts fast.
"""

from __future__ import annotations

import sys

import typer

from ..engine.descriptors import raise_limit
from . import correlate, data, lab, report, review, run, sweep, validate
from .output import steady_streams

app = typer.Typer(
    name="viva",
    help="Examine language models by talking with them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
run.register(app)
sweep.register(app)
report.register(app)
review.register(app)
data.register(app)
validate.register(app)
lab.register(app)
correlate.register(app)


def main() -> None:
    """Entry point of the ``viva`` command."""
    steady_streams()
    raise_limit()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
