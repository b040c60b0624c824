"""`viva sweep`: a grid of candidates, datasets and seeds, with `plan`, `merge` and `compact`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from viva.engine.errors import ConfigurationError

from .app import HELP, CommandGroup, app, command
from .exit_codes import DONE, FAILED, FAILURES, INTERRUPTED, print_error, print_message, print_note
from .options import Concurrency, DryRun, Html, Json, MaxFailures, Otel, RetryFailed, request_traces

if TYPE_CHECKING:
    from viva.orchestration.prepared_run import Shard
    from viva.sweeps.sweep import Sweep

CellName = Annotated[
    str | None,
    typer.Option(
        "--cell",
        metavar="ID",
        help="Only this cell, named by its folder or by its number in the file's order (from 1).",
    ),
]
_MERGE_HEADER = ["cell", "state", "shards", "done"]


class _SweepGroup(CommandGroup):
    """The commands of sweeps; `viva sweep FILE` is `viva sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_file = bool(args) and args[0] not in self.commands and args[0] not in HELP["help_option_names"]
        parsed: list[str] = super().parse_args(ctx, ["run", *args] if is_file else args)
        return parsed

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help of `run`, then the list of the other commands."""
        run = self.commands["run"]
        alone = type(ctx)(run, info_name=ctx.info_name, parent=ctx.parent)
        run.format_usage(alone, formatter)
        run.format_help_text(alone, formatter)
        run.format_options(alone, formatter)
        self.format_commands(ctx, formatter)
        run.format_epilog(alone, formatter)

    def sections(self, ctx: Any) -> dict[str, list[str]]:
        return {"Other commands of `viva sweep`": [name for name in self.list_commands(ctx) if name != "run"]}


sweep_group = typer.Typer(cls=_SweepGroup, no_args_is_help=True, context_settings=HELP, rich_markup_mode=None)
_SUMMARY = "Examine many candidates on many datasets; repeat the command to resume."
sweep_group.callback(help=_SUMMARY)(lambda: None)
app.add_typer(sweep_group, name="sweep", help=_SUMMARY)


@command(
    "run",
    "viva sweep grid.yaml",
    "viva sweep grid.yaml --dry-run",
    "viva sweep plan grid.yaml",
    "viva sweep grid.yaml --ray auto",
    models=True,
    group=sweep_group,
)
def _sweep(
    file: Annotated[Path, typer.Argument(help="YAML file with candidates, datasets, seeds and scenarios.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Folder to create or resume (default: runs/ plus the file's name)."
        ),
    ] = None,
    dry_run: DryRun = False,
    retry_failed: RetryFailed = False,
    concurrency: Concurrency = None,
    cell: CellName = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", metavar="I/N", help="Run only shard I of N of each cell; `viva sweep merge` joins the shards."
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Run cells on a Ray cluster: auto (the running one), local (start one here), HOST:PORT.",
        ),
    ] = None,
    ray_shards: Annotated[
        int | None, typer.Option("--ray-shards", min=1, help="Number of Ray tasks for each cell (default: 1).")
    ] = None,
    ray_workers: Annotated[
        int | None,
        typer.Option("--ray-workers", min=1, help="Maximum number of concurrent tasks (default: as many as fit)."),
    ] = None,
    ray_timeout: Annotated[
        float | None,
        typer.Option(
            "--ray-timeout", min=0.0, help="Seconds to wait for a machine that can run a task (default: 300)."
        ),
    ] = None,
    json: Json = False,
    html: Html = None,
    max_failures: MaxFailures = 0,
    otel: Otel = False,
) -> None:
    """Examine many candidates on many datasets; repeat the command to resume."""
    from viva.orchestration.prepared_run import Shard
    from viva.sweeps.shards import SweepSlice
    from viva.sweeps.sweep import open_sweep

    from .output_files import check_output_files

    check_output_files({"--html": html}, [file])
    request_traces(otel)
    if html is not None and (shard is not None or dry_run):
        option = "--dry-run" if dry_run else "--shard"
        raise ConfigurationError(f"--html: with {option} there is no report yet; leave out {option} or --html")
    shard_slice = None if shard is None else Shard.parse(shard)
    sweep: Sweep
    options = {"shards": ray_shards, "workers": ray_workers, "timeout_seconds": ray_timeout}
    if ray is not None:
        sweep = _sweep_on_cluster(
            file, out, ray, options, shard_slice, cell, retry_failed=retry_failed, concurrency=concurrency
        )
    else:
        _refuse_without_ray(options)
        selection = SweepSlice(cell, shard_slice)
        sweep = open_sweep(file, out, retry_failed=retry_failed, concurrency=concurrency, selection=selection)
        _note_attempts(sweep)
    if dry_run:
        _forecast(sweep, json)
    else:
        _run_sweep(sweep, json=json, html=html, max_failures=max_failures)


def _sweep_on_cluster(
    file: Path,
    out: Path | None,
    address: str,
    options: dict[str, Any],
    shard_slice: Shard | None,
    cell: str | None,
    **settings: Any,
) -> Sweep:
    """Open a sweep to run on a cluster; raise ConfigurationError if the file is wrong or a shard is requested."""
    from viva.sweeps.cluster_sweep import ClusterOptions, open_cluster_sweep

    if shard_slice is not None:
        raise ConfigurationError("--shard: with --ray all shards run; choose their number with --ray-shards")
    chosen = {name: value for name, value in options.items() if value is not None}
    return open_cluster_sweep(file, out, ClusterOptions(address=address, **chosen), cell=cell, **settings)


def _refuse_without_ray(options: dict[str, Any]) -> None:
    """Raise ConfigurationError for cluster options if no cluster is requested."""
    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(
                f"--ray-{name.removesuffix('_seconds')}: is for a cluster; also give --ray ADDRESS"
            )


def _note_attempts(sweep: Sweep) -> None:
    """Print a note if a cluster has left results that this process does not use."""
    from viva.sweeps.cluster_attempts import has_attempts

    if has_attempts(sweep.out):
        message = f"{sweep.out}/attempts contains results of a cluster; repeat the command with --ray to include them"
        print_note(message)


def resume_sweep(
    out: Path, changes: dict[str, Any], *, retry_failed: bool, json: bool, html: Path | None, max_failures: int
) -> NoReturn:
    """Resume the sweep in a folder; `changes` are options of `viva resume`."""
    from viva.sweeps.sweep import reopen_sweep

    foreign = sorted(changes.keys() - {"concurrency"})
    if foreign:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise ConfigurationError(
            f"{names}: a sweep's file has these for its cells; change it there, and repeat `viva sweep`"
        )
    _run_sweep(reopen_sweep(out, retry_failed=retry_failed, **changes), json=json, html=html, max_failures=max_failures)


def _run_sweep(sweep: Sweep, *, json: bool, html: Path | None, max_failures: int) -> NoReturn:
    """Run, show progress, print the cells, and exit with a code that says how the sweep ended."""
    from viva.engine.files import shell_path
    from viva.reports.run_tables import failure_lines
    from viva.sweeps.overview import SweepOverview

    from .output import print_report
    from .output_files import write_report_page

    progress = _run_cells(sweep)
    overview = SweepOverview(sweep)
    print_report(overview, json=json)
    if html is not None:
        write_report_page(html, [sweep.out])
    print(progress, file=sys.stderr)
    failed = _print_failed_cells(sweep)
    _warn_if_short(sweep)
    for line in failure_lines(overview.reasons, sweep.out):
        print_message(line)
    print(f"sweep folder: {sweep.out}", file=sys.stderr)
    if sweep.interrupted:
        is_whole = sweep.selection.is_whole and not sweep.spread
        command = f"viva resume {shell_path(sweep.out)}" if is_whole else "the same command"
        print(f"resume with: {command}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if sweep.selection.shard is not None:
        print(f"when all shards have finished, run: viva sweep merge {sweep.out}", file=sys.stderr)
    sys.exit(FAILURES if failed or sweep.failures > max_failures else DONE)


def _run_cells(sweep: Sweep) -> str:
    """Run while showing progress; return the last progress line."""
    from .progress import SweepProgress
    from .signals import run_in_foreground

    progress = SweepProgress(sweep)
    sweep.events.listen(progress.hear)
    run_in_foreground(sweep.clock, sweep.run, progress)
    return progress.line()


def _print_failed_cells(sweep: Sweep) -> bool:
    """Print why cells failed; return True if any did."""
    failed = [run for run in sweep.runs if run.error is not None]
    for run in failed:
        print_error(f"{run.cell.name}: {run.error}")
    return bool(failed)


def _warn_if_short(sweep: Sweep) -> None:
    """Print one note for each dataset that has fewer items than requested."""
    notes: dict[str, None] = {}
    for run in sweep.runs:
        requested = getattr(run.cell.settings, "n", None)
        if sweep.selection.shard is None and requested is not None and run.total is not None and run.total < requested:
            notes[f"n: {requested}: {run.cell.dataset} has {run.total} items; all are used"] = None
    for note in notes:
        print_note(note)


def _forecast(sweep: Sweep, json: bool) -> NoReturn:
    from viva.sweeps.forecast import Forecast

    from .output import print_report

    forecast = Forecast(sweep)
    print_report(forecast, json=json)
    if not json:
        for assumption in forecast.assumptions:
            print_message(assumption)
    _warn_if_short(sweep)
    for name, error in forecast.problems.items():
        print_error(f"{name}: {error}")
    sys.exit(FAILURES if forecast.problems else DONE)


@command("plan", "viva sweep plan grid.yaml", "viva sweep plan grid.yaml --pilot 0.05 --budget 20", group=sweep_group)
def _plan(
    file: Annotated[Path, typer.Argument(help="YAML file of a sweep, as for `viva sweep`.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="The sweep's folder (default: runs/ plus the file's name)."),
    ] = None,
    pilot: Annotated[
        float | None,
        typer.Option(
            "--pilot", metavar="SHARE", help="Run this fraction (0-1) of the sweep first; the sweep resumes from it."
        ),
    ] = None,
    earlier: Annotated[
        list[Path] | None, typer.Option("--from", metavar="FOLDER", help="Run or sweep whose measurements to use.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", metavar="LABEL=BOUNDS", help="Override a model's limits, e.g. gpt-4o=rpm:500,concurrency:8."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="COST", min=0.0, help="Maximum cost; exit code 1 if the sweep may cost more."),
    ] = None,
    concurrency: Concurrency = None,
    simulations: Annotated[
        int, typer.Option("--simulations", min=2, max=1000, help="Number of simulations of the sweep.")
    ] = 20,
    json: Json = False,
    html: Html = None,
) -> None:
    """Estimate what a sweep will need: time, tokens, money, and the bottleneck.

    Only --pilot needs API keys. Exit code 1: the sweep may cost more than the budget. Exit code 3: a cell cannot run.
    """
    from viva.sweeps.plan import Plan
    from viva.sweeps.plan_report import PlanReport

    from .output import print_report
    from .output_files import check_output_files, write_tables_page

    check_output_files({"--html": html}, [file])
    if pilot is not None:
        if not 0.0 < pilot <= 1.0:
            raise ConfigurationError(f"--pilot: expected a share above 0 and at most 1, found {pilot:g}")
        _run_pilot(file, out, pilot, concurrency, budget)
    plan = Plan(
        file,
        out,
        earlier=earlier or [],
        limits=limit or [],
        budget=budget,
        concurrency=concurrency,
        simulations=simulations,
    )
    report = PlanReport(plan)
    print_report(report, json=json)
    if html is not None:
        write_tables_page(html, f"Plan of {file.name}", report.notes(), report.tables())
    for note in () if json else report.notes():
        print_note(note)
    for name, error in plan.forecast.problems.items():
        print_error(f"{name}: {error}")
    if not report.within_budget():
        print_note(f"the sweep may cost more than the budget of {budget:g}", "warning")
    sys.exit(FAILURES if plan.forecast.problems else DONE if report.within_budget() else FAILED)


def _run_pilot(file: Path, out: Path | None, fraction: float, concurrency: int | None, budget: float | None) -> None:
    """Run a pilot; cells that fail in the pilot are reported, and planned without its results."""
    from viva.sweeps.pilot import open_pilot
    from viva.sweeps.prices import require_prices

    sweep = open_pilot(file, out, fraction, concurrency=concurrency)
    require_prices(budget, [model for run in sweep.runs for model in run.cell.models])
    progress = _run_cells(sweep)
    print(f"pilot in {sweep.out} (`viva sweep {file}` resumes there): {progress}", file=sys.stderr)
    _print_failed_cells(sweep)
    if sweep.interrupted:
        sys.exit(INTERRUPTED)


@command("merge", "viva sweep merge runs/grid", "viva sweep merge runs/grid --partial", group=sweep_group)
def _merge(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a sweep that was run with --shard.")],
    cell: CellName = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Merge what exists; missing conversations are not an error.")
    ] = False,
    json: Json = False,
) -> NoReturn:
    """Join the shards of a sweep. Missing and duplicate conversations are errors."""
    from viva.sweeps.merge import merge_sweep

    from .output import print_json, print_tables

    merged = merge_sweep(folder, cell=cell, partial=partial)
    if json:
        print_json({"merge": 1, "cells": [merged_cell.to_record() for merged_cell in merged]})
    else:
        rows = [
            [
                merged_cell.cell.name,
                merged_cell.state,
                str(merged_cell.shards),
                f"{merged_cell.ended}/{merged_cell.planned or '?'}",
            ]
            for merged_cell in merged
        ]
        print_tables([(f"{len(rows)} cells", _MERGE_HEADER, rows)])
    for merged_cell in merged:
        for problem in merged_cell.problems:
            print_error(f"{merged_cell.cell.name}: {problem}")
    sys.exit(FAILURES if any(merged_cell.problems for merged_cell in merged) else DONE)


_COMPACT_HEADER = ["run", "before", "after", "texts packed"]


@command("compact", "viva sweep compact runs/grid --dry-run", "viva sweep compact runs/grid", group=sweep_group)
def _compact(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|SWEEP", help="Folder of a run or a sweep that is not running.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; estimate the savings.")] = False,
    json: Json = False,
) -> NoReturn:
    """Compress the journals of a run or sweep. Nothing is removed, and every command can still read the journals."""
    from viva.sweeps.compaction import compact

    from .output import print_json, print_tables

    results = compact(folder, dry_run=dry_run)
    done = [(result.name, result.compaction) for result in results if result.compaction is not None]
    before, after = (sum(getattr(compaction, name) for _, compaction in done) for name in ("before", "after"))
    if json:
        print_json({"compact": 1, "dry_run": dry_run, "before": before, "after": after,
                    "runs": [result.to_record() for result in results]})  # fmt: skip
    else:
        rows = [
            [name, _format_bytes(compaction.before), _format_bytes(compaction.after), f"{compaction.packed:,}"]
            for name, compaction in done
        ]
        about = "about " if dry_run else ""
        title = (
            f"{len(rows)} journal{'s' * (len(rows) != 1)}: {_format_bytes(before)} before, "
            f"{about}{_format_bytes(after)} after"
        )
        print_tables([(title, _COMPACT_HEADER, rows)])
    for name, compaction in done:
        if compaction.busy:
            message = "another program is reading the journal; the file shrinks when that program closes the journal"
            print_note(f"{name}: {message}")
    for result in results:
        if result.problem:
            print_error(f"{result.name}: {result.problem}")
    sys.exit(FAILURES if any(result.problem for result in results) else DONE)


def _format_bytes(size: int) -> str:
    for unit, minimum in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= minimum:
            return f"{size / minimum:.3g} {unit}"
    return f"{size} B"
