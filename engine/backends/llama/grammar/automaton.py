"""A byte automaton for JSON text: what may come next, and what is left when a byte has come.

What is left is a tuple of frames, the innermost first; each frame is a piece of text still to come, and ``()`` is
complete. Frames are values: equal frames go on in equal ways. None of them is a dead end.

What never belongs here: schemas, tokens, caches; how strings and numbers are spelt (``spelling``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_EMPTY: frozenset[int] = frozenset()
_INTEGER = re.compile(rb"-?\d+")


class Frame:
    """A piece of text still to come. ``ends``: it may be left here, without another byte."""

    __slots__ = ()

    @property
    def ends(self) -> bool:
        return False

    def firsts(self) -> frozenset[int]:
        """The bytes with which it can go on."""
        raise NotImplementedError

    def step(self, byte: int) -> Frames | None:
        """What is left of it after a byte, None if the byte is not one of ``firsts``."""
        raise NotImplementedError


Frames = tuple[Frame, ...]


def firsts(frames: Frames) -> frozenset[int]:
    """The bytes that may come next."""
    if not frames:
        return _EMPTY
    found = frames[0].firsts()
    return found | firsts(frames[1:]) if frames[0].ends else found


def step(frames: Frames, byte: int) -> Frames | None:
    """What is to come after a byte, None if the byte may not come.

    A frame that may be left takes the byte if it can; in JSON what follows a value never begins with such a byte.
    """
    if not frames:
        return None
    left = frames[0].step(byte)
    if left is not None:
        return left + frames[1:]
    return step(frames[1:], byte) if frames[0].ends else None


def may_end(frames: Frames) -> bool:
    """Whether the text may end here: what is left needs nothing more."""
    return all(frame.ends for frame in frames)


@dataclass(frozen=True, slots=True)
class Literal(Frame):
    """Just this text, which is not empty."""

    text: bytes

    def firsts(self) -> frozenset[int]:
        return frozenset(self.text[:1])

    def step(self, byte: int) -> Frames | None:
        if self.text[0] != byte:
            return None
        return (Literal(self.text[1:]),) if len(self.text) > 1 else ()


@dataclass(frozen=True, slots=True)
class Alternatives(Frame):
    """One of several values, sorted; of each ``taken`` has come. ``whole``: none of them is ruled out yet.

    A value that is the beginning of another (1 of 10) has no text left and ends where something else goes on.
    """

    options: tuple[bytes, ...]
    taken: int = 0
    whole: bool = True

    @property
    def ends(self) -> bool:
        return len(self.options[0]) == self.taken

    def firsts(self) -> frozenset[int]:
        return frozenset(option[self.taken] for option in self.options if len(option) > self.taken)

    def step(self, byte: int) -> Frames | None:
        taken = self.taken
        left = tuple(option for option in self.options if len(option) > taken and option[taken] == byte)
        if len(left) > 1:
            return (Alternatives(left, taken + 1, self.whole and len(left) == len(self.options)),)
        if not left:
            return None
        return (Literal(left[0][taken + 1 :]),) if len(left[0]) > taken + 1 else ()

    def scores(self) -> Mapping[bytes, int] | None:
        """What is left of each value's text, and the value, if all are integers and none is ruled out; else None."""
        if not self.whole or not all(_INTEGER.fullmatch(option) for option in self.options):
            return None
        return {option[self.taken :]: int(option) for option in self.options}


@dataclass(frozen=True, slots=True)
class Branches(Frame):
    """One of several texts, which differ in their first byte."""

    branches: tuple[Frames, ...]

    def firsts(self) -> frozenset[int]:
        return frozenset().union(*map(firsts, self.branches))

    def step(self, byte: int) -> Frames | None:
        for branch in self.branches:
            after = step(branch, byte)
            if after is not None:
                return after
        return None


