"""A segment: a run of token ids that is computed in one way, and the unit by which KV is found again."""

from __future__ import annotations

from dataclasses import dataclass

from .native import Tokens


@dataclass(slots=True, frozen=True)
class Segment:
    """A run of tokens computed in one way: ``decoded`` ones one by one, as they were generated, others at once."""

    tokens: Tokens
    decoded: bool = False

    def key(self) -> tuple[bool, bytes]:
        """What makes two segments the same."""
        return self.decoded, self.tokens.tobytes()
