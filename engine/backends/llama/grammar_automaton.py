"""A byte automaton for constrained text: which bytes may come next, and what remains after a byte.

What remains is a tuple of frames, the innermost first. Each frame is a piece of text still to come; `()` is complete.
Frames are values: equal frames accept equal texts. No frame is a dead end. JSON follows RFC 8259, narrowed to what
every parser accepts: strings are well-formed UTF-8 (the Unicode Standard, table 3-7) with escaped surrogates in pairs,
integers fit into 64 bits, other numbers are finite.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

_EMPTY: frozenset[int] = frozenset()
_INTEGER = re.compile(rb"-?\d+")


class Frame(ABC):
    """A piece of text still to come. `can_end` is True if nothing more of it is required."""

    __slots__ = ()

    @property
    def can_end(self) -> bool:
        return False

    @abstractmethod
    def next_bytes(self) -> frozenset[int]:
        """Return the bytes that this frame allows next."""

    @abstractmethod
    def step(self, byte: int) -> Frames | None:
        """Return what remains after a byte; None if the byte is not among `next_bytes`."""


Frames = tuple[Frame, ...]


def next_bytes(frames: Frames) -> frozenset[int]:
    """Return the bytes that may come next."""
    if not frames:
        return _EMPTY
    result = frames[0].next_bytes()
    return result | next_bytes(frames[1:]) if frames[0].can_end else result


def step(frames: Frames, byte: int) -> Frames | None:
    """Return what remains after a byte; None if the byte is not allowed.

    A frame that can end still takes a byte that it allows; in JSON, the text after a value never begins with such a
    byte.
    """
    if not frames:
        return None
    left = frames[0].step(byte)
    if left is not None:
        return left + frames[1:]
    return step(frames[1:], byte) if frames[0].can_end else None


def may_end(frames: Frames) -> bool:
    """Return True if the text may end here."""
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
    """A choice of fixed values, sorted, after `consumed` bytes.

    `all_open` is True while no value is excluded. Values may begin with another value (10 with 1): if `consumed` bytes
    complete that value, the text may end or continue.
    """

    options: tuple[bytes, ...]
    consumed: int = 0
    all_open: bool = True

    @property
    def can_end(self) -> bool:
        return len(self.options[0]) == self.consumed

    def next_bytes(self) -> frozenset[int]:
        return frozenset(option[self.consumed] for option in self.options if len(option) > self.consumed)

    def step(self, byte: int) -> Frames | None:
        used = self.consumed
        left = tuple(option for option in self.options if len(option) > used and option[used] == byte)
        if len(left) > 1:
            return (FixedValues(left, used + 1, self.all_open and len(left) == len(self.options)),)
        if not left:
            return None
        return (LiteralText(left[0][used + 1 :]),) if len(left[0]) > used + 1 else ()

    def score_values(self) -> Mapping[bytes, int] | None:
        """Return each value by its remaining text if all are integers and none is excluded; else None."""
        if not self.all_open or not all(_INTEGER.fullmatch(option) for option in self.options):
            return None
        return {option[self.consumed :]: int(option) for option in self.options}


@dataclass(frozen=True, slots=True)
class DistinctBranches(Frame):
    """A choice of texts that differ in their first byte."""

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
    """A choice of texts that may begin alike, limited to those still open. Created by `one_of`."""

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
    """Return a choice of texts. A common first frame is put before the choice, so equal branches become one."""
    results: dict[Frames, None] = {}
    for branch in branches:
        parts = branch[0].branches if len(branch) == 1 and isinstance(branch[0], OpenBranches) else (branch,)
        results |= dict.fromkeys(parts)
    heads: dict[Frame | None, list[Frames]] = {}
    for branch in results:
        heads.setdefault(branch[0] if branch else None, []).append(branch)
    texts = tuple(
        (head, *one_of([branch[1:] for branch in equivalent])) if head is not None else ()
        for head, equivalent in heads.items()
    )
    return texts[0] if len(texts) == 1 else (OpenBranches(texts),)


@dataclass(frozen=True, slots=True)
class ObjectMembers(Frame):
    """The inside of an object and its closing brace. Each remaining member may come, in order.

    `remaining` has (key, frames of the value, True if required) of each remaining member. `first` is True before any
    member.
    """

    remaining: tuple[tuple[bytes, Frames, bool], ...]
    first: bool = True

    def next_bytes(self) -> frozenset[int]:
        closing = frozenset(b"}") if not any(needed for _, _, needed in self.remaining) else _EMPTY
        return closing | (frozenset(b'"' if self.first else b",") if self.remaining else _EMPTY)

    def step(self, byte: int) -> Frames | None:
        if byte not in self.next_bytes():
            return None
        if byte == 0x7D:
            return ()
        ways: list[tuple[bytes, Frames]] = []
        for index, (key, value, needed) in enumerate(self.remaining):
            ways.append((key[1:] + b": ", (*value, ObjectMembers(self.remaining[index + 1 :], False))))
            if needed:
                break
        return one_by_prefix(ways) if self.first else (LiteralText(b' "'), *one_by_prefix(ways))


def one_by_prefix(ways: Sequence[tuple[bytes, Frames]]) -> Frames:
    """Return a choice of texts, none a prefix of another, each with the frames that follow it."""
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
    """The inside of an array and its closing bracket: `minimum` to `maximum` more items (None: any number).

    `first` is True directly after the opening bracket.
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


