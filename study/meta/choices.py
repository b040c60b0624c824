"""How the figures of a meta-evaluation are computed: what a user may choose.

What never belongs here: computing.
"""

from __future__ import annotations

from dataclasses import dataclass

from viva.scoring.agreement import Scale
from viva.scoring.juries import Pooling
from viva.scoring.levels import Permutation


@dataclass(frozen=True, slots=True)
class Choices:
    """How figures are computed. ``scale`` None: by the values."""

    seed: int = 7
    resamples: int = 1_000
    level: float = 0.95
    permutation: Permutation = "inputs"
    scale: Scale | None = None
    juries: tuple[Pooling, ...] = ()
