"""Messages of OpenAI's chat form, as files and request logs hold them, into messages of a dialog.

Content may be a list of parts: its texts are joined, other kinds are named in the message's metadata (``parts``). What
a message has besides is kept as its metadata. What never belongs here: files, lines, and whole records (``records``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from viva.data.fields import FieldError, shown

from ..units import Message, ToolCall

ROLE_OF = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "developer": "system",
    "function": "tool",
    "human": "user",
    "ai": "assistant",
    "bot": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "observation": "tool",
    "ipython": "tool",
}
_TEXTS = ("text", "input_text", "output_text")
_COUNTS = {
    "prompt": ("prompt", "prompt_tokens", "input_tokens"),
    "completion": ("completion", "completion_tokens", "output_tokens"),
}


def chat_messages(values: Any, field: str) -> list[Message]:
    """The messages of a list; ``field`` is its name, for errors. Calls without an id get one, and results without one
    are put with the call that they answer.

    :raises FieldError: it is no such list.
    """
    if not isinstance(values, list):
        raise FieldError(field, f"expected a list of messages, found {shown(values)}")
    if not values:
        raise FieldError(field, "has no messages")
    return linked([chat_message(raw, f"{field}[{index}]") for index, raw in enumerate(values)])


def chat_message(raw: Any, field: str) -> Message:
    """One message.

    :raises FieldError: it has no role or no content, or a tool call that is none.
    """
    if not isinstance(raw, Mapping):
        raise FieldError(field, f"expected an object with role and content, found {shown(raw)}")
    rest = dict(raw)
    given = rest.pop("role", None)
    role = role_of(given, f"{field}.role")
    if role != given:
        rest["role"] = given
    calls = _calls(rest.pop("tool_calls", None), f"{field}.tool_calls")
    if (old := rest.pop("function_call", None)) is not None:
        calls.append(tool_call(old, f"{field}.function_call"))
    content, others = text_of(rest.pop("content", None), f"{field}.content")
    if content is None and isinstance(rest.get("refusal"), str):
        content = rest["refusal"]
    if content is None and role != "assistant":
        raise FieldError(f"{field}.content", "is missing")
    call_id, name = (_text(rest, key, field) for key in ("tool_call_id", "name"))
    latency, tokens = _seconds(rest), _tokens(rest)
    if others:
        rest["parts"] = others
    metadata = flattened(rest)
    return Message(
        role, content or "", tuple(calls), name, call_id or _text(metadata, "call_id", field), latency, tokens, metadata
    )


def role_of(value: Any, field: str) -> str:
    """The role that a name stands for.

    :raises FieldError: it is none of ``ROLE_OF``.
    """
    if value is None:
        raise FieldError(field, "is missing")
    role = ROLE_OF.get(value.strip().lower()) if isinstance(value, str) else None
    if role is None:
        raise FieldError(field, f"expected one of {', '.join(ROLE_OF)}, found {shown(value)}")
    return role


def text_of(content: Any, field: str) -> tuple[str | None, list[str]]:
    """The text of a content, None where there is none, and the kinds of its parts that are no text.

    :raises FieldError: it is neither a text nor a list of parts.
    """
    if content is None or isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise FieldError(field, f"expected text or a list of parts, found {shown(content)}")
    texts, others = [], []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str):
            raise FieldError(f"{field}[{index}]", f"expected text or a part with a type, found {shown(part)}")
        text = part.get("text" if kind in _TEXTS else "refusal" if kind == "refusal" else "", None)
        if isinstance(text, str):
            texts.append(text)
        elif kind in _TEXTS:
            raise FieldError(f"{field}[{index}].text", f"expected text, found {shown(text)}")
        else:
            others.append(kind)
    return ("\n".join(texts) if texts or content else None), others


def tool_call(raw: Any, field: str) -> ToolCall:
    """A call in OpenAI's form, new or old, or as ``Message.to_record`` writes it.

    :raises FieldError: it names no function.
    """
    if isinstance(raw, list) and len(raw) == 3 and all(isinstance(one, str) for one in raw):
        return ToolCall(raw[1], raw[2], raw[0])
    if not isinstance(raw, Mapping):
        raise FieldError(field, f"expected an object, found {shown(raw)}")
    inner = next((raw[key] for key in ("function", "custom") if isinstance(raw.get(key), Mapping)), raw)
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise FieldError(f"{field}.name", "is missing" if name is None else f"expected text, found {shown(name)}")
    arguments = next((inner[key] for key in ("arguments", "input", "args") if inner.get(key) is not None), "")
    id_ = raw.get("id")
    return ToolCall(name, as_text(arguments), "" if id_ is None else str(id_))


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def linked(messages: Sequence[Message]) -> list[Message]:
    """The messages with an id for every call, and for every tool's result that of the call that it answers: of the
    calls so far without a result, the first of that function, or the first where the result names none.
    """
    found: list[Message] = []
    waiting: list[ToolCall] = []
    number = 0
    for one in messages:
        calls = []
        for call in one.tool_calls:
            number += 1
            calls.append(call if call.id else replace(call, id=f"call-{number}"))
        waiting += calls
        call_id = one.call_id
        if one.role == "tool" and not call_id:
            answered = next((call for call in waiting if one.name in ("", call.name)), None)
            call_id = "" if answered is None else answered.id
        if one.role == "tool":
            waiting = [call for call in waiting if call.id != call_id]
        changed = call_id != one.call_id or calls != list(one.tool_calls)
        found.append(replace(one, tool_calls=tuple(calls), call_id=call_id) if changed else one)
    return found


def usage_of(raw: Any) -> dict[str, int]:
    """Counts of tokens, ``prompt`` and ``completion``, by whichever name they go; what is no count is left out."""
    found = {}
    for name, keys in _COUNTS.items() if isinstance(raw, Mapping) else ():
        value = next((raw[key] for key in keys if raw.get(key) is not None), None)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value):
            found[name] = int(value)
    return found


def seconds(value: Any) -> float | None:
    """A number of seconds, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def flattened(rest: dict[str, Any]) -> dict[str, Any]:
    """What is left of a record as metadata: what stands under ``metadata`` is lifted out, nulls are left out."""
    inner = rest.pop("metadata", None)
    if isinstance(inner, Mapping):
        rest = {**inner, **rest}
    elif inner is not None:
        rest["metadata"] = inner
    return {key: value for key, value in rest.items() if value is not None}


def _calls(values: Any, field: str) -> list[ToolCall]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise FieldError(field, f"expected a list of calls, found {shown(values)}")
    return [tool_call(one, f"{field}[{index}]") for index, one in enumerate(values)]


def _text(rest: dict[str, Any], key: str, field: str) -> str:
    value = rest.pop(key, None)
    if value is not None and not isinstance(value, str):
        raise FieldError(f"{field}.{key}", f"expected text, found {shown(value)}")
    return value or ""


def _seconds(rest: dict[str, Any]) -> float | None:
    found = seconds(rest.get("latency"))
    if found is not None:
        del rest["latency"]
    return found


def _tokens(rest: dict[str, Any]) -> dict[str, int]:
    for key in ("tokens", "usage"):
        if found := usage_of(rest.get(key)):
            del rest[key]
            return found
    return {}
