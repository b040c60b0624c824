"""Faults of an examiner's question: texts that clearly ask nothing, in any language.

A weak model in the role of an examiner echoes its prompts, loops, or runs into its token limit. People decide whether a
text is a good question; only certain faults count here. A text with a question mark asks something unless it loops or
is the examinee's own text. A text without a question mark may be a request ("Explain why …"), so it counts as asking
unless it only repeats earlier text, or was cut off before it asked anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from viva.engine.detectors import Repetition

NO_QUESTION = "no_question"  # the fault of an empty text
# A word; each character of a script without spaces is a word.
_WORDS = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_]+")
_QUESTION_MARKS = re.compile("[?？؟՞⁇⸮¿]|[;;]\\s*$")  # the last two: the Greek mark, and the semicolon typed for it
# An English request at the beginning of a sentence.
_REQUESTS = re.compile(
    r"(?:^|[.!:\n]\s*)(?:please,? |now,? )*(?:name|explain|describe|give|say|tell|suppose|imagine|compare|consider"
    r"|define|state|list|show|prove|derive|justify|discuss|outline|predict|estimate|calculate|identify|assume|argue"
    r"|elaborate|illustrate|contrast|summari[sz]e|clarify|support|provide)\b",
    re.IGNORECASE,
)
_SPAN, _SPAN_LETTERS = 3, 6  # words, and letters, of a copied span
_LOOP_GRAM, _LOOP_GRAMS, _LOOP_SHARE = 4, 24, 0.5  # words of a phrase, phrases of a text, repeated phrases


def question_words(text: str) -> list[str]:
    """Return the words of a text in lower case; in scripts without spaces, its characters."""
    return _WORDS.findall(text.casefold())


def question_fault(
    text: str, *, prompts: Sequence[str], replies: Sequence[str], earlier: Sequence[str], truncated: bool
) -> str | None:
    """Return why a text clearly asks nothing, or None.

    Args:
        text: What the examiner wrote.
        prompts: All texts that the examiner was sent, including the item.
        replies: Texts of the examinee.
        earlier: The examiner's earlier questions.
        truncated: The text was cut off at the token limit.

    Returns:
        `NO_QUESTION` (empty text), `loop`, `echo` (equals a reply, or copies only prompts and replies),
            `repeated_question` (equals an earlier question) or `cut_question` (cut off before it asked anything).
    """
    words = question_words(text)
    if not words:
        return NO_QUESTION
    if _loops(text, words):
        return "loop"
    if any(_has_words(reply, words) for reply in replies):
        return "echo"
    if _QUESTION_MARKS.search(text):
        return None
    if any(_has_words(question, words) for question in earlier):
        return None if _REQUESTS.search(text) else "repeated_question"
    if _is_copied(words, [question_words(source) for source in (*prompts, *replies)]):
        return "echo"
    return "cut_question" if truncated else None


def _has_words(text: str, words: Sequence[str]) -> bool:
    """Return True if a text consists of these words; most texts are told apart by their first."""
    folded = text.casefold()
    first = _WORDS.search(folded)
    return first is not None and first[0] == words[0] and _WORDS.findall(folded) == words


def seems_to_ask(text: str) -> bool:
    """Return True if a text has a question mark, or an English request at the beginning of a sentence."""
    return bool(_QUESTION_MARKS.search(text) or _REQUESTS.search(text))


def is_loop(text: str) -> bool:
    """Return True if a text ends in one phrase over and over, or half of its phrases have occurred in it before."""
    return _loops(text, question_words(text))


def _loops(text: str, words: Sequence[str]) -> bool:
    if Repetition().finish(text) is not None:
        return True
    grams = [tuple(words[start : start + _LOOP_GRAM]) for start in range(len(words) - _LOOP_GRAM + 1)]
    return len(grams) >= _LOOP_GRAMS and len(set(grams)) <= (1 - _LOOP_SHARE) * len(grams)


def _is_copied(words: Sequence[str], sources: Sequence[Sequence[str]]) -> bool:
    """Return True if every word lies in a span of three or more words that also occurs in a source."""
    span = min(_SPAN, len(words))
    known = {tuple(source[start : start + span]) for source in sources for start in range(len(source) - span + 1)}
    covered = [False] * len(words)
    for start in range(len(words) - span + 1):
        if tuple(words[start : start + span]) in known:
            covered[start : start + span] = [True] * span
    return all(covered) and sum(map(len, words)) >= _SPAN_LETTERS
