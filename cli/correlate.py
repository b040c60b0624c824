"""``viva correlate``: does the score follow the accuracy? A file of figures from anywhere, its correlations and lines.

What never belongs here: formulas (``scoring.correlation``) and drawing (``scoring.plots``).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .exit_codes import guarded, print_note
from .lazy_command import example_of

if TYPE_CHECKING:
    from viva.scoring.correlation import Coefficient, Correlation, Correlations, Figures, Fit

    from .output import Table

COLUMNS = ("model", "dataset", "accuracy", "score")
ERRORS = ("accuracy_se", "score_se")
# No figure is larger, and none differs by less: beyond are slips and the noise of other programs' arithmetic, which
# would be ranked as if it were a difference.
_LARGEST, _DECIMALS = 1e9, 9
_COEFFICIENTS = (("pearson", "Pearson r"), ("spearman", "Spearman ρ"), ("kendall", "Kendall τ"))
_LINE = ("slope", "intercept", "spread")


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command("correlate", epilog=example_of("viva correlate figures.csv --plot line.svg"))(guarded(_correlate))


def _correlate(
    file: Annotated[Path, typer.Argument(help="CSV with the columns model, dataset, accuracy, score.")],
    without: Annotated[
        list[str] | None, typer.Option("--without", help="Also without this model; may be given several times.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="File to draw to, .svg or .png (needs the extra `plots`).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Correlate accuracy and score over models: coefficients with p-values, lines, and the models off them."""
    from viva.scoring.correlation import correlate, fits

    from .drawing import check_drawable, draw
    from .output import print_json, print_tables

    if plot is not None:
        check_drawable(plot)
    excluded = list(dict.fromkeys(without or []))
    figures = _read(file, excluded)
    found: dict[tuple[str, ...], Correlations] = {(): correlate(figures)}
    if excluded:
        found[tuple(excluded)] = correlate(figures, excluded)
    lines = fits(figures)
    if plot is not None:
        draw(plot, figures, lines, excluded)
    if json:
        print_json(_report(file, figures, found, lines))
    else:
        print_tables(_tables(figures, found, lines))
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


def _read(file: Path, without: Collection[str]) -> list[Figures]:
    """The rows of a file.

    :raises DatasetError: naming file, line and field.
    :raises ConfigurationError: a model of ``without`` does not occur.
    """
    from viva.data.fields import FieldError
    from viva.data.passes import missing_hint
    from viva.data.reading import read_records
    from viva.engine.errors import ConfigurationError, DatasetError

    figures: list[Figures] = []
    lines: dict[tuple[str, str], int] = {}  # of each dataset and model
    for line, raw in read_records(file, required=COLUMNS):
        if isinstance(raw, DatasetError):
            raise raw
        named = {str(name).strip().casefold(): value for name, value in raw.items()}  # as the header is compared
        try:
            one = _figures(named)
            before = lines.setdefault((one.dataset, one.model), line)
            if before != line:
                message = f"'{one.model}' has a row for '{one.dataset}' in line {before} already; keep one of them"
                raise FieldError("model", message)
        except FieldError as error:
            message = f"{error}{missing_hint(raw, error.field)}"
            raise DatasetError(message, path=str(file), line=line, field=error.field) from None
        figures.append(one)
    if not figures:
        raise DatasetError(f"holds no row; expected a header and rows of {', '.join(COLUMNS)}", path=str(file))
    models = list(dict.fromkeys(one.model for one in figures))
    for name in without:
        if name not in models:
            raise ConfigurationError(f"--without {name}: {file} has no such model; it has: {', '.join(models)}")
    for dropped in ([], without):
        _check_enough(file, figures, lines, dropped)
    return figures


