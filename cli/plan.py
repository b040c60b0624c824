"""``viva plan``: what a sweep will take, before it is paid for.

What never belongs here: figures (``orchestration.plan``), and running a sweep to its end (``sweep``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .exit_codes import DONE, FAILED, FAILURES, INTERRUPTED, guarded, print_note
from .lazy_command import example_of


def register(app: typer.Typer) -> None:
    """Add this group's command."""
    examples = ("viva plan grid.yaml", "viva plan grid.yaml --pilot 0.05 --budget 20")
    app.command("plan", epilog=example_of(*examples))(guarded(_plan))


def _plan(
    file: Annotated[Path, typer.Argument(help="A sweep's YAML file, as `viva sweep` takes it.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The sweep's folder (default: runs/NAME of the file).")
    ] = None,
    pilot: Annotated[
        float | None,
        typer.Option("--pilot", help="Hold this share of it for real first, 0-1; the sweep goes on behind it."),
    ] = None,
    earlier: Annotated[
        list[Path] | None, typer.Option("--from", help="A folder of a run or sweep to learn from; may be repeated.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", help="Other bounds of a model: LABEL=rpm:500,concurrency:8. May be repeated."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", min=0.0, help="What it may cost; exit code 1 if it may cost more.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="Conversations in flight, over all cells.")
    ] = None,
    simulations: Annotated[
        int, typer.Option("--simulations", min=2, max=1000, help="Simulated sweeps that figures are made of.")
    ] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say what a sweep will take: time, tokens, money, and what holds it up.

    Needs no API keys without --pilot. Exit code 1: it may cost more than the budget; 3: a cell cannot run.
    """
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.plan.plan import Plan
    from viva.orchestration.plan.told import Told

    from .output import print_json, print_tables

    if pilot is not None:
        if not 0.0 < pilot <= 1.0:
            raise ConfigurationError(f"--pilot: expected a share above 0 and at most 1, found {pilot:g}")
        _hold_pilot(file, out, pilot, concurrency, budget)
    plan = Plan(
        file,
        out,
        earlier=earlier or [],
        limits=limit or [],
        budget=budget,
        concurrency=concurrency,
        simulations=simulations,
    )
    told = Told(plan)
    if json:
        print_json(told.report())
    else:
        print_tables(told.tables())
        for note in told.notes():
            print_note(note)
    for name, error in plan.forecast.problems.items():
        print(f"viva: error: {name}: {error}", file=sys.stderr)
    if not told.within_budget():
        print(f"viva: warning: the sweep may cost more than the budget of {budget:g}", file=sys.stderr)
    sys.exit(FAILURES if plan.forecast.problems else DONE if told.within_budget() else FAILED)


def _hold_pilot(file: Path, out: Path | None, share: float, concurrency: int | None, budget: float | None) -> None:
    """Hold a pilot; its failed cells are told, and planned without it.

    :raises ConfigurationError: the file is wrong; there is a budget, and a model has no price.
    """
    from viva.engine.collector import tuned_collector
    from viva.orchestration.plan.pilot import pilot_of
    from viva.orchestration.plan.prices import check_all_priced
    from viva.reports.controls import one_line

    from .signals import obeying
    from .sweep_progress import SweepProgress

    sweep = pilot_of(file, out, share, concurrency=concurrency)
    check_all_priced(budget, [model for run in sweep.runs for model in run.cell.models])
    progress = SweepProgress(sweep)
    sweep.events.listen(progress.hear)
    with tuned_collector():
        sweep.clock.run(lambda: obeying(sweep.run, progress))
    print(f"pilot in {sweep.out}, where `viva sweep {file}` goes on: {progress.line()}", file=sys.stderr)
    for run in sweep.runs:
        if run.error is not None:
            print(f"viva: error: {one_line(f'{run.cell.name}: {run.error}')}", file=sys.stderr)
    if sweep.interrupted:
        sys.exit(INTERRUPTED)
