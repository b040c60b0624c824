"""How many tokens a call took, as the endpoint counts them, or as we estimate where its count is of no use.

A count that is negative, no whole number or beyond any context would end the run in its journal, or switch off budgets
and rates. What never belongs here: prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..messages import Completion, Request
from .secrets import Redactor

# Far beyond any context; sums of as many as a run can have stay within 64 bits.
_MOST_TOKENS = 1_000_000_000
_LONGEST_QUOTE = 40
_CHARACTERS_PER_TOKEN = 4


class ReportedUsage(NamedTuple):
    """Tokens of the prompt and of the answer, 0 where they are unknown; ``note`` quotes a count that is of no use."""

    prompt: int
    completion: int
    note: str = ""


def usage_of(given: Any, redact: Redactor) -> ReportedUsage:
    """The counts of an answer's ``usage``. Missing ones are unknown; so are unusable ones, which are noted, without the
    key.
    """
    if not given:
        return ReportedUsage(0, 0)
    if not isinstance(given, dict):
        return ReportedUsage(0, 0, f"usage: {_quoted(given, redact)}")
    prompt, completion = given.get("prompt_tokens"), given.get("completion_tokens")
    if type(prompt) is type(completion) is int and 0 <= prompt <= _MOST_TOKENS and 0 <= completion <= _MOST_TOKENS:
        return ReportedUsage(prompt, completion)  # nearly always
    counts, notes = [], []
    for name in ("prompt_tokens", "completion_tokens"):
        value = given.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (type(value) is not int or not 0 <= value <= _MOST_TOKENS):
            notes.append(f"{name}: {_quoted(value, redact)}")
            value = None
        counts.append(value or 0)
    return ReportedUsage(counts[0], counts[1], "; ".join(notes))


def summed(given: Any, names: Sequence[str]) -> Any:
    """The sum of counts that a provider gives apart (cached tokens, thoughts), missing ones left out; the first that is
    no count, for ``usage_of`` to note. None where all are missing.
    """
    total = None
    for name in names:
        value = given.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
            return value
        total = value + (total or 0)
    return total


def _quoted(value: Any, redact: Redactor) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        return "a number of too many digits"
    return redact.cut(repr(value), _LONGEST_QUOTE) if isinstance(value, int | float | str) else type(value).__name__


def estimated(completion: Completion, request: Request) -> None:
    """Put an estimate in the place of counts that are unknown, so that totals, budgets and rates go on to mean
    something.
    """
    if not completion.prompt_tokens:
        completion.prompt_tokens = request.characters // _CHARACTERS_PER_TOKEN
        unknown = True
    else:
        unknown = bool(completion.text or completion.thoughts or completion.calls)
    if unknown and not completion.completion_tokens:
        said = len(completion.text) + len(completion.thoughts)
        said += sum(len(call.name) + len(call.arguments) for call in completion.calls or ())
        completion.completion_tokens = max(1, said // _CHARACTERS_PER_TOKEN)
