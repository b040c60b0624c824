"""The fields of an answer that few answers have: written as one JSON object beside a call, and read back.

What never belongs here: fields that every answer has (columns of the journal).
"""

from __future__ import annotations

from typing import Any

import orjson

from .likelihood import Likelihood
from .messages import Completion
from .tools import ToolCall

_NOTHING = (None,) * 7


def rare_fields(c: Completion) -> str | None:
    """The fields as JSON text; None where the answer has none of them."""
    rare = (c.logprobs, c.first_token, c.pieces, c.expected, c.likelihoods, c.calls, c.versions)
    odd = c.attempts > 1 or c.thoughts or c.usage_note or rare != _NOTHING
    return orjson.dumps(_fields(c)).decode() if odd else None


def add_rare_fields(completion: Completion, text: str) -> None:
    """Put back what ``rare_fields`` gave."""
    more: dict[str, Any] = orjson.loads(text)
    if (likelihoods := more.pop("likelihoods", None)) is not None:
        completion.likelihoods = [Likelihood.from_record(record) for record in likelihoods]
    if (calls := more.pop("calls", None)) is not None:
        completion.calls = [ToolCall.from_record(record) for record in calls]
    for name, value in more.items():
        setattr(completion, name, value)


def _fields(c: Completion) -> dict[str, Any]:
    fields: dict[str, Any] = {"attempts": c.attempts}
    for name in ("first_token", "logprobs", "pieces", "expected", "versions"):
        value = getattr(c, name)
        if value is not None:
            fields[name] = value
    if c.thoughts:
        fields["thoughts"] = c.thoughts
    if c.usage_note:
        fields["usage_note"] = c.usage_note
    if c.likelihoods is not None:
        fields["likelihoods"] = [likelihood.to_record() for likelihood in c.likelihoods]
    if c.calls is not None:
        fields["calls"] = [call.to_record() for call in c.calls]
    return fields
