"""Texts as the search index takes them, and what a person types as one of its questions.

Words are split by SQLite's ``unicode61``, which knows no borders of words in Chinese, Japanese and Korean: letters of
these scripts are put apart, in texts and in questions alike, so that each run of them is found as a phrase.
What never belongs here: the index itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

LONGEST = 200_000  # characters of one text that can be searched
_APART = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])")
_PARTS = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"\w")


def searchable(text: str) -> str:
    """A text as it goes into the index."""
    return _APART.sub(r" \1 ", text[:LONGEST].encode("utf-8", "replace").decode())


def question_of(typed: str) -> str | None:
    """The FTS5 question for what was typed: all words must be there, those between quotation marks as a phrase; the
    last word may be the beginning of one. None where no word was typed.
    """
    parts = [(quoted or word, bool(quoted)) for quoted, word in _PARTS.findall(typed)]
    parts = [(text, quoted) for text, quoted in parts if _WORD.search(text)]
    if not parts:
        return None
    phrases = ['"' + searchable(text).replace('"', " ") + '"' for text, _ in parts]
    if not parts[-1][1] and not typed[-1:].isspace():
        phrases[-1] += "*"
    return " AND ".join(phrases)


def pattern_of(typed: str) -> re.Pattern[str] | None:
    """Where the words of a question stand in a text, roughly: for excerpts."""
    words = [quoted or word for quoted, word in _PARTS.findall(typed) if _WORD.search(quoted or word)]
    return re.compile("|".join(re.escape(word) for word in words), re.IGNORECASE) if words else None


def strings_in(record: Any) -> Iterator[str]:
    """All texts in plain data."""
    if isinstance(record, str):
        yield record
    elif isinstance(record, dict):
        for value in record.values():
            yield from strings_in(value)
    elif isinstance(record, list):
        for value in record:
            yield from strings_in(value)
