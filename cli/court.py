"""`viva court`: has a model seen a benchmark? Rulings from the evidence in runs and sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import command
from .exit_codes import print_note
from .options import Html, Json


@command("court", "viva court sweeps/mine", "viva court runs/probe runs/interviews --clean old-model")
def _court(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Runs and sweeps with probes.")],
    clean: Annotated[
        list[str] | None,
        typer.Option("--clean", metavar="LABEL", help="Candidate that is known to be clean, and is not judged."),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option("--known", metavar="FILE", help="Models of known truth, asked about the same benchmark."),
    ] = None,
    level: Annotated[float, typer.Option("--level", help="Fraction of clean models that may be accused.")] = 0.05,
    json: Json = False,
    html: Html = None,
) -> None:
    """Rule whether models have seen a benchmark: contaminated, clean, or cannot tell.

    The evidence comes from `viva run probe --method court`; interviews of the same models add to it.
    """
    from viva.reports.studies.court import CourtReport

    from .output import print_paragraphs, print_report
    from .output_files import check_output_files, write_tables_page

    check_output_files({"--html": html}, [] if known is None else [known])
    report = CourtReport(folders, clean=clean or (), known=known, level=level)
    if not json:
        print_paragraphs(report.sentences())
    print_report(report, json=json)
    if html is not None:
        write_tables_page(html, "Contamination court", [*report.sentences(), *report.notes], report.tables())
    for note in report.notes:
        print_note(note)
