"""Static figures: what a system that asks each item once, without a conversation, lends to studies of other systems.

A study of conversations sets them beside its own scores: accuracy beside score, item by item. What never belongs here:
how an item is asked, and what another system makes of the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from viva.reports.figures import Codes, Floats

from .cells import Pool, RunReading


class StaticFigures(Protocol):
    """The figures that a system lends."""

    @property
    def methods(self) -> tuple[str, ...]:
        """All ways of answering, in the order in which reports name them."""

    @property
    def preferred(self) -> tuple[str, ...]:
        """The ways of answering whose accuracy stands for the model's, the best first."""

    def holds(self, reading: RunReading) -> bool:
        """Whether a reading is one of this system's cells."""

    def pooled(self, pool: Pool) -> dict[str, Any]:
        """A pool's figures as plain data: ``accuracy`` and ``unanswered`` by way of answering, ``loss``,
        ``loss_against``, ``loss_gap``, ``detectors``, and ``members``: whose texts detectors rank above the others,
        the ``dataset``'s or those ``against`` it.
        """

    def right(self, pool: Pool, method: str) -> tuple[Floats, Codes]:
        """Whether each item was answered rightly, 1 or 0, and the items by their numbers in the pool's catalogue."""

    def clusters(self, pool: Pool) -> dict[int, int]:
        """The cluster of each item: numbers of the pool's catalogue."""

    def said(self, method: str) -> str:
        """A way of answering in words, for an axis."""

    def explained(self) -> list[tuple[str, str]]:
        """How the figures are computed, as terms and their descriptions."""


def static_readings(figures: StaticFigures | None, readings: Sequence[RunReading]) -> list[RunReading]:
    """Those of a system's cells that have static figures."""
    return [] if figures is None else [one for one in readings if figures.holds(one)]
