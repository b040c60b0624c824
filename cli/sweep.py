"""``viva sweep``: a grid of candidates, datasets and seeds in one file and one command.

What never belongs here: how cells are made and run (``orchestration.sweep``), and what their results mean.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from . import merge
from .exit_codes import DONE, FAILURES, INTERRUPTED, guarded
from .lazy_command import example_of
from .merge import CellName

if TYPE_CHECKING:
    from viva.orchestration.sweep.sweep import Sweep

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
MaxFailures = Annotated[
    int,
    typer.Option("--max-failures", min=0, help="Failed conversations, in all cells, that still count as success."),
]


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("sweep", epilog=example_of("viva sweep grid.yaml", "viva sweep grid.yaml --dry-run", models=True))(
        guarded(_sweep)
    )
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
    json: Json = False,
    max_failures: MaxFailures = 0,
) -> None:
    """Examine many candidates on many datasets; the same command again goes on where it stopped."""
    from viva.orchestration.share import Share
    from viva.orchestration.sweep.portion import Portion
    from viva.orchestration.sweep.sweep import planned_sweep

    portion = Portion(cell, None if shard is None else Share.parse(shard))
    sweep = planned_sweep(file, out, retry_failed=retry_failed, concurrency=concurrency, portion=portion)
    if dry_run:
        _forecast(sweep, json)
    else:
        _carry(sweep, json=json, max_failures=max_failures)


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
        again = f"viva resume {sweep.out}" if sweep.portion.whole else "the same command"
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
        print(f"viva: note: {note}", file=sys.stderr)


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
