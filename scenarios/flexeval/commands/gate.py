"""``viva suite gate``: a recorded run against its thresholds once more, or against others.

What never belongs here: what a threshold is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .run import Baseline, Json, JUnit, verdict


def gate(
    run: Annotated[Path, typer.Argument(help="Folder of a suite's run.")],
    baseline: Baseline = None,
    thresholds: Annotated[
        Path | None, typer.Option("--thresholds", help="Suite file whose thresholds count, in place of the run's own.")
    ] = None,
    junit: JUnit = None,
    json: Json = False,
) -> None:
    """Check a recorded run's thresholds; no model is asked. Exit code 1 where one is broken."""
    from viva.cli.exit_codes import FAILED
    from viva.cli.output import print_json, print_tables
    from viva.cli.targets import check_targets
    from viva.engine.folder import RunFolder
    from viva.orchestration.launch import recorded_results

    from ..report import gate_table
    from ..suite_file import read_suite

    check_targets({"--junit": junit}, [] if thresholds is None else [thresholds])
    options = {} if baseline is None else {"baseline": str(baseline)}
    aggregate = recorded_results(RunFolder.open(run), options)
    if thresholds is not None:
        suite = read_suite(thresholds).suite
        aggregate.take_thresholds(suite, str(thresholds))  # type: ignore[attr-defined]
    report = aggregate.report()
    if json:
        print_json({"gate": report["gate"], "untested": report["untested"]})
    else:
        print_tables([gate_table(report)])
    if verdict(aggregate, junit, run):
        sys.exit(FAILED)
