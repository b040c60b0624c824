"""Built-in metrics of a text: lengths, readability, language.

Readability and language come from the extra ``suites`` (textstat, py3langid). Of textstat 0.7.8 alone all formulas work
offline on any text: earlier ones fail on words that their dictionary does not have, later ones download it.
"""

from __future__ import annotations

import re
from typing import Any

from viva.engine.lazy_import import imported

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_SENTENCE = re.compile(r"[^.!?。！？…]+(?:[.!?。！？…]+|$)")
FORMULAS = (
    "automated_readability_index",
    "coleman_liau_index",
    "crawford",
    "dale_chall_readability_score",
    "dale_chall_readability_score_v2",
    "difficult_words",
    "fernandez_huerta",
    "flesch_kincaid_grade",
    "flesch_reading_ease",
    "gulpease_index",
    "gunning_fog",
    "gutierrez_polini",
    "linsear_write_formula",
    "lix",
    "mcalpine_eflaw",
    "osman",
    "reading_time",
    "rix",
    "smog_index",
    "spache_readability",
    "syllable_count",
    "szigriszt_pazos",
)
_SHORTEST = 20  # characters; of less no language can be told


def length(text: str) -> int:
    """Characters."""
    return len(text)


def words(text: str) -> int:
    """Words: runs of letters and digits."""
    return len(_WORD.findall(text))


def sentences(text: str) -> int:
    """Sentences, told by their final marks."""
    return sum(bool(_WORD.search(one)) for one in _SENTENCE.findall(text))


def flesch_reading_ease(text: str) -> float | None:
    """Flesch's reading ease (Flesch 1948) of English text: 100 is very easy, 0 very hard. None without words."""
    return _textstat("flesch_reading_ease", text)


def flesch_kincaid_grade(text: str) -> float | None:
    """The school grade that a text asks for (Kincaid et al. 1975). None without words."""
    return _textstat("flesch_kincaid_grade", text)


def readability(text: str, formula: str = "flesch_reading_ease") -> float | None:
    """A formula of textstat by its name, such as ``smog_index`` or ``gunning_fog``. None without words.

    :raises ValueError: there is no such formula.
    """
    if formula not in FORMULAS:
        raise ValueError(f"there is no formula '{formula}'; there are: {', '.join(FORMULAS)}")
    return _textstat(formula, text)


def language(text: str) -> str | None:
    """The language as a two-letter code (py3langid). None of fewer than 20 characters: too few to tell."""
    if len(text.strip()) < _SHORTEST:
        return None
    return str(_needed("py3langid").classify(text)[0])


def _textstat(formula: str, text: str) -> float | None:
    if not words(text):
        return None
    return float(getattr(_needed("textstat"), formula)(text))


def _needed(name: str) -> Any:
    try:
        return imported(name)
    except ImportError:
        raise ImportError(f"needs the package {name}: pip install 'viva-exam[suites]'") from None
