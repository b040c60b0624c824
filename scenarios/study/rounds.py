"""Talks round by round: how many held each, and what it was worth.

What never belongs here: scores of whole interviews.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from viva.scoring.kieval import Scorer
from viva.scoring.stream import Mean

from .figures import Floats, interval, mean_record, rounded
from .talks import Talks


def by_round(talks: Sequence[Talks], scorer: Scorer) -> list[dict[str, Any]]:
    """For each round: how many talks held it, and the mean overall score that it got, 0–100 by the scorer's mapping.

    Its standard error and its interval, Student's, take the talks for independent.
    """
    total = sum(len(one.numbers) for one in talks)
    most = max((int(one.lengths.max(initial=0)) for one in talks), default=0)
    places = [(one.rounds(), one.verdicts) for one in talks]
    told = []
    for number in range(most):
        counts = sum(np.bincount(verdicts[rounds == number], minlength=5) for rounds, verdicts in places)
        mean, held = Mean(), 0
        for verdict, count in enumerate(np.asarray(counts).tolist()):
            held += count
            if verdict:
                mean.add_many(scorer.combine([verdict]) or 0.0, count)
        low, high = interval(_array(mean.mean), _array(mean.standard_error), np.array([mean.n]))
        ends = {"low": rounded(float(low[0])), "high": rounded(float(high[0]))}
        told.append(
            {"round": number + 1, "held": held, "share_held": rounded(held / total), **mean_record(mean), **ends}
        )
    return told


def _array(value: float | None) -> Floats:
    return np.array([np.nan if value is None else value])
