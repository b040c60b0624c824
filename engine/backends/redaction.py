"""Redaction of keys in all texts from an endpoint or the network, in any form.

Forms: literal; in other letter case; escaped for JSON, Python or HTML (all or some characters, once or twice);
percent-encoded; in hexadecimal; inside base64 (an echoed basic login), once or twice. Texts may be of any length: the
search is linear, and a stream holds back only what may be the beginning of a key.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from html.entities import html5
from itertools import starmap

MASK = "***"
# Shorter keys, and plain words, are placeholders for endpoints that accept any key: a model may well say them.
_SHORTEST_IN_ANSWERS = 8
_WORDS = re.compile(r"[A-Za-z]{1,19}|[A-Za-z]+([-_ .][A-Za-z]+){1,4}")
# Every escaped form contains one of these.
_MARKS = ("\\", "%", "&")
_SHORTEST_FRAGMENT = 8
_LONGEST_QUOTED = 1 << 16
_LONGEST_ESCAPE = 40
_ALPHANUMERIC_RUN = re.compile(r"[A-Za-z0-9]+")
_ENTITIES = [(meaning, name) for name, meaning in html5.items() if meaning.isascii() and name.endswith(";")]


class _Spelling:
    """A spelling of a key: a text whose characters may be escaped.

    `escaped` are the characters that may be escaped; default: all. `folded` means any letter case, `word` only as a
    separate word.
    """

    def __init__(self, text: str, escaped: str | None = None, *, folded: bool = False, word: bool = False) -> None:
        escaped = text if escaped is None else escaped
        self.text = text.lower() if folded else text
        self.folded = folded
        self.is_plain = not folded and not set(escaped) & set(text)
        # Every text that contains this spelling contains the probe. If all characters may be escaped, this is true
        # of unescaped spellings only.
        self.probe = self.text if escaped == text else max(_ALPHANUMERIC_RUN.findall(self.text), key=len, default="")
        self.hides = escaped == text
        self._characters = [(character, folded, character in escaped) for character in text]
        self._whole_word = word
        self.first = {text[0]} | ({text[0].lower(), text[0].upper()} if folded else set())
        self.first |= set(_MARKS) if text[0] in escaped else set()
        self.longest = sum(_LONGEST_ESCAPE if character in escaped else 1 for character in text)

    # Compiled on first use: most backends never see their key come back.
    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return the pattern of this spelling."""
        pattern = "".join(starmap(_forms, self._characters))
        return re.compile(_word(pattern) if self._whole_word else pattern)

    @cached_property
    def steps(self) -> list[re.Pattern[str]]:
        """Return the pattern of each of its characters."""
        return [re.compile(_forms(*character)) for character in self._characters]

    def may_begin(self, text: str, at: int) -> bool:
        """Return True if this spelling may begin at a position of an incomplete text."""
        if self.is_plain:
            return len(text) - at < len(self.text) and self.text.startswith(text[at:])
        reached = {at}  # several positions: of a key with a "u", both r"\u" and r"\u0075" may be this character
        for step in self.steps:
            ends = set[int]()
            for position in reached:
                if text[position] not in _MARKS:
                    ends |= {position + 1} if step.match(text, position) else set()
                elif len(text) - position < _LONGEST_ESCAPE:
                    return True  # possibly an incomplete escape
                else:
                    last = position + _LONGEST_ESCAPE
                    ends.update(end for end in range(position + 1, last + 1) if step.fullmatch(text, position, end))
            if len(text) in ends:
                return True
            if not ends:
                return False
            reached = ends
        return False

    def masked_if_whole(self, match: re.Match[str]) -> str:
        """Return the mask for a match; the match itself if following text may belong to it (an entity's semicolon)."""
        is_open = "&" in match[0][-_LONGEST_ESCAPE:] and not match[0].endswith(";")
        return match[0] if is_open and match.end() == len(match.string) else MASK


