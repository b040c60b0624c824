"""Which tasks all of some models get right: what ``viva validate`` needs of a system.

What never belongs here: asking models (it is a run like any other).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Validation:
    """``decided`` are the settings that validation gives itself, ``unused`` those that have no use then; ``right`` says
    of a result whether the model got the task right.
    """

    decided: dict[str, Any]
    unused: tuple[str, ...]
    right: Callable[[Any], bool]
