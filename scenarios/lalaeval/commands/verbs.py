"""The verbs of grading by people: ``viva grade …``, each in a module of its own beside this one.

What never belongs here: anything that a program would want without a terminal.
"""

from __future__ import annotations

import typer

from viva.cli.exit_codes import guarded
from viva.cli.lazy_command import HELP, CommandGroup

from . import bank, check, collect, demo, graders, init, invalidate, judge, queue, report, serve, sit

app = typer.Typer(
    cls=CommandGroup,
    name="grade",
    help="People as graders: question bank, answers, grading pages, adjudication and report.",
    no_args_is_help=True,
    context_settings=HELP,
    rich_markup_mode=None,
)


@app.callback()
def _grade() -> None:
    """People as graders: question bank, answers, grading pages, adjudication and report."""


app.command("init")(guarded(init.init))
app.command("check")(guarded(check.check))
app.add_typer(bank.app)
app.command("collect", epilog=collect.EXAMPLE)(guarded(collect.collect))
app.command("judge", epilog=judge.EXAMPLE)(guarded(judge.judge))
app.command("queue", epilog=queue.QUEUE_EXAMPLE)(guarded(queue.queue))
app.command("labels", epilog=queue.LABELS_EXAMPLE)(guarded(queue.labels))
app.command("sit", epilog=sit.EXAMPLE)(guarded(sit.sit))
app.command("serve", epilog=serve.EXAMPLE)(guarded(serve.serve))
app.command("graders", epilog=graders.EXAMPLE)(guarded(graders.graders))
app.command("report", epilog=report.EXAMPLE)(guarded(report.report))
app.command("invalidate", epilog=invalidate.EXAMPLE)(guarded(invalidate.invalidate))
app.command("demo", epilog=demo.EXAMPLE)(guarded(demo.demo))
