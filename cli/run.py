"""``viva run`` with its shortcuts and forks, and ``viva resume``: commands that run conversations with models.

Other commands that run something have it run, reported and ended here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from viva.engine.errors import ConfigurationError
from viva.orchestration.folders import fresh_folder

from .app import (
    HELP,
    CommandGroup,
    WordedCommand,
    add_lazy_command,
    app,
    command,
    example_epilog,
    is_completing,
    typed_words,
)
from .exit_codes import DONE, FAILED, FAILURES, INTERRUPTED, exit_code, exit_with_error, handle_errors, print_note
from .options import Concurrency, Config, Html, Json, MaxFailures, Out, RetryFailed

if TYPE_CHECKING:
    from viva.engine.runner import Outcome
    from viva.orchestration.launch import Launch
    from viva.scenarios.contract import Aggregate
    from viva.scenarios.registry import AnyScenario


_MISSPELLING_CUTOFF = 0.75  # from this likeness on an unknown option is taken for a misspelt one
# Roles that many scenarios have, and others call otherwise.
_ROLE_OPTIONS = ("--candidate", "--model", "--interactor", "--user", "--evaluator", "--judge")


def add_scenarios() -> None:
    """Add the commands of scenarios."""
    from viva.engine.imports import load_entry_points

    runs = typer.Typer(
        help="Run a scenario: one of those below, or a Python FILE.py. Or fork an earlier run.",
        invoke_without_command=True,
        epilog=example_epilog("viva run --fork runs/sweep --judge openai:gpt-4o --out runs/fork", models=True),
        cls=_Scenarios,
    )
    runs.callback()(handle_errors(_fork))
    for name in load_entry_points("viva.scenarios"):
        # Only the scenario that is asked for is imported: the others cost the command's start nothing.
        typed = typed_words()
        if name in typed or is_completing() or typed[1:] in (["run"], ["run", "--help"], ["run", "-h"]):
            try:
                runs.command(name, epilog=_example(name), cls=_command_class(name))(_scenario_command(name))
            except ConfigurationError as error:  # the others can be run; it ends the command where it is asked for
                if name not in typed:
                    print_note(error)
    app.add_typer(runs, name="run")
    for name in load_entry_points("viva.shortcuts"):
        summary = f"Short for `viva run {name}`."
        add_lazy_command(app, name, summary, partial(_scenario_command, name), partial(_example, name, f"viva {name}"))


class _Scenarios(CommandGroup):
    """The group of scenarios: registered ones and files; says which there are when one is asked for that is not."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None:
            from viva.scenarios.registry import get_scenario

            try:
                get_scenario(cmd_name)  # that of a file is run first, so that errors in it are told as such
                alone = typer.Typer(
                    add_completion=False, pretty_exceptions_enable=False, context_settings=HELP, rich_markup_mode=None
                )
                alone.command(cmd_name, epilog=_example(cmd_name), cls=_command_class(cmd_name))(
                    _scenario_command(cmd_name)
                )
                command = typer.main.get_command(alone)
            except ConfigurationError as error:
                exit_with_error(error)
        return command


