"""Free text in which a marker may begin a constrained part: the frame of answers that may call functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .automaton import Frame, Frames

_ALL = frozenset(range(256))


@dataclass(frozen=True, slots=True)
class Prose(Frame):
    """Free text, of whose ``mark`` the first ``matched`` bytes have come; behind a whole mark stands a ``call``.

    ``first``: only the very beginning of the text can be a mark. ``again``: free text goes on behind a call. ``key``
    stands for the call: prose of one mark and one key is the same.
    """

    mark: bytes
    key: bytes
    call: Frames = field(compare=False, repr=False)
    first: bool = False
    again: bool = True
    matched: int = 0

    @property
    def ends(self) -> bool:
        return True

    def firsts(self) -> frozenset[int]:
        return _ALL

    def step(self, byte: int) -> Frames | None:
        if not self.mark:
            return (self,)
        seen = self.mark[: self.matched] + bytes([byte])
        if self.first:
            if not self.mark.startswith(seen):
                return (replace(self, mark=b"", matched=0),)
        else:
            while not self.mark.startswith(seen):
                seen = seen[1:]
        if len(seen) < len(self.mark):
            return (replace(self, matched=len(seen)),)
        return (*self.call, replace(self, matched=0)) if self.again else self.call

    def risky(self) -> tuple[frozenset[int], bytes]:
        """Which tokens may complete a mark: those that begin with one of these bytes, or hold this one."""
        if not self.mark:
            return frozenset(), b""
        if self.first:
            return frozenset(self.mark[self.matched : self.matched + 1]), b""
        seen = self.mark[: self.matched]
        sizes = [size for size in range(1, len(seen) + 1) if seen.endswith(self.mark[:size])]
        return frozenset(self.mark[size] for size in sizes), self.mark[:1]
