"""Free text in which a marker begins a constrained part: the frame of answers that may call functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .automaton import Frame, Frames

_ALL = frozenset(range(256))


@dataclass(frozen=True, slots=True)
class FreeText(Frame):
    """Free text. ``matched`` counts the bytes of the ``marker`` seen so far; after a whole marker ``call`` follows.

    ``first``: only the very beginning of the text can be a marker. ``again``: free text continues after a call. ``key``
    stands for the call: free text with the same marker and key is equal.
    """

    marker: bytes
    key: bytes
    call: Frames = field(compare=False, repr=False)
    first: bool = False
    again: bool = True
    matched: int = 0

    @property
    def can_end(self) -> bool:
        return True

    def next_bytes(self) -> frozenset[int]:
        return _ALL

    def step(self, byte: int) -> Frames | None:
        if not self.marker:
            return (self,)
        seen = self.marker[: self.matched] + bytes([byte])
        if self.first:
            if not self.marker.startswith(seen):
                return (replace(self, marker=b"", matched=0),)
        else:
            while not self.marker.startswith(seen):
                seen = seen[1:]
        if len(seen) < len(self.marker):
            return (replace(self, matched=len(seen)),)
        return (*self.call, replace(self, matched=0)) if self.again else self.call

    def marker_candidates(self) -> tuple[frozenset[int], bytes]:
        """Which tokens may complete a marker: those that begin with one of these bytes, or contain the second value."""
        if not self.marker:
            return frozenset(), b""
        if self.first:
            return frozenset(self.marker[self.matched : self.matched + 1]), b""
        seen = self.marker[: self.matched]
        sizes = [size for size in range(1, len(seen) + 1) if seen.endswith(self.marker[:size])]
        return frozenset(self.marker[size] for size in sizes), self.marker[:1]
