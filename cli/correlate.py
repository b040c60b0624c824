"""``viva correlate`` (scores with accuracy over models) and ``viva meta`` (scores with human ratings).

``viva meta --baselines`` adds text metrics and single-answer grading, which is a run of its own.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viva.engine.errors import ConfigurationError, DatasetError

from .app import command
from .exit_codes import exit_with_error, print_note
from .options import Csv, Html, Json, Plot

if TYPE_CHECKING:
    from viva.orchestration.launch import Launch
    from viva.reports.studies.judge_comparison import ComparisonOptions
    from viva.reports.studies.rating_files import NamedColumns
    from viva.reports.studies.rating_sheet import Sheet
    from viva.scoring.correlation import Coefficient, Correlation, Correlations, DatasetLine, ModelScores

    from .output import Table

FIGURE_COLUMNS = ("model", "dataset", "accuracy", "score")
ERROR_COLUMNS = ("accuracy_se", "score_se")
# No figure is larger, and none differs by less: beyond are slips and the noise of other programs' arithmetic, which
# would be ranked as if it were a difference.
_LARGEST, _DECIMALS = 1e9, 9
_COEFFICIENTS = (("pearson", "Pearson r"), ("spearman", "Spearman ρ"), ("kendall", "Kendall τ"))
_LINE = ("slope", "intercept", "spread")


@command("correlate", "viva correlate figures.csv --plot line.svg")
def _correlate(
    file: Annotated[Path, typer.Argument(help="CSV with the columns model, dataset, accuracy, score.")],
    without: Annotated[
        list[str] | None, typer.Option("--without", help="Also without this model; may be given several times.")
    ] = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Correlate accuracy and score over models: coefficients with p-values, lines, and the models off them."""
    from viva.scoring.correlation import correlate, fit_lines

    from .output import print_json, print_tables
    from .output_files import check_plot_file, write_plot

    if plot is not None:
        check_plot_file(plot)
    excluded = list(dict.fromkeys(without or []))
    figures = _read_figures(file, excluded)
    found: dict[tuple[str, ...], Correlations] = {(): correlate(figures)}
    if excluded:
        found[tuple(excluded)] = correlate(figures, excluded)
    lines = fit_lines(figures)
    if plot is not None:
        write_plot(plot, figures, lines, excluded)
    if json:
        print_json(_correlation_report(file, figures, found, lines))
    else:
        print_tables(_correlation_tables(figures, found, lines))
    below = {name for fit in lines.values() if fit is not None for name in fit.line.below}
    if chosen := [name for name in excluded if name in below]:
        note = (
            f"{', '.join(chosen)} is below a line of these very figures: p-values without it hold only if it was named"
        )
        print_note(f"{note} before the figures were seen")
    if not all(one.accuracy_se or one.score_se for one in figures):
        note = "without standard errors (accuracy_se, score_se) chance alone often puts one of few models off the line"
        print_note(f"{note}; see docs/correlate.md")


# -- reading --------------------------------------------------------------------------------------------------------


def _read_figures(file: Path, without: Collection[str]) -> list[ModelScores]:
    """The rows of a file."""
    from viva.data.dataset import missing_field_hint
    from viva.data.items import FieldError
    from viva.data.record_files import read_records

    figures: list[ModelScores] = []
    lines: dict[tuple[str, str], int] = {}  # of each dataset and model
    for line, raw in read_records(file, required=FIGURE_COLUMNS):
        if isinstance(raw, DatasetError):
            raise raw
        named = {str(name).strip().casefold(): value for name, value in raw.items()}  # as the header is compared
        try:
            one = _parse_figures(named)
            before = lines.setdefault((one.dataset, one.model), line)
            if before != line:
                message = f"'{one.model}' has a row for '{one.dataset}' in line {before} already; keep one of them"
                raise FieldError("model", message)
        except FieldError as error:
            message = f"{error}{missing_field_hint(raw, error.field)}"
            raise DatasetError(message, path=str(file), line=line, field=error.field) from None
        figures.append(one)
    if not figures:
        raise DatasetError(f"holds no row; expected a header and rows of {', '.join(FIGURE_COLUMNS)}", path=str(file))
    models = list(dict.fromkeys(one.model for one in figures))
    for name in without:
        if name not in models:
            raise ConfigurationError(f"--without {name}: {file} has no such model; it has: {', '.join(models)}")
    for dropped in ([], without):
        _check_enough(file, figures, lines, dropped)
    return figures