def _command_class(name: str) -> type[WordedCommand]:
    """Return the command of a scenario. Where it is given another scenario's role, it names its own ones."""
    from viva.scenarios.registry import get_scenario

    from .options import option_name

    roles = [option_name(role.setting) for role in get_scenario(name).roles]

    class ScenarioCommand(WordedCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            try:
                return super().parse_args(ctx, args)
            except Exception as error:
                option = getattr(error, "option_name", None)
                near = [] if option in _ROLE_OPTIONS else getattr(error, "possibilities", None) or []
                if option is not None and not get_close_matches(option, near, cutoff=_MISSPELLING_CUTOFF):
                    error.possibilities = [*near, *roles]  # type: ignore[attr-defined]
                raise

    return ScenarioCommand


def _scenario_command(name: str) -> Any:
    from viva.scenarios.registry import get_scenario

    from .options import read_settings, with_settings

    which = get_scenario(name)

    def command(
        given: dict[str, Any],
        config: Config = None,
        out: Out = None,
        json: Json = False,
        html: Html = None,
        max_failures: MaxFailures = 0,
    ) -> None:
        from viva.orchestration.launch import new_run

        from .output_files import check_output_files

        check_output_files({"--html": html})
        settings = read_settings(which.settings, given, config)
        launch = new_run(which, settings, out or fresh_folder(which.name))
        warn_if_short(launch)
        run_and_report(launch, json=json, html=html, max_failures=max_failures)

    command.__doc__ = which.summary
    return handle_errors(with_settings(command, which.settings, compared=compared_setting(which)))


def compared_setting(which: AnyScenario) -> str:
    """Return the setting that names the models that a scenario compares, or "" if it compares none."""
    return next((role.setting for role in which.roles if role.many), "")


def _example(name: str, command: str | None = None) -> str:
    from viva.scenarios.registry import get_scenario

    from .options import settings_example

    which = get_scenario(name)
    return settings_example(command or f"viva run {name}", which.settings, [role.setting for role in which.roles])


def _fork(
    context: typer.Context,
    fork: Annotated[
        Path | None, typer.Option("--fork", metavar="RUN", help="Judge the conversations of this run again.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option("--judge", metavar="MODEL", help="The model that judges (with --fork).")
    ] = None,
    concurrency: Concurrency = None,
    out: Out = None,
    json: Json = False,
    html: Html = None,
    max_failures: MaxFailures = 0,
) -> None:
    if context.invoked_subcommand is not None:
        if fork is not None:
            raise typer.BadParameter("--fork takes no scenario: it is that of the run", param_hint="--fork")
        return
    if fork is None or judge is None:
        typer.echo(context.get_help() if fork is None else "viva: error: --fork needs --judge MODEL", err=True)
        raise typer.Exit(2)
    from viva.orchestration.launch import forked_run

    from .output_files import check_output_files

    check_output_files({"--html": html})
    changes = {"evaluator": judge, "concurrency": concurrency}
    given = {name: value for name, value in changes.items() if value is not None}
    launch = forked_run(fork, out or fresh_folder("fork"), changes=given)
    run_and_report(launch, json=json, html=html, max_failures=max_failures)


@command("resume", "viva resume runs/sweep")
def _resume(
    run: Annotated[Path, typer.Argument(metavar="RUN|SWEEP", help="Folder of the run or sweep.")],
    concurrency: Concurrency = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", metavar="COST", help="Largest cost from here on.")
    ] = None,
    max_calls: Annotated[int | None, typer.Option("--max-calls", min=1, help="Most calls from here on.")] = None,
    max_tokens_total: Annotated[
        int | None, typer.Option("--max-tokens-total", min=1, help="Most tokens from here on.")
    ] = None,
    max_seconds: Annotated[float | None, typer.Option("--max-seconds", help="Most seconds from here on.")] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            "--wait-for-endpoint",
            metavar="SECONDS",
            min=0,
            help="Seconds to wait for an unreachable model before giving up (0: none).",
        ),
    ] = None,
    retry_failed: RetryFailed = False,
    json: Json = False,
    html: Html = None,
    max_failures: MaxFailures = 0,
) -> None:
    """Resume an interrupted run or sweep; recorded calls are not repeated."""
    from viva.orchestration.launch import resumed_run
    from viva.sweeps.sweep_folder import is_sweep

    from .output_files import check_output_files

    check_output_files({"--html": html})
    changes = {
        "concurrency": concurrency,
        "max_cost": max_cost,
        "max_calls": max_calls,
        "max_tokens_total": max_tokens_total,
        "max_seconds": max_seconds,
        "patience": patience,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    if is_sweep(run):
        from .sweep import resume_sweep

        resume_sweep(run, given, retry_failed=retry_failed, json=json, html=html, max_failures=max_failures)
    launch = resumed_run(run, retry_failed=retry_failed, changes=given)
    run_and_report(launch, json=json, html=html, max_failures=max_failures)


def warn_if_short(launch: Launch) -> None:
    """Say where a dataset holds fewer items than were asked for."""
    for setting, part in (("n", "dataset"), ("against_n", "against")):
        wanted, found = getattr(launch.settings, setting, None), launch.folder.manifest.get(part)
        if wanted is not None and found and found.get("chosen", wanted) < wanted:
            option = "-n" if setting == "n" else "--against-n"
            said = f"{option} {wanted}: {found['name']} has {found['chosen']} items to draw from; all are taken"
            print_note(said)


def run_and_report(launch: Launch, *, json: bool, html: Path | None, max_failures: int) -> None:
    """Run, show progress, print the report, and exit with the code that says how it went."""
    from .output import print_report

    for note in launch.prepared.notes:
        print_note(note)
    held = run_launch(launch)
    print_report(held.aggregate, json=json)
    write_run_page(held, launch, html)
    exit_with(launch, held, max_failures)


def write_run_page(result: RunResult, launch: Launch, html: Path | None) -> None:
    """Write the report of a run as a page, unless none is wanted or the run failed."""
    from .output_files import write_report_page

    if html is not None and result.outcome.how != "failed":
        write_report_page(html, [launch.folder.path])


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a run: its results, how it ended, its last line of progress, and why conversations failed."""

    aggregate: Aggregate
    outcome: Outcome
    progress: str
    reasons: dict[str, int]


def run_launch(launch: Launch) -> RunResult:
    """Run and show progress."""
    from viva.engine.errors import JournalError, user_frame
    from viva.orchestration.launch import empty_results, recorded_results
    from viva.orchestration.run_progress import WaitStatus

    from .progress import Progress
    from .signals import run_in_foreground

    aggregate = empty_results(launch.folder)
    progress = Progress(aggregate, WaitStatus.from_launch(launch))
    listening = launch.events.listen(progress.hear)
    outcome = run_in_foreground(launch.clock, launch.run, progress)
    if outcome.how == "failed" and outcome.finished:
        # Events may have outrun a journal that then failed: report what is really recorded.
        try:
            aggregate = recorded_results(launch.folder)
        except JournalError as error:  # the run's own error says more
            raise (outcome.error or error) from None
    raised = listening.error
    if raised is not None:  # the results so far are not all
        said = f"{type(raised).__name__}: {raised} (at {user_frame(raised)})"
        raise ConfigurationError(
            f"{launch.scenario.name}: its aggregate raised {said}; all is recorded in {launch.folder.path}: mend it, "
            "and go on with `viva report` or `viva resume`"
        )
    return RunResult(aggregate, outcome, progress.line(), progress.reasons)


def exit_with(launch: Launch, held: RunResult, max_failures: int, code: int | None = None) -> NoReturn:
    """Say on stderr how a run went and where it lies, and leave with the exit code for it, or with ``code``."""
    from .progress import print_progress

    print_progress(held.progress)
    _explain(launch, held)
    sys.exit(_exit_code_of(held.outcome, max_failures) if code is None else code)


def _explain(launch: Launch, held: RunResult) -> None:
    from viva.engine.errors import SettingRefused
    from viva.reports.run_tables import failure_lines
    from viva.reports.tables import escape_controls, one_line

    path, outcome = launch.folder.path, held.outcome
    say = [f"run folder: {path}"]
    if outcome.loop_lag:
        say.append(f"event-loop lag p99 {outcome.loop_lag['p99_ms']:.1f} ms")
    say += map(escape_controls, failure_lines(held.reasons, path))
    if outcome.error is not None:
        say.append(f"viva: error: {one_line(str(outcome.error))}")
    if outcome.how != "done" and not isinstance(outcome.error, SettingRefused):
        say.append(f"{outcome.interrupted} conversations were interrupted; go on with: viva resume {path}")
    print("\n".join(say), file=sys.stderr)


def _exit_code_of(outcome: Outcome, max_failures: int) -> int:
    if outcome.how in ("drained", "halted"):
        return INTERRUPTED
    if outcome.error is not None and outcome.how == "failed":
        return exit_code(outcome.error)
    if outcome.how != "done":
        return FAILED
    return FAILURES if outcome.failed > max_failures else DONE
