"""Frames of JSON values that no schema describes: any value, and objects of any keys."""

from __future__ import annotations

from dataclasses import dataclass

from .automaton import Frame, Frames, Items, Literal, step
from .json_text import Number, Text

MAX_DEPTH = 8
_SCALARS = frozenset(b'"-0123456789tfn')
_WORDS = {0x74: b"rue", 0x66: b"alse", 0x6E: b"ull"}


@dataclass(frozen=True, slots=True)
class Anything(Frame):
    """Any JSON value, nested ``depth`` deep at most."""

    depth: int = MAX_DEPTH

    def firsts(self) -> frozenset[int]:
        return _SCALARS | frozenset(b"{[") if self.depth else _SCALARS

    def step(self, byte: int) -> Frames | None:
        if byte not in self.firsts():
            return None
        match byte:
            case 0x22:
                return (Text(),)
            case 0x7B:
                return (Pairs(self.depth - 1),)
            case 0x5B:
                return (Items((Anything(self.depth - 1),), 0, None),)
        return (Literal(_WORDS[byte]),) if byte in _WORDS else step((Number(),), byte)


@dataclass(frozen=True, slots=True)
class Pairs(Frame):
    """The inside of an object of any keys and values, and its closing brace."""

    depth: int
    first: bool = True

    def firsts(self) -> frozenset[int]:
        return frozenset(b'}"' if self.first else b"},")

    def step(self, byte: int) -> Frames | None:
        if byte not in self.firsts():
            return None
        if byte == 0x7D:
            return ()
        pair = (Text(), Literal(b": "), Anything(self.depth), Pairs(self.depth, False))
        return pair if self.first else (Literal(b' "'), *pair)