def _parse_figures(raw: Any) -> ModelScores:
    """:raises FieldError: a field is missing or not what it should be."""
    from viva.data.items import text_field
    from viva.scoring.correlation import ModelScores

    model, dataset = (text_field(raw, name).strip() for name in ("model", "dataset"))
    accuracy, score = (_parse_number(raw, name) for name in ("accuracy", "score"))
    errors = [_parse_number(raw, name, least=0.0) if raw.get(name) not in (None, "") else 0.0 for name in ERROR_COLUMNS]
    return ModelScores(model, dataset, accuracy, score, *errors)


def _parse_number(raw: Any, name: str, least: float = -_LARGEST) -> float:
    from viva.data.items import FieldError, preview

    value = raw.get(name)
    if value is None:
        raise FieldError(name, "is missing")
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number <= _LARGEST:  # nan too
        bounds = f"from {least:g} to {_LARGEST:g}"
        raise FieldError(name, f"expected a number {bounds}, with a decimal point, found {preview(value)}")
    return round(number, _DECIMALS)


def _check_enough(
    file: Path, figures: list[ModelScores], lines: dict[tuple[str, str], int], without: Collection[str]
) -> None:
    """:raises DatasetError: a dataset has fewer than three models, all told or without those named."""
    from viva.scoring.correlation import group_by_dataset

    for name, group in group_by_dataset(figures).items():
        left = [one.model for one in group if one.model not in without]
        if len(left) < 3:
            less = f" without {', '.join(without)}" if without else ""
            number = "1 model" if len(left) == 1 else f"{len(left)} models"
            message = f"'{name}' has {number}{less}; a correlation needs three: add models, or leave the dataset out"
            raise DatasetError(message, path=str(file), line=lines[name, group[0].model], field="dataset")


# -- results --------------------------------------------------------------------------------------------------------


def _correlation_report(
    file: Path,
    figures: list[ModelScores],
    found: dict[tuple[str, ...], Correlations],
    lines: dict[str, DatasetLine | None],
) -> dict[str, Any]:
    from viva.reports.figures import correlation_record, line_record

    correlations = [
        {
            "without": list(without),
            "overall": correlation_record(one.overall),
            "datasets": {name: correlation_record(part) for name, part in one.datasets.items()},
        }
        for without, one in found.items()
    ]
    return {
        "file": str(file),
        "rows": len(figures),
        "rows_with_errors": sum(bool(one.accuracy_se or one.score_se) for one in figures),
        "models": list(dict.fromkeys(one.model for one in figures)),
        "correlations": correlations,
        "regressions": {name: None if fit is None else line_record(fit) for name, fit in lines.items()},
    }


def _correlation_tables(
    figures: list[ModelScores], found: dict[tuple[str, ...], Correlations], lines: dict[str, DatasetLine | None]
) -> list[Table]:
    header = ["dataset", "n"]
    for _, name in _COEFFICIENTS:
        header += [name, "p"]
    tables: list[Table] = []
    for without, one in found.items():
        rows = [_coefficient_row(name, part) for name, part in (("overall", one.overall), *one.datasets.items())]
        tables.append(("Accuracy and score" + (f", without {', '.join(without)}" if without else ""), header, rows))
    rows = [_line_row(name, fit) for name, fit in lines.items()]
    tables.append(("Score = intercept + slope × accuracy", ["dataset", *_LINE, "below", "above"], rows))
    rows = []
    for model in dict.fromkeys(one.model for one in figures):
        known = [fit.line if fit and model in fit.line.residuals else None for fit in lines.values()]
        rows.append([model, *("–" if line is None else _list_outliers(line, model) for line in known)])
    tables.append(("Score less the line (and in expected spreads)", ["model", *lines], rows))
    return tables


