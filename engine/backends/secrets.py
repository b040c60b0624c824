"""Taking a key out of every text that came from an endpoint or from the network, in whatever form it comes back.

Forms: as it is; escaped for JSON, for Python or for HTML, each character or some, once or twice over; percent-encoded;
inside base64 (an echoed basic login). Redact before cutting a text: of half a key nothing would be recognised.
What never belongs here: where keys come from.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from html.entities import codepoint2name

MASK = "***"
# Shorter keys, and words alone, are placeholders for endpoints that want any key: a model may well say them.
_SHORTEST_IN_ANSWERS = 8
_WORDS = re.compile(r"[A-Za-z]{1,19}|[A-Za-z]+([-_ .][A-Za-z]+){1,4}")
# No escaped form does without one of these.
_MARKS = ("\\", "%", "&")
_SHORTEST_FRAGMENT = 8
_LONGEST_SEARCHED = 1 << 20
_LONGEST_ESCAPE = 40


class Redactor:
    """Made once for a backend's key; without a key it changes nothing."""

    def __init__(self, key: str | None) -> None:
        self.key = key or ""
        self._spoken = len(self.key) >= _SHORTEST_IN_ANSWERS and not _WORDS.fullmatch(self.key)
        self._characters = [_forms(character) for character in self.key]
        self._fragments = _base64_fragments(self.key)
        around = (r"[\w+/-]{0,2}", r"[\w+/-]{0,3}={0,2}")
        forms = ["".join(self._characters), *(re.escape(one).join(around) for one in self._fragments)]
        self._pattern = re.compile("|".join(forms)) if self.key else None
        self.longest = _LONGEST_ESCAPE * len(self.key)
        self._steps = [re.compile(form) for form in self._characters]

    def __call__(self, text: str) -> str:
        """A text of any origin without the key.

        In texts of more than a million characters only the key itself is looked for: a search for all of its forms
        would hold up the event loop for seconds.
        """
        if len(text) > _LONGEST_SEARCHED and self.key:
            return text.replace(self.key, MASK)
        if self._pattern is None or not self._suspicious(text):
            return text
        return self._pattern.sub(MASK, text)

    def answer(self, text: str) -> str:
        """A model's words without the key, but with it where it is a placeholder (``EMPTY``) rather than a secret."""
        return self(text) if self._spoken else text

    def quote(self, data: bytes, longest: int) -> str:
        """The beginning of what an endpoint sent, for an error."""
        return self.cut(data[:_LONGEST_SEARCHED].decode("utf-8", "replace"), longest)

    def cut(self, text: str, longest: int) -> str:
        """The beginning of a text, without the key: the part of a key that a cut leaves is not found any more."""
        return self(text[:_LONGEST_SEARCHED])[:longest]

    def stream(self, hand_on: Callable[[str], None]) -> Streamed:
        """A receiver for pieces of an answer, which hands them on without the key."""
        return Streamed(self, hand_on)

    def _suspicious(self, text: str) -> bool:
        return (
            self.key in text
            or any(mark in text for mark in _MARKS)
            or any(fragment in text for fragment in self._fragments)
            or (" " in self.key and "+" in text)
        )

    def begins_at(self, text: str) -> int:
        """Where at the end of a text the key may begin, of which the rest is still to come; the text's length if
        nowhere."""
        first = max(0, len(text) - self.longest)
        return next((at for at in range(first, len(text)) if self._may_begin(text, at)), len(text))

    def _may_begin(self, text: str, at: int) -> bool:
        if any(fragment.startswith(text[at:]) for fragment in self._fragments):
            return True
        reached = {at}  # several places: of a key with a "u", both r"\u" and r"\u0075" may be this character
        for step in self._steps:
            ends = set[int]()
            for place in reached:
                if text[place] not in _MARKS:
                    ends |= {place + 1} if step.match(text, place) else set()
                elif len(text) - place < _LONGEST_ESCAPE:
                    return True  # perhaps an escape of which only the beginning has come
                else:
                    last = place + _LONGEST_ESCAPE
                    ends.update(end for end in range(place + 1, last + 1) if step.fullmatch(text, place, end))
            if len(text) in ends:
                return True
            if not ends:
                return False
            reached = ends
        return False


class Redactors(Redactor):
    """Takes out several keys. ``key`` is the longest of them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._each = [Redactor(key) for key in sorted({*keys} - {""}, key=lambda key: (-len(key), key))]
        self.key = self._each[0].key if self._each else ""

    def __call__(self, text: str) -> str:
        for one in self._each:
            text = one(text)
        return text

    def answer(self, text: str) -> str:
        for one in self._each:
            text = one.answer(text)
        return text

    def stream(self, hand_on: Callable[[str], None]) -> Streamed:
        return _StreamedByEach(self._each, hand_on)


class Streamed:
    """Pieces on their way: what may be the beginning of a key waits for the next piece. Call ``finish`` at the end."""

    def __init__(self, redactor: Redactor, hand_on: Callable[[str], None]) -> None:
        self._redactor, self._hand_on = redactor, hand_on
        self._held = ""

    def feed(self, piece: str) -> None:
        """The next piece."""
        if not self._redactor._spoken:
            self._hand_on(piece)
            return
        text = self._redactor(self._held + piece)
        sure = self._redactor.begins_at(text)
        self._held = text[sure:]
        if sure:
            self._hand_on(text[:sure])

    def finish(self) -> None:
        """No more pieces come."""
        if self._held:
            held, self._held = self._held, ""
            self._hand_on(held)


class _StreamedByEach(Streamed):
    """Pieces that pass several redactors, one after another."""

    def __init__(self, each: Sequence[Redactor], hand_on: Callable[[str], None]) -> None:
        self._chain: list[Streamed] = []
        for one in each:
            self._chain.append(Streamed(one, hand_on))
            hand_on = self._chain[-1].feed
        self._first = hand_on

    def feed(self, piece: str) -> None:
        self._first(piece)

    def finish(self) -> None:
        for one in reversed(self._chain):  # each hands what it held on to the next
            one.finish()


def usable_key(key: str) -> bool:
    """Whether a key can be sent in a header and found again: printable ASCII without a backslash."""
    return key.isascii() and key.isprintable() and "\\" not in key


def _forms(character: str) -> str:
    """A pattern for one character in any of its forms. All repeats are bounded, so that a search stays linear."""
    number = ord(character)
    forms = [
        rf"\\{{0,8}}+{re.escape(character)}",
        rf"\\{{1,8}}+(?i:u0{{0,6}}{number:x}|x{number:02x})",
        "".join(rf"%(?:25){{0,3}}(?i:{octet:02x})" for octet in character.encode()),
        rf"&(?:amp;){{0,3}}#(?:0{{0,6}}{number}|[xX]0{{0,6}}(?i:{number:x}));?",
    ]
    if character == " ":
        forms.append(r"\+")
    named = {"'": "apos"}.get(character) or codepoint2name.get(number)
    if named:
        forms.append(rf"&(?:amp;){{0,3}}{named};")
    return "(?:" + "|".join(forms) + ")"


def _base64_fragments(key: str) -> list[str]:
    """What of the key's base64 does not depend on its neighbours, for each of three places where it may begin."""
    fragments: list[str] = []
    data = key.encode()
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        start = (before * 8 + 5) // 6  # characters that also hold bits of what stands before are left out
        end = (before + len(data)) * 8 // 6
        fragment = text[start:end]
        if len(fragment) >= _SHORTEST_FRAGMENT:
            fragments += {fragment, fragment.replace("+", "-").replace("/", "_")}
    return fragments
