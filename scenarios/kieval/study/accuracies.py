"""Which accuracy a study sets beside scores: static figures that were lent, or the interviews' first answers.

What never belongs here: what is made of the two (``correlations``, ``contamination``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viva.reports.page import Record, joined

from ...study.static import StaticFigures
from ..interviews import MOST_UNANSWERED
from .words import FIRST_ANSWER


def accuracy_source(pooled: Sequence[Record], lent: StaticFigures | None) -> str:
    """Return a static figure's way of answering if all that were interviewed have it, each but the first only where the
    ones before it are missing; else that of the interviews' first answers. One kind for all rows, for kinds do not
    compare: ``pooled`` are those of one dataset, or all.
    """
    rows = [row for row in pooled if row["dataset"] is not None and row["score"]["n"]]
    for method in () if lent is None else lent.preferred:
        if rows and all(row["probe"] is not None and method in row["probe"]["accuracy"] for row in rows):
            return method
    return FIRST_ANSWER


def accuracy_of(row: Record, source: str) -> dict[str, Any]:
    """A pooled row's accuracy by that source, per cent."""
    if source == FIRST_ANSWER:
        own: dict[str, Any] = row["accuracy"]
        return own
    return dict((row["probe"] or {}).get("accuracy", {}).get(source, {"mean": None, "se": None}))


def unanswered_of(row: Record, source: str) -> float | None:
    """The share of the items, 0–1, whose answer by that source names no choice, which accuracy counts as not right."""
    found = row if source == FIRST_ANSWER else (row["probe"] or {}).get("unanswered", {}).get(source, {})
    share: float | None = found.get("unanswered_rate")
    return share


def too_seldom_answered(row: Record, source: str) -> bool:
    """Whether the accuracy tells how often an answer could be read rather than what a model knows."""
    return (unanswered_of(row, source) or 0.0) > MOST_UNANSWERED


def said_in_titles(correlations: Record) -> str:
    """Return the sources as titles of tables name them, dataset by dataset where they differ."""
    sources = correlations.get("accuracies") or {}
    if len(set(sources.values())) < 2:
        return _said(next(iter(sources.values()), correlations["accuracy"]))
    return joined(f"{_said(source)} on {name}" for name, source in sources.items())


def _said(source: str) -> str:
    return f"of the {FIRST_ANSWER}s" if source == FIRST_ANSWER else f"probed by {source}"