def _figures(raw: Any) -> Figures:
    """:raises FieldError: a field is missing or not what it should be."""
    from viva.data.fields import text_field
    from viva.scoring.correlation import Figures

    model, dataset = (text_field(raw, name).strip() for name in ("model", "dataset"))
    accuracy, score = (_number(raw, name) for name in ("accuracy", "score"))
    errors = [_number(raw, name, least=0.0) if raw.get(name) not in (None, "") else 0.0 for name in ERRORS]
    return Figures(model, dataset, accuracy, score, *errors)


def _number(raw: Any, name: str, least: float = -_LARGEST) -> float:
    from viva.data.fields import FieldError, shown

    value = raw.get(name)
    if value is None:
        raise FieldError(name, "is missing")
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number <= _LARGEST:  # nan too
        bounds = f"from {least:g} to {_LARGEST:g}"
        raise FieldError(name, f"expected a number {bounds}, with a decimal point, found {shown(value)}")
    return round(number, _DECIMALS)


def _check_enough(
    file: Path, figures: list[Figures], lines: dict[tuple[str, str], int], without: Collection[str]
) -> None:
    """:raises DatasetError: a dataset has fewer than three models, all told or without those named."""
    from viva.engine.errors import DatasetError
    from viva.scoring.correlation import by_dataset

    for name, group in by_dataset(figures).items():
        left = [one.model for one in group if one.model not in without]
        if len(left) < 3:
            less = f" without {', '.join(without)}" if without else ""
            number = "1 model" if len(left) == 1 else f"{len(left)} models"
            message = f"'{name}' has {number}{less}; a correlation needs three: add models, or leave the dataset out"
            raise DatasetError(message, path=str(file), line=lines[name, group[0].model], field="dataset")


# -- results --------------------------------------------------------------------------------------------------------


def _report(
    file: Path,
    figures: list[Figures],
    found: dict[tuple[str, ...], Correlations],
    lines: dict[str, Fit | None],
) -> dict[str, Any]:
    from viva.reports.correlations import correlation_record, line_record

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


def _tables(
    figures: list[Figures], found: dict[tuple[str, ...], Correlations], lines: dict[str, Fit | None]
) -> list[Table]:
    header = ["dataset", "n"]
    for _, name in _COEFFICIENTS:
        header += [name, "p"]
    tables: list[Table] = []
    for without, one in found.items():
        rows = [_row(name, part) for name, part in (("overall", one.overall), *one.datasets.items())]
        tables.append(("Accuracy and score" + (f", without {', '.join(without)}" if without else ""), header, rows))
    rows = [_line_row(name, fit) for name, fit in lines.items()]
    tables.append(("Score = intercept + slope × accuracy", ["dataset", *_LINE, "below", "above"], rows))
    rows = []
    for model in dict.fromkeys(one.model for one in figures):
        known = [fit.line if fit and model in fit.line.residuals else None for fit in lines.values()]
        rows.append([model, *("–" if line is None else _off(line, model) for line in known)])
    tables.append(("Score less the line (and in expected spreads)", ["model", *lines], rows))
    return tables


def _row(name: str, one: Correlation) -> list[str]:
    row = [name, str(one.n)]
    for field, _ in _COEFFICIENTS:
        found: Coefficient | None = getattr(one, field)
        row += ["–", "–"] if found is None else [f"{found.value:.3f}", f"{found.p:.2e}"]
    return row


def _line_row(name: str, fit: Fit | None) -> list[str]:
    if fit is None:
        return [name, *("–" for _ in _LINE), "no line: all accuracies are equal", "–"]
    line = fit.line
    numbers = [f"{line.slope:.3f}", f"{line.intercept:.2f}", f"{fit.spread:.2f}"]
    return [name, *numbers, ", ".join(line.below) or "–", ", ".join(line.above) or "–"]


def _off(line: Any, model: str) -> str:
    deviation = line.deviations[model]
    spreads = f"{deviation:.1f}" if math.isfinite(deviation) else "∞" if deviation > 0 else "-∞"
    return f"{line.residuals[model]:.1f} ({spreads})"