_DIGITS = frozenset(b"0123456789")


def _ranges(text: str) -> frozenset[int]:
    """Return the bytes in the notation of the standard: `80..BF 22`."""
    result: set[int] = set()
    for part in text.split():
        low, _, high = part.partition("..")
        result |= set(range(int(low, 16), int(high or low, 16) + 1))
    return frozenset(result)


_TAIL, _HEX = _ranges("80..BF"), _ranges("30..39 41..46 61..66")
_D = _ranges("44 64")  # begins a surrogate: D800–DBFF is the first of a pair, DC00–DFFF the second
# For each position within a character: bytes that may come, and the position after them. In "text" each byte except the
# closing quotation mark begins a character.
_IN_CHARACTER: dict[str, list[tuple[frozenset[int], str]]] = {
    "text": [
        (_ranges("20..21 23..5B 5D..7F"), "text"),
        (_ranges("5C"), "escape"),
        (_ranges("C2..DF"), "tail1"),
        (_ranges("E0"), "after E0"),
        (_ranges("E1..EC EE..EF"), "tail2"),
        (_ranges("ED"), "after ED"),
        (_ranges("F0"), "after F0"),
        (_ranges("F1..F3"), "tail3"),
        (_ranges("F4"), "after F4"),
    ],
    "after E0": [(_ranges("A0..BF"), "tail1")],
    "after ED": [(_ranges("80..9F"), "tail1")],
    "after F0": [(_ranges("90..BF"), "tail2")],
    "after F4": [(_ranges("80..8F"), "tail2")],
    "tail3": [(_TAIL, "tail2")],
    "tail2": [(_TAIL, "tail1")],
    "tail1": [(_TAIL, "text")],
    "escape": [(frozenset(b'"\\/bfnrt'), "text"), (frozenset(b"u"), "hex4")],
    "hex4": [(_HEX - _D, "hex3"), (_D, "surrogate")],
    "hex3": [(_HEX, "hex2")],
    "hex2": [(_HEX, "hex1")],
    "hex1": [(_HEX, "text")],
    "surrogate": [(_ranges("30..37"), "hex2"), (_ranges("38..39 41..42 61..62"), "high2")],
    "high2": [(_HEX, "high1")],
    "high1": [(_HEX, "pair")],
    "pair": [(frozenset(b"\\"), "pair u")],
    "pair u": [(frozenset(b"u"), "pair d")],
    "pair d": [(_D, "pair low")],
    "pair low": [(_ranges("43..46 63..66"), "hex2")],
}
_TEXT_STEPS = {mode: {byte: to for bytes_, to in ways for byte in bytes_} for mode, ways in _IN_CHARACTER.items()}
_TEXT_FIRSTS = {mode: frozenset(steps) for mode, steps in _TEXT_STEPS.items()}
_QUOTE = frozenset(b'"')
_TEXT_OR_QUOTE = _TEXT_FIRSTS["text"] | _QUOTE


