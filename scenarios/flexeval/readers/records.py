"""Conversation records as dialogs: OpenAI's chat format, ShareGPT's, or a single prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from viva.data.items import FieldError, Raw, preview, record_id

from ..dialog import Dialog, Message, ToolCall

ROLES_BY_NAME = {
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
_TEXT_PARTS = ("text", "input_text", "output_text")
_TOKEN_KEYS = {
    "prompt": ("prompt", "prompt_tokens", "input_tokens"),
    "completion": ("completion", "completion_tokens", "output_tokens"),
}


def read_messages(values: Any, field: str) -> list[Message]:
    """Read a list of messages and link calls with results; `field` is its name in errors."""
    if not isinstance(values, list):
        raise FieldError(field, f"expected a list of messages, found {preview(values)}")
    if not values:
        raise FieldError(field, "has no messages")
    return link_tool_results([read_message(raw, f"{field}[{index}]") for index, raw in enumerate(values)])


def read_message(raw: Any, field: str) -> Message:
    """Read a message.

    Raises:
        FieldError: It has no role, no content, or an invalid tool call.
    """
    if not isinstance(raw, Mapping):
        raise FieldError(field, f"expected an object with role and content, found {preview(raw)}")
    fields = dict(raw)
    recorded_role = fields.pop("role", None)
    role = parse_role(recorded_role, f"{field}.role")
    if role != recorded_role:
        fields["role"] = recorded_role
    calls = _read_tool_calls(fields.pop("tool_calls", None), f"{field}.tool_calls")
    if (old := fields.pop("function_call", None)) is not None:
        calls.append(read_tool_call(old, f"{field}.function_call"))
    content, other_kinds = content_text(fields.pop("content", None), f"{field}.content")
    if content is None and isinstance(fields.get("refusal"), str):
        content = fields["refusal"]
    if content is None and role != "assistant":
        raise FieldError(f"{field}.content", "is missing")
    call_id, name = (_required_text(fields, key, field) for key in ("tool_call_id", "name"))
    latency, tokens = _pop_seconds(fields), _pop_tokens(fields)
    if other_kinds:
        fields["parts"] = other_kinds
    metadata = flatten_metadata(fields)
    return Message(
        role,
        content or "",
        tuple(calls),
        name,
        call_id or _required_text(metadata, "call_id", field),
        latency,
        tokens,
        metadata,
    )


def parse_role(value: Any, field: str) -> str:
    """Return the role for a name in `ROLES_BY_NAME`.

    Raises:
        FieldError: The name is unknown.
    """
    if value is None:
        raise FieldError(field, "is missing")
    role = ROLES_BY_NAME.get(value.strip().lower()) if isinstance(value, str) else None
    if role is None:
        raise FieldError(field, f"expected one of {', '.join(ROLES_BY_NAME)}, found {preview(value)}")
    return role


def content_text(content: Any, field: str) -> tuple[str | None, list[str]]:
    """Return a content's text, or None, and the kinds of its parts that are not text.

    Raises:
        FieldError: The content is neither text nor a list of parts.
    """
    if content is None or isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise FieldError(field, f"expected text or a list of parts, found {preview(content)}")
    texts, other_kinds = [], []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str):
            raise FieldError(f"{field}[{index}]", f"expected text or a part with a type, found {preview(part)}")
        text = part.get("text" if kind in _TEXT_PARTS else "refusal" if kind == "refusal" else "", None)
        if isinstance(text, str):
            texts.append(text)
        elif kind in _TEXT_PARTS:
            raise FieldError(f"{field}[{index}].text", f"expected text, found {preview(text)}")
        else:
            other_kinds.append(kind)
    return ("\n".join(texts) if texts or content else None), other_kinds


def read_tool_call(raw: Any, field: str) -> ToolCall:
    """Read a call in OpenAI's current or old format, or as written by `Message.to_record`.

    Raises:
        FieldError: The call names no function.
    """
    if isinstance(raw, list) and len(raw) == 3 and all(isinstance(element, str) for element in raw):
        return ToolCall(raw[1], raw[2], raw[0])
    if not isinstance(raw, Mapping):
        raise FieldError(field, f"expected an object, found {preview(raw)}")
    inner = next((raw[key] for key in ("function", "custom") if isinstance(raw.get(key), Mapping)), raw)
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise FieldError(f"{field}.name", "is missing" if name is None else f"expected text, found {preview(name)}")
    arguments = next((inner[key] for key in ("arguments", "input", "args") if inner.get(key) is not None), "")
    id_ = raw.get("id")
    return ToolCall(name, to_text(arguments), "" if id_ is None else str(id_))


def to_text(value: Any) -> str:
    """Return text unchanged, and anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def link_tool_results(messages: Sequence[Message]) -> list[Message]:
    """Give every call an id, and every tool result the id of the call that it answers.

    A result without an id belongs to the first unanswered call of its function or, without a function's name, to the
    first unanswered call.
    """
    linked: list[Message] = []
    unanswered: list[ToolCall] = []
    number = 0
    for message in messages:
        calls = []
        for call in message.tool_calls:
            number += 1
            calls.append(call if call.id else replace(call, id=f"call-{number}"))
        unanswered += calls
        call_id = message.call_id
        if message.role == "tool" and not call_id:
            answered = next((call for call in unanswered if message.name in ("", call.name)), None)
            call_id = "" if answered is None else answered.id
        if message.role == "tool":
            unanswered = [call for call in unanswered if call.id != call_id]
        changed = call_id != message.call_id or calls != list(message.tool_calls)
        linked.append(replace(message, tool_calls=tuple(calls), call_id=call_id) if changed else message)
    return linked


