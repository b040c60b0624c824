"""`viva run` with its shortcuts and forks, `viva resume`, and code shared by all commands that run models."""

from __future__ import annotations

import logging
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
    MISSPELLING_CUTOFF,
    CommandGroup,
    WordedCommand,
    add_lazy_command,
    app,
    command,
    example_epilog,
    is_completing,
    typed_words,
)
from .exit_codes import (
    DONE,
    FAILED,
    FAILURES,
    INTERRUPTED,
    exit_code,
    exit_with_error,
    handle_errors,
    print_message,
    print_note,
)
from .options import Concurrency, Config, DryRun, Html, Json, MaxFailures, Otel, Out, RetryFailed, request_traces

if TYPE_CHECKING:
    from viva.engine.runner import Outcome
    from viva.orchestration.launch import Launch
    from viva.orchestration.prepared_run import PreparedRun
    from viva.scenarios.contract import Aggregate
    from viva.scenarios.registry import AnyScenario


# Roles of many scenarios; other scenarios have other names for them.
_ROLE_OPTIONS = ("--candidate", "--model", "--interactor", "--user", "--evaluator", "--judge")


def add_scenarios() -> None:
    """Add the commands of scenarios."""
    from viva.engine.imports import load_entry_points

    runs = typer.Typer(
        help="Run a scenario from the list below or from a Python FILE.py, or fork an earlier run.",
        subcommand_metavar="SCENARIO [OPTIONS]",
        invoke_without_command=True,
        epilog=example_epilog("viva run --fork runs/sweep --judge openai:gpt-4o --out runs/fork", models=True),
        cls=_Scenarios,
    )
    runs.callback()(handle_errors(_fork))
    for name in load_entry_points("viva.scenarios"):
        # Import only the requested scenario, so that the others do not slow the start.
        typed = typed_words()
        if name in typed or is_completing() or typed[1:] in (["run"], ["run", "--help"], ["run", "-h"]):
            try:
                runs.command(name, epilog=_example(name), cls=_command_class(name))(_scenario_command(name))
            except ConfigurationError as error:  # only a note if this scenario is not requested
                if name not in typed:
                    print_note(error)
    app.add_typer(runs, name="run")
    for name in load_entry_points("viva.shortcuts"):
        summary = f"Short for `viva run {name}`."
        add_lazy_command(app, name, summary, partial(_scenario_command, name), partial(_example, name, f"viva {name}"))


