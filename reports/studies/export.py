"""Export of a study's figures in long form, one row a figure, as CSV and Parquet.

Made from the report, so the numbers equal those in `--json`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically

from ..spreadsheet import write_table
from ..tables import FIGURE_COLUMNS, INTEGER_COLUMNS, TEXT_COLUMNS, Row, spreadsheet_cell
from .study import RECORD_ORDER, sections_in_order, systems_of_report


def long_rows(report: Mapping[str, Any]) -> Iterator[Row]:
    """Yield every figure: of each cell (with `seed`), of pooled cells (without `seed`), and of comparisons.

    `measure` is the path of the figure in its record, joined by dots; `dataset` is empty if all are pooled, `candidate`
    if the figure belongs to no single one.
    """
    groups = systems_of_report(report)
    readers = {name: systems.readers[name] for systems in groups for name in systems.readers}
    for cell in report["cells"]:
        columns = ("scenario", "candidate", "dataset", "seed", "evaluator", "scorer")
        yield from readers[cell["scenario"]].cell_rows(cell, {name: cell.get(name) for name in columns})
    for record in report.get("adaptive", ()):
        yield from _exam_rows(record)
    for systems, section in sections_in_order(RECORD_ORDER, groups):
        yield from section.rows(systems.part_of(report))


def _exam_rows(record: Mapping[str, Any]) -> Iterator[Row]:
    """Yield both estimates of an adaptive exam."""
    row = {name: record.get(name) for name in FIGURE_COLUMNS}
    exam = record["exam"] or {}
    for name in ("model_based", "assumption_free"):
        if exam and exam[name]["value"] is not None:
            yield {**row, "measure": f"adaptive.{name}", **exam[name], "n": exam["asked"] - exam["without_score"]}


def write_csv(report: Mapping[str, Any], file: Path) -> None:
    """Write `long_rows` to a CSV file; numbers have the digits of the JSON."""
    write_rows(long_rows(report), FIGURE_COLUMNS, TEXT_COLUMNS, file)


def write_rows(rows: Iterable[Row], columns: Sequence[str], texts: Sequence[str], file: Path) -> None:
    """Write rows to a CSV file; in the text columns `texts`, no cell can act as a formula."""
    cells = ([row.get(name) for name in columns] for row in (_escape_row(row, texts) for row in rows))
    write_table(file, columns, cells, advice="; name another file")


def _escape_row(row: Row, texts: Sequence[str]) -> Row:
    return row | {name: spreadsheet_cell(str(row[name])) for name in texts if row[name]}


def write_parquet(report: Mapping[str, Any], file: Path) -> None:
    """Write `long_rows` to a Parquet file: texts, integers (`seed`, `n`) and doubles.

    Raises:
        ConfigurationError: if pyarrow is missing, or the file cannot be written.
    """
    check_parquet()
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    rows = list(long_rows(report))
    kinds = {
        name: arrow.string() if name in TEXT_COLUMNS else arrow.int64() for name in (*TEXT_COLUMNS, *INTEGER_COLUMNS)
    }
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in FIGURE_COLUMNS])
    columns = {
        name: [_to_double(row[name]) if name not in kinds else row[name] for row in rows] for name in FIGURE_COLUMNS
    }
    sink = io.BytesIO()
    parquet.write_table(arrow.table(columns, schema=schema), sink)
    _write(file, sink.getvalue())


def check_parquet() -> None:
    """Check that pyarrow is installed.

    Raises:
        ConfigurationError: if pyarrow is missing.
    """
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        message = "--parquet: writing Parquet needs pyarrow; install it with: pip install 'viva-exam[parquet]'"
        raise ConfigurationError(message) from None


def _to_double(value: float | None) -> float | None:
    return None if value is None else float(value)


def _write(file: Path, data: bytes) -> None:
    try:
        write_atomically(file, data)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}; name another file") from None
