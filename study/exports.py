"""A study's figures in long form, one row a figure, and the CSV and Parquet files of it.

Made from the report, so the numbers are those of ``--json``. What never belongs here: computing figures, and tables.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically

_WHERE = ("scenario", "candidate", "dataset", "seed", "evaluator", "scorer")
COLUMNS = (*_WHERE, "measure", "value", "se", "low", "high", "n")
Row: TypeAlias = dict[str, Any]
_TEXTS = ("scenario", "candidate", "dataset", "evaluator", "scorer", "measure")
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "\t", "\r")  # how a cell begins that is computed
_WHOLE = ("seed", "n")
# What of a report's record is a figure of its own; every other number in it is one too, and this is not.
_NO_MEASURES = frozenset({"n_items", "n_observations"})


def long_rows(report: Mapping[str, Any]) -> Iterator[Row]:
    """Every figure: of each cell (``seed`` is given), pooled (it is not), and of candidates held against one another.

    A row's ``measure`` is the place of the figure in its record, joined by dots; ``dataset`` is empty where all are
    pooled, ``candidate`` where the figure is of none alone. ``value`` is empty where there is nothing to tell.
    """
    scorer = report["scorer"]
    for cell in report["cells"]:
        place = _place(cell, seed=cell["seed"], evaluator=cell["evaluator"], scorer=cell["scorer"])
        yield from _figures(place, "", cell["result"] or {})
        for one in cell.get("by_round", []):
            yield from _by_round(place, one)
        running = cell.get("running", {"n": []})
        for index, n in enumerate(running["n"]):
            told = {name: running[name][index] for name in ("low", "high")}
            yield _row(place, "running", value=running["mean"][index], n=n, **told)
        if cell["scenario"] == "probe":
            yield from _figures(place, "usage", cell["usage"])
    for row in report["pooled"]:
        place = _place(row, scorer=scorer)
        named = ("scenario", "candidate", "dataset", "datasets", "seeds", "evaluators", "by_round")
        yield from _figures(place, "", {name: value for name, value in row.items() if name not in named})
        for one in row["by_round"]:
            yield from _by_round(place, one)
    yield from _between(report, scorer)


def _between(report: Mapping[str, Any], scorer: str) -> Iterator[Row]:
    """Figures of several candidates, and of items."""
    for one in report["comparisons"]:
        place = {"scenario": "kieval", "candidate": one["first"], "dataset": one["dataset"], "scorer": scorer}
        name = f"less {one['second']}"
        yield _row(place, name, **one["difference"], se=one["se"], n=one["n"])
        for field in ("p", "p_corrected", "won", "tied", "lost", "pairs", "dropped"):
            yield _row(place, f"{name}.{field}", value=one[field], n=one["n"])
    for one in report["agreement"]:
        place = {"scenario": "kieval", "candidate": one["candidate"], "dataset": one["dataset"], "scorer": scorer}
        counts = {"fleiss": one["fleiss_n"], "alpha_interval": one["interviews"]}  # the others are over all rounds
        for field in ("kappa", "kappa_quadratic", "fleiss", "unanimous", "decided", "alpha_ordinal", "alpha_interval"):
            yield _row(place, f"agreement.{one['over']}.{field}", value=one[field], n=counts.get(field, one["n"]))
    for one in report["difficulty"]:
        place = {"scenario": "kieval", "dataset": one["dataset"], "scorer": scorer}
        yield _row(place, f"item.{one['item']}.mean", value=one["mean"], n=one["n"])
        yield _row(place, f"item.{one['item']}.discrimination", value=one["discrimination"], n=one["n"])
    told = report["correlations"]
    for without, part in (("", told), ("excluding", told["excluding"])):
        for dataset, one in _parts(part):
            for name, found in one.items():
                if isinstance(found, Mapping):
                    measure = ".".join(filter(None, ("correlation", without, name)))
                    place = {"scenario": "kieval", "dataset": dataset, "scorer": scorer}
                    yield _row(place, measure, value=found["value"], n=one["n"])
                    if "p" in found:
                        yield _row(place, f"{measure}.p", value=found["p"], n=one["n"])
    for dataset, line in told["lines"].items():
        for model, residual in (line or {"residuals": {}})["residuals"].items():
            place = {"scenario": "kieval", "candidate": model, "dataset": dataset, "scorer": scorer}
            yield _row(place, "residual", value=residual)
            yield _row(place, "deviation", value=line["deviations"][model])
    for variant in report["ablation"]:
        for candidate, found in variant["candidates"].items():
            place = {"scenario": "kieval", "candidate": candidate, "scorer": variant["scorer"]}
            yield _row(place, "ablation", **_mean(found))
    for dataset, roles in report["costs"]["datasets"].items():
        yield from _figures({"scenario": "kieval", "dataset": dataset, "scorer": scorer}, "per_model", roles)
    for one in report["costs"]["projected"]:
        yield from _figures({"scenario": "kieval", "scorer": scorer}, f"projected.{one['models']}", one["roles"])


def _parts(told: Mapping[str, Any] | None) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    if told is not None:
        yield None, told["overall"]
        yield from told["datasets"].items()


def _figures(place: Row, name: str, told: Any) -> Iterator[Row]:
    """A record's figures: means and estimates are one row, other records are gone into, numbers are rows."""
    if isinstance(told, Mapping):
        if "mean" in told and "n" in told:
            yield _row(place, name, **_mean(told))
        elif {"value", "low", "high"} <= told.keys():
            yield _row(place, name, **{field: told[field] for field in ("value", "low", "high")})
            rest = {field: value for field, value in told.items() if field not in ("value", "low", "high")}
            yield from _figures(place, name, rest)
        else:
            for field, value in told.items():
                if field not in _NO_MEASURES:
                    yield from _figures(place, f"{name}.{field}" if name else field, value)
    elif isinstance(told, int | float) and not isinstance(told, bool):
        yield _row(place, name, value=told)


