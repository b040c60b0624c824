"""The hardest items of each dataset, and how many items narrow intervals would take.

What never belongs here: formulas (``scoring.difficulty``, ``scoring.planning``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from viva.reports.figures import rounded
from viva.reports.page import Record
from viva.reports.rows import Row, figure_row
from viva.reports.text import Table, number
from viva.scoring.difficulty import difficulties
from viva.scoring.stream import Mean

from ...study.sections import Section, Subject
from .pools import InterviewMaterial, InterviewPool, by_dataset
from .words import place, title_facts

HARDEST = 20  # items of each dataset
_SHOWN = 5  # of them in the table
_SOLID = 3  # of 4: what a candidate gets in every round that has solved an item


class DifficultySection(Section[InterviewMaterial]):
    """Items, each candidate's score on one being the mean over its interviews about it."""

    key, subject, heading, anchor = "difficulty", Subject.ITEMS, "Difficulty of items", "difficulty"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        hardest: list[dict[str, Any]] = []
        for dataset, group in by_dataset(material.by_items):
            if dataset is None:
                continue
            scores = {pool.candidate: _means(pool) for pool in group}
            solved = material.scorer.combine([_SOLID])
            found = difficulties(scores, solved=100.0 if solved is None else solved)
            hardest += [
                {
                    "dataset": dataset,
                    "item": one.item.removeprefix(f"{dataset}/"),
                    "mean": rounded(one.mean),
                    "n": one.n,
                    "discrimination": rounded(one.discrimination),
                    "solved_by": one.solved_by,
                    "of": len(found),
                }
                for one in found[:HARDEST]
            ]
        return hardest

    def tables(self, report: Record) -> list[Table]:
        rows: list[list[str]] = []
        seen: dict[str, int] = {}
        for one in report["difficulty"]:
            seen[one["dataset"]] = seen.get(one["dataset"], 0) + 1
            if seen[one["dataset"]] <= _SHOWN:
                rows.append([one["dataset"], one["item"], number(one["mean"]), str(one["n"])])
                rows[-1].append(number(one["discrimination"], 2))
        header = ["dataset", "item", "KIEval", "candidates", "discrimination"]
        return [(f"Hardest items: {title_facts(report)}", header, rows), _needed(report)]

    def rows(self, report: Record) -> Iterator[Row]:
        for one in report["difficulty"]:
            where = place(report, dataset=one["dataset"])
            yield figure_row(where, f"item.{one['item']}.mean", value=one["mean"], n=one["n"])
            yield figure_row(where, f"item.{one['item']}.discrimination", value=one["discrimination"], n=one["n"])


def _needed(report: Record) -> Table:
    """How many items would make the interval of a score so narrow, from the spread that was seen."""
    known = [one for one in report["pooled"] if one["items_needed"] is not None]
    rows = []
    for one in known:
        half = (one["score"]["high"] - one["score"]["low"]) / 2
        counts = [f"{count:,}" for count in one["items_needed"].values()]
        rows.append([one["candidate"], one["dataset"] or "all", str(one["score"]["items"]), number(half), *counts])
    widths = list(known[0]["items_needed"]) if known else []
    header = ["candidate", "dataset", "items", "half width", *(f"for ± {width}" for width in widths)]
    return (f"Items needed for a 95% interval of KIEval: {title_facts(report)}", header, rows)


def _means(pool: InterviewPool) -> dict[str, float | None]:
    """The mean score of each item's interviews."""
    codes, scores = pool.codes(), pool.column("overall")
    known = ~np.isnan(scores)
    items, places = np.unique(codes[known], return_inverse=True)
    if len(items) == known.sum():
        return dict(zip(pool.labels(codes[known]), scores[known].tolist(), strict=True))
    means = [Mean() for _ in items]
    for at, score in zip(places.tolist(), scores[known].tolist(), strict=True):
        means[at].add(score)
    return {label: mean.mean for label, mean in zip(pool.labels(items), means, strict=True)}
