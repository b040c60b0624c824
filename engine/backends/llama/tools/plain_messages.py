"""Conversations with tools as plain messages, for chat templates that do not support tools."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ....messages import Message
from ....tools import Toolbox
from .call_syntax import OWN

_OFFER = (
    "You may call functions. These are the functions, each as a JSON object on a line of its own:\n\n{functions}\n\n"
    'To call one, write <tool_call>{{"name": …, "arguments": {{…}}}}</tool_call> with its name and an object of its '
    "arguments; for several calls write that several times. What a function returned then comes between "
    "<tool_response> and </tool_response>. If no call is needed, or something that a call needs is not known, answer "
    "in words instead."
)


def as_plain_messages(messages: Sequence[Message], tools: Toolbox | None) -> list[Message]:
    """The conversation without tool messages: functions are offered in the system message, calls and results are text.

    Consecutive results, and a user message right after them, are joined, because many templates require alternating
    roles.
    """
    plain: list[Message] = []
    results = False  # the last message holds results
    if tools is not None:
        functions = "\n".join(json.dumps(spec["function"], ensure_ascii=False) for spec in tools.specs)
        offer = _OFFER.format(functions=functions)
        if messages and messages[0].role == "system":
            offer = f"{messages[0].content}\n\n{offer}"
            messages = messages[1:]
        plain.append(Message("system", offer))
    for message in messages:
        if message.role == "assistant":
            contents = [message.content] if message.content or not message.calls else []
            contents += [OWN.written(call) for call in message.calls]
            plain.append(Message("assistant", "\n".join(contents), message.pieces))
            results = False
            continue
        content = message.content
        if message.role == "tool":
            content = f"<tool_response>{content}</tool_response>"
        if results and message.role in ("tool", "user"):
            plain[-1] = Message("user", f"{plain[-1].content}\n{content}")
        else:
            plain.append(Message("user" if message.role == "tool" else message.role, content))
        results = message.role == "tool"
    return plain
