"""Whether a tool call has the shape that its tool declares: a built-in metric of single calls."""

from __future__ import annotations

import json
from typing import Any

from viva.engine.schemas import broken_rules

from ..units import ToolCall


def tool_call_shape(call: ToolCall, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether a call can be made: its tool is one of ``tools`` (OpenAI's form), its arguments are a JSON object that
    follows the tool's parameters. ``valid``, and the ``problem`` otherwise.
    """
    declared = {}
    for tool in tools:
        function = tool.get("function", tool)
        declared[function["name"]] = function.get("parameters", {})
    if call.name not in declared:
        return _wrong("no such tool")
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return _wrong("arguments are not JSON")
    if not isinstance(arguments, dict):
        return _wrong("arguments are no object")
    errors = sorted(f"{'.'.join(map(str, one.path)) or 'arguments'}: {one.validator}"
                    for one in broken_rules(declared[call.name], arguments))  # fmt: skip
    return _wrong(errors[0]) if errors else {"valid": True, "problem": None}


def _wrong(problem: str) -> dict[str, Any]:
    return {"valid": False, "problem": problem}