def _coefficient_row(name: str, one: Correlation) -> list[str]:
    row = [name, str(one.n)]
    for field, _ in _COEFFICIENTS:
        found: Coefficient | None = getattr(one, field)
        row += ["–", "–"] if found is None else [f"{found.value:.3f}", f"{found.p:.2e}"]
    return row


def _line_row(name: str, fit: DatasetLine | None) -> list[str]:
    if fit is None:
        return [name, *("–" for _ in _LINE), "no line: all accuracies are equal", "–"]
    line = fit.line
    numbers = [f"{line.slope:.3f}", f"{line.intercept:.2f}", f"{fit.spread:.2f}"]
    return [name, *numbers, ", ".join(line.below) or "–", ", ".join(line.above) or "–"]


def _list_outliers(line: Any, model: str) -> str:
    deviation = line.deviations[model]
    spreads = f"{deviation:.1f}" if math.isfinite(deviation) else "∞" if deviation > 0 else "-∞"
    return f"{line.residuals[model]:.1f} ({spreads})"


_GRADING_SCENARIO, _TASKS_FILE = "grading", "tasks.jsonl"


def _add_baselines(
    sheet: Sheet, wanted: Sequence[str], judges: Sequence[str], output: str | None, reference: str | None,
    out: Path | None,
) -> None:  # fmt: skip
    """Add the baselines to the sheet."""
    from viva.reports.studies.judge_baselines import SINGLE, add_grades, add_metrics, metric_names

    names = metric_names(wanted)
    if (SINGLE in names) != bool(judges):
        told = "names no model: add --judge MODEL" if SINGLE in names else "is for the baseline `single`: add it"
        raise ConfigurationError(f"{'--baselines single' if SINGLE in names else '--judge'} {told}")
    add_metrics(sheet, names, output, reference)
    if SINGLE in names:
        add_grades(sheet, _grade_answers(sheet, judges, output, out))


def _grade_answers(
    sheet: Sheet, judges: Sequence[str], output: str | None, out: Path | None
) -> dict[str, dict[str, float | None]]:
    """The grades by judge and task. A folder that holds a part of them is gone on with."""
    from viva.orchestration.folders import fresh_folder
    from viva.orchestration.python_api import Run
    from viva.reports.studies.judge_baselines import grading_tasks
    from viva.scenarios.models import label_of_key

    from .run import run_launch

    folder = (out or fresh_folder(_GRADING_SCENARIO)).absolute()
    launch = _grading_launch(grading_tasks(sheet, output), judges, folder)
    held = run_launch(launch)
    print(held.progress, f"run folder: {folder}", sep="\n", file=sys.stderr)
    if held.outcome.error is not None:
        exit_with_error(held.outcome.error)
    labels = launch.prepared.lineups
    found: dict[str, dict[str, float | None]] = {label: {} for label in labels}
    for one in Run(launch.folder).ended().results():
        label = label_of_key(one.key, list(labels))
        found[label][one.key.removeprefix(f"{label}/")] = (one.value or {}).get("score")
    return found


def _grading_launch(tasks: list[dict[str, str]], judges: Sequence[str], folder: Path) -> Launch:
    from viva.orchestration.launch import continued_run, new_run
    from viva.scenarios.grading.scenario import GradingSettings, SingleAnswerGrading

    from .options import read_settings

    settings = read_settings(GradingSettings, {"tasks": str(folder / _TASKS_FILE), "judge": list(judges)}, None)
    if (folder / "manifest.json").exists():
        return continued_run(_GRADING_SCENARIO, settings, folder)
    which = SingleAnswerGrading(tasks)
    assert which.inline_tasks is not None
    return new_run(which, settings, folder, files={_TASKS_FILE: which.inline_tasks.to_lines()})


_PERMUTATIONS = ("both", "inputs")
_SCALES = ("nominal", "ordinal", "interval")
Names = list[str] | None


