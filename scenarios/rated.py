"""What was said in a recorded conversation, and what it was given in scores, whole and turn by turn.

What never belongs here: one system's scores (its own folder), and joining (``study.meta``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class TurnScores:
    """Scores by criterion; None where one is unscored. ``turn`` counts from 1, None for the whole conversation."""

    turn: int | None
    scores: dict[str, float | None]


@dataclass(slots=True, frozen=True)
class RecordedReply:
    """An answer of the compared model: what it was asked last, and what it said. ``number`` counts its calls from 0."""

    label: str
    item: str
    number: int
    question: str
    reply: str
