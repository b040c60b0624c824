"""The fields of an answer that few answers have: written as one JSON object beside a call, and read back.

What never belongs here: fields that every answer has (columns of the journal).
"""

from __future__ import annotations

from typing import Any

import orjson

from .likelihood import Likelihood
from .messages import Completion
from .tools import ToolCall


def rare_fields(c: Completion) -> str | None:
    """The fields as JSON text; None where the answer has none of them."""
    if (  # one test after the other: this is asked of every answer, and nearly all have none of them
        c.first_token is None
        and c.pieces is None
        and c.logprobs is None
        and c.calls is None
        and c.expected is None
        and c.likelihoods is None
        and c.versions is None
        and not c.thoughts
        and not c.usage_note
        and not c.cached_tokens
        and c.attempts <= 1
    ):
        return None
    return orjson.dumps(_fields(c)).decode()


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
    if c.cached_tokens:
        fields["cached_tokens"] = c.cached_tokens
    if c.likelihoods is not None:
        fields["likelihoods"] = [likelihood.to_record() for likelihood in c.likelihoods]
    if c.calls is not None:
        fields["calls"] = [call.to_record() for call in c.calls]
    return fields
