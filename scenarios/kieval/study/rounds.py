"""Interviews round by round: how many held each, and what it was worth.

What never belongs here: scores of whole interviews.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from viva.reports.figures import SCORES, Codes, clustered_record, rounded
from viva.scoring.clusters import ClusteredMean, clustered_counts

from ..score import Scorer
from .columns import InterviewColumns

_VERDICTS = 5  # 0 is a round without a score


def by_round(columns: Sequence[InterviewColumns], items: Sequence[Codes], scorer: Scorer) -> list[dict[str, Any]]:
    """For each round how many interviews held it, and the mean overall score that it got.

    Scores are 0–100 by the scorer's mapping. ``items`` are the numbers of each interview's item; errors and intervals
    are clustered by them.
    """
    total = sum(len(one.numbers) for one in columns)
    most = max((int(one.lengths.max(initial=0)) for one in columns), default=0)
    places = [
        (one.rounds(), one.verdicts, np.repeat(codes, one.lengths)) for one, codes in zip(columns, items, strict=True)
    ]
    worth = [scorer.combine([verdict]) or 0.0 for verdict in range(1, _VERDICTS)]
    rounds_found = []
    for number in range(most):
        verdicts = np.concatenate([verdicts[rounds == number] for rounds, verdicts, _ in places])
        codes = np.concatenate([codes[rounds == number] for rounds, _, codes in places])
        found = _mean(verdicts, codes, worth)
        held = {"round": number + 1, "held": len(verdicts), "share_held": rounded(len(verdicts) / total)}
        rounds_found.append(held | clustered_record(found, SCORES))
    return rounds_found


def _mean(verdicts: Codes, codes: Codes, worth: Sequence[float]) -> ClusteredMean | None:
    """Of the rounds with a score. Items on which each verdict was given as often are counted together."""
    scored = verdicts > 0
    items, places = np.unique(codes[scored], return_inverse=True)
    counts = np.bincount(places * _VERDICTS + verdicts[scored], minlength=len(items) * _VERDICTS)
    alike, times = np.unique(counts.reshape(-1, _VERDICTS)[:, 1:], axis=0, return_counts=True)
    return clustered_counts(worth, dict(zip(map(tuple, alike.tolist()), times.tolist(), strict=True)))
