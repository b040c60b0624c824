"""The messages that a span of a model call holds, in any of the conventions' forms.

``gen_ai.input.messages``, ``gen_ai.output.messages`` and ``gen_ai.system_instructions`` (JSON with parts); before them
events for each message (``gen_ai.user.message``, ``gen_ai.choice``, …) and, before those or beside, the attributes
``gen_ai.prompt.N.role``, ``gen_ai.completion.N.content`` and the events ``gen_ai.content.prompt`` and
``gen_ai.content.completion``. What never belongs here: times, counts and ids (``spans``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from viva.data.fields import FieldError, shown

from ..units import Message, ToolCall
from .chat import as_text, chat_message, linked, role_of

TOOLS = "gen_ai.tool.definitions"
# Attributes that hold messages. ``gen_ai.prompt.name`` is none of them.
CONTENT = re.compile(
    r"gen_ai\.(input\.messages|output\.messages|system_instructions|tool\.definitions|(prompt|completion)(\.\d+\..*)?)$"
    r"|events$"
)
_NUMBERED = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(.+)$")
_NUMBERED_CALL = re.compile(r"tool_calls\.(\d+)\.(?:function\.)?(id|name|arguments)$")
_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_VALUES = ("stringValue", "boolValue", "doubleValue", "bytesValue")


def attributes_of(value: Any, field: str) -> dict[str, Any]:
    """Attributes as a dict: an object as it is, OTLP's list of keys with typed values made plain.

    :raises FieldError: it is neither.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, list) or not all(isinstance(one, Mapping) and "key" in one for one in value):
        raise FieldError(field, f"expected an object or a list of keys and values, found {shown(value)}")
    return {str(one["key"]): _plain(one.get("value")) for one in value}


def span_messages(
    attributes: Mapping[str, Any], events: Sequence[Mapping[str, Any]], field: str
) -> tuple[list[Message], list[Message]]:
    """What a model was sent, and its answers, one a choice.

    :raises FieldError: a message is not as the conventions say; ``field`` is the path of the span's fields.
    """
    told = [*_told(events, field), *_logged_events(attributes, field)]
    # The conventions moved messages from attributes to events, and back to attributes of another name.
    details = dict(attributes)
    for name, body in told:
        if name == "gen_ai.client.inference.operation.details":
            details.update(body)
    path = f"{field}attributes."
    sent = _parted(details, "gen_ai.input.messages", path)
    answers = _parted(details, "gen_ai.output.messages", path)
    if instructions := _instructions(details, path):
        sent.insert(0, instructions)
    if not sent and not answers:
        sent, answers = _evented(told, field)
    if not sent and not answers:
        sent, answers = _numbered(attributes, "prompt", path), _numbered(attributes, "completion", path)
    if not sent and not answers:
        texts = dict(attributes)
        for name, body in told:
            if name in ("gen_ai.content.prompt", "gen_ai.content.completion"):
                texts.update(body)
        sent = _whole(texts.get("gen_ai.prompt"), "user", f"{path}gen_ai.prompt")
        answers = _whole(texts.get("gen_ai.completion"), "assistant", f"{path}gen_ai.completion")
    return linked(sent), [linked([one])[0] for one in answers]


def _plain(value: Any) -> Any:
    """A value of OTLP/JSON without its type."""
    if not isinstance(value, Mapping):
        return value
    if "intValue" in value:  # JSON's numbers are too small for it: a text as a rule
        try:
            return int(value["intValue"])
        except (TypeError, ValueError):
            return value["intValue"]
    for key in _VALUES:
        if key in value:
            return value[key]
    for key in ("arrayValue", "kvlistValue"):
        if isinstance(value.get(key), Mapping):
            values = value[key].get("values") or []
            return [_plain(one) for one in values] if key == "arrayValue" else attributes_of(values, key)
    return None


