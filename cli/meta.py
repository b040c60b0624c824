"""``viva meta``: how well scores follow people, and people each other; a file or a run in, figures out.

What never belongs here: reading files and computing (``study.meta``), drawing (``scoring.plots``).
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .exit_codes import guarded
from .lazy_command import example_of

if TYPE_CHECKING:
    from viva.study.meta.choices import Choices
    from viva.study.meta.columns import Named
    from viva.study.meta.sheet import Sheet

_WIDE = 80
_PERMUTATIONS = ("both", "inputs")
_SCALES = ("nominal", "ordinal", "interval")
Names = list[str] | None


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("meta", epilog=example_of("viva meta scores.csv --human rating --score judge", models=True))(
        guarded(_meta)
    )


def _meta(
    source: Annotated[
        Path, typer.Argument(metavar="FILE|RUN", help="Scores beside human ratings (CSV, JSON, JSONL), or a run.")
    ],
    ratings: Annotated[
        Path | None, typer.Option("--ratings", help="Human ratings of the same items, systems and turns.")
    ] = None,
    human: Annotated[Names, typer.Option("--human", help="Field, or object of fields, with human ratings.")] = None,
    annotator: Annotated[Names, typer.Option("--annotator", help="Field of one annotator's ratings.")] = None,
    score: Annotated[Names, typer.Option("--score", help="Field, or object of fields, with a judge's scores.")] = None,
    item: Annotated[str | None, typer.Option("--item", help="Field that identifies what is rated.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Field that names the source of a row.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="Field that names the system of a row.")] = None,
    turn: Annotated[str | None, typer.Option("--turn", help="Field that numbers turns.")] = None,
    judge_field: Annotated[str | None, typer.Option("--judge-field", help="Field that names the judge.")] = None,
    unscored: Annotated[Names, typer.Option("--unscored", help="A value that stands for no score.")] = None,
    scale: Annotated[str | None, typer.Option("--scale", help="nominal, ordinal or interval (default: seen).")] = None,
    jury: Annotated[Names, typer.Option("--jury", help="Pool judges: mean, median, majority or fitted.")] = None,
    baselines: Annotated[
        Names, typer.Option("--baselines", help="rouge, meteor, bleu, chrf, bertscore=MODEL, single (extra `metrics`).")
    ] = None,
    judge: Annotated[Names, typer.Option("--judge", help="Model of the baseline `single`: grades each answer.")] = None,
    output: Annotated[str | None, typer.Option("--output", help="Field with the text that is rated.")] = None,
    reference: Annotated[str | None, typer.Option("--reference", help="Field with its reference text.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder of the baseline `single`.")] = None,
    permutation: Annotated[
        str, typer.Option("--permutation", help="What tests of two judges exchange: groups (inputs) or rows (both).")
    ] = "inputs",
    resamples: Annotated[int, typer.Option("--resamples", min=100, max=100_000, help="Of intervals, tests.")] = 1_000,
    level: Annotated[float, typer.Option("--level", help="Confidence level of intervals.")] = 0.95,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Every random choice derives from it.")] = 7,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write every figure to this CSV file.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Forest plot to draw, .svg or .png (needs the extra `plots`).")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write one self-contained HTML page.")] = None,
) -> None:
    """Correlate scores with human ratings: intervals, tests between judges, kappas, juries."""
    from viva.study.meta.columns import Named
    from viva.study.meta.figures import meta_report
    from viva.study.meta.sheet import check_scored

    from .drawing import check_drawable
    from .targets import check_targets

    check_targets({"--csv": csv, "--plot": plot, "--html": html}, read=[one for one in (source, ratings) if one])
    if plot is not None:
        check_drawable(plot)
    choices = _choices(scale, permutation, jury or [], resamples, level, seed)
    named = Named(item, group, system, turn, judge_field, human or [], annotator or [], score or [])
    sheet = _sheet(source, ratings, named, unscored or [], with_baselines=bool(baselines))
    if baselines:
        from .meta_baselines import add_baselines

        add_baselines(sheet, baselines, judge or [], output, reference, out, source)
    check_scored(sheet)
    report = meta_report(sheet, choices)
    _show(report, json, csv, plot, html)


def _choices(scale: Any, permutation: Any, jury: list[Any], resamples: int, level: float, seed: int) -> Choices:
    """:raises ConfigurationError: one is none of the choices there are."""
    from viva.engine.errors import ConfigurationError
    from viva.scoring.juries import POOLINGS
    from viva.study.meta.choices import Choices

    known = [("--permutation", permutation, _PERMUTATIONS), ("--scale", scale, (*_SCALES, None))]
    known += [("--jury", how, POOLINGS) for how in jury]
    for option, value, allowed in known:
        if value not in allowed:
            names = ", ".join(name for name in allowed if name)
            raise ConfigurationError(f"{option}: found '{value}', expected one of: {names}")
    if not 0.0 < level < 1.0:
        raise ConfigurationError(f"--level: found {level:g}, expected a share between 0 and 1, such as 0.95")
    return Choices(seed, resamples, level, permutation, scale, tuple(dict.fromkeys(jury)))


def _sheet(source: Path, ratings: Path | None, named: Named, unscored: list[str], *, with_baselines: bool) -> Sheet:
    """:raises DatasetError: naming file, line and field."""
    from viva.engine.errors import ConfigurationError
    from viva.study.meta.runs import is_run, run_sheet
    from viva.study.meta.sheet import joined, read_sheet

    if is_run(source):
        if ratings is None:
            raise ConfigurationError(f"{source} is a run; name the file with its human ratings: --ratings FILE")
        scored = run_sheet(source)
        if with_baselines:
            from .meta_baselines import add_replies

            add_replies(scored, source)
        return joined(scored, read_sheet(ratings, named.of_people(), unscored))
    if ratings is not None:
        scores = read_sheet(source, named.of_scores(), unscored)
        return joined(scores, read_sheet(ratings, named.of_people(), unscored))
    return read_sheet(source, named, unscored)


def _show(report: dict[str, Any], json: bool, csv: Path | None, plot: Path | None, html: Path | None) -> None:
    from viva.engine.errors import ConfigurationError
    from viva.reports.controls import harmless
    from viva.study.exports import write_rows
    from viva.study.meta.page import CSV_COLUMNS, CSV_TEXTS, csv_rows, forest_rows, meta_page
    from viva.study.meta.tables import answer, meta_tables

    from .output import print_json, print_tables, print_text

    if csv is not None:
        write_rows(csv_rows(report), CSV_COLUMNS, CSV_TEXTS, csv)
    if plot is not None:
        from viva.scoring.plots.forest import draw_forest

        axis, rows = forest_rows(report)
        if not rows:
            raise ConfigurationError(f"--plot {plot}: there is no correlation and no kappa to draw")
        try:
            draw_forest(plot, "Judges and people", rows, axis)
        except OSError as error:
            raise ConfigurationError(f"--plot {plot}: cannot be written: {error.strerror}") from None
    if html is not None:
        from viva.web.report.page import write_page

        write_page(meta_page(report), html)
    if json:
        print_json({"answer": answer(report), **report})
    else:
        print_text(textwrap.fill(harmless(answer(report)), _WIDE) + "\n\n")
        print_tables(meta_tables(report))
    for note in (*(f"read as {told}" for told in report["fields"]), *report["notes"]):
        print(f"viva: note: {harmless(note)}", file=sys.stderr)
