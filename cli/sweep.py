"""``viva sweep``: a grid of candidates, datasets and seeds in one file and one command.

What never belongs here: how cells are made and run (``orchestration.sweep``), and what their results mean.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from . import merge
from .exit_codes import DONE, FAILURES, INTERRUPTED, guarded, print_note
from .lazy_command import example_of
from .merge import CellName

if TYPE_CHECKING:
    from viva.orchestration.share import Share
    from viva.orchestration.sweep.sweep import Sweep

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
MaxFailures = Annotated[
    int,
    typer.Option("--max-failures", min=0, help="Failed conversations, in all cells, that still count as success."),
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    examples = ("viva sweep grid.yaml", "viva sweep grid.yaml --dry-run", "viva sweep grid.yaml --ray auto")
    app.command("sweep", epilog=example_of(*examples, models=True))(guarded(_sweep))
    merge.register(app)


def _sweep(
    file: Annotated[Path, typer.Argument(help="YAML file: candidates, datasets, seeds, and what is done with them.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to make or to go on with (default: runs/NAME of the file).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what there is to do and what it may cost; open no model.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed conversations again.")] = False,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="Conversations in flight, over all cells.")
    ] = None,
    cell: CellName = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="Every N-th conversation of each cell; `viva merge` joins them."),
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
    max_failures: MaxFailures = 0,
) -> None:
    """Examine many candidates on many datasets; the same command again goes on where it stopped."""
    from viva.orchestration.share import Share
    from viva.orchestration.sweep.portion import Portion
    from viva.orchestration.sweep.sweep import planned_sweep

    share = None if shard is None else Share.parse(shard)
    sweep: Sweep
    options = {"shards": ray_shards, "workers": ray_workers, "timeout_seconds": ray_timeout}
    if ray is not None:
        sweep = _clustered(file, out, ray, options, share, cell, retry_failed=retry_failed, concurrency=concurrency)
    else:
        _refuse_without_ray(options)
        portion = Portion(cell, share)
        sweep = planned_sweep(file, out, retry_failed=retry_failed, concurrency=concurrency, portion=portion)
        _note_attempts(sweep)
    if dry_run:
        _forecast(sweep, json)
    else:
        _carry(sweep, json=json, max_failures=max_failures)


def _clustered(
    file: Path,
    out: Path | None,
    address: str,
    options: dict[str, Any],
    share: Share | None,
    cell: str | None,
    **how: Any,
) -> Sweep:
    """:raises ConfigurationError: the file is wrong, or a shard is asked for."""
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.cluster.cluster_sweep import ClusterOptions, cluster_sweep

    if share is not None:
        raise ConfigurationError("--shard: with --ray every shard is held; say with --ray-shards into how many")
    given = {name: value for name, value in options.items() if value is not None}
    return cluster_sweep(file, out, ClusterOptions(address=address, **given), cell=cell, **how)


def _refuse_without_ray(options: dict[str, Any]) -> None:
    """:raises ConfigurationError: an option of a cluster is given, and no cluster."""
    from viva.engine.errors import ConfigurationError

    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(
                f"--ray-{name.removesuffix('_seconds')}: says how a cluster works; give --ray ADDRESS too"
            )


def _note_attempts(sweep: Sweep) -> None:
    """Say that a cluster has made something that this process will not find."""
    from viva.orchestration.cluster.attempts import left_over

    if left_over(sweep.out):
        said = f"{sweep.out}/attempts holds what a cluster has made; the same command with --ray takes it over"
        print_note(said)


def resume(out: Path, given: dict[str, Any], *, retry_failed: bool, json: bool, max_failures: int) -> NoReturn:
    """Go on with the sweep in a folder; ``given`` are options of ``viva resume``.

    :raises ConfigurationError: an option that has no meaning for a sweep.
    """
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.sweep.sweep import resumed_sweep

    foreign = sorted(given.keys() - {"concurrency"})
    if foreign:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise ConfigurationError(f"{named}: a sweep's budgets stand in its file, for each cell")
    _carry(resumed_sweep(out, retry_failed=retry_failed, **given), json=json, max_failures=max_failures)


def _carry(sweep: Sweep, *, json: bool, max_failures: int) -> NoReturn:
    """Run, show progress, print the cells, and leave with the exit code that says how it went."""
    from viva.engine.collector import tuned_collector
    from viva.reports.controls import harmless, one_line
    from viva.reports.failed import told_failures

    from .signals import obeying
    from .sweep_progress import SweepProgress

    progress = SweepProgress(sweep)
    sweep.events.listen(progress.hear)
    with tuned_collector():
        sweep.clock.run(lambda: obeying(sweep.run, progress))
    reasons = _print(sweep, json)
    print(progress.line(), file=sys.stderr)
    failed = [run for run in sweep.runs if run.error is not None]
    for run in failed:
        print(f"viva: error: {one_line(f'{run.cell.name}: {run.error}')}", file=sys.stderr)
    _note_few(sweep)
    for line in told_failures(reasons, sweep.out):
        print(harmless(line), file=sys.stderr)
    print(f"sweep folder: {sweep.out}", file=sys.stderr)
    if sweep.interrupted:
        again = f"viva resume {sweep.out}" if sweep.portion.whole and not sweep.spread else "the same command"
        print(f"go on with: {again}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if sweep.portion.share is not None:
        print(f"when all shards are at their end: viva merge {sweep.out}", file=sys.stderr)
    sys.exit(FAILURES if failed or sweep.failures > max_failures else DONE)


def _print(sweep: Sweep, json: bool) -> dict[str, int]:
    """Print the cells; returns why conversations failed, with counts."""
    from viva.orchestration.sweep.overview import Overview

    from .output import print_json, print_tables

    overview = Overview(sweep)
    if json:
        print_json(overview.report())
    else:
        print_tables(overview.tables())
    return overview.reasons


def _note_few(sweep: Sweep) -> None:
    """Say once of each dataset where it holds fewer items than were asked for."""
    notes: dict[str, None] = {}
    for run in sweep.runs:
        wanted = getattr(run.cell.settings, "n", None)
        if sweep.portion.share is None and wanted is not None and run.total is not None and run.total < wanted:
            notes[f"n: {wanted}: {run.cell.dataset} has {run.total} items to draw from; all are taken"] = None
    for note in notes:
        print_note(note)


def _forecast(sweep: Sweep, json: bool) -> NoReturn:
    from viva.orchestration.sweep.forecast import Forecast

    from .output import print_json, print_tables

    forecast = Forecast(sweep)
    if json:
        print_json(forecast.report())
    else:
        print_tables(forecast.tables())
        print("\n".join(forecast.assumptions), file=sys.stderr)
    _note_few(sweep)
    for name, error in forecast.problems.items():
        print(f"viva: error: {name}: {error}", file=sys.stderr)
    sys.exit(FAILURES if forecast.problems else DONE)
