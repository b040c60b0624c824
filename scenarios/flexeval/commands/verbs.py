"""The verbs of suites: ``viva suite run``, ``gate``, ``check``, ``init``, ``watch``, ``export``, ``schema``.

A system's own commands stand on the floor of the command line: they may import whatever the command line may. What
never belongs here: anything that a program would want without a terminal.
"""

from __future__ import annotations

import typer

from viva.cli.exit_codes import guarded
from viva.cli.lazy_command import HELP, CommandGroup

from . import check, export, gate, run, start, watch

app = typer.Typer(
    cls=CommandGroup,
    name="suite",
    help="Test a chatbot by a suite of conversations, metrics and thresholds.",
    no_args_is_help=True,
    context_settings=HELP,
    rich_markup_mode=None,
)
app.command("run", epilog=run.EXAMPLE)(guarded(run.run))
app.command("check")(guarded(check.check))
app.command("gate")(guarded(gate.gate))
app.command("init")(guarded(start.init))
app.command("export")(guarded(export.export))
app.command("watch")(guarded(watch.watch))
app.command("schema")(guarded(check.schema))
