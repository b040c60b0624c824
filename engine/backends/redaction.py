"""Redaction of keys in every text that came from an endpoint or from the network, whatever form they come back in.

Forms: as it is; in other letter case; escaped for JSON, Python or HTML, each character or some, once or twice
over; percent-encoded; in hexadecimal; inside base64 (an echoed basic login), once or twice over. Texts may be
of any length: the search is linear, and a stream holds back only what may be the beginning of a key.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from html.entities import html5
from itertools import starmap

MASK = "***"
# Shorter keys, and words alone, are placeholders for endpoints that want any key: a model may well say them.
_SHORTEST_IN_ANSWERS = 8
_WORDS = re.compile(r"[A-Za-z]{1,19}|[A-Za-z]+([-_ .][A-Za-z]+){1,4}")
# No escaped form does without one of these.
_MARKS = ("\\", "%", "&")
_SHORTEST_FRAGMENT = 8
_LONGEST_QUOTED = 1 << 16
_LONGEST_ESCAPE = 40
_ALPHANUMERIC_RUN = re.compile(r"[A-Za-z0-9]+")
_ENTITIES = [(meaning, name) for name, meaning in html5.items() if meaning.isascii() and name.endswith(";")]


class _Spelling:
    """One way to write a key: a text whose characters may be escaped.

    ``escaped`` are the characters that occur in escaped forms, all where none are named. ``folded``: in any letter
    case. ``whole``: only as a word of its own.
    """

    def __init__(self, text: str, escaped: str | None = None, *, folded: bool = False, word: bool = False) -> None:
        escaped = text if escaped is None else escaped
        self.text = text.lower() if folded else text
        self.folded = folded
        self.is_plain = not folded and not set(escaped) & set(text)
        # What stands in every text that holds this spelling, or holds it as it stands where all may be escaped.
        self.probe = self.text if escaped == text else max(_ALPHANUMERIC_RUN.findall(self.text), key=len, default="")
        self.hides = escaped == text
        self._characters = [(character, folded, character in escaped) for character in text]
        self._whole_word = word
        self.first = {text[0]} | ({text[0].lower(), text[0].upper()} if folded else set())
        self.first |= set(_MARKS) if text[0] in escaped else set()
        self.longest = sum(_LONGEST_ESCAPE if character in escaped else 1 for character in text)

    # Compiled where one is needed: most backends never see their key come back.
    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What this spelling matches."""
        pattern = "".join(starmap(_forms, self._characters))
        return re.compile(_word(pattern) if self._whole_word else pattern)

    @cached_property
    def steps(self) -> list[re.Pattern[str]]:
        """What each of its characters matches."""
        return [re.compile(_forms(*character)) for character in self._characters]

    def may_begin(self, text: str, at: int) -> bool:
        """Whether this spelling may begin at a place in a text of which the rest is still to come."""
        if self.is_plain:
            return len(text) - at < len(self.text) and self.text.startswith(text[at:])
        reached = {at}  # several places: of a key with a "u", both r"\u" and r"\u0075" may be this character
        for step in self.steps:
            ends = set[int]()
            for position in reached:
                if text[position] not in _MARKS:
                    ends |= {position + 1} if step.match(text, position) else set()
                elif len(text) - position < _LONGEST_ESCAPE:
                    return True  # perhaps an escape of which only the beginning has come
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
        """The mask for a match, but the match itself if what comes behind the text may belong to it: the semicolon of
        an entity.
        """
        is_open = "&" in match[0][-_LONGEST_ESCAPE:] and not match[0].endswith(";")
        return match[0] if is_open and match.end() == len(match.string) else MASK


