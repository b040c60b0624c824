"""A byte automaton for JSON text: which bytes may come next, and what remains after a byte.

What remains is a tuple of frames, the innermost first. Each frame is a piece of text still to come; ``()`` is complete.
Frames are values: equal frames accept equal texts. No frame is a dead end.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_EMPTY: frozenset[int] = frozenset()
_INTEGER = re.compile(rb"-?\d+")


class Frame(ABC):
    """A piece of text still to come. ``can_end``: nothing more of it is required."""

    __slots__ = ()

    @property
    def can_end(self) -> bool:
        return False

    @abstractmethod
    def next_bytes(self) -> frozenset[int]:
        """The bytes with which it can continue."""

    @abstractmethod
    def step(self, byte: int) -> Frames | None:
        """What remains of it after a byte, None if the byte is not among ``next_bytes``."""


Frames = tuple[Frame, ...]


def next_bytes(frames: Frames) -> frozenset[int]:
    """The bytes that may come next."""
    if not frames:
        return _EMPTY
    found = frames[0].next_bytes()
    return found | next_bytes(frames[1:]) if frames[0].can_end else found


def step(frames: Frames, byte: int) -> Frames | None:
    """What remains after a byte, None if the byte is not allowed.

    A frame that can end takes the byte if it can; in JSON, what follows a value never begins with such a byte.
    """
    if not frames:
        return None
    left = frames[0].step(byte)
    if left is not None:
        return left + frames[1:]
    return step(frames[1:], byte) if frames[0].can_end else None


def may_end(frames: Frames) -> bool:
    """Whether the text may end here."""
    return all(frame.can_end for frame in frames)


@dataclass(frozen=True, slots=True)
class LiteralText(Frame):
    """Exactly this text, which is not empty."""

    text: bytes

    def next_bytes(self) -> frozenset[int]:
        return frozenset(self.text[:1])

    def step(self, byte: int) -> Frames | None:
        if self.text[0] != byte:
            return None
        return (LiteralText(self.text[1:]),) if len(self.text) > 1 else ()


@dataclass(frozen=True, slots=True)
class FixedValues(Frame):
    """One of several fixed values, sorted, of which ``taken`` bytes have come. ``whole``: none of them is excluded yet.

    A value that is a prefix of another (1 of 10) has no text left, and ends where the text continues otherwise.
    """

    options: tuple[bytes, ...]
    taken: int = 0
    whole: bool = True

    @property
    def can_end(self) -> bool:
        return len(self.options[0]) == self.taken

    def next_bytes(self) -> frozenset[int]:
        return frozenset(option[self.taken] for option in self.options if len(option) > self.taken)

    def step(self, byte: int) -> Frames | None:
        taken = self.taken
        left = tuple(option for option in self.options if len(option) > taken and option[taken] == byte)
        if len(left) > 1:
            return (FixedValues(left, taken + 1, self.whole and len(left) == len(self.options)),)
        if not left:
            return None
        return (LiteralText(left[0][taken + 1 :]),) if len(left[0]) > taken + 1 else ()

    def score_values(self) -> Mapping[bytes, int] | None:
        """The remaining text of each value, and the value, if all are integers and none is excluded; else None."""
        if not self.whole or not all(_INTEGER.fullmatch(option) for option in self.options):
            return None
        return {option[self.taken :]: int(option) for option in self.options}


@dataclass(frozen=True, slots=True)
class DistinctBranches(Frame):
    """One of several texts that differ in their first byte."""

    branches: tuple[Frames, ...]

    def next_bytes(self) -> frozenset[int]:
        return frozenset().union(*map(next_bytes, self.branches))

    def step(self, byte: int) -> Frames | None:
        for branch in self.branches:
            after = step(branch, byte)
            if after is not None:
                return after
        return None


@dataclass(frozen=True, slots=True)
class OpenBranches(Frame):
    """One of several texts that may begin alike: those that the text so far leaves open. Made by ``one_of``."""

    branches: tuple[Frames, ...]

    @property
    def can_end(self) -> bool:
        return any(map(may_end, self.branches))

    def next_bytes(self) -> frozenset[int]:
        return frozenset().union(*map(next_bytes, self.branches))

    def step(self, byte: int) -> Frames | None:
        after = [left for branch in self.branches if (left := step(branch, byte)) is not None]
        return one_of(after) if after else None


def one_of(branches: Sequence[Frames]) -> Frames:
    """One of several texts. A common first frame is put before the choice, so equal branches become one."""
    found: dict[Frames, None] = {}
    for branch in branches:
        parts = branch[0].branches if len(branch) == 1 and isinstance(branch[0], OpenBranches) else (branch,)
        found |= dict.fromkeys(parts)
    heads: dict[Frame | None, list[Frames]] = {}
    for branch in found:
        heads.setdefault(branch[0] if branch else None, []).append(branch)
    texts = tuple(
        (head, *one_of([branch[1:] for branch in equivalent])) if head is not None else ()
        for head, equivalent in heads.items()
    )
    return texts[0] if len(texts) == 1 else (OpenBranches(texts),)


@dataclass(frozen=True, slots=True)
class ObjectMembers(Frame):
    """The inside of an object and its closing brace. Of the members that are left each may come, in their order.

    ``left`` holds a member's key, its value's frames, and whether it is required. ``first``: no member has come yet.
    """

    left: tuple[tuple[bytes, Frames, bool], ...]
    first: bool = True

    def next_bytes(self) -> frozenset[int]:
        closing = frozenset(b"}") if not any(needed for _, _, needed in self.left) else _EMPTY
        return closing | (frozenset(b'"' if self.first else b",") if self.left else _EMPTY)

    def step(self, byte: int) -> Frames | None:
        if byte not in self.next_bytes():
            return None
        if byte == 0x7D:
            return ()
        ways: list[tuple[bytes, Frames]] = []
        for index, (key, value, needed) in enumerate(self.left):
            ways.append((key[1:] + b": ", (*value, ObjectMembers(self.left[index + 1 :], False))))
            if needed:
                break
        return one_by_prefix(ways) if self.first else (LiteralText(b' "'), *one_by_prefix(ways))


def one_by_prefix(ways: Sequence[tuple[bytes, Frames]]) -> Frames:
    """One of several texts, each with the frames that follow it. None of the texts is a prefix of another."""
    lowest, highest = min(text for text, _ in ways), max(text for text, _ in ways)
    size = next((at for at, byte in enumerate(lowest) if highest[at] != byte), len(lowest))
    if len(ways) == 1:
        text, frames = ways[0]
        return (LiteralText(text), *frames) if text else frames
    if size:
        return (LiteralText(lowest[:size]), *one_by_prefix([(text[size:], frames) for text, frames in ways]))
    by_first: dict[int, list[tuple[bytes, Frames]]] = {}
    for text, frames in ways:
        by_first.setdefault(text[0], []).append((text, frames))
    return (DistinctBranches(tuple(map(one_by_prefix, by_first.values()))),)


@dataclass(frozen=True, slots=True)
class ArrayItems(Frame):
    """The inside of an array and its closing bracket: ``minimum`` to ``maximum`` more items (None: any number).

    ``first``: nothing has come since the opening bracket.
    """

    item: Frames
    minimum: int
    maximum: int | None
    first: bool = True

    def next_bytes(self) -> frozenset[int]:
        closing = _EMPTY if self.minimum else frozenset(b"]")
        if self.maximum == 0:
            return closing
        return closing | (next_bytes(self.item) if self.first else frozenset(b","))

    def step(self, byte: int) -> Frames | None:
        if byte == 0x5D and not self.minimum:
            return ()
        if self.maximum == 0:
            return None
        after = ArrayItems(
            self.item, max(0, self.minimum - 1), None if self.maximum is None else self.maximum - 1, first=False
        )
        if not self.first:
            return (LiteralText(b" "), *self.item, after) if byte == 0x2C else None
        first_item = step(self.item, byte)
        return None if first_item is None else (*first_item, after)
