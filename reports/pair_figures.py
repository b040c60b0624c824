"""Figures of pairwise judges as plain data, in sentences and in tables; systems and studies share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viva.scoring.pairwise import PairVerdicts, fraction_interval, pair_figures

from .figures import estimate_record
from .tables import DASH, Table, percent

FIGURES = ("accuracy", "consistent", "strict", "net")
_HEADER = ["right verdicts", "consistent", "strict", "net", "pairs", "unreadable"]
_MOST_CATEGORIES = 40  # rows of the table by category


def pair_record(judged: Sequence[PairVerdicts], level: float = 0.95) -> dict[str, Any]:
    """Return a judge's figures, and the same figures by category if there are at least two categories."""
    record = _figures_record(judged, level)
    categories: dict[str, list[PairVerdicts]] = {}
    for pair in judged:
        if pair.category is not None:
            categories.setdefault(pair.category, []).append(pair)
    if len(categories) > 1:
        record["categories"] = {name: _figures_record(categories[name], level) for name in sorted(categories)}
    return record


def _figures_record(judged: Sequence[PairVerdicts], level: float) -> dict[str, Any]:
    figures = pair_figures(judged)
    record: dict[str, Any] = {name: getattr(figures, name) for name in ("pairs", "labelled", "verdicts", "unreadable")}
    for name in FIGURES:
        estimate = fraction_interval(getattr(figures, name), level)
        record[name] = None if estimate is None else estimate_record(estimate)
    return record


def pair_sentence(judge: str, record: Mapping[str, Any]) -> str:
    """Summarize a judge's figures in a sentence."""
    strict, accuracy, consistent = record["strict"], record["accuracy"], record["consistent"]
    agree = "" if consistent is None else f"names the same answer in both orders on {_share(consistent)}"
    if strict is not None:
        return (
            f"{judge} is right in both orders on {_share(strict)} of {record['labelled']:,} pairs, and in "
            f"{percent(accuracy['value'])} of all verdicts" + (f"; it {agree} of pairs." if agree else ".")
        )
    if accuracy is not None:
        return (
            f"{judge} is right on {_share(accuracy)} of {record['labelled']:,} pairs, each judged in one order: its "
            "consistency is unknown."
        )
    if agree:
        return f"{judge} {agree} of {record['pairs']:,} pairs; no pair has a preferred answer."
    return f"{judge}: no pair has a preferred answer, or readable verdicts in both orders."


def pair_tables(records: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return the tables of judges, and of each judge by category; `records` are by judge."""
    rows = [[judge, *_cells(record)] for judge, record in records.items()]
    by_category = [
        [judge, category, *_cells(part)]
        for judge, record in records.items()
        for category, part in list(record.get("categories", {}).items())[:_MOST_CATEGORIES]
    ]
    return [
        ("Pairs of answers: verdicts against the preferred answer", ["judge", *_HEADER], rows),
        ("Pairs by category", ["judge", "category", *_HEADER], by_category),
    ]


def _cells(record: Mapping[str, Any]) -> list[str]:
    figures = [DASH if record[name] is None else _share(record[name]) for name in FIGURES]
    return [*figures, f"{record['pairs']:,}", f"{record['unreadable']:,}"]


def _share(figure: Mapping[str, Any]) -> str:
    return f"{percent(figure['value'])} ({100 * figure['low']:.0f} to {100 * figure['high']:.0f})"
