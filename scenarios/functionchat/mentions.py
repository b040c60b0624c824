"""What the messages of a dialog mention: whether a value's words and numbers stand in them.

It looks at letters and digits alone. Number words (세 명), translations and dates in words of their own count as not
mentioned, which is why it decides nothing: the tags made from it are details of a failure, or hints.
What never belongs here: grading.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from .turns import message_calls
from .values import leaves

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_MARKS = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\W\d_]+")


class Mentions:
    """The words and numbers of a dialog's messages, the arguments of its calls included."""

    __slots__ = ("_numbers", "_text")

    def __init__(self, messages: Iterable[Mapping[str, Any]]) -> None:
        texts: list[str] = []
        for message in messages:
            texts += map(_spelt, [message["content"] or "", *(call.arguments for call in message_calls(message))])
        whole = _folded("\n".join(texts))
        self._text = _bare(whole)
        self._numbers = set(map(_figure, _NUMBER.findall(whole)))

    def has(self, value: Any) -> bool:
        """Whether a value is mentioned: its text with or without spaces and marks, or all its words and numbers.

        A number is, if its digits are, with or without zeros at the end (3만 mentions 30000). Whether a truth value
        is, cannot be seen: then yes.
        """
        return all(map(self._has, leaves(value)))

    def _has(self, value: Any) -> bool:
        if value is None or isinstance(value, bool):
            return True
        text = _folded(str(value))
        if isinstance(value, str):
            if _bare(text) in self._text:
                return True
            if not all(word in self._text for word in _WORD.findall(text)):
                return False
        return not self.strange_numbers(text)

    def strange_numbers(self, text: str) -> list[str]:
        """The numbers of a text that no message mentions, in the order of the text."""
        found = map(_figure, _NUMBER.findall(_folded(text)))
        return [one for one in found if one not in self._numbers and (one.rstrip("0") or "0") not in self._numbers]


def _spelt(text: str) -> str:
    """JSON with its escapes undone; any other text as it is."""
    if "\\" not in text:
        return text
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _bare(text: str) -> str:
    """Letters and digits alone."""
    return _MARKS.sub("", text)


def _figure(text: str) -> str:
    """A number's digits without separators, zeros in front, and a fraction of zeros."""
    whole, _, fraction = text.replace(",", "").partition(".")
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
