"""Frames of JSON that no schema describes: any value, and objects of any members."""

from __future__ import annotations

from dataclasses import dataclass

from .automaton import ArrayItems, Frame, Frames, LiteralText, step
from .json_text import Number, StringBody

MAX_DEPTH = 8
_SCALARS = frozenset(b'"-0123456789tfn')
_WORDS = {0x74: b"rue", 0x66: b"alse", 0x6E: b"ull"}


@dataclass(frozen=True, slots=True)
class AnyValue(Frame):
    """Any JSON value with at most ``depth`` levels of nesting."""

    depth: int = MAX_DEPTH

    def next_bytes(self) -> frozenset[int]:
        return _SCALARS | frozenset(b"{[") if self.depth else _SCALARS

    def step(self, byte: int) -> Frames | None:
        if byte not in self.next_bytes():
            return None
        match byte:
            case 0x22:
                return (StringBody(),)
            case 0x7B:
                return (AnyMembers(self.depth - 1),)
            case 0x5B:
                return (ArrayItems((AnyValue(self.depth - 1),), 0, None),)
        return (LiteralText(_WORDS[byte]),) if byte in _WORDS else step((Number(),), byte)


@dataclass(frozen=True, slots=True)
class AnyMembers(Frame):
    """The inside of an object with any members, and its closing brace."""

    depth: int
    first: bool = True

    def next_bytes(self) -> frozenset[int]:
        return frozenset(b'}"' if self.first else b"},")

    def step(self, byte: int) -> Frames | None:
        if byte not in self.next_bytes():
            return None
        if byte == 0x7D:
            return ()
        pair = (StringBody(), LiteralText(b": "), AnyValue(self.depth), AnyMembers(self.depth, False))
        return pair if self.first else (LiteralText(b' "'), *pair)