def _json(value: Any, field: str) -> Any:
    """A structured attribute: many exporters write it as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise FieldError(field, f"not valid JSON ({error.msg}): {shown(value)}") from None


def _parted(attributes: Mapping[str, Any], name: str, path: str) -> list[Message]:
    if attributes.get(name) is None:
        return []
    values = _json(attributes[name], path + name)
    if not isinstance(values, list):
        raise FieldError(path + name, f"expected a list of messages, found {shown(values)}")
    return [one for index, raw in enumerate(values) for one in _with_parts(raw, f"{path}{name}[{index}]")]


def _instructions(attributes: Mapping[str, Any], path: str) -> Message | None:
    name = "gen_ai.system_instructions"
    value = attributes.get(name)
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return Message("system", value)
    value = _json(value, path + name)
    return None if not value else _with_parts({"role": "system", "parts": value}, path + name)[0]


def _with_parts(raw: Any, field: str) -> list[Message]:
    """A message with parts; results of tools among them are messages of their own."""
    if not isinstance(raw, Mapping) or "parts" not in raw:
        return [chat_message(raw, field)]
    parts = raw["parts"]
    if not isinstance(parts, list):
        raise FieldError(f"{field}.parts", f"expected a list, found {shown(parts)}")
    role = role_of(raw.get("role"), f"{field}.role")
    metadata = {key: value for key, value in raw.items() if key not in ("role", "parts", "name") and value is not None}
    texts, thoughts, others = [], [], []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            texts.append(as_text(part.get("content", part.get("text", ""))))
        elif kind == "tool_call":
            calls.append(_call(part, f"{field}.parts[{index}]"))
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result", ""))
            results.append(Message("tool", as_text(result), name=str(part.get("name") or ""), call_id=_id(part)))
        elif kind == "reasoning":
            thoughts.append(as_text(part.get("content", "")))
        elif isinstance(kind, str):
            others.append(kind)
        else:
            raise FieldError(f"{field}.parts[{index}]", f"expected a part with a type, found {shown(part)}")
    metadata |= {"reasoning": "\n".join(thoughts)} if thoughts else {}
    metadata |= {"parts": others} if others else {}
    if results and not (texts or calls or others):
        return results
    name = raw.get("name")
    said = Message(role, "\n".join(texts), tuple(calls), name if isinstance(name, str) else "", metadata=metadata)
    return [*results, said]


def _call(part: Mapping[str, Any], field: str) -> ToolCall:
    name = part.get("name")
    if not isinstance(name, str) or not name:
        raise FieldError(f"{field}.name", "is missing" if name is None else f"expected text, found {shown(name)}")
    arguments = part.get("arguments")
    return ToolCall(name, "" if arguments is None else as_text(arguments), _id(part))


def _id(part: Mapping[str, Any]) -> str:
    return "" if part.get("id") is None else str(part["id"])


def _told(events: Sequence[Mapping[str, Any]], field: str) -> list[tuple[str, dict[str, Any]]]:
    """The events with their names and bodies: attributes, or an object as JSON text in one of them."""
    found = []
    for index, event in enumerate(events):
        body = attributes_of(event.get("attributes"), f"{field}events[{index}].attributes")
        inner = body.pop("gen_ai.event.content", None)
        if inner is not None:
            value = _json(inner, f"{field}events[{index}].gen_ai.event.content")
            body |= value if isinstance(value, dict) else {"content": as_text(value)}
        found.append((str(event.get("name", "")), body))
    return found


def _logged_events(attributes: Mapping[str, Any], field: str) -> list[tuple[str, dict[str, Any]]]:
    """The events that an attribute ``events`` holds, as some instrumentations put them."""
    values = attributes.get("events")
    if values is None or (isinstance(values, str) and not values.lstrip().startswith("[")):
        return []
    found = _json(values, f"{field}attributes.events")
    return [(str(one.get("event.name", "")), dict(one)) for one in found or () if isinstance(one, Mapping)]


def _evented(told: Sequence[tuple[str, dict[str, Any]]], field: str) -> tuple[list[Message], list[Message]]:
    sent, answers = [], []
    for index, (name, body) in enumerate(told):
        where = f"{field}events[{index}]"
        if name == "gen_ai.choice":
            message = _json(body.get("message", {"content": body.get("content")}), f"{where}.message")
            if isinstance(message, Mapping):
                finish = {"finish_reason": body["finish_reason"]} if body.get("finish_reason") else {}
                calls = {"tool_calls": body["tool_calls"]} if "tool_calls" in body else {}
                answers.append(_event_message({"role": "assistant", **message, **finish, **calls}, where))
        elif name in _EVENT_ROLES:
            sent.append(_event_message({"role": _EVENT_ROLES[name], **body}, where))
    return sent, answers


def _event_message(body: Mapping[str, Any], field: str) -> Message:
    kept = {key: value for key, value in body.items() if not key.startswith(("gen_ai.", "event."))}
    if isinstance(kept.get("tool_calls"), str):
        kept["tool_calls"] = _json(kept["tool_calls"], f"{field}.tool_calls")
    if kept["role"] == "tool" and "id" in kept:
        kept["tool_call_id"] = kept.pop("id")
    if kept.get("content") is None:
        kept["content"] = ""
    elif not isinstance(kept["content"], str | list):
        kept["content"] = as_text(kept["content"])
    return chat_message(kept, field)


def _numbered(attributes: Mapping[str, Any], which: str, path: str) -> list[Message]:
    """The messages of attributes such as ``gen_ai.prompt.0.content``."""
    found: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if (match := _NUMBERED.match(key)) and match[1] == which:
            found.setdefault(int(match[2]), {})[match[3]] = value
    messages = []
    for number, fields in sorted(found.items()):
        calls: dict[int, dict[str, Any]] = {}
        for key in [one for one in fields if one.startswith("tool_calls.")]:
            if match := _NUMBERED_CALL.match(key):
                calls.setdefault(int(match[1]), {})[match[2]] = fields.pop(key)
        role = fields.setdefault("role", "user" if which == "prompt" else "assistant")
        content = fields.get("content")
        if isinstance(content, str) and content.startswith('[{"type"'):  # parts as JSON text
            content = _json(content, f"{path}gen_ai.{which}.{number}.content")
        made = {**fields, "content": "" if content is None else content}
        made |= {"tool_calls": [one for _, one in sorted(calls.items())]} if calls else {}
        messages.append(chat_message(made | {"role": role}, f"{path}gen_ai.{which}.{number}"))
    return messages


def _whole(value: Any, role: str, field: str) -> list[Message]:
    """A prompt or a completion in one attribute: messages as JSON text, or the text itself."""
    if value is None:
        return []
    if isinstance(value, str):
        if not value.lstrip().startswith(("[", "{")):
            return [Message(role, value)]
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return [Message(role, value)]
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, Mapping) for one in values):
        return [Message(role, as_text(value))]
    return [_event_message({"role": role, **one}, f"{field}[{index}]") for index, one in enumerate(values)]