class _Scenarios(CommandGroup):
    """Group of the registered scenarios and scenario files; the error for an unknown name lists the known names."""

    def sections(self, ctx: Any) -> dict[str, list[str]]:
        return {"Scenarios": self.list_commands(ctx)}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None:
            from viva.scenarios.registry import get_scenario

            try:
                get_scenario(cmd_name)  # runs the file, so that the file's own errors are reported
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
    """Return a scenario's command class; its error for an unknown role option lists the scenario's roles."""
    from viva.orchestration.run_command import option_name
    from viva.scenarios.registry import get_scenario

    roles = [option_name(role.setting) for role in get_scenario(name).roles]

    class ScenarioCommand(WordedCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            try:
                return super().parse_args(ctx, args)
            except Exception as error:
                option = getattr(error, "option_name", None)
                near = [] if option in _ROLE_OPTIONS else getattr(error, "possibilities", None) or []
                if option is not None and not get_close_matches(option, near, cutoff=MISSPELLING_CUTOFF):
                    error.possibilities = [*near, *roles]  # type: ignore[attr-defined]
                raise

    return ScenarioCommand


def _scenario_command(name: str) -> Any:
    from viva.scenarios.registry import get_scenario

    from .options import read_settings, with_settings

    scenario = get_scenario(name)

    def command(
        options: dict[str, Any],
        config: Config = None,
        out: Out = None,
        json: Json = False,
        html: Html = None,
        max_failures: MaxFailures = 0,
        otel: Otel = False,
        dry_run: DryRun = False,
    ) -> None:
        from viva.orchestration.launch import new_run
        from viva.orchestration.prepared_run import PreparedRun

        from .output_files import check_output_files

        if html is not None and dry_run:
            raise ConfigurationError("--html: with --dry-run there is no report yet; leave out --dry-run or --html")
        check_output_files({"--html": html})
        request_traces(otel)
        settings = read_settings(scenario.settings, options, config)
        if dry_run:
            _forecast(PreparedRun(scenario, settings), json)
            return
        launch = new_run(scenario, settings, out or fresh_folder(scenario.name))
        warn_if_short(launch)
        run_and_report(launch, json=json, html=html, max_failures=max_failures)

    command.__doc__ = scenario.summary
    return handle_errors(with_settings(command, scenario.settings, compared=compared_setting(scenario)))


def _forecast(prepared: PreparedRun, json: bool) -> None:
    from viva.orchestration.run_forecast import RunForecast

    from .output import print_report

    forecast = RunForecast(prepared)
    for note in prepared.notes:
        print_note(note)
    print_report(forecast, json=json)
    for line in () if json else forecast.assumptions:
        print_message(line)


def compared_setting(scenario: AnyScenario) -> str:
    """Return the setting that names the models that a scenario compares, or "" if it compares none."""
    return next((role.setting for role in scenario.roles if role.many), "")


def _example(name: str, command: str | None = None) -> str:
    from viva.scenarios.registry import get_scenario

    from .options import settings_example

    scenario = get_scenario(name)
    return settings_example(command or f"viva run {name}", scenario.settings, [role.setting for role in scenario.roles])


def _fork(
    context: typer.Context,
    fork: Annotated[
        Path | None, typer.Option("--fork", metavar="RUN", help="Judge the conversations of this run again.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option("--judge", metavar="MODEL", help="The model that judges (with --fork).")
    ] = None,
    judge_seeds: Annotated[
        int | None,
        typer.Option("--judge-seeds", min=1, max=100, help="Judge with this many seeds, and compare (with --fork)."),
    ] = None,
    judge_temperature: Annotated[
        float | None,
        typer.Option("--judge-temperature", min=0, max=2, help="Sampling temperature of the judge (with --fork)."),
    ] = None,
    concurrency: Concurrency = None,
    out: Out = None,
    json: Json = False,
    html: Html = None,
    max_failures: MaxFailures = 0,
    otel: Otel = False,
) -> None:
    if context.invoked_subcommand is not None:
        if fork is not None:
            raise typer.BadParameter(
                "--fork takes no scenario: the fork has the scenario of its run", param_hint="--fork"
            )
        return
    if fork is None or (judge is None and judge_seeds is None):
        needs = "viva: error: --fork needs --judge MODEL, or --judge-seeds N for the same judge"
        typer.echo(context.get_help() if fork is None else needs, err=True)
        raise typer.Exit(2)
    from viva.orchestration.launch import forked_run

    from .output_files import check_output_files

    check_output_files({"--html": html})
    request_traces(otel)
    changes = {"evaluator": judge, "judge_seeds": judge_seeds, "evaluator_temperature": judge_temperature}
    changes |= {"concurrency": concurrency}
    changes = {name: value for name, value in changes.items() if value is not None}
    launch = forked_run(fork, out or fresh_folder("fork"), changes=changes)
    run_and_report(launch, json=json, html=html, max_failures=max_failures)


@command("resume", "viva resume runs/sweep")
def _resume(
    run: Annotated[Path, typer.Argument(metavar="RUN|SWEEP", help="Folder of the run or sweep.")],
    concurrency: Concurrency = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", metavar="COST", help="Maximum cost from here on.")
    ] = None,
    max_calls: Annotated[
        int | None, typer.Option("--max-calls", min=1, help="Maximum number of calls from here on.")
    ] = None,
    max_tokens_total: Annotated[
        int | None, typer.Option("--max-tokens-total", min=1, help="Maximum number of tokens from here on.")
    ] = None,
    max_seconds: Annotated[float | None, typer.Option("--max-seconds", help="Maximum time from here on.")] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            "--wait-for-endpoint",
            metavar="SECONDS",
            min=0,
            help="Seconds to wait for an unreachable model before the run stops, to be resumed (0: none).",
        ),
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            "--durability",
            metavar="commit|power",
            help="What recorded answers survive: commit (a kill) or power (also a power cut).",
        ),
    ] = None,
    retry_failed: RetryFailed = False,
    json: Json = False,
    html: Html = None,
    max_failures: MaxFailures = 0,
    otel: Otel = False,
) -> None:
    """Resume an interrupted run or sweep; recorded calls are not repeated."""
    from viva.orchestration.launch import resumed_run
    from viva.sweeps.sweep_folder import is_sweep

    from .output_files import check_output_files

    check_output_files({"--html": html})
    request_traces(otel)
    changes = {
        "concurrency": concurrency,
        "max_cost": max_cost,
        "max_calls": max_calls,
        "max_tokens_total": max_tokens_total,
        "max_seconds": max_seconds,
        "patience": patience,
        "durability": durability,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if is_sweep(run):
        from .sweep import resume_sweep

        resume_sweep(run, changes, retry_failed=retry_failed, json=json, html=html, max_failures=max_failures)
    launch = resumed_run(run, retry_failed=retry_failed, changes=changes)
    run_and_report(launch, json=json, html=html, max_failures=max_failures)


def warn_if_short(launch: Launch) -> None:
    """Print a note if a dataset has fewer items than requested."""
    for setting, part in (("n", "dataset"), ("against_n", "against")):
        requested, record = getattr(launch.settings, setting, None), launch.folder.manifest.get(part)
        if requested is not None and record and record.get("chosen", requested) < requested:
            option = "-n" if setting == "n" else "--against-n"
            message = f"{option} {requested}: {record['name']} has {record['chosen']} items; all are used"
            print_note(message)


def run_and_report(launch: Launch, *, json: bool, html: Path | None, max_failures: int) -> None:
    """Run, show progress, print the report, and exit with a code that says how the run ended."""
    from viva.orchestration.completeness import missing_conversations

    from .output import print_results

    for note in launch.prepared.notes:
        print_note(note)
    result = run_launch(launch)
    if json or result.has_conversations:
        missing = None if result.outcome.how == "done" else missing_conversations(launch.folder)
        print_results(result.aggregate, launch.folder.path, json=json, missing=missing)
    write_run_page(result, launch, html)
    exit_with(launch, result, max_failures)


def write_run_page(result: RunResult, launch: Launch, html: Path | None) -> None:
    """Write the report of a run as a page, if a page is requested and the run did not fail."""
    from .output_files import write_report_page

    if html is not None and result.outcome.how != "failed":
        write_report_page(html, [launch.folder.path])


@dataclass(frozen=True, slots=True)
class RunResult:
    """Results of a run, how it ended, its last progress line, and failed conversations by reason."""

    aggregate: Aggregate
    outcome: Outcome
    progress: str
    reasons: dict[str, int]

    @property
    def has_conversations(self) -> bool:
        """False if the run failed before any conversation ended, so that its tables would be empty."""
        outcome = self.outcome
        return outcome.how != "failed" or bool(outcome.finished or outcome.failed or outcome.restored)


def run_launch(launch: Launch) -> RunResult:
    """Run conversations while showing progress."""
    from viva.engine.errors import JournalError, user_frame
    from viva.orchestration.launch import empty_results, recorded_failures, recorded_results
    from viva.orchestration.run_progress import WaitStatus

    from .progress import Progress
    from .signals import run_in_foreground

    aggregate = empty_results(launch.folder)
    progress = Progress(aggregate, WaitStatus.from_launch(launch))
    listening = launch.events.listen(progress.hear)
    outcome = run_in_foreground(launch.clock, launch.run, progress)
    if outcome.how == "failed" and outcome.finished:
        # Events may be ahead of the failed journal: report only recorded results.
        try:
            aggregate = recorded_results(launch.folder)
        except JournalError as error:  # the run's own error says more
            raise (outcome.error or error) from None
    reasons = progress.reasons
    if progress.reopened and outcome.how != "failed":
        aggregate, reasons = recorded_results(launch.folder), recorded_failures(launch.folder).reasons()
    raised = listening.error
    if raised is not None:  # the results are incomplete
        message = f"{type(raised).__name__}: {raised} (at {user_frame(raised)})"
        raise ConfigurationError(
            f"{launch.scenario.name}: its aggregate raised {message}. Everything is recorded in {launch.folder.path}: "
            "fix the aggregate, then use `viva report` or `viva resume`"
        )
    return RunResult(aggregate, outcome, progress.line(), reasons)


def exit_with(launch: Launch, result: RunResult, max_failures: int, code: int | None = None) -> NoReturn:
    """Print on stderr how a run ended and where its folder is; exit with `code` or, without one, the run's code."""
    from .progress import print_progress

    print_progress(result.progress)
    _explain(launch, result)
    sys.exit(_exit_code_of(result.outcome, max_failures) if code is None else code)


def _explain(launch: Launch, result: RunResult) -> None:
    from viva.engine.errors import SettingRefused
    from viva.engine.files import shell_path
    from viva.reports.run_tables import failure_lines
    from viva.scenarios.fitness import fitness_warnings

    path, outcome = launch.folder.path, result.outcome
    lines = [f"run folder: {path}"]
    if outcome.loop_lag:
        logging.getLogger("viva").info("event-loop lag p99 %.1f ms", outcome.loop_lag["p99_ms"])
    lines += failure_lines(result.reasons, path)
    if outcome.error is not None:
        lines.append(f"viva: error: {outcome.error}")
    if outcome.how != "done" and not isinstance(outcome.error, SettingRefused):
        left = launch.prepared.total - outcome.finished - outcome.failed
        count = outcome.interrupted or left
        state = "interrupted" if outcome.interrupted else "not begun"
        were = "conversation was" if count == 1 else "conversations were"
        bound = "at most " if launch.prepared.is_adaptive and not outcome.interrupted else ""
        missing = f"{bound}{count} {were} {state}; " if count > 0 else ""
        lines.append(f"{missing}resume with: viva resume {shell_path(path)}")
    lines += [f"viva: warning: {warning}" for warning in fitness_warnings(path)]
    for line in lines:
        print_message(line)


def _exit_code_of(outcome: Outcome, max_failures: int) -> int:
    if outcome.how in ("drained", "halted"):
        return INTERRUPTED
    if outcome.error is not None and outcome.how == "failed":
        return exit_code(outcome.error)
    if outcome.how != "done":
        return FAILED
    return FAILURES if outcome.failed > max_failures else DONE
