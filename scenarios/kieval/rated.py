"""An interview's scores for human ratings: of each round the verdict's, of the whole the scorer's.

What never belongs here: scoring (``score``).
"""

from __future__ import annotations

from typing import Any

from ..rated import TurnScores
from .score import ASPECTS, Interview, Scorer


def interview_scores(result: Any, scorer: Scorer) -> list[TurnScores]:
    """By aspect and overall: the interview 0–100, its rounds 1–4 as the evaluator gave them."""
    interview = Interview.from_record(result)
    found = [TurnScores(None, {name: scorer.score(interview, at) for at, name in enumerate(ASPECTS)})]
    for number, held in enumerate(interview.rounds, 1):
        given = held.scores or [None] * len(ASPECTS)
        scores = {name: None if one is None else float(one) for name, one in zip(ASPECTS, given, strict=True)}
        found.append(TurnScores(number, scores))
    return found
