"""`viva judge compare`: correlations of scores with human ratings, or with accuracy over models.

`--baselines` adds text metrics and single-answer grading; the grading is a separate run.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viva.engine.errors import ConfigurationError, DatasetError, VivaError

from .app import command
from .exit_codes import exit_with_error, print_note
from .judge import judge as judge_group
from .options import Csv, Html, Json, Plot

if TYPE_CHECKING:
    from viva.orchestration.launch import Launch
    from viva.reports.studies.judge_comparison import ComparisonOptions
    from viva.reports.studies.rating_files import NamedColumns
    from viva.reports.studies.rating_sheet import Sheet
    from viva.scoring.correlation import Coefficient, Correlation, Correlations, DatasetLine, ModelScores
    from viva.scoring.pairwise import PairVerdicts

    from .output import Table

FIGURE_COLUMNS = ("model", "dataset", "accuracy", "score")
ERROR_COLUMNS = ("accuracy_se", "score_se")
# Larger figures are typing errors, and smaller differences are floating-point noise, which must not affect ranks.
_LARGEST, _DECIMALS = 1e9, 9
_MISSPELLING_CUTOFF = 0.8  # similarity to a known column from which another counts as misspelt
_COEFFICIENTS = (("pearson", "Pearson r"), ("spearman", "Spearman ρ"), ("kendall", "Kendall τ"))
_LINE = ("slope", "intercept", "spread")


def _is_accuracy_file(file: Path) -> bool:
    """Return True if a file has the columns of accuracy and score over models, even if one is misspelt."""
    from viva.data.record_files import TABLE_SUFFIXES, read_records

    try:
        if file.suffix in TABLE_SUFFIXES:
            with file.open(encoding="utf-8-sig", errors="replace") as lines:
                header = re.split(r"[,;\t]", lines.readline())
        else:
            header = [
                name for _, record in islice(read_records(file), 1) if isinstance(record, dict) for name in record
            ]
    except (OSError, VivaError):  # the reader of ratings reports the error
        return False
    names = [str(name).strip(' "\r\n').casefold() for name in header]
    if "accuracy" in names and {*names} <= {*FIGURE_COLUMNS, *ERROR_COLUMNS}:
        return True
    return all(get_close_matches(column, names, 1, _MISSPELLING_CUTOFF) for column in FIGURE_COLUMNS)


def _correlate(file: Path, exclude: Sequence[str], plot: Path | None, html: Path | None, json: bool) -> None:
    """Correlate accuracy and score over models: coefficients with p-values, fitted lines, and models off a line."""
    from viva.scoring.correlation import correlate, fit_lines

    from .output import print_json, print_tables
    from .output_files import write_plot, write_tables_page

    excluded = list(dict.fromkeys(exclude))
    figures = _read_figures(file, excluded)
    correlations: dict[tuple[str, ...], Correlations] = {(): correlate(figures)}
    if excluded:
        correlations[tuple(excluded)] = correlate(figures, excluded)
    lines = fit_lines(figures)
    if plot is not None:
        write_plot(plot, figures, lines, excluded)
    if json:
        print_json(_correlation_report(file, figures, correlations, lines))
    else:
        print_tables(_correlation_tables(figures, correlations, lines))
    if html is not None:
        write_tables_page(html, "Accuracy and score over models", [], _correlation_tables(figures, correlations, lines))
    below = {name for fit in lines.values() if fit is not None for name in fit.line.below}
    if chosen := [name for name in excluded if name in below]:
        names = ", ".join(chosen)
        note = f"{names} lies below a line fitted to these figures: p-values are valid only if you chose the exclusion"
        print_note(f"{note} before looking at the figures")
    if not all(row.accuracy_se or row.score_se for row in figures):
        note = (
            "without standard errors (accuracy_se, score_se), chance alone often puts one of a few models off the line"
        )
        print_note(f"{note}; see docs/judges.md")


# -- reading --------------------------------------------------------------------------------------------------------


def _read_figures(file: Path, without: Collection[str]) -> list[ModelScores]:
    """Read accuracy and score over models."""
    from viva.data.dataset import missing_field_hint
    from viva.data.items import FieldError
    from viva.data.record_files import read_records

    figures: list[ModelScores] = []
    lines: dict[tuple[str, str], int] = {}  # line by (dataset, model)
    for line, raw in read_records(file, required=FIGURE_COLUMNS):
        if isinstance(raw, DatasetError):
            raise raw
        values = {str(name).strip().casefold(): value for name, value in raw.items()}  # the case of headers is ignored
        try:
            figure = _parse_figures(values)
            before = lines.setdefault((figure.dataset, figure.model), line)
            if before != line:
                message = (
                    f"'{figure.model}' has a row for '{figure.dataset}' in line {before} already; keep one of them"
                )
                raise FieldError("model", message)
        except FieldError as error:
            message = f"{error}{missing_field_hint(raw, error.field)}"
            raise DatasetError(message, path=str(file), line=line, field=error.field) from None
        figures.append(figure)
    if not figures:
        raise DatasetError(f"has no rows; expected a header and rows of {', '.join(FIGURE_COLUMNS)}", path=str(file))
    models = list(dict.fromkeys(figure.model for figure in figures))
    for name in without:
        if name not in models:
            raise ConfigurationError(f"--exclude {name}: {file} has no such model; it has: {', '.join(models)}")
    for dropped in ([], without):
        _check_enough(file, figures, lines, dropped)
    return figures


def _parse_figures(raw: Any) -> ModelScores:
    from viva.data.items import text_field
    from viva.scoring.correlation import ModelScores

    model, dataset = (text_field(raw, name).strip() for name in ("model", "dataset"))
    accuracy, score = (_parse_number(raw, name) for name in ("accuracy", "score"))
    errors = [
        _parse_number(raw, name, minimum=0.0) if raw.get(name) not in (None, "") else 0.0 for name in ERROR_COLUMNS
    ]
    return ModelScores(model, dataset, accuracy, score, *errors)


def _parse_number(raw: Any, name: str, minimum: float = -_LARGEST) -> float:
    from viva.data.items import FieldError, preview

    value = raw.get(name)
    if value is None:
        raise FieldError(name, "is missing")
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not minimum <= number <= _LARGEST:  # also true for nan
        bounds = f"from {minimum:g} to {_LARGEST:g}"
        raise FieldError(name, f"expected a number {bounds} (decimal point, no comma), found {preview(value)}")
    return round(number, _DECIMALS)


def _check_enough(
    file: Path, figures: list[ModelScores], lines: dict[tuple[str, str], int], excluded: Collection[str]
) -> None:
    """Raise DatasetError if a dataset has fewer than three models that are not in `excluded`."""
    from viva.scoring.correlation import group_by_dataset

    for name, group in group_by_dataset(figures).items():
        remaining = [figure.model for figure in group if figure.model not in excluded]
        if len(remaining) < 3:
            excluding = f" without {', '.join(excluded)}" if excluded else ""
            number = "1 model" if len(remaining) == 1 else f"{len(remaining)} models"
            message = (
                f"'{name}' has {number}{excluding}; a correlation needs three: add models, or leave the dataset out"
            )
            raise DatasetError(message, path=str(file), line=lines[name, group[0].model], field="dataset")


# -- results --------------------------------------------------------------------------------------------------------


def _correlation_report(
    file: Path,
    figures: list[ModelScores],
    by_excluded: dict[tuple[str, ...], Correlations],
    lines: dict[str, DatasetLine | None],
) -> dict[str, Any]:
    from viva.reports.figures import correlation_record, line_record

    correlations = [
        {
            "without": list(without),
            "overall": correlation_record(correlation.overall),
            "datasets": {name: correlation_record(part) for name, part in correlation.datasets.items()},
        }
        for without, correlation in by_excluded.items()
    ]
    return {
        "file": str(file),
        "rows": len(figures),
        "rows_with_errors": sum(bool(correlation.accuracy_se or correlation.score_se) for correlation in figures),
        "models": list(dict.fromkeys(correlation.model for correlation in figures)),
        "correlations": correlations,
        "regressions": {name: None if fit is None else line_record(fit) for name, fit in lines.items()},
    }


def _correlation_tables(
    figures: list[ModelScores], by_excluded: dict[tuple[str, ...], Correlations], lines: dict[str, DatasetLine | None]
) -> list[Table]:
    header = ["dataset", "n"]
    for _, name in _COEFFICIENTS:
        header += [name, "p"]
    tables: list[Table] = []
    for without, correlation in by_excluded.items():
        rows = [
            _coefficient_row(name, part)
            for name, part in (("overall", correlation.overall), *correlation.datasets.items())
        ]
        tables.append(("Accuracy and score" + (f", without {', '.join(without)}" if without else ""), header, rows))
    rows = [_line_row(name, fit) for name, fit in lines.items()]
    tables.append(("Score = intercept + slope × accuracy", ["dataset", *_LINE, "below", "above"], rows))
    rows = []
    for model in dict.fromkeys(correlation.model for correlation in figures):
        fits = [fit.line if fit and model in fit.line.residuals else None for fit in lines.values()]
        rows.append([model, *("–" if line is None else _list_outliers(line, model) for line in fits)])
    tables.append(("Score minus the line's value (and as a multiple of the expected spread)", ["model", *lines], rows))
    return tables


def _coefficient_row(name: str, correlation: Correlation) -> list[str]:
    row = [name, str(correlation.n)]
    for field, _ in _COEFFICIENTS:
        coefficient: Coefficient | None = getattr(correlation, field)
        row += ["–", "–"] if coefficient is None else [f"{coefficient.value:.3f}", f"{coefficient.p:.2e}"]
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
    sheet: Sheet, baselines: Sequence[str], judges: Sequence[str], output: str | None, reference: str | None,
    out: Path | None,
) -> None:  # fmt: skip
    """Add the scores of baselines to the sheet."""
    from viva.reports.studies.judge_baselines import SINGLE, add_grades, add_metrics, metric_names

    names = metric_names(baselines)
    if (SINGLE in names) != bool(judges):
        problem = (
            "names no model: add --judge MODEL"
            if SINGLE in names
            else "is only for the baseline `single`; also give --baselines single"
        )
        raise ConfigurationError(f"{'--baselines single' if SINGLE in names else '--judge'} {problem}")
    add_metrics(sheet, names, output, reference)
    if SINGLE in names:
        add_grades(sheet, _grade_answers(sheet, judges, output, out))


def _grade_answers(
    sheet: Sheet, judges: Sequence[str], output: str | None, out: Path | None
) -> dict[str, dict[str, float | None]]:
    """Return grades by judge label and task id (None: unscored); resume the grading if the folder has one."""
    from viva.orchestration.folders import fresh_folder
    from viva.orchestration.python_api import Run
    from viva.reports.studies.judge_baselines import grading_tasks
    from viva.scenarios.models import label_of_key

    from .run import run_launch

    folder = (out or fresh_folder(_GRADING_SCENARIO)).absolute()
    launch = _grading_launch(grading_tasks(sheet, output), judges, folder)
    result = run_launch(launch)
    print(result.progress, f"run folder: {folder}", sep="\n", file=sys.stderr)
    if result.outcome.error is not None:
        exit_with_error(result.outcome.error)
    labels = launch.prepared.lineups
    grades: dict[str, dict[str, float | None]] = {label: {} for label in labels}
    for ended in Run(launch.folder).ended().results():
        label = label_of_key(ended.key, list(labels))
        grades[label][ended.key.removeprefix(f"{label}/")] = (ended.value or {}).get("score")
    return grades


def _grading_launch(tasks: list[dict[str, str]], judges: Sequence[str], folder: Path) -> Launch:
    from viva.orchestration.launch import continued_run, new_run
    from viva.scenarios.grading.scenario import GradingSettings, SingleAnswerGrading

    from .options import read_settings

    settings = read_settings(GradingSettings, {"tasks": str(folder / _TASKS_FILE), "judge": list(judges)}, None)
    if (folder / "manifest.json").exists():
        return continued_run(_GRADING_SCENARIO, settings, folder)
    scenario = SingleAnswerGrading(tasks)
    assert scenario.inline_tasks is not None
    return new_run(scenario, settings, folder, files={_TASKS_FILE: scenario.inline_tasks.to_lines()})


_PERMUTATIONS = ("both", "inputs")
_SCALES = ("nominal", "ordinal", "interval")
Names = list[str] | None


@command(
    "compare",
    "viva judge compare scores.csv --human rating --score judge",
    "viva judge compare runs/mine --ratings people.csv --html judges.html",
    "viva judge compare pairs-a.jsonl pairs-b.jsonl",
    "viva judge compare figures.csv --plot line.svg",
    models=True,
    group=judge_group,
)
def _compare(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|RUN...",
            help="Scores with human ratings (CSV, JSON, JSONL); published outputs of pairwise judges; runs; or a CSV "
            "with the columns model, dataset, accuracy, score.",
        ),
    ],
    ratings: Annotated[
        Path | None, typer.Option("--ratings", help="Human ratings of the same items, systems and turns.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--form",
            metavar="NAME",
            help="Published form of the file with the ratings, such as fed (docs/judges.md); plain: go by field names.",
        ),
    ] = None,
    human: Annotated[
        Names, typer.Option("--human", metavar="FIELD", help="Field with human ratings, or an object of such fields.")
    ] = None,
    annotator: Annotated[
        Names, typer.Option("--annotator", metavar="FIELD", help="Field with the ratings of one annotator.")
    ] = None,
    score: Annotated[
        Names,
        typer.Option("--score", metavar="FIELD", help="Field with a judge's scores, or an object of such fields."),
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", metavar="FIELD", help="Field that identifies the rated item.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="FIELD", help="Field with the group of a row, e.g. its source."),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="FIELD", help="Field with the system whose output is rated.")
    ] = None,
    turn: Annotated[str | None, typer.Option("--turn", metavar="FIELD", help="Field with the turn's number.")] = None,
    scorer: Annotated[
        Names,
        typer.Option(
            "--scorer",
            metavar="official|linear|corrected",
            help="How a run's rounds are aggregated, e.g. official,no-decay,no-early-stop; repeat it to compare.",
        ),
    ] = None,
    judge_field: Annotated[
        str | None, typer.Option("--judge-field", metavar="FIELD", help="Field with the judge's name.")
    ] = None,
    unscored: Annotated[Names, typer.Option("--unscored", metavar="VALUE", help="Value that means 'no score'.")] = None,
    scale: Annotated[
        str | None,
        typer.Option("--scale", metavar="nominal|ordinal|interval", help="Scale of the ratings (default: detected)."),
    ] = None,
    jury: Annotated[
        Names, typer.Option("--jury", metavar="mean|median|majority|fitted", help="Also pool the judges into a jury.")
    ] = None,
    baselines: Annotated[
        Names,
        typer.Option(
            "--baselines",
            metavar="NAME,…",
            help="Also compare baselines: rouge, meteor, bleu, chrf (which need the extra `metrics`), "
            "bertscore=MODEL, single.",
        ),
    ] = None,
    judge: Annotated[
        Names,
        typer.Option("--judge", metavar="MODEL", help="Model for the baseline `single`, which grades each answer."),
    ] = None,
    output: Annotated[str | None, typer.Option("--output", metavar="FIELD", help="Field with the rated text.")] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="FIELD", help="Field with the reference for the rated text.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Folder of the run that `--baselines single` makes.")
    ] = None,
    exclude: Annotated[
        Names,
        typer.Option("--exclude", metavar="NAME", help="Also correlate accuracy and score without this model."),
    ] = None,
    permutation: Annotated[
        str,
        typer.Option(
            "--permutation",
            metavar="inputs|both",
            help="What permutation tests of two judges exchange: whole groups (inputs) or single rows (both).",
        ),
    ] = "inputs",
    resamples: Annotated[
        int,
        typer.Option("--resamples", min=100, max=100_000, help="Number of bootstrap resamples and permutations."),
    ] = 1_000,
    confidence: Annotated[
        float, typer.Option("--confidence", metavar="SHARE", help="Confidence level of intervals.")
    ] = 0.95,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")] = 7,
    json: Json = False,
    csv: Csv = None,
    plot: Plot = None,
    html: Html = None,
) -> None:
    """Correlate a judge's scores with human ratings, or with accuracy over models.

    For ratings: intervals, tests between judges, kappas and juries. For models: coefficients, fitted lines, and the
    models that lie off a line.
    """
    from viva.reports.studies.judge_comparison import meta_report
    from viva.reports.studies.pair_files import read_pairs
    from viva.reports.studies.rating_files import NamedColumns
    from viva.reports.studies.rating_sheet import check_scored

    from .output_files import check_output_files, check_plot_file

    check_output_files(
        {"--csv": csv, "--plot": plot, "--html": html}, read=[path for path in (*sources, ratings) if path]
    )
    if plot is not None:
        check_plot_file(plot)
    columns = (item, group, system, turn, judge_field, human, annotator, score)
    rating_options = (ratings, form, scorer, *columns, unscored, scale, jury, baselines, judge, output, reference, out)
    if not any(rating_options) and len(sources) == 1 and _is_accuracy_file(sources[0]):
        if csv is not None:
            raise ConfigurationError("--csv: is for human ratings; use --json for the figures of accuracy and score")
        _correlate(sources[0], exclude or [], plot, html, json)
        return
    if exclude:
        raise ConfigurationError(
            f"--exclude: is for a file with the columns {', '.join(FIGURE_COLUMNS)}; {sources[0]} has human ratings"
        )
    if not any(rating_options) and (pairs := read_pairs(sources)) is not None:
        if csv is not None or plot is not None:
            raise ConfigurationError(
                "--csv, --plot: are for human ratings; use --json for the figures of pairwise judges"
            )
        _print_pairs(pairs, _parse_choices(scale, permutation, [], resamples, confidence, seed), json, html)
        return
    choices = _parse_choices(scale, permutation, jury or [], resamples, confidence, seed)
    fields = NamedColumns(item, group, system, turn, judge_field, human or [], annotator or [], score or [])
    if scorer and (len(sources) > 1 or not sources[0].is_dir()):
        raise ConfigurationError("--scorer: is for the recorded rounds of a single run; name its folder")
    if scorer and jury and len(scorer) > 1:
        raise ConfigurationError("--jury: several scorers of one judge are no jury; give one --scorer")
    sheet = _load_sheet(sources, ratings, fields, unscored or [], form, scorer or [], with_baselines=bool(baselines))
    if baselines:
        _add_baselines(sheet, baselines, judge or [], output, reference, out)
    check_scored(sheet)
    report = meta_report(sheet, choices)
    _print_meta(report, json, csv, plot, html)


def _parse_choices(
    scale: Any, permutation: Any, jury: list[Any], resamples: int, confidence: float, seed: int
) -> ComparisonOptions:
    """Check the choices and return them as options."""
    from viva.reports.studies.judge_comparison import ComparisonOptions
    from viva.scoring.juries import POOLINGS

    choices = [("--permutation", permutation, _PERMUTATIONS), ("--scale", scale, (*_SCALES, None))]
    choices += [("--jury", pooling, POOLINGS) for pooling in jury]
    for option, value, allowed in choices:
        if value not in allowed:
            names = ", ".join(name for name in allowed if name)
            raise ConfigurationError(f"{option}: found '{value}', expected one of: {names}")
    if not 0.0 < confidence < 1.0:
        raise ConfigurationError(f"--confidence: found {confidence:g}, expected a share between 0 and 1, such as 0.95")
    return ComparisonOptions(seed, resamples, confidence, permutation, scale, tuple(dict.fromkeys(jury)))


def _load_sheet(
    sources: list[Path],
    ratings: Path | None,
    fields: NamedColumns,
    unscored: list[str],
    form: str | None,
    scorers: list[str],
    *,
    with_baselines: bool,
) -> Sheet:
    """Read scores and ratings into one sheet; `form` is that of the file with the ratings."""
    from viva.reports.studies.judge_advice import read_votes
    from viva.reports.studies.judge_baselines import attach_replies
    from viva.reports.studies.rating_sheet import (
        is_run_folder,
        join_ratings,
        read_rating_sheet,
        read_replies,
        run_sheet,
    )

    if len(sources) > 1:
        if with_baselines:
            raise ConfigurationError("--baselines: name a single file or run")
        if form is not None and ratings is None:
            raise ConfigurationError("--form: name a single file, or the file with the ratings: --ratings FILE")
        return read_votes(sources, [] if ratings is None else [ratings], fields, unscored, form, keep_unrated=False)
    [source] = sources
    if is_run_folder(source):
        if ratings is None:
            raise ConfigurationError(f"{source} is a run; name the file with its human ratings: --ratings FILE")
        scored = run_sheet(source, scorers)
        if with_baselines:
            attach_replies(scored, asyncio.run(read_replies(source)))
        return join_ratings(scored, read_rating_sheet(ratings, fields.of_people(), unscored, form, of_people=True))
    if ratings is not None:
        scores = read_rating_sheet(source, fields.of_scores(), unscored)
        return join_ratings(scores, read_rating_sheet(ratings, fields.of_people(), unscored, form, of_people=True))
    return read_rating_sheet(source, fields, unscored, form)


def _print_pairs(
    pairs: dict[str, list[PairVerdicts]], options: ComparisonOptions, json: bool, html: Path | None
) -> None:
    """Print the figures of pairwise judges, and what their votes are worth together."""
    from viva.reports.studies.pair_files import pair_answer, pair_report, pair_report_tables

    from .output import print_json, print_paragraphs, print_tables
    from .output_files import write_tables_page

    report = pair_report(pairs, options.seed, options.resamples, options.level)
    if json:
        print_json({"answer": pair_answer(report), **report})
    else:
        print_paragraphs(pair_answer(report))
        print_tables(pair_report_tables(report))
    if html is not None:
        write_tables_page(html, "Pairwise judges", pair_answer(report), pair_report_tables(report))


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
    from .output_files import print_file, write_forest_plot, write_page_file

    if csv is not None:
        write_rows(csv_rows(report), CSV_COLUMNS, CSV_TEXTS, csv)
        print_file("table", csv)
    if plot is not None:
        axis, rows = forest_rows(report)
        if not rows:
            raise ConfigurationError(f"--plot {plot}: there is no correlation and no kappa to plot")
        write_forest_plot(plot, "Judges and people", rows, axis)
    if html is not None:
        write_page_file(meta_page(report), html)
    if json:
        print_json({"answer": summary_sentences(report), **report})
    else:
        print_paragraphs([summary_sentences(report)])
        print_tables(meta_tables(report))
    for note in (*(f"how the input was read: {field}" for field in report["fields"]), *report["notes"]):
        print_note(note)
