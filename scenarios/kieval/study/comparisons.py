"""Every pair of candidates held against one another, on the items that both have.

What never belongs here: formulas (``scoring.comparison``), and reading journals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.reports.figures import rounded, significant
from viva.reports.page import Record
from viva.reports.rows import Row, figure_row
from viva.reports.text import Table, signed, small
from viva.scoring.comparison import Correction, compare_all
from viva.scoring.signflips import MOST

from ...study.sections import Section, Subject
from .pools import InterviewMaterial, InterviewPool, by_dataset
from .words import place, title_facts

CORRECTION: Correction = "holm"
_LEVEL = 0.05
_NAMED = 5  # pairs in a note; of more the note says how many


class Comparisons(Section[InterviewMaterial]):
    """Pairs of candidates by dataset and over all; p corrected within each of these."""

    key, subject, heading, anchor = "comparisons", Subject.COMPARISONS, "Comparisons", "comparisons"

    def compute(self, material: InterviewMaterial, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Interviews are paired by item, seed and evaluator. ``won``, ``tied`` and ``lost`` count items, by their mean
        difference.
        """
        return [{"dataset": dataset, **one} for dataset, group in by_dataset(material.pools) for one in compared(group)]

    def notes(self, report: Record) -> list[str]:
        """Pairs whose p-values rest on few items."""
        compared = report["comparisons"]
        few = [one for one in compared if one["p"] is not None and one["clusters"] <= MOST]
        found = []
        if few:
            found.append(
                f"{len(few)} of {len(compared)} comparisons rest on {MOST} items or fewer: their p counts how often "
                "chance gives such a difference if the two could be exchanged on each item, and is too small where one "
                "of them has few and large losses"
            )
        unsure = [
            one for one in few if one["p"] < _LEVEL and one["difference"]["low"] <= 0 <= one["difference"]["high"]
        ]
        if unsure:
            named = [f"{one['first']} and {one['second']} on {one['dataset'] or 'all'}" for one in unsure[:_NAMED]]
            more = f" and {len(unsure) - _NAMED} more" if len(unsure) > _NAMED else ""
            found.append(
                f"p is below {_LEVEL} but the interval, which makes room for items not met, holds 0: "
                f"{'; '.join(named)}{more}: more items are needed to tell them apart"
            )
        return found

    def tables(self, report: Record) -> list[Table]:
        rows = []
        for one in report["comparisons"]:
            difference = one["difference"]
            text = signed(difference["value"])
            if difference["low"] is not None:
                text += f" ({signed(difference['low'])} to {signed(difference['high'])})"
            line = [one["dataset"] or "all", one["first"], one["second"], text]
            line += [small(one["p"]), small(one["p_corrected"])]
            rows.append([*line, str(one["n"]), *(str(one[name]) for name in ("won", "tied", "lost"))])
        header = ["dataset", "first", "second", "first − second", "p", "Holm p", "items", "won", "tied", "lost"]
        return [(f"KIEval compared item by item: {title_facts(report)}", header, rows)]

    def rows(self, report: Record) -> Iterator[Row]:
        for one in report["comparisons"]:
            where = place(report, candidate=one["first"], dataset=one["dataset"])
            name = f"less {one['second']}"
            yield figure_row(where, name, **one["difference"], se=one["se"], n=one["n"])
            for field in ("p", "p_corrected", "won", "tied", "lost", "pairs", "dropped"):
                yield figure_row(where, f"{name}.{field}", value=one[field], n=one["n"])


def compared(group: Sequence[InterviewPool]) -> list[dict[str, Any]]:
    """Every pair of candidates that have an item in common; items of several datasets are strata."""
    scores = {pool.candidate: _scores(pool) for pool in group}
    clusters: dict[str, str] = {}
    for pool in group:
        clusters |= zip(pool.labels(pool.codes()), pool.labels(pool.clusters()), strict=True)
    strata = {label: dataset for pool in group for dataset, label in _places(pool)}
    several = len(set(strata.values())) > 1
    found = []
    for one in compare_all(scores, CORRECTION, clusters=clusters, strata=strata if several else None):
        if one.mean is None:
            continue
        ends = one.difference
        found.append(
            {
                "first": one.first,
                "second": one.second,
                "difference": {
                    "value": rounded(one.mean),
                    "low": None if ends is None else rounded(ends.low),
                    "high": None if ends is None else rounded(ends.high),
                },
                "se": rounded(one.se),
                "test": one.test,
                "p": significant(one.p),
                "p_corrected": significant(one.p_corrected),
                "correction": CORRECTION,
                "n": one.n,
                "clusters": one.clusters,
                "pairs": one.pairs,
                "dropped": one.dropped,
                **{name: round(getattr(one, name) * one.n) for name in ("won", "tied", "lost")},
            }
        )
    return found


def _places(pool: InterviewPool) -> Iterator[tuple[str, str]]:
    for _, dataset, columns in pool.parts:
        yield from ((dataset, label) for label in pool.labels(pool.codes_of(dataset, columns)))


def _scores(pool: InterviewPool) -> dict[tuple[str, str], float | None]:
    """Overall scores by item, and by seed and evaluator; what comes twice is told apart by its turn."""
    found: dict[tuple[str, str], float | None] = {}
    turns: dict[str, int] = {}
    for cell, dataset, columns in pool.parts:
        circumstances = f"{dataset}\n{cell.seed}\n{cell.evaluator}"
        turns[circumstances] = turns.get(circumstances, 0) + 1
        other = f"{cell.seed}\n{cell.evaluator}\n{turns[circumstances]}"
        labels = pool.labels(pool.codes_of(dataset, columns))
        for label, score in zip(labels, columns.scores().tolist(), strict=True):
            found[label, other] = None if math.isnan(score) else score
    return found