@dataclass(frozen=True, slots=True)
class Overlap(Frame):
    """One of several texts that may begin alike: those that what has come so far leaves open. Made by ``either``."""

    branches: tuple[Frames, ...]

    @property
    def ends(self) -> bool:
        return any(map(may_end, self.branches))

    def firsts(self) -> frozenset[int]:
        return frozenset().union(*map(firsts, self.branches))

    def step(self, byte: int) -> Frames | None:
        after = [left for branch in self.branches if (left := step(branch, byte)) is not None]
        return either(after) if after else None


def either(branches: Sequence[Frames]) -> Frames:
    """One of several texts. What all of them begin with stands before the choice, so equal ones are one."""
    found: list[Frames] = []
    for branch in branches:
        parts = branch[0].branches if len(branch) == 1 and isinstance(branch[0], Overlap) else (branch,)
        found += [part for part in parts if part not in found]
    heads: dict[Frame | None, list[Frames]] = {}
    for branch in found:
        heads.setdefault(branch[0] if branch else None, []).append(branch)
    texts = tuple(
        (head, *either([branch[1:] for branch in alike])) if head is not None else () for head, alike in heads.items()
    )
    return texts[0] if len(texts) == 1 else (Overlap(texts),)


@dataclass(frozen=True, slots=True)
class Members(Frame):
    """The inside of an object and its closing brace: of what is left of its members each may come, in their order.

    ``left`` holds a member's key, its value's frames, and whether it must come. ``first``: none has come yet.
    """

    left: tuple[tuple[bytes, Frames, bool], ...]
    first: bool = True

    def firsts(self) -> frozenset[int]:
        closing = frozenset(b"}") if not any(needed for _, _, needed in self.left) else _EMPTY
        return closing | (frozenset(b'"' if self.first else b",") if self.left else _EMPTY)

    def step(self, byte: int) -> Frames | None:
        if byte not in self.firsts():
            return None
        if byte == 0x7D:
            return ()
        ways: list[tuple[bytes, Frames]] = []
        for index, (key, value, needed) in enumerate(self.left):
            ways.append((key[1:] + b": ", (*value, Members(self.left[index + 1 :], False))))
            if needed:
                break
        return parted(ways) if self.first else (Literal(b' "'), *parted(ways))


def parted(ways: Sequence[tuple[bytes, Frames]]) -> Frames:
    """One of several texts, each with what follows it; none is the beginning of another."""
    lowest, highest = min(text for text, _ in ways), max(text for text, _ in ways)
    size = next((at for at, byte in enumerate(lowest) if highest[at] != byte), len(lowest))
    if len(ways) == 1:
        text, frames = ways[0]
        return (Literal(text), *frames) if text else frames
    if size:
        return (Literal(lowest[:size]), *parted([(text[size:], frames) for text, frames in ways]))
    by_first: dict[int, list[tuple[bytes, Frames]]] = {}
    for text, frames in ways:
        by_first.setdefault(text[0], []).append((text, frames))
    return (Branches(tuple(map(parted, by_first.values()))),)


@dataclass(frozen=True, slots=True)
class Items(Frame):
    """The inside of an array and its closing bracket: ``least`` to ``most`` more items (None: any number).

    ``first``: nothing has come since the opening bracket.
    """

    item: Frames
    least: int
    most: int | None
    first: bool = True

    def firsts(self) -> frozenset[int]:
        closing = _EMPTY if self.least else frozenset(b"]")
        if self.most == 0:
            return closing
        return closing | (firsts(self.item) if self.first else frozenset(b","))

    def step(self, byte: int) -> Frames | None:
        if byte == 0x5D and not self.least:
            return ()
        if self.most == 0:
            return None
        after = Items(self.item, max(0, self.least - 1), None if self.most is None else self.most - 1, first=False)
        if not self.first:
            return (Literal(b" "), *self.item, after) if byte == 0x2C else None
        begun = step(self.item, byte)
        return None if begun is None else (*begun, after)