@dataclass(frozen=True, slots=True)
class StringBody(Frame):
    """The inside of a string and its closing quotation mark: `minimum` to `maximum` more characters.

    A character is a code point of the value: an escape counts as one, and so does a surrogate pair. `maximum` is None
    if there is no limit.
    """

    minimum: int = 0
    maximum: int | None = None
    mode: str = "text"

    def next_bytes(self) -> frozenset[int]:
        if self.mode != "text":
            return _TEXT_FIRSTS[self.mode]
        if self.maximum == 0:
            return _QUOTE
        return _TEXT_FIRSTS["text"] if self.minimum else _TEXT_OR_QUOTE

    def step(self, byte: int) -> Frames | None:
        following = _TEXT_STEPS[self.mode].get(byte)
        if self.mode != "text":
            return None if following is None else (StringBody(self.minimum, self.maximum, following),)
        if following is None:
            return () if byte == 0x22 and not self.minimum else None
        if self.maximum == 0:
            return None
        return (StringBody(max(0, self.minimum - 1), None if self.maximum is None else self.maximum - 1, following),)

    def equivalent(self, length: int) -> StringBody:
        """Return a frame that accepts the same texts of up to `length` bytes, with no limit above `length`."""
        maximum = None if self.maximum is None or self.maximum >= length else self.maximum
        return replace(self, minimum=min(self.minimum, length), maximum=maximum)


def state_after_text(data: bytes) -> tuple[str, int] | None:
    """Return the `mode` of a string after a piece of plain text, and the number of characters that begin in it.

    None if the text cannot begin at a character boundary, or contains a quotation mark, an escape or a control byte.
    """
    mode, characters = "text", 0
    for byte in data:
        following = _TEXT_STEPS[mode].get(byte)
        if following is None or following == "escape":
            return None
        characters += mode == "text"
        mode = following
    return mode, characters


_LARGEST, _SMALLEST = str((1 << 63) - 1).encode(), str(1 << 63).encode()  # the limits of int64, in digits


@dataclass(frozen=True, slots=True)
class Integer(Frame):
    """An integer that fits into 64 bits with its sign, of up to 19 digits.

    `mode` is start, sign (after a minus), zero or digits. `count` is the number of digits so far. `order` is -1, 0 or
    1: these digits are smaller than, equal to or greater than the first `count` digits of the limit.
    """

    mode: str = "start"
    negative: bool = False
    count: int = 0
    order: int = 0

    @property
    def can_end(self) -> bool:
        return self.mode in ("zero", "digits")

    def next_bytes(self) -> frozenset[int]:
        limit = self._limit
        if self.mode == "start":
            return _DIGITS | frozenset(b"-")
        if self.mode == "zero" or self.count + (self.order > 0) >= len(limit):
            return _EMPTY
        if self.count + 1 == len(limit) and self.order == 0:
            return frozenset(range(0x30, limit[self.count] + 1))
        return _DIGITS

    def step(self, byte: int) -> Frames | None:
        if byte not in self.next_bytes():
            return None
        if byte == 0x2D:
            return (Integer("sign", True),)
        if byte == 0x30 and self.mode != "digits":
            return (Integer("zero", self.negative),)
        bound = self._limit[self.count]
        order = self.order or (byte > bound) - (byte < bound)
        return (Integer("digits", self.negative, self.count + 1, order),)

    @property
    def _limit(self) -> bytes:
        return _SMALLEST if self.negative else _LARGEST


