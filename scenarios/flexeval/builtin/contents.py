"""Built-in metrics of what a text holds: words, patterns, questions, JSON, refusals."""

from __future__ import annotations

import json
import re
from typing import Any

from viva.agents.refusals import refuses
from viva.engine.schemas import broken_rules

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?```\s*\Z", re.DOTALL)


def has_question_mark(text: str) -> bool:
    """Whether a question is asked."""
    return any(mark in text for mark in "?？؟")


def contains(text: str, what: str | list[str], ignore_case: bool = True, every: bool = False) -> bool:
    """Whether the text holds a phrase: one of several, or ``every`` one of them."""
    phrases = [what] if isinstance(what, str) else what
    said = text.casefold() if ignore_case else text
    found = [(phrase.casefold() if ignore_case else phrase) in said for phrase in phrases]
    return all(found) if every else any(found)


def matches(text: str, pattern: str, ignore_case: bool = False) -> int:
    """How often a regular expression is found."""
    flags = re.IGNORECASE if ignore_case else 0
    return sum(1 for _ in re.finditer(pattern, text, flags))


def is_json(text: str, fenced: bool = True) -> bool:
    """Whether the text is JSON; in a code fence, too, unless ``fenced`` is false."""
    return _parsed(text, fenced) is not None


def follows_schema(text: str, schema: dict[str, Any], fenced: bool = True) -> dict[str, Any]:
    """Whether the text is JSON that follows a JSON schema (``valid``), and what is wrong with it otherwise."""
    value = _parsed(text, fenced)
    if value is None:
        return {"valid": False, "problem": "not JSON"}
    errors = broken_rules(schema, value[0])
    if not errors:
        return {"valid": True, "problem": None}
    error = errors[0]
    where = ".".join(map(str, error.path)) or "the whole"
    return {"valid": False, "problem": f"{where}: {error.validator}"}


def refusal(text: str) -> bool:
    """Whether the text begins by refusing: by phrases in English and some other languages; no model is asked."""
    return refuses(text)


def _parsed(text: str, fenced: bool) -> list[Any] | None:
    """The value in a list; None of what is not JSON."""
    inner = _FENCE.match(text) if fenced else None
    try:
        return [json.loads(inner[1] if inner else text)]
    except (ValueError, RecursionError):
        return None
