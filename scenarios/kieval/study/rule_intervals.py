"""Intervals of scores where a rule that watched them ended the interviews: those of the rule's own sequences.

Intervals for a number of interviews that was fixed beforehand cover too seldom there: a rule that waits for a narrow
one stops when it looks narrow by chance. What never belongs here: the sequences themselves (``scoring.betting``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viva.reports.figures import rounded

from ...study.cells import StudyCell
from ..score import Scorer


def with_rule_interval(score: Mapping[str, Any], cells: Sequence[StudyCell], scorer: Scorer) -> dict[str, Any]:
    """The record of a mean score over ``cells``, with the interval of the rule that ended at least one of them.

    Of several cells it is the mean of their intervals, each weighed by its scored interviews. That covers at least with
    probability 1 - (cells)·(1 - level), and in practice far more often. The record stays as it is where no rule ended a
    cell, where a cell was watched by none, or where the rule saw scores of another scorer.
    """
    seen = [_sequence(cell, scorer) for cell in cells]
    known = [one for one in seen if one is not None]
    total = sum(one["n"] for one in known)
    if len(known) < len(seen) or not total or all(cell.stopped_at is None for cell in cells):
        return dict(score)
    ends = {end: rounded(sum(one["n"] * one[end] for one in known) / total) for end in ("low", "high")}
    return {**score, **ends}


def _sequence(cell: StudyCell, scorer: Scorer) -> dict[str, Any] | None:
    """What the rule knows of a cell's mean score; None where it knows nothing of scores such as these."""
    if cell.until is None:
        return None
    watched = Scorer(cell.settings("scorer"), cell.settings("decay"), cell.settings("early_stop"))
    if watched.describe() != scorer.describe():
        return None
    record: dict[str, Any] = cell.until["intervals"][cell.candidate]
    return record


def rule_notes(cells: Sequence[StudyCell], scorer: Scorer) -> list[str]:
    """What a reader should know of intervals where a rule ended cells; nothing where none did."""
    ruled = [cell for cell in cells if cell.stopped_at is not None]
    if not ruled:
        return []
    begun = sum(bool(cell.manifest) for cell in cells)
    if any(_sequence(cell, scorer) is None for cell in ruled):
        return [
            f"a rule that watched the scores of another scorer than {scorer.describe()} ended {len(ruled)} of {begun} "
            "cells: all intervals and p-values are for numbers of talks fixed beforehand and do not keep their level; "
            "under the rule's scorer the intervals of scores do"
        ]
    units = dict.fromkeys((cell.until or {}).get("independent", "item") for cell in ruled)
    return [
        f"a rule that watched the scores ended {len(ruled)} of {begun} cells: the intervals of scores are the "
        f"rule's, which hold at the stop; it takes {' and '.join(f'{unit}s' for unit in units)} to be independent "
        "of one another; other intervals and p-values are for numbers of talks fixed beforehand and do not keep "
        "their level"
    ]
