"""What the drawings of a study of interviews have in common: panels by dataset, candidates in one order.

What never belongs here: how a drawing looks (``scoring.plots``), and which figures go into which.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from viva.reports.page import Plot, Record, joined
from viva.scoring.plots import style

from .words import origin

Drawn = tuple[str, str]  # an SVG, and what to say of it in one line


def plot(report: Record, anchor: str, heading: str, caption: str, drawn: Sequence[Drawn]) -> list[Plot]:
    """One kind of drawing, none where it has no panel."""
    return [Plot(anchor, heading, caption, origin(report), drawn)] if drawn else []


def said_alike(groups: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A sentence for a caption: which candidates share a line, by dataset; empty where none do."""
    if not groups:
        return ""
    several = len({dataset for dataset, _ in groups}) > 1
    told = "; ".join(joined(names) + (f" ({dataset})" if several else "") for dataset, names in groups)
    return f" One line is drawn for candidates whose figures are the same throughout: {told}."


def ranking(report: Record) -> list[str]:
    """The candidates of the study, best overall score first; those without a score last, in the study's order."""
    names = list(dict.fromkeys(row["candidate"] for row in report["pooled"]))
    best: dict[str, tuple[bool, float]] = {}
    for row in report["pooled"]:  # that of all datasets counts, or of the only one
        mean = (row.get("score") or {}).get("mean")
        if mean is not None and (row["dataset"] is None or row["candidate"] not in best):
            best[row["candidate"]] = (True, mean)
    return sorted(names, key=lambda name: -best[name][1] if name in best else math.inf)


def rows_by_dataset(report: Record) -> Iterable[tuple[str, list[Record]]]:
    """Each dataset with the pooled interviews of its candidates, best candidates first."""
    place = {name: index for index, name in enumerate(ranking(report))}
    rows = [row for row in report["pooled"] if row["dataset"] is not None and row["n_observations"]]
    for name in dict.fromkeys(row["dataset"] for row in rows):
        yield name, sorted((row for row in rows if row["dataset"] == name), key=lambda row: place[row["candidate"]])


def datasets(report: Record) -> list[str]:
    """The datasets of the study, in its order."""
    return list(dict.fromkeys(cell["dataset"] for cell in report["cells"]))


def shown_dataset(name: str) -> str:
    """A dataset's name, short enough for the title of a panel."""
    return style.short([name], 26)[name]


def reach(record: Record) -> tuple[float, float] | None:
    """How far the interval reaches below the mean, and above."""
    low, high = record.get("low"), record.get("high")
    return None if low is None or high is None else (max(0.0, record["mean"] - low), max(0.0, high - record["mean"]))