class Redactor:
    """Made once for a backend's key; without a key it changes nothing."""

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
        """A text of any origin and any length without the key."""
        for spelling in self._suspected(text):
            text = spelling.pattern.sub(MASK, text)
        return text

    def answer(self, text: str) -> str:
        """A model's words without the key, but with it where it is a placeholder (``EMPTY``) rather than a secret."""
        return self(text) if self._spoken else text

    def quote(self, data: bytes, longest: int) -> str:
        """The beginning of what an endpoint sent, for an error."""
        return self.cut(data[: _LONGEST_QUOTED + 1].decode("utf-8", "replace"), longest)

    def cut(self, text: str, longest: int) -> str:
        """The beginning of a text, without the key: the part of a key that a cut leaves is not found any more."""
        redacted = self(text[:_LONGEST_QUOTED])
        return (redacted if len(text) <= _LONGEST_QUOTED else redacted[: self.begins_at(redacted)])[:longest]

    def stream(self, hand_on: Callable[[str], None]) -> RedactedStream:
        """A receiver for pieces of an answer, which hands them on without the key."""
        return RedactedStream(self, hand_on)

    def begins_at(self, text: str) -> int:
        """Where at the end of a text the key may begin, of which the rest is still to come; the text's length if
        nowhere."""
        if self._first is None:
            return len(text)
        for match in self._first.finditer(text, max(0, len(text) - self.longest)):
            at = match.start()
            if any(spelling.may_begin(text, at) for spelling in self._by_first[match[0]]):
                return at
        return len(text)

    def _suspected(self, text: str) -> Sequence[_Spelling]:
        """The spellings that a text may hold: cheap, for nearly all texts hold none."""
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
        """A text of which more is to come: a key that may go on stays as it is, for ``begins_at`` to hold back."""
        for spelling in self._suspected(text):
            text = spelling.pattern.sub(spelling.masked_if_whole, text)
        return text


class MultiRedactor(Redactor):
    """Takes out several keys. ``key`` is the longest of them."""

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
    """Return what takes out these keys."""
    known = {key for key in keys if key}
    return MultiRedactor(known) if len(known) > 1 else Redactor(next(iter(known), None))


class RedactedStream:
    """Pieces on their way: what may be the beginning of a key waits for the next piece. Call ``finish`` at the end."""

    def __init__(self, redactor: Redactor, hand_on: Callable[[str], None]) -> None:
        self._redactor, self._hand_on = redactor, hand_on
        self._held = ""

    def feed(self, piece: str) -> None:
        """The next piece."""
        if not self._redactor._spoken:
            self._hand_on(piece)
            return
        text = self._redactor._begun(self._held + piece)
        sure = self._redactor.begins_at(text)
        self._held = text[sure:]
        if sure:
            self._hand_on(text[:sure])

    def finish(self) -> None:
        """No more pieces come."""
        if self._held:
            buffered, self._held = self._redactor(self._held), ""
            self._hand_on(buffered)


class _MultiRedactedStream(RedactedStream):
    """Pieces that pass several redactors, one after another."""

    def __init__(self, each: Sequence[Redactor], hand_on: Callable[[str], None]) -> None:
        self._chain: list[RedactedStream] = []
        for redactor in each:
            self._chain.append(RedactedStream(redactor, hand_on))
            hand_on = self._chain[-1].feed
        self._first = hand_on

    def feed(self, piece: str) -> None:
        self._first(piece)

    def finish(self) -> None:
        for stream in reversed(self._chain):  # each hands what it held on to the next
            stream.finish()


def is_usable_key(key: str) -> bool:
    """Whether a key can be sent in a header and found again: printable ASCII without a backslash."""
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
    """A pattern for one character in any of its forms. All repeats are bounded, so that a search stays linear; each
    form begins with a sign of its own, so that it is quick.
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
    """The pattern where no letter or digit stands beside it, but for those that end an escape."""
    return rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{{2}})){pattern}(?![A-Za-z0-9])"


def _base64_fragments(text: str) -> list[str]:
    """What of a text's base64 does not depend on its neighbours, for each of three places where it may begin."""
    fragments: dict[str, None] = {}
    data = text.encode()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        start = (before * 8 + 5) // 6  # characters that also hold bits of what stands before are left out
        end = (before + len(data)) * 8 // 6
        fragment = encoded[start:end]
        if len(fragment) >= _SHORTEST_FRAGMENT:
            fragments |= dict.fromkeys((fragment, fragment.replace("+", "-").replace("/", "_")))
    return list(fragments)
