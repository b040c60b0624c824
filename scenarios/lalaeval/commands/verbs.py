"""Commands of human grading: `viva grade …`, each in its own module in this package."""

from __future__ import annotations

import typer

from viva.cli.app import HELP, CommandGroup, command

from . import bank, collect, demo, graders, judge, project, report

app = typer.Typer(
    cls=CommandGroup,
    name="grade",
    help="Human grading: question bank, answers, grading pages, adjudication and report.",
    no_args_is_help=True,
    context_settings=HELP,
    rich_markup_mode=None,
)


@app.callback()
def _grade() -> None:
    """Human grading: question bank, answers, grading pages, adjudication and report."""


command("init", group=app)(project.init)
command("check", group=app)(project.check)
app.add_typer(bank.app)
command("collect", group=app, epilog=collect.EXAMPLE)(collect.collect)
command("judge", group=app, epilog=judge.EXAMPLE)(judge.judge)
command("queue", group=app, epilog=graders.QUEUE_EXAMPLE)(graders.queue)
command("labels", group=app, epilog=graders.LABELS_EXAMPLE)(graders.labels)
command("answer", group=app, epilog=graders.ANSWER_EXAMPLE)(graders.answer_as_human)
command("serve", group=app, epilog=graders.SERVE_EXAMPLE)(graders.serve)
command("graders", group=app, epilog=graders.GRADERS_EXAMPLE)(graders.graders)
command("report", group=app, epilog=report.EXAMPLE)(report.report)
command("invalidate", group=app, epilog=graders.INVALIDATE_EXAMPLE)(graders.invalidate)
command("demo", group=app, epilog=demo.EXAMPLE)(demo.demo)
