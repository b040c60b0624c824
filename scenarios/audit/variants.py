"""The same answer in other clothes: longer at equal content, or as a list with a heading. Pure functions of texts.

What never belongs here: wording that is added (the prompt pack), and who judges.
"""

from __future__ import annotations

import re

from viva.engine import seeds

_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")


def sentences(text: str) -> list[str]:
    """The sentences of a text, roughly: what ends in a mark with blanks behind it, and lines."""
    return [part for line in text.splitlines() for part in _SENTENCE.split(line.strip()) if part]


def padded(text: str, fillers: list[str], again: str, key: str) -> str:
    """The text with words that add nothing: a filler before each sentence, and each sentence said once more.

    ``again`` has the placeholder ``{sentence}``, filled in without its last mark. Which filler stands where depends on
    ``key`` alone.
    """
    said = []
    for at, sentence in enumerate(sentences(text)):
        filler = fillers[int(seeds.uniform(key, "filler", at) * len(fillers))]
        said += [filler, sentence, again.replace("{sentence}", sentence.rstrip(".!?。！？"))]
    return " ".join(said)


def listed(text: str, heading: str) -> str:
    """The text as Markdown: a heading and a bullet for each sentence, its first word in bold."""
    lines = []
    for sentence in sentences(text):
        first, blank, rest = sentence.partition(" ")
        lines.append(f"- **{first}**{blank}{rest}")
    return f"## {heading}\n\n" + "\n".join(lines)