class Redactor:
    """Redactor of one backend's key; without a key it changes nothing."""

    def __init__(self, key: str | None) -> None:
        self.key = key or ""
        self._spoken = len(self.key) >= _SHORTEST_IN_ANSWERS and not _WORDS.fullmatch(self.key)
        self._spellings = _spellings(self.key, self._spoken) if self.key else []
        self._shortest = min((len(spelling.text) for spelling in self._spellings), default=0)
        self.longest = max((spelling.longest for spelling in self._spellings), default=0)
        self._by_first: dict[str, list[_Spelling]] = {}
        for spelling in self._spellings:
            for character in spelling.first:
                self._by_first.setdefault(character, []).append(spelling)
        self._first = re.compile(f"[{re.escape(''.join(self._by_first))}]") if self._by_first else None

    def __call__(self, text: str) -> str:
        """Return the text without the key."""
        for spelling in self._suspected(text):
            text = spelling.pattern.sub(MASK, text)
        return text

    def answer(self, text: str) -> str:
        """Return a model's text without the key, unless the key is a placeholder (`EMPTY`) rather than a secret."""
        return self(text) if self._spoken else text

    def quote(self, data: bytes, longest: int) -> str:
        """Return the first `longest` characters of an endpoint's data without the key, for an error message."""
        return self.cut(data[: _LONGEST_QUOTED + 1].decode("utf-8", "replace"), longest)

    def cut(self, text: str, longest: int) -> str:
        """Return a text's first `longest` characters, redacted before the cut: half a key would not be recognised."""
        redacted = self(text[:_LONGEST_QUOTED])
        return (redacted if len(text) <= _LONGEST_QUOTED else redacted[: self.begins_at(redacted)])[:longest]

    def stream(self, hand_on: Callable[[str], None]) -> RedactedStream:
        """Return a receiver of text pieces that passes them on without the key."""
        return RedactedStream(self, hand_on)

    def begins_at(self, text: str) -> int:
        """Return where an incomplete key may begin at the end of a text; the text's length if nowhere."""
        if self._first is None:
            return len(text)
        for match in self._first.finditer(text, max(0, len(text) - self.longest)):
            at = match.start()
            if any(spelling.may_begin(text, at) for spelling in self._by_first[match[0]]):
                return at
        return len(text)

    def _suspected(self, text: str) -> Sequence[_Spelling]:
        """Return the spellings that a text may contain: a cheap check, because nearly all texts contain none."""
        if len(text) < self._shortest:
            return ()
        marked = any(mark in text for mark in _MARKS) or (" " in self.key and "+" in text)
        lowered = text.lower()
        return [
            spelling
            for spelling in self._spellings
            if spelling.probe in (lowered if spelling.folded else text) or (marked and spelling.hides)
        ]

    def _begun(self, text: str) -> str:
        """Redact an incomplete text, except a key that may continue: `begins_at` finds it."""
        for spelling in self._suspected(text):
            text = spelling.pattern.sub(spelling.masked_if_whole, text)
        return text