@command("meta", "viva meta scores.csv --human rating --score judge", models=True)
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
    json: Json = False,
    csv: Csv = None,
    plot: Plot = None,
    html: Html = None,
) -> None:
    """Correlate scores with human ratings: intervals, tests between judges, kappas, juries."""
    from viva.reports.studies.judge_comparison import meta_report
    from viva.reports.studies.rating_files import NamedColumns
    from viva.reports.studies.rating_sheet import check_scored

    from .output_files import check_output_files, check_plot_file

    check_output_files({"--csv": csv, "--plot": plot, "--html": html}, read=[one for one in (source, ratings) if one])
    if plot is not None:
        check_plot_file(plot)
    choices = _parse_choices(scale, permutation, jury or [], resamples, level, seed)
    named = NamedColumns(item, group, system, turn, judge_field, human or [], annotator or [], score or [])
    sheet = _load_sheet(source, ratings, named, unscored or [], with_baselines=bool(baselines))
    if baselines:
        _add_baselines(sheet, baselines, judge or [], output, reference, out)
    check_scored(sheet)
    report = meta_report(sheet, choices)
    _print_meta(report, json, csv, plot, html)


def _parse_choices(
    scale: Any, permutation: Any, jury: list[Any], resamples: int, level: float, seed: int
) -> ComparisonOptions:
    """:raises ConfigurationError: one is none of the choices there are."""
    from viva.reports.studies.judge_comparison import ComparisonOptions
    from viva.scoring.juries import POOLINGS

    known = [("--permutation", permutation, _PERMUTATIONS), ("--scale", scale, (*_SCALES, None))]
    known += [("--jury", how, POOLINGS) for how in jury]
    for option, value, allowed in known:
        if value not in allowed:
            names = ", ".join(name for name in allowed if name)
            raise ConfigurationError(f"{option}: found '{value}', expected one of: {names}")
    if not 0.0 < level < 1.0:
        raise ConfigurationError(f"--level: found {level:g}, expected a share between 0 and 1, such as 0.95")
    return ComparisonOptions(seed, resamples, level, permutation, scale, tuple(dict.fromkeys(jury)))


def _load_sheet(
    source: Path, ratings: Path | None, named: NamedColumns, unscored: list[str], *, with_baselines: bool
) -> Sheet:
    """:raises DatasetError: naming file, line and field."""
    from viva.reports.studies.judge_baselines import attach_replies
    from viva.reports.studies.rating_sheet import (
        is_run_folder,
        join_ratings,
        read_rating_sheet,
        read_replies,
        run_sheet,
    )

    if is_run_folder(source):
        if ratings is None:
            raise ConfigurationError(f"{source} is a run; name the file with its human ratings: --ratings FILE")
        scored = run_sheet(source)
        if with_baselines:
            attach_replies(scored, asyncio.run(read_replies(source)))
        return join_ratings(scored, read_rating_sheet(ratings, named.of_people(), unscored))
    if ratings is not None:
        scores = read_rating_sheet(source, named.of_scores(), unscored)
        return join_ratings(scores, read_rating_sheet(ratings, named.of_people(), unscored))
    return read_rating_sheet(source, named, unscored)


def _print_meta(report: dict[str, Any], json: bool, csv: Path | None, plot: Path | None, html: Path | None) -> None:
    from viva.reports.studies.export import write_rows
    from viva.reports.studies.judge_comparison_page import (
        CSV_COLUMNS,
        CSV_TEXTS,
        csv_rows,
        forest_rows,
        meta_page,
        meta_tables,
        summary_sentences,
    )

    from .output import print_json, print_paragraphs, print_tables
    from .output_files import write_forest_plot

    if csv is not None:
        write_rows(csv_rows(report), CSV_COLUMNS, CSV_TEXTS, csv)
    if plot is not None:
        axis, rows = forest_rows(report)
        if not rows:
            raise ConfigurationError(f"--plot {plot}: there is no correlation and no kappa to draw")
        write_forest_plot(plot, "Judges and people", rows, axis)
    if html is not None:
        from viva.web.report.html_page import write_page

        write_page(meta_page(report), html)
    if json:
        print_json({"answer": summary_sentences(report), **report})
    else:
        print_paragraphs([summary_sentences(report)])
        print_tables(meta_tables(report))
    for note in (*(f"read as {told}" for told in report["fields"]), *report["notes"]):
        print_note(note)
