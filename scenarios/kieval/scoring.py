"""The choices in how recorded interviews are scored, as the command line and Python take them.

What never belongs here: the formulas (``score``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ..contract import Scoring
from .score import Scorer, ScorerName


class KievalScoring(Scoring):
    """The scorer and its switches (KIEval, Appendix D)."""

    scorer: ScorerName | None = Field(default=None, description="official, linear or corrected.")
    decay: bool | None = Field(default=None, description="Let early rounds weigh more, or all rounds the same.")
    early_stop: bool | None = Field(
        default=None,
        description="Cut talks at the first stop flag, though they went on; or ignore stop flags (of talks that went "
        "on after them).",
    )

    def scorer_of(self, settings: Mapping[str, Any]) -> Scorer:
        """The scorer for a run with these settings."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return Scorer(*({**settings, **given}[name] for name in ("scorer", "decay", "early_stop")))

    def note(self, report: Mapping[str, Any]) -> str | None:
        if self.early_stop is False and report.get("recorded_with_early_stop"):
            return "talks of this run really ended at their stop flags; rounds after them were never held"
        return None
