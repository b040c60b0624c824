"""Excerpts from conversations that a search has found: the part of a text that has most of the words.

The full-text index decides what is found; here its rules are followed closely enough to show why. It keeps no texts, so
they come from the journal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import orjson

from .index import LONGEST_TEXT, query_parts

_BEFORE, _AFTER = 90, 180  # characters of an excerpt before and after its first word
_MOST_WORDS = 8  # words or phrases of a search, the first ones
_LONGEST = 300_000  # characters of a conversation
_MOST_MATCHES = 200  # of one word in one text
_DEEPEST = 20  # levels of data in JSON
_WORD = re.compile(r"[^\W_]+")


class SearchedWords:
    """The words and phrases of a search."""

    def __init__(self, typed: str) -> None:
        self._patterns = [_pattern(part.text, part.is_prefix) for part in query_parts(typed)[:_MOST_WORDS]]

    def excerpt(self, texts: Iterable[str]) -> str:
        """Return the part with the most words of the text that has the most; "" if no text has any.

        Of many or long texts, only the first part is looked at.
        """
        best, highest, left = "", 0, _LONGEST
        for text in texts:
            line = readable_text(text)[: min(left, LONGEST_TEXT)]
            left -= len(line)
            count = sum(pattern.search(line) is not None for pattern in self._patterns)
            if count > highest:
                best, highest = line, count
            if count == len(self._patterns) or left <= 0:
                break
        return self._cut(best) if highest else ""

    def _cut(self, text: str) -> str:
        matches = []
        for number, pattern in enumerate(self._patterns):
            for match, _ in zip(pattern.finditer(text), range(_MOST_MATCHES), strict=False):
                matches.append((match.start(), match.end(), number))
        matches.sort()
        first = max(range(len(matches)), key=lambda at: (_words_from(matches, at), -at))
        start, end = max(0, matches[first][0] - _BEFORE), min(len(text), matches[first][0] + _AFTER)
        cut = " ".join(text[start:end].split())
        return ("…" if start else "") + cut + ("…" if end < len(text) else "")


def _words_from(matches: list[tuple[int, int, int]], at: int) -> int:
    """Return how many different words are in an excerpt that begins with this match."""
    last = matches[at][0] + _AFTER
    numbers = set()
    for start, end, number in matches[at:]:
        if start > last:
            break
        if end <= last:
            numbers.add(number)
    return len(numbers)


def _pattern(text: str, is_prefix: bool) -> re.Pattern[str]:
    """Return a pattern for a word or phrase, whose words may have any punctuation between them."""
    words = r"[\W_]+".join(map(re.escape, _WORD.findall(text))) or re.escape(text)
    return re.compile(f"(?<![a-z0-9]){words}" + ("" if is_prefix else "(?![a-z0-9])"), re.IGNORECASE)


def readable_text(text: str) -> str:
    """Return a text, or as a line to read what a text in JSON says, as those of judges do."""
    inner = text[:LONGEST_TEXT].strip().removeprefix("```json").strip("`").strip()
    if not inner.startswith(("{", "[")):
        return text
    try:
        return _line_of(orjson.loads(inner.encode("utf-8", "replace")))
    except orjson.JSONDecodeError:
        return text


def _line_of(value: Any, depth: int = 0) -> str:
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_within(own, depth)}" for name, own in value.items())
    if isinstance(value, list):
        return ", ".join(_within(own, depth) for own in value)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _within(value: Any, depth: int) -> str:
    line = _line_of(value, depth + 1)
    return f"({line})" if isinstance(value, dict | list) and len(value) > 1 else line
