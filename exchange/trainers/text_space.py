"""Texts as a Gymnasium space: its own has a list of the characters that may occur.

What never belongs here: what a text means.
"""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Text


class AnyText(Text):
    """Every text of at most ``max_length`` characters; samples are up to 64 letters and digits."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        drawn = None if mask or probability else (int(self.np_random.integers(1, 65)), None)
        return super().sample(drawn or mask, probability)