def token_usage(raw: Any) -> dict[str, int]:
    """Return token counts as `prompt` and `completion`, from any of their usual names; skip invalid counts."""
    counts = {}
    for name, keys in _TOKEN_KEYS.items() if isinstance(raw, Mapping) else ():
        value = next((raw[key] for key in keys if raw.get(key) is not None), None)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value):
            counts[name] = int(value)
    return counts


def parse_seconds(value: Any) -> float | None:
    """Return a number of seconds, or None if it is invalid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def flatten_metadata(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the remaining fields of a record as metadata, merging its `metadata` and dropping nulls."""
    inner = fields.pop("metadata", None)
    if isinstance(inner, Mapping):
        fields = {**inner, **fields}
    elif inner is not None:
        fields["metadata"] = inner
    return {key: value for key, value in fields.items() if value is not None}


def _read_tool_calls(values: Any, field: str) -> list[ToolCall]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise FieldError(field, f"expected a list of calls, found {preview(values)}")
    return [read_tool_call(call, f"{field}[{index}]") for index, call in enumerate(values)]


def _required_text(fields: dict[str, Any], key: str, field: str) -> str:
    value = fields.pop(key, None)
    if value is not None and not isinstance(value, str):
        raise FieldError(f"{field}.{key}", f"expected text, found {preview(value)}")
    return value or ""


def _pop_seconds(fields: dict[str, Any]) -> float | None:
    seconds = parse_seconds(fields.get("latency"))
    if seconds is not None:
        del fields["latency"]
    return seconds


def _pop_tokens(fields: dict[str, Any]) -> dict[str, int]:
    for key in ("tokens", "usage"):
        if tokens := token_usage(fields.get(key)):
            del fields[key]
            return tokens
    return {}


MESSAGE_LISTS = ("messages", "input", "conversations", "conversation")
_ID_KEYS = ("id", "conversation_id")
_CALL_ROLES = ("function_call", "tool_call")
_RESULT_ROLES = ("observation", "tool", "function", "tool_response", "function_response")
_SHAREGPT_ROLES = {"claude": "assistant", "bard": "assistant", "bing": "assistant"}


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A line of a file that could not be read as a dialog.

    `line` is 1-based. `id` is the id that its dialog would have, or empty for a single line.
    """

    path: str
    line: int
    message: str
    id: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def unreadable_record(path: Path, line: int, error: Exception) -> UnreadableRecord:
    """Return an `UnreadableRecord` for the error in a line."""
    field = f"field '{error.field}': " if isinstance(error, FieldError) else ""
    return UnreadableRecord(str(path), line, f"{field}{getattr(error, 'message', None) or error}")


def default_id(path: Path, line: int) -> str:
    """Return an id for a dialog without id: the file's stem and the line."""
    return f"{path.stem}:{line}"


def dialog_from_record(raw: Raw, fallback_id: str) -> Dialog:
    """Return the dialog of a record; `fallback_id` is used if the record has no `id` or `conversation_id`.

    All other keys become metadata.

    Raises:
        FieldError: The record has no messages, or an invalid one.
    """
    fields = dict(raw)
    field = next((name for name in MESSAGE_LISTS if fields.get(name) is not None), None)
    if field is None:
        keys = ", ".join(list(fields)[:10]) or "nothing"
        raise FieldError(
            "messages",
            "is missing; expected 'messages' or 'input' (OpenAI's format) or 'conversations' "
            f"(ShareGPT's); found: {keys}",
        )
    values = fields.pop(field)
    if field == "input" and isinstance(values, str):
        messages = [Message("user", values)]
    elif _is_sharegpt(values):
        messages = _sharegpt_messages(values, field)
        if isinstance(fields.get("system"), str) and messages[0].role != "system":
            messages.insert(0, Message("system", fields.pop("system")))
    else:
        messages = read_messages(values, field)
    id_ = None
    for name in _ID_KEYS:
        if id_ is None and (id_ := record_id(fields, name)) is not None:
            del fields[name]
    return Dialog.from_messages(id_ or fallback_id, messages, flatten_metadata(fields))


def _is_sharegpt(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and isinstance(values[0], Mapping) and "from" in values[0]


def _sharegpt_messages(values: list[Any], field: str) -> list[Message]:
    return link_tool_results([_sharegpt_message(raw, f"{field}[{index}]") for index, raw in enumerate(values)])


def _sharegpt_message(raw: Any, field: str) -> Message:
    if not isinstance(raw, Mapping):
        raise FieldError(field, f"expected an object with from and value, found {preview(raw)}")
    fields = dict(raw)
    sender, value = fields.pop("from", None), fields.pop("value", None)
    if value is None:
        raise FieldError(f"{field}.value", "is missing")
    name = sender.strip().lower() if isinstance(sender, str) else ""
    if name in _CALL_ROLES:
        return Message("assistant", "", _sharegpt_calls(value, f"{field}.value"), metadata=flatten_metadata(fields))
    if name in _RESULT_ROLES:
        return Message("tool", to_text(value), metadata=flatten_metadata(fields))
    if not isinstance(value, str):
        raise FieldError(f"{field}.value", f"expected text, found {preview(value)}")
    role = _SHAREGPT_ROLES.get(name) or parse_role(sender, f"{field}.from")
    return Message(role, value, metadata=flatten_metadata(fields))


def _sharegpt_calls(value: Any, field: str) -> tuple[ToolCall, ...]:
    """Read the calls of a `function_call`: JSON text of an object with name and arguments, or of a list."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise FieldError(
                field, f"expected a call as JSON with name and arguments, found {preview(value)}"
            ) from None
    return tuple(read_tool_call(call, field) for call in (value if isinstance(value, list) else [value]))