_E = frozenset(b"eE")
_IN_NUMBER: dict[str, list[tuple[frozenset[int], str]]] = {
    "start": [(frozenset(b"-"), "sign"), (frozenset(b"0"), "zero"), (_DIGITS - {0x30}, "whole")],
    "sign": [(frozenset(b"0"), "zero"), (_DIGITS - {0x30}, "whole")],
    "zero": [(frozenset(b"."), "point"), (_E, "e")],
    "whole": [(_DIGITS, "whole"), (frozenset(b"."), "point"), (_E, "e")],
    "point": [(_DIGITS, "fraction")],
    "fraction": [(_DIGITS, "fraction"), (_E, "e")],
    "e": [(frozenset(b"+"), "plus"), (frozenset(b"-"), "minus"), (_DIGITS, "last but one")],
    "plus": [(_DIGITS, "last but one")],
    "minus": [(_DIGITS, "last but two")],
    "last but two": [(_DIGITS, "last but one")],
    "last but one": [(_DIGITS, "last")],
    "last": [],
}
_NUMBER_ENDS = {"zero", "whole", "fraction", "last but two", "last but one", "last"}
LONGEST_NUMBER = 24  # no double needs more in its shortest form: -2.2250738585072014e-308


@dataclass(frozen=True, slots=True)
class Number(Frame):
    """A number of up to 24 characters, of which `count` have come.

    An exponent has two digits, or three after a minus, so every number is finite: parsers refuse 1e999.
    """

    mode: str = "start"
    count: int = 0

    @property
    def can_end(self) -> bool:
        return self.mode in _NUMBER_ENDS

    def next_bytes(self) -> frozenset[int]:
        return frozenset().union(*(bytes_ for bytes_, following in _IN_NUMBER[self.mode] if self._fits(following)))

    def step(self, byte: int) -> Frames | None:
        for bytes_, following in _IN_NUMBER[self.mode]:
            if byte in bytes_:
                return (Number(following, self.count + 1),) if self._fits(following) else None
        return None

    def _fits(self, following: str) -> bool:
        # In a mode in which a number may not end, the number needs one more character, a digit.
        return self.count + 1 + (following not in _NUMBER_ENDS) <= LONGEST_NUMBER


MAX_DEPTH = 8
_SCALAR_FIRSTS = frozenset(b'"-0123456789tfn')
_WORDS = {0x74: b"rue", 0x66: b"alse", 0x6E: b"ull"}


@dataclass(frozen=True, slots=True)
class AnyValue(Frame):
    """Any JSON value with at most `depth` levels of nesting."""

    depth: int = MAX_DEPTH

    def next_bytes(self) -> frozenset[int]:
        return _SCALAR_FIRSTS | frozenset(b"{[") if self.depth else _SCALAR_FIRSTS

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


_ALL_BYTES = frozenset(range(256))


@dataclass(frozen=True, slots=True)
class FreeText(Frame):
    """Free text. `matched` counts the bytes of the `marker` seen so far; `call` follows a complete marker.

    If `first` is set, only the very beginning of the text can be a marker. If `repeats` is set, free text continues
    after a call. `key` identifies the call: free texts with the same marker and key are equal.
    """

    marker: bytes
    key: bytes
    call: Frames = field(compare=False, repr=False)
    first: bool = False
    repeats: bool = True
    matched: int = 0

    @property
    def can_end(self) -> bool:
        return True

    def next_bytes(self) -> frozenset[int]:
        return _ALL_BYTES

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
        return (*self.call, replace(self, matched=0)) if self.repeats else self.call

    def marker_candidates(self) -> tuple[frozenset[int], bytes]:
        """Return (bytes, text): tokens that may complete a marker begin with one of the bytes or contain the text."""
        if not self.marker:
            return frozenset(), b""
        if self.first:
            return frozenset(self.marker[self.matched : self.matched + 1]), b""
        seen = self.marker[: self.matched]
        sizes = [size for size in range(1, len(seen) + 1) if seen.endswith(self.marker[:size])]
        return frozenset(self.marker[size] for size in sizes), self.marker[:1]
