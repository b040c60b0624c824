"""Built-in metrics that count: messages, turns, tokens, seconds, tool calls, roles."""

from __future__ import annotations

import json
import math
from typing import Any

from ..units import Dialog, Message, ToolCall, Turn


def is_role(unit: Turn | Message, role: str) -> dict[str, int]:
    """Whether this role said it: 1 or 0 under the role's name."""
    return {role: int(unit.role == role)}


def identity(text: str, **anything: Any) -> str:
    """The text itself, as a category."""
    return text[:200]


def turns(dialog: Dialog) -> int:
    """Turns: how often the sides alternate."""
    return len(dialog.turns)


def messages_per_role(unit: Dialog | Turn) -> dict[str, int]:
    """How many messages each role has."""
    counts: dict[str, int] = {}
    for one in unit.messages:
        counts[one.role] = counts.get(one.role, 0) + 1
    return dict(sorted(counts.items()))


def latency(unit: Turn | Message | Dialog) -> float | None:
    """Seconds that answers took, as they were recorded, added up. None where nobody recorded them."""
    known = [one.latency for one in _messages(unit) if one.latency is not None]
    return math.fsum(known) if known else None


def tokens(unit: Turn | Message | Dialog) -> dict[str, int] | None:
    """Tokens of prompts and answers, as they were recorded. None where nobody recorded them."""
    known = [one.tokens for one in _messages(unit) if one.tokens]
    if not known:
        return None
    return {kind: sum(one.get(kind, 0) for one in known) for kind in ("prompt", "completion")}


def tool_calls(unit: Turn | Message | Dialog) -> int:
    """How many tools were called."""
    return len(unit.tool_calls)


def tool_calls_by_name(unit: Turn | Message | Dialog) -> dict[str, int]:
    """How often each tool was called."""
    counts: dict[str, int] = {}
    for call in unit.tool_calls:
        counts[call.name] = counts.get(call.name, 0) + 1
    return dict(sorted(counts.items()))


def tool_call_arguments(call: ToolCall, numeric: bool = False) -> int | None:
    """How many arguments a call has; only the ``numeric`` ones if wanted. None where they are not a JSON object."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    if not numeric:
        return len(arguments)
    return sum(isinstance(value, int | float) and not isinstance(value, bool) for value in arguments.values())


def _messages(unit: Turn | Message | Dialog) -> tuple[Message, ...]:
    return (unit,) if isinstance(unit, Message) else unit.messages
