"""Figures in long form: one row a figure, made from the records of a report.

What never belongs here: which figures there are, and files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

COLUMNS = (
    *("scenario", "candidate", "dataset", "seed", "evaluator", "scorer"),
    *("measure", "value", "se", "low", "high", "n"),
)
TEXTS = ("scenario", "candidate", "dataset", "evaluator", "scorer", "measure")
WHOLE = ("seed", "n")
Row: TypeAlias = dict[str, Any]
# Numbers of a record that are no figures of their own: every other number is one.
_NO_MEASURES = frozenset({"n_items", "n_observations"})


def figure_row(place: Row, measure: str, **figures: Any) -> Row:
    """One figure. ``place`` gives the first columns, ``figures`` the last; what neither names is None."""
    return dict.fromkeys(COLUMNS) | place | {"measure": measure} | figures


def mean_figures(record: Mapping[str, Any]) -> Row:
    """The last columns for the record of a mean."""
    return {
        "value": record["mean"],
        "se": record.get("se"),
        "low": record.get("low"),
        "high": record.get("high"),
        "n": record["n"],
    }


def record_rows(place: Row, measure: str, record: Any) -> Iterator[Row]:
    """A record's figures: means and estimates are one row, other records are gone into, numbers are rows. The measure
    of a figure is its place in the record, joined by dots.
    """
    if isinstance(record, Mapping):
        if "mean" in record and "n" in record:
            yield figure_row(place, measure, **mean_figures(record))
        elif {"value", "low", "high"} <= record.keys():
            yield figure_row(place, measure, **{field: record[field] for field in ("value", "low", "high")})
            rest = {field: value for field, value in record.items() if field not in ("value", "low", "high")}
            yield from record_rows(place, measure, rest)
        else:
            for field, value in record.items():
                if field not in _NO_MEASURES:
                    yield from record_rows(place, f"{measure}.{field}" if measure else field, value)
    elif isinstance(record, int | float) and not isinstance(record, bool):
        yield figure_row(place, measure, value=record)
