"""The verbs of grading by people: ``viva grade …``, each in a module of its own beside this one."""

from __future__ import annotations

import typer

from viva.cli.app import HELP, CommandGroup
from viva.cli.exit_codes import handle_errors

from . import bank, collect, demo, graders, judge, project, report

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


app.command("init")(handle_errors(project.init))
app.command("check")(handle_errors(project.check))
app.add_typer(bank.app)
app.command("collect", epilog=collect.EXAMPLE)(handle_errors(collect.collect))
app.command("judge", epilog=judge.EXAMPLE)(handle_errors(judge.judge))
app.command("queue", epilog=graders.QUEUE_EXAMPLE)(handle_errors(graders.queue))
app.command("labels", epilog=graders.LABELS_EXAMPLE)(handle_errors(graders.labels))
app.command("sit", epilog=graders.SIT_EXAMPLE)(handle_errors(graders.answer_as_human))
app.command("serve", epilog=graders.SERVE_EXAMPLE)(handle_errors(graders.serve))
app.command("graders", epilog=graders.GRADERS_EXAMPLE)(handle_errors(graders.graders))
app.command("report", epilog=report.EXAMPLE)(handle_errors(report.report))
app.command("invalidate", epilog=graders.INVALIDATE_EXAMPLE)(handle_errors(graders.invalidate))
app.command("demo", epilog=demo.EXAMPLE)(handle_errors(demo.demo))
