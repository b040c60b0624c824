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
# Where endpoints say how much of a prompt came from their cache, as a field of a field or alone: OpenAI and most
# others; Anthropic and gateways to it; DeepSeek; Moonshot; the Responses API.
_CACHED = (
    ("prompt_tokens_details", "cached_tokens"),
    ("", "cache_read_input_tokens"),
    ("", "prompt_cache_hit_tokens"),
    ("", "cached_tokens"),
    ("input_tokens_details", "cached_tokens"),
)
_WRITTEN = (("", "cache_creation_input_tokens"),)
_THOUGHTS = (
    ("completion_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
    ("", "reasoning_tokens"),
)
_PROMPT, _COMPLETION, _TOTAL = (("", "prompt_tokens"),), (("", "completion_tokens"),), (("", "total_tokens"),)
_INPUT, _OUTPUT = (("", "input_tokens"),), (("", "output_tokens"),)
_NONE_FURTHER = frozenset(("prompt_tokens", "completion_tokens", "total_tokens"))


class ReportedUsage(NamedTuple):
    """Tokens of the prompt and of the answer, 0 where they are unknown; ``note`` quotes a count that is of no use.
    ``cached`` are those of the prompt that the endpoint read from its cache.
    """

    prompt: int
    completion: int
    note: str = ""
    cached: int = 0


def usage_of(given: Any, redact: Redactor) -> ReportedUsage:
    """Return the counts of an answer's ``usage``, as they are billed. Missing ones are unknown; so are unusable ones,
    which are noted, without the key.

    Some endpoints count thoughts outside of ``completion_tokens``, or cached tokens outside of the prompt's: what the
    total has beyond the two belongs to one of them.
    """
    if not given:
        return ReportedUsage(0, 0)
    if not isinstance(given, dict):
        return ReportedUsage(0, 0, f"usage: {_quoted(given, redact)}")
    notes: list[str] = []

    def count(places: Sequence[tuple[str, str]]) -> int:
        """The largest of the counts at these places, 0 where there is none; unusable ones are noted."""
        most = 0
        for field, name in places:
            inner = given.get(field) if field else given
            value = inner.get(name) if isinstance(inner, dict) else None
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if type(value) is int and 0 <= value <= _MOST_TOKENS:  # nearly always
                most = max(most, value)
            elif value is not None:
                notes.append(f"{field}{'.' if field else ''}{name}: {_quoted(value, redact)}")
        return most

    prompt, completion, total = count(_PROMPT), count(_COMPLETION), count(_TOTAL)
    cached = written = thought = 0
    if not given.keys() <= _NONE_FURTHER:
        cached, written, thought = count(_CACHED), count(_WRITTEN), count(_THOUGHTS)
    if not prompt and not completion and "input_tokens" in given:  # as the Messages API and the Responses API name them
        prompt, completion = count(_INPUT), count(_OUTPUT)
        if "input_tokens_details" not in given:
            prompt += written + cached
    elif prompt and cached > prompt:
        prompt += written + cached
    if total > prompt + completion and prompt:
        beyond = total - prompt - completion
        if thought != beyond and beyond in (cached, cached + written):
            prompt += beyond
        else:
            completion += beyond
    elif total > completion and completion and not prompt:
        prompt = total - completion
    elif thought > completion:
        completion += thought
    return ReportedUsage(prompt, completion, "; ".join(notes), min(cached, prompt))


def joined_counts(known: Any, given: Any) -> Any:
    """Return the counts that a stream has given so far, with those of its next record. They are cumulative, but a 0
    replaces no count: some endpoints fill in zeros where they have not counted.
    """
    if not isinstance(known, dict) or not isinstance(given, dict):
        return given or known
    return known | {name: count for name, count in given.items() if count or name not in known}


def summed(given: Any, names: Sequence[str]) -> Any:
    """The sum of counts that a provider gives apart (thoughts, tokens of tools), missing ones left out; the first that
    is no count, for ``usage_of`` to note. None where all are missing.
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
