"""What a recorded conversation was given in scores, whole and turn by turn: what human ratings are set beside.

What never belongs here: one system's scores (its own folder), and joining (``study.meta``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class TurnScores:
    """Scores by criterion; None where one is unscored. ``turn`` counts from 1, None for the whole conversation."""

    turn: int | None
    scores: dict[str, float | None]
