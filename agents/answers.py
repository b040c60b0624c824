"""Reading which choice a free answer names. An answer that names none, or several, is unanswered and reported so.

In order of trust: a statement ("the answer is B", "答案是B"), a letter that opens the text, the full words of exactly
one choice, a letter in parentheses or at the very end. What never belongs here: guessing by likeness.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .reading import answer_in

# Marks around words, and characters that nobody sees (byte order marks, spaces without width, marks of direction).
_DECORATION = re.compile(
    r"[*`$_\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]|\\(?:boxed|text|mathbf)\b|[{}]"
)
# Repetitions are bounded and blanks come one at a time, so that no text takes more than time in proportion.
_OPEN, _CLOSE = r"[\(\[\"'“‘（【]{0,4}", r"[\)\]\"'”’）】]{0,4}"
_LETTER = rf"{_OPEN}([A-Z])(?![A-Za-z0-9°]|['’]\w)"
_LOWER = rf"{_OPEN}([a-z]){_CLOSE}(?=[\s.,;:!)]*$)"
_SAY = r"(?i:answer|choice|option)\s*(?:(?i:is|would be|should be|must be)\s*:?|[:：])\s*(?i:option\s+|choice\s+)?"
_CHOOSE = r"(?i:\b(?:choose|pick|select|go with|going with))\s+(?i:option\s+|choice\s+)?"
_CHINESE = r"(?:答案|选择|选|選)\s*(?:应该是|是|为|選|选)?\s*[:：]?\s*"
_STATED = re.compile(rf"(?:{_SAY}|{_CHOOSE}|{_CHINESE}){_LETTER}")
_STATING = ("answer", "choice", "option", "choose", "pick", "select", "go with", "going with", "答案", "选", "選")
_STATED_LOWER = re.compile(rf"{_SAY}{_LOWER}")
_LEADING = re.compile(rf"^[\s>\-#]*{_LETTER}")
_LEADING_LOWER = re.compile(r"^[\s>\-#(]*([a-z])[).:]")
_PARENTHESISED = re.compile(r"(?<![A-Za-z0-9])\(([A-Z])\)")
_LAST = re.compile(rf"(?:^|[\s:：(]){_LETTER}[\s).。!！]*$")
_JOINED = r"(?:,|/|、|\bor\b|\band\b|或|和)"
# What makes a letter one of several, right behind it: "B or C", "A, B", "A/B".
_AND_ANOTHER = re.compile(rf"[)\]\"']{{0,4}}\s*{_JOINED}\s*[(\[\"']{{0,4}}[A-Z](?![A-Za-z])")
_ANOTHER_BEFORE = re.compile(rf"(?<![A-Za-z])[A-Z][)\]\"']{{0,4}}\s*{_JOINED}\s*(?:or|and)?\s*[(\[\"']{{0,4}}$")
_DENIED = re.compile(r"\b(?:not|no|none|neither|both|wrong|incorrect|false|except)\b|n't\b|不", re.IGNORECASE)


def read_choice(text: str, choices: Sequence[str]) -> int | None:
    """The index of the choice that the text names; None if it names none, or more than one."""
    text = answer_in(text)
    lines = (" ".join(line.split()) for line in _DECORATION.sub(" ", text).split("\n"))
    plain = "\n".join(line for line in lines if line)
    count = len(choices)
    lowered = plain.lower()
    # Searching for one of these words is a hundred times cheaper than the pattern that begins with them.
    states = any(word in lowered for word in _STATING)
    matches = _STATED.finditer(plain) if states else ()
    stated = [m for m in matches if _index(m.group(1), count) is not None and not _is_article(plain, m)]
    if stated:
        letters = {match.group(1) for match in stated}
        if len(letters) > 1 or any(_AND_ANOTHER.match(plain, match.end(1)) for match in stated):
            return None
        return _index(letters.pop(), count)
    for pattern in (_STATED_LOWER, _LEADING, _LEADING_LOWER) if states else (_LEADING, _LEADING_LOWER):
        match = pattern.search(plain)
        if match and _index(match.group(1), count) is not None and not _is_article(plain, match):
            return None if _AND_ANOTHER.match(plain, match.end(1)) else _index(match.group(1), count)
    named = _named(text, choices)
    if named:
        return named[0] if len(named) == 1 else None
    if _DENIED.search(plain):
        return None
    letters = {letter for letter in _PARENTHESISED.findall(plain) if _index(letter, count) is not None}
    if letters:
        return _index(letters.pop(), count) if len(letters) == 1 else None
    match = _LAST.search(plain)
    if match and not _ANOTHER_BEFORE.search(plain, max(0, match.start(1) - 40), match.start(1)):
        return _index(match.group(1), count)
    return None


def _index(letter: str, count: int) -> int | None:
    index = ord(letter.upper()) - 65
    return index if index < count else None


def _is_article(text: str, match: re.Match[str]) -> bool:
    """Whether this A is the English article, or this I the pronoun: a word follows that no choice's letter has."""
    following = re.match(r" ([a-z]+)", text[match.end(1) : match.end(1) + 24])
    if match.group(1) not in "AIa" or following is None:
        return False
    return following.group(1) not in ("is", "because", "since", "as", "seems", "would", "or", "and")


def _named(text: str, choices: Sequence[str]) -> list[int]:
    """The choices whose full words stand in the text; one inside of a longer one that stands there does not count."""
    rest, lowered = text, text.lower()
    named = []
    for index in sorted(range(len(choices)), key=lambda index: -len(choices[index])):
        words = choices[index].strip()
        if not words or words.lower() not in lowered:
            continue
        before = r"(?<![A-Za-z0-9])" if words[0].isascii() and words[0].isalnum() else ""
        after = r"(?![A-Za-z0-9])" if words[-1].isascii() and words[-1].isalnum() else ""
        rest, found = re.subn(before + re.escape(words) + after, "\0", rest, flags=re.IGNORECASE)
        if found:
            named.append(index)
    return sorted(named)
