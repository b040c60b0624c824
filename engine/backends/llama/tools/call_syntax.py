"""How calls of functions stand in a local model's text: the notations there are, reading them, and one of our own.

A model whose chat template knows tools is offered them by that, and writes calls as it has learnt: like Hermes and Qwen
(``<tool_call>{"name": …, "arguments": …}</tool_call>``, any number of them), like Mistral (``[TOOL_CALLS] […]``) or
like Llama 3.1 (``{"name": …, "parameters": …}`` and nothing else). Any other model is told in its system message what
there is and how to call it, in the notation ``OWN``; results come to it as a user's message.

What never belongs here: templates (``toolchat``), which calls may be made (``calling``).
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
class Notation:
    """How one call is written: ``mark``, ``opening``, its name, ``between``, its arguments, ``closing``.

    Text may stand before a mark. After a call ``hermes`` goes on in text or with another one, ``mistral`` with the next
    of a list, and in ``llama`` the answer is the call and nothing else.
    """

    kind: Literal["hermes", "mistral", "llama"]
    mark: str
    opening: str
    between: str
    closing: str

    def written(self, call: ToolCall) -> str:
        """A call, alone, as an answer says it."""
        end = "]" if self.kind == "mistral" else ""
        name = json.dumps(call.name, ensure_ascii=False)[1:-1]
        return self.mark + self.opening + name + self.between + arguments_of(call) + self.closing + end


OWN = Notation("hermes", HERMES_OPEN, '{"name": "', '", "arguments": ', "}" + HERMES_CLOSE)


def arguments_of(call: ToolCall) -> str:
    """A call's arguments as models write them, blanks after commas and colons; what is no object stays as it is."""
    try:
        return json.dumps(call.parsed(), ensure_ascii=False)
    except MalformedOutput:
        return call.arguments