def _by_round(place: Row, one: Mapping[str, Any]) -> Iterator[Row]:
    name = f"round.{one['round']}"
    yield _row(place, f"{name}.score", **_mean(one))
    yield _row(place, f"{name}.share_held", value=one["share_held"], n=one["held"])


def _mean(told: Mapping[str, Any]) -> Row:
    return {
        "value": told["mean"],
        "se": told.get("se"),
        "low": told.get("low"),
        "high": told.get("high"),
        "n": told["n"],
    }


def _place(told: Mapping[str, Any], **more: Any) -> Row:
    return {name: told[name] for name in ("scenario", "candidate", "dataset")} | more


def _row(place: Row, measure: str, **figures: Any) -> Row:
    return dict.fromkeys(COLUMNS) | place | {"measure": measure} | figures


# -- files ----------------------------------------------------------------------------------------------------------


def write_csv(report: Mapping[str, Any], file: Path) -> None:
    """UTF-8 with a header and ``\\n`` at the ends of lines; numbers in the digits of the JSON. A text
    that begins as a formula does has an apostrophe before it.

    :raises ConfigurationError: the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_harmless(row) for row in long_rows(report))
    _write(file, text.getvalue().encode())


def _harmless(row: Row) -> Row:
    """The row with an apostrophe before each text that a spreadsheet program would take for a formula."""
    formulas = [name for name in _TEXTS if str(row[name] or "").startswith(_FORMULA)]
    return row | {name: f"'{row[name]}" for name in formulas} if formulas else row


def write_parquet(report: Mapping[str, Any], file: Path) -> None:
    """The same rows: texts, whole numbers (``seed``, ``n``) and doubles.

    :raises ConfigurationError: pyarrow is not there, or the file cannot be written.
    """
    check_parquet()
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    rows = list(long_rows(report))
    kinds = {name: arrow.string() if name in _TEXTS else arrow.int64() for name in (*_TEXTS, *_WHOLE)}
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in COLUMNS])
    columns = {name: [_double(row[name]) if name not in kinds else row[name] for row in rows] for name in COLUMNS}
    sink = io.BytesIO()
    parquet.write_table(arrow.table(columns, schema=schema), sink)
    _write(file, sink.getvalue())


def check_parquet() -> None:
    """:raises ConfigurationError: pyarrow is not there."""
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        message = "--parquet: writing Parquet needs pyarrow; install it with: pip install 'viva-exam[parquet]'"
        raise ConfigurationError(message) from None


def _double(value: float | None) -> float | None:
    return None if value is None else float(value)


def _write(file: Path, data: bytes) -> None:
    try:
        write_atomically(file, data)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}; name another file") from None
