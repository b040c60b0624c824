"""The syntaxes in which local models write function calls.

A model whose chat template supports tools is offered them by that, and writes calls as it was trained: like Hermes and
Qwen (``<tool_call>{"name": …, "arguments": …}</tool_call>``, any number of them), like Mistral (``[TOOL_CALLS] […]``)
or like Llama 3.1 (``{"name": …, "parameters": …}`` and nothing else). Any other model is told in its system message
which functions there are and how to call them, in the syntax ``OWN`` (``plain_messages``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from ....errors import MalformedOutput
from ....tools import ToolCall

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
MISTRAL_LIST = "[TOOL_CALLS]"


@dataclass(slots=True, frozen=True)
class CallSyntax:
    """How one call is written: ``marker``, ``opening``, its name, ``between``, its arguments, ``closing``.

    Text may precede a marker. After a call, ``hermes`` allows text or another call, ``mistral`` the next call of a
    list; in ``llama`` the answer is one call and nothing else.
    """

    kind: Literal["hermes", "mistral", "llama"]
    marker: str
    opening: str
    between: str
    closing: str

    def written(self, call: ToolCall) -> str:
        """A single call, as an answer contains it."""
        end = "]" if self.kind == "mistral" else ""
        name = json.dumps(call.name, ensure_ascii=False)[1:-1]
        return self.marker + self.opening + name + self.between + arguments_text(call) + self.closing + end


OWN = CallSyntax("hermes", HERMES_OPEN, '{"name": "', '", "arguments": ', "}" + HERMES_CLOSE)


def arguments_text(call: ToolCall) -> str:
    """A call's arguments as models write them, with spaces after commas and colons, if they are an object."""
    try:
        return json.dumps(call.parsed(), ensure_ascii=False)
    except MalformedOutput:
        return call.arguments
