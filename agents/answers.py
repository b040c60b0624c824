"""Reading which choice a free answer names. An answer that names none is unanswered, not wrong.

What never belongs here: guessing by likeness.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_STATED = re.compile(r"(?i:answer|choice|option|答案)\s*(?:is|would be|:|：|是|为)*\s*[\(\[\"'*]*([A-Z])\b")
_LEADING = re.compile(r"^[\s\(\[\"'*]*([A-Z])(?:[\s\)\]\"'*.:,]|$)")
_ALONE = re.compile(r"(?<![A-Za-z'])[\(\[*\"]*([A-Z])[\)\]*.:\"](?![A-Za-z])")


def read_choice(text: str, choices: Sequence[str]) -> int | None:
    """The index of the choice that the text names, by letter or else by its full words; None if unclear."""
    last = chr(64 + len(choices))
    # "A" also begins English sentences: as a leading letter it counts only if punctuation or the end follows.
    for pattern in (_STATED, _LEADING):
        match = pattern.search(text)
        if match and "A" <= match.group(1) <= last and not _article(text, match):
            return ord(match.group(1)) - 65
    letters = {match for match in _ALONE.findall(text) if "A" <= match <= last}
    if len(letters) == 1:
        return ord(letters.pop()) - 65
    lowered = text.lower()
    named = [index for index, choice in enumerate(choices) if choice.strip() and choice.lower() in lowered]
    return named[0] if len(named) == 1 else None


def _article(text: str, match: re.Match[str]) -> bool:
    return match.group(1) == "A" and bool(re.match(r" [a-z]", text[match.end(1) : match.end(1) + 2]))
