"""The same verdicts scored without decaying weights, and without early stop (KIEval, appendix D, Table 8).

The paper correlates the four variants with human scores; here they stand beside accuracy, for a study has no others.
What never belongs here: the scorers themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viva.scenarios.kieval.score import Scorer
from viva.scoring.regression import pearson

from .figures import rounded, significant
from .pooling import Pool
from .talks import SWITCHES


def ablation(pools: Sequence[Pool], scorer: Scorer, accuracy: dict[str, float]) -> list[dict[str, Any]]:
    """For each variant: the mean score of each candidate over all datasets, and how it follows ``accuracy``.

    A variant without early stop has figures of a candidate only if all of its talks were recorded without it.
    """
    told = []
    for decay, early_stop in SWITCHES:
        found = {pool.candidate: pool.variant(decay, early_stop) for pool in pools}
        pairs = [
            (accuracy[name], one["mean"]) for name, one in found.items() if name in accuracy and one["mean"] is not None
        ]
        related = pearson([x for x, _ in pairs], [y for _, y in pairs])
        told.append(
            {
                "scorer": Scorer(scorer.name, decay, early_stop).describe(),
                "decay": decay,
                "early_stop": early_stop,
                "candidates": found,
                "accuracy": None
                if related is None
                else {"r": rounded(related[0]), "p": significant(related[1]), "n": len(pairs)},
            }
        )
    return told
