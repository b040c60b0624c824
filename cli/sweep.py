"""`viva sweep`: a grid of candidates, datasets and seeds, with `plan`, `merge` and `compact`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from viva.engine.errors import ConfigurationError

from .app import HELP, CommandGroup, app, command
from .exit_codes import DONE, FAILED, FAILURES, INTERRUPTED, print_error, print_note
from .options import Concurrency, Html, Json, MaxFailures, RetryFailed

if TYPE_CHECKING:
    from viva.orchestration.prepared_run import Shard
    from viva.sweeps.sweep import Sweep

CellName = Annotated[
    str | None,
    typer.Option("--cell", metavar="ID", help="One cell: its folder, or its number from 1 in the file's order."),
]
_MERGE_HEADER = ["cell", "state", "shards", "done"]


class _SweepGroup(CommandGroup):
    """The commands of sweeps; `viva sweep FILE` is `viva sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_file = bool(args) and args[0] not in self.commands and args[0] not in HELP["help_option_names"]
        parsed: list[str] = super().parse_args(ctx, ["run", *args] if is_file else args)
        return parsed

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help of `run`, and the other commands."""
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
_SUMMARY = "Examine many candidates on many datasets; the same command again resumes."
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
    file: Annotated[Path, typer.Argument(help="YAML file: candidates, datasets, seeds, and what is done with them.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Folder to make or to go on with (default: runs/NAME of the file)."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what there is to do and what it may cost; open no model.")
    ] = False,
    retry_failed: RetryFailed = False,
    concurrency: Concurrency = None,
    cell: CellName = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", metavar="I/N", help="Every N-th conversation of a cell; `viva sweep merge` joins shards."
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Have a Ray cluster hold the cells: auto (the running one), local (start one here), HOST:PORT.",
        ),
    ] = None,
    ray_shards: Annotated[
        int | None, typer.Option("--ray-shards", min=1, help="Tasks that each cell is divided into (1).")
    ] = None,
    ray_workers: Annotated[
        int | None, typer.Option("--ray-workers", min=1, help="Tasks at once at most (as many as there is room for).")
    ] = None,
    ray_timeout: Annotated[
        float | None,
        typer.Option("--ray-timeout", min=0.0, help="Seconds to wait for a machine that can hold a task (300)."),
    ] = None,
    json: Json = False,
    html: Html = None,
    max_failures: MaxFailures = 0,
) -> None:
    """Examine many candidates on many datasets; the same command again resumes."""
    from viva.orchestration.prepared_run import Shard
    from viva.sweeps.shards import SweepSlice
    from viva.sweeps.sweep import open_sweep

    from .output_files import check_output_files

    check_output_files({"--html": html}, [file])
    if html is not None and (shard is not None or dry_run):
        option = "--dry-run" if dry_run else "--shard"
        raise ConfigurationError(f"--html: with {option} there is no report yet; leave out one of them")
    share = None if shard is None else Shard.parse(shard)
    sweep: Sweep
    options = {"shards": ray_shards, "workers": ray_workers, "timeout_seconds": ray_timeout}
    if ray is not None:
        sweep = _sweep_on_cluster(
            file, out, ray, options, share, cell, retry_failed=retry_failed, concurrency=concurrency
        )
    else:
        _refuse_without_ray(options)
        selection = SweepSlice(cell, share)
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
    share: Shard | None,
    cell: str | None,
    **how: Any,
) -> Sweep:
    """:raises ConfigurationError: the file is wrong, or a shard is asked for."""
    from viva.sweeps.cluster_sweep import ClusterOptions, open_cluster_sweep

    if share is not None:
        raise ConfigurationError("--shard: with --ray every shard is held; say with --ray-shards into how many")
    given = {name: value for name, value in options.items() if value is not None}
    return open_cluster_sweep(file, out, ClusterOptions(address=address, **given), cell=cell, **how)


def _refuse_without_ray(options: dict[str, Any]) -> None:
    """:raises ConfigurationError: an option of a cluster is given, and no cluster."""

    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(
                f"--ray-{name.removesuffix('_seconds')}: says how a cluster works; give --ray ADDRESS too"
            )


def _note_attempts(sweep: Sweep) -> None:
    """Say that a cluster has made something that this process will not find."""
    from viva.sweeps.cluster_attempts import has_attempts

    if has_attempts(sweep.out):
        said = f"{sweep.out}/attempts holds what a cluster has made; the same command with --ray takes it over"
        print_note(said)


def resume_sweep(
    out: Path, given: dict[str, Any], *, retry_failed: bool, json: bool, html: Path | None, max_failures: int
) -> NoReturn:
    """Resume the sweep in a folder; `given` are options of `viva resume`."""
    from viva.sweeps.sweep import reopen_sweep

    foreign = sorted(given.keys() - {"concurrency"})
    if foreign:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise ConfigurationError(f"{named}: a sweep's budgets stand in its file, for each cell")
    _run_sweep(reopen_sweep(out, retry_failed=retry_failed, **given), json=json, html=html, max_failures=max_failures)


def _run_sweep(sweep: Sweep, *, json: bool, html: Path | None, max_failures: int) -> NoReturn:
    """Run, show progress, print the cells, and leave with the exit code that says how it went."""
    from viva.reports.run_tables import failure_lines
    from viva.reports.tables import escape_controls
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
        print(escape_controls(line), file=sys.stderr)
    print(f"sweep folder: {sweep.out}", file=sys.stderr)
    if sweep.interrupted:
        again = f"viva resume {sweep.out}" if sweep.selection.is_whole and not sweep.spread else "the same command"
        print(f"go on with: {again}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if sweep.selection.shard is not None:
        print(f"when all shards are at their end: viva sweep merge {sweep.out}", file=sys.stderr)
    sys.exit(FAILURES if failed or sweep.failures > max_failures else DONE)


def _run_cells(sweep: Sweep) -> str:
    """Run and show progress; returns the last line of it."""
    from .progress import SweepProgress
    from .signals import run_in_foreground

    progress = SweepProgress(sweep)
    sweep.events.listen(progress.hear)
    run_in_foreground(sweep.clock, sweep.run, progress)
    return progress.line()


def _print_failed_cells(sweep: Sweep) -> bool:
    """Say why cells failed; returns True if any did."""
    failed = [run for run in sweep.runs if run.error is not None]
    for run in failed:
        print_error(f"{run.cell.name}: {run.error}")
    return bool(failed)


def _warn_if_short(sweep: Sweep) -> None:
    """Say once of each dataset where it holds fewer items than were asked for."""
    notes: dict[str, None] = {}
    for run in sweep.runs:
        wanted = getattr(run.cell.settings, "n", None)
        if sweep.selection.shard is None and wanted is not None and run.total is not None and run.total < wanted:
            notes[f"n: {wanted}: {run.cell.dataset} has {run.total} items to draw from; all are taken"] = None
    for note in notes:
        print_note(note)


def _forecast(sweep: Sweep, json: bool) -> NoReturn:
    from viva.sweeps.forecast import Forecast

    from .output import print_report

    forecast = Forecast(sweep)
    print_report(forecast, json=json)
    if not json:
        print("\n".join(forecast.assumptions), file=sys.stderr)
    _warn_if_short(sweep)
    for name, error in forecast.problems.items():
        print_error(f"{name}: {error}")
    sys.exit(FAILURES if forecast.problems else DONE)


@command("plan", "viva sweep plan grid.yaml", "viva sweep plan grid.yaml --pilot 0.05 --budget 20", group=sweep_group)
def _plan(
    file: Annotated[Path, typer.Argument(help="A sweep's YAML file, as `viva sweep` takes it.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="The sweep's folder (default: runs/NAME of the file)."),
    ] = None,
    pilot: Annotated[
        float | None,
        typer.Option(
            "--pilot", metavar="SHARE", help="Run this share of the sweep first, 0-1; the sweep resumes from there."
        ),
    ] = None,
    earlier: Annotated[
        list[Path] | None, typer.Option("--from", metavar="FOLDER", help="Run or sweep to learn from.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", metavar="LABEL=BOUNDS", help="Other bounds of a model, e.g. gpt-4o=rpm:500,concurrency:8."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="COST", min=0.0, help="Largest cost; exit code 1 if it may cost more."),
    ] = None,
    concurrency: Concurrency = None,
    simulations: Annotated[
        int, typer.Option("--simulations", min=2, max=1000, help="Simulated sweeps that figures are made of.")
    ] = 20,
    json: Json = False,
    html: Html = None,
) -> None:
    """Say what a sweep will take: time, tokens, money, and what holds it up.

    Needs no API keys without --pilot. Exit code 1: it may cost more than the budget; 3: a cell cannot run.
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


def _run_pilot(file: Path, out: Path | None, share: float, concurrency: int | None, budget: float | None) -> None:
    """Hold a pilot; its failed cells are told, and planned without it."""
    from viva.sweeps.pilot import open_pilot
    from viva.sweeps.prices import require_prices

    sweep = open_pilot(file, out, share, concurrency=concurrency)
    require_prices(budget, [model for run in sweep.runs for model in run.cell.models])
    progress = _run_cells(sweep)
    print(f"pilot in {sweep.out}, where `viva sweep {file}` goes on: {progress}", file=sys.stderr)
    _print_failed_cells(sweep)
    if sweep.interrupted:
        sys.exit(INTERRUPTED)


@command("merge", "viva sweep merge runs/grid", "viva sweep merge runs/grid --partial", group=sweep_group)
def _merge(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep that was run with --shard.")],
    cell: CellName = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Merge what there is; missing conversations are no error.")
    ] = False,
    json: Json = False,
) -> NoReturn:
    """Join the shards of a sweep; refuses missing and doubled conversations."""
    from viva.sweeps.merge import merge_sweep

    from .output import print_json, print_tables

    merged = merge_sweep(folder, cell=cell, partial=partial)
    if json:
        print_json({"merge": 1, "cells": [one.to_record() for one in merged]})
    else:
        rows = [[one.cell.name, one.state, str(one.shards), f"{one.ended}/{one.planned or '?'}"] for one in merged]
        print_tables([(f"{len(rows)} cells", _MERGE_HEADER, rows)])
    for one in merged:
        for problem in one.problems:
            print_error(f"{one.cell.name}: {problem}")
    sys.exit(FAILURES if any(one.problems for one in merged) else DONE)


_COMPACT_HEADER = ["run", "before", "after", "texts packed"]


@command("compact", "viva sweep compact runs/grid --dry-run", "viva sweep compact runs/grid", group=sweep_group)
def _compact(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|SWEEP", help="Folder of a run or a sweep that is not running.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; say about what it would save.")] = False,
    json: Json = False,
) -> NoReturn:
    """Make journals small: texts are packed, nothing is removed, and every command reads them as before."""
    from viva.sweeps.compaction import compact

    from .output import print_json, print_tables

    found = compact(folder, dry_run=dry_run)
    done = [(one.name, one.compaction) for one in found if one.compaction is not None]
    before, after = (sum(getattr(made, name) for _, made in done) for name in ("before", "after"))
    if json:
        print_json({"compact": 1, "dry_run": dry_run, "before": before, "after": after,
                    "runs": [one.to_record() for one in found]})  # fmt: skip
    else:
        rows = [
            [name, _format_bytes(made.before), _format_bytes(made.after), f"{made.packed:,}"] for name, made in done
        ]
        about = "about " if dry_run else ""
        title = (
            f"{len(rows)} journal{'s' * (len(rows) != 1)}: {_format_bytes(before)} before, "
            f"{about}{_format_bytes(after)} after"
        )
        print_tables([(title, _COMPACT_HEADER, rows)])
    for name, made in done:
        if made.busy:
            said = "another program reads the journal; its file gets smaller once that has closed it"
            print_note(f"{name}: {said}")
    for one in found:
        if one.problem:
            print_error(f"{one.name}: {one.problem}")
    sys.exit(FAILURES if any(one.problem for one in found) else DONE)


def _format_bytes(size: int) -> str:
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{size} B"
