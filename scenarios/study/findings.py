"""What a study found, in words: the answer that its reader came for, before any table.

What never belongs here: computing figures, markup, and one system's words.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class Standing:
    """A candidate's figure with the ends of its 95% interval (None where it has none). ``suspected``: something is
    wrong with it, and ``remark`` says what.
    """

    candidate: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    suspected: bool = False
    remark: str = ""


@dataclass(slots=True)
class Findings:
    """Sentences, the most decisive first, and the candidates by what ``measure`` names, the best first."""

    sentences: list[str]
    measure: str = ""
    standings: list[Standing] = field(default_factory=list)
