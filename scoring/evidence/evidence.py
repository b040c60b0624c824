"""The common result of all witnesses of contamination: a statistic and its one-sided p-value under a clean model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evidence:
    """Statement of one witness: its statistic, and how likely a clean model is to give one as large.

    `statistic` is larger the more it speaks for contamination; `p` is one-sided; `effect` is in the witness's own unit
    (named in its module), None if it has none; `n` is the number of independent units (items, pairs, shards).
    """

    witness: str
    statistic: float
    p: float
    effect: float | None
    n: int
