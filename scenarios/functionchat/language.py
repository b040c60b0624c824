"""The language that texts are written in, as far as their letters tell.

What never belongs here: what is done with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from .values import scripts

# By the first word of the letters' Unicode names; kana before Han characters, which Japanese has as well.
_LANGUAGES = {
    "HANGUL": "Korean",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "CJK": "Chinese",
    "THAI": "Thai",
    "GREEK": "Greek",
    "HEBREW": "Hebrew",
}


def written_language(texts: Iterable[str | None]) -> str:
    """The English name of the language whose script the texts hold; empty where no script tells it (Latin, say).

    Words in Latin letters may stand among those of the script.
    """
    found = scripts("".join(text or "" for text in texts))
    return next((language for script, language in _LANGUAGES.items() if script in found), "")
