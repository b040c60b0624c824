"""Frames of JSON strings and numbers, byte by byte.

The syntax is that of RFC 8259, narrowed to what every JSON parser accepts: strings are well-formed UTF-8 (the Unicode
Standard, table 3-7) with escaped surrogates in pairs, integers fit into 64 bits, other numbers are finite.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .automaton import Frame, Frames

_EMPTY: frozenset[int] = frozenset()
_DIGITS = frozenset(b"0123456789")


def _ranges(text: str) -> frozenset[int]:
    """Bytes in the notation of the standard: ``80..BF 22``."""
    found: set[int] = set()
    for part in text.split():
        low, _, high = part.partition("..")
        found |= set(range(int(low, 16), int(high or low, 16) + 1))
    return frozenset(found)


_TAIL, _HEX = _ranges("80..BF"), _ranges("30..39 41..46 61..66")
_D = _ranges("44 64")  # begins a surrogate: D800–DBFF is the first of a pair, DC00–DFFF the second
# The position within a character. In "text" each byte but the closing quotation mark begins a character.
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
    """The inside of a string and its closing quotation mark: ``minimum`` to ``maximum`` more characters.

    A character is a code point of the value: an escape is one, and so is a surrogate pair. ``maximum`` None: any
    number.
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
        """A frame that accepts the same texts of up to ``length`` bytes, with limits no larger than that."""
        maximum = None if self.maximum is None or self.maximum >= length else self.maximum
        return replace(self, minimum=min(self.minimum, length), maximum=maximum)


def state_after_text(data: bytes) -> tuple[str, int] | None:
    """The ``mode`` of a string after this piece of plain text, and the number of characters that begin in it.

    None if the text cannot begin at a character boundary, or holds a quotation mark, an escape or a control byte.
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

    ``mode`` is start, sign (after a minus), zero or digits; ``count`` digits have come, and ``order`` compares them
    with the limit's first digits: -1, 0 or 1.
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
LONGEST_NUMBER = 24  # the longest shortest form of a double has 24 characters: -2.2250738585072014e-308


@dataclass(frozen=True, slots=True)
class Number(Frame):
    """A number of up to 24 characters, of which ``count`` have come.

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
        # A mode in which a number may not end needs one more character, a digit.
        return self.count + 1 + (following not in _NUMBER_ENDS) <= LONGEST_NUMBER
