"""The metrics that are built in, by name. Each is a plain function with an annotated first argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .contents import contains, follows_schema, has_question_mark, is_json, matches, refusal
from .counts import (
    identity,
    is_role,
    latency,
    messages_per_role,
    tokens,
    tool_call_arguments,
    tool_calls,
    tool_calls_by_name,
    turns,
)
from .moderation import moderation
from .texts import flesch_kincaid_grade, flesch_reading_ease, language, length, readability, sentences, words
from .tool_shape import tool_call_shape

BUILTIN: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        contains,
        flesch_kincaid_grade,
        flesch_reading_ease,
        follows_schema,
        has_question_mark,
        identity,
        is_json,
        is_role,
        language,
        latency,
        length,
        matches,
        messages_per_role,
        moderation,
        readability,
        refusal,
        sentences,
        tokens,
        tool_call_arguments,
        tool_call_shape,
        tool_calls,
        tool_calls_by_name,
        turns,
        words,
    )
}
