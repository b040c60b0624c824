"""Segments: runs of token ids computed in one way. Cached KV is found by segments, never by parts of one."""

from __future__ import annotations

from dataclasses import dataclass

from .native import Tokens


@dataclass(slots=True, frozen=True)
class Segment:
    """Token ids; ``decoded`` ones were computed one by one, as they were generated, others in one prefill."""

    tokens: Tokens
    decoded: bool = False

    def key(self) -> tuple[bool, bytes]:
        """What makes two segments equal."""
        return self.decoded, self.tokens.tobytes()