class MultiRedactor(Redactor):
    """Redactor of several keys. `key` is the longest of them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._each = [Redactor(key) for key in sorted({*keys} - {""}, key=lambda key: (-len(key), key))]
        self.key = self._each[0].key if self._each else ""

    def __call__(self, text: str) -> str:
        for redactor in self._each:
            text = redactor(text)
        return text

    def answer(self, text: str) -> str:
        for redactor in self._each:
            text = redactor.answer(text)
        return text

    def begins_at(self, text: str) -> int:
        return min((redactor.begins_at(text) for redactor in self._each), default=len(text))

    def stream(self, hand_on: Callable[[str], None]) -> RedactedStream:
        return _MultiRedactedStream(self._each, hand_on)


def make_redactor(keys: Iterable[str | None]) -> Redactor:
    """Return a redactor of these keys."""
    known = {key for key in keys if key}
    return MultiRedactor(known) if len(known) > 1 else Redactor(next(iter(known), None))


class RedactedStream:
    """Redacting stream: the possible beginning of a key waits for the next piece. Call `finish` at the end."""

    def __init__(self, redactor: Redactor, hand_on: Callable[[str], None]) -> None:
        self._redactor, self._hand_on = redactor, hand_on
        self._buffered = ""

    def feed(self, piece: str) -> None:
        """Add a piece."""
        if not self._redactor._spoken:
            self._hand_on(piece)
            return
        text = self._redactor._begun(self._buffered + piece)
        sure = self._redactor.begins_at(text)
        self._buffered = text[sure:]
        if sure:
            self._hand_on(text[:sure])

    def finish(self) -> None:
        """End the text."""
        if self._buffered:
            buffered, self._buffered = self._redactor(self._buffered), ""
            self._hand_on(buffered)


class _MultiRedactedStream(RedactedStream):
    """A stream through several redactors in turn."""

    def __init__(self, each: Sequence[Redactor], hand_on: Callable[[str], None]) -> None:
        self._chain: list[RedactedStream] = []
        for redactor in each:
            self._chain.append(RedactedStream(redactor, hand_on))
            hand_on = self._chain[-1].feed
        self._first = hand_on

    def feed(self, piece: str) -> None:
        self._first(piece)

    def finish(self) -> None:
        for stream in reversed(self._chain):  # each passes its held text on to the next
            stream.finish()


def is_usable_key(key: str) -> bool:
    """Return True if a key can be sent in a header and redacted: printable ASCII without a backslash."""
    return key.isascii() and key.isprintable() and "\\" not in key


def _spellings(key: str, secret: bool) -> list[_Spelling]:
    once = _base64_fragments(key)
    twice = dict.fromkeys(outer for inner in once for outer in _base64_fragments(inner))
    spellings = [_Spelling(key, folded=secret, word=not secret)]
    if 2 * len(key) >= _SHORTEST_FRAGMENT:
        spellings.append(_Spelling(key.encode().hex(), "", folded=True))
    return spellings + [_Spelling(form, "+/_-") for form in (*once, *twice)]


@cache
def _forms(character: str, folded: bool, escaped: bool) -> str:
    """Return a pattern for one character in any of its forms.

    For a fast, linear search all repeats are bounded, and each form begins with a different character.
    """
    cases = dict.fromkeys((character, character.lower(), character.upper())) if folded else {character: None}
    plain = f"[{re.escape(''.join(cases))}]" if len(cases) > 1 else re.escape(character)
    if not escaped:
        return plain
    numbers = [ord(case) for case in cases]
    hexadecimal = "|".join(
        "".join(digit if digit.isdigit() else f"[{digit}{digit.upper()}]" for digit in f"{number:02x}")
        for number in numbers
    )
    decimal = "|".join(map(str, numbers))
    entities = [rf"#(?:0{{0,6}}(?:{decimal})|[xX]0{{0,6}}(?:{hexadecimal}));?"]
    entities += [name for meaning, name in _ENTITIES if meaning in cases]
    forms = [
        plain,
        rf"\\{{1,8}}+(?:[uU]0{{0,6}}(?:{hexadecimal})|x(?:{hexadecimal})|{plain})",
        rf"%(?:25){{0,3}}(?:{hexadecimal})",
        rf"&(?:amp;){{0,3}}(?:{'|'.join(entities)})",
    ]
    if character == " ":
        forms.append(r"\+")
    return "(?:" + "|".join(forms) + ")"


def _word(pattern: str) -> str:
    """Return the pattern between word boundaries, where the last letter of an escape counts as a boundary."""
    return rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{{2}})){pattern}(?![A-Za-z0-9])"


def _base64_fragments(text: str) -> list[str]:
    """Return the parts of a text's base64 that do not depend on its neighbours, for each of three offsets."""
    fragments: dict[str, None] = {}
    data = text.encode()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        start = (before * 8 + 5) // 6  # characters that also contain bits of the preceding text are left out
        end = (before + len(data)) * 8 // 6
        fragment = encoded[start:end]
        if len(fragment) >= _SHORTEST_FRAGMENT:
            fragments |= dict.fromkeys((fragment, fragment.replace("+", "-").replace("/", "_")))
    return list(fragments)
