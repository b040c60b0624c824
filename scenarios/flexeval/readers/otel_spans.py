"""OpenTelemetry spans of model calls, and their messages, by the semantic conventions for generative AI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson

from viva.data.items import FieldError, Raw, preview

from ..dialog import Message, ToolCall
from .logged_calls import LoggedCall
from .records import link_tool_results, parse_role, read_message, to_text

TOOLS_ATTRIBUTE = "gen_ai.tool.definitions"
# Attributes that contain messages; gen_ai.prompt.name does not.
CONTENT_ATTRIBUTE = re.compile(
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
_TYPED_VALUES = ("stringValue", "boolValue", "doubleValue", "bytesValue")


def read_attributes(value: Any, field: str) -> dict[str, Any]:
    """Return attributes as a dict, converting OTLP's list of keys with typed values.

    Raises:
        FieldError: The value is neither an object nor a list of keys.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, list) or not all(isinstance(pair, Mapping) and "key" in pair for pair in value):
        raise FieldError(field, f"expected an object or a list of keys and values, found {preview(value)}")
    return {str(pair["key"]): _plain_value(pair.get("value")) for pair in value}


def span_messages(
    attributes: Mapping[str, Any], events: Sequence[Mapping[str, Any]], field: str
) -> tuple[list[Message], list[Message]]:
    """Return the prompt of a span, and its answers, one per choice; `field` is the span's path in errors.

    Raises:
        FieldError: A message does not follow the conventions.
    """
    bodies = [*_event_bodies(events, field), *_attribute_events(attributes, field)]
    # The conventions moved messages from attributes to events, and back to attributes of another name.
    details = dict(attributes)
    for name, body in bodies:
        if name == "gen_ai.client.inference.operation.details":
            details.update(body)
    path = f"{field}attributes."
    prompt = _messages_with_parts(details, "gen_ai.input.messages", path)
    answers = _messages_with_parts(details, "gen_ai.output.messages", path)
    if instructions := _system_message(details, path):
        prompt.insert(0, instructions)
    if not prompt and not answers:
        prompt, answers = _messages_of_events(bodies, field)
    if not prompt and not answers:
        prompt, answers = (
            _messages_of_numbered(attributes, "prompt", path),
            _messages_of_numbered(attributes, "completion", path),
        )
    if not prompt and not answers:
        texts = dict(attributes)
        for name, body in bodies:
            if name in ("gen_ai.content.prompt", "gen_ai.content.completion"):
                texts.update(body)
        prompt = _messages_of_text(texts.get("gen_ai.prompt"), "user", f"{path}gen_ai.prompt")
        answers = _messages_of_text(texts.get("gen_ai.completion"), "assistant", f"{path}gen_ai.completion")
    return link_tool_results(prompt), [link_tool_results([answer])[0] for answer in answers]


def _plain_value(value: Any) -> Any:
    """Return an OTLP/JSON value without its type."""
    if not isinstance(value, Mapping):
        return value
    if "intValue" in value:  # usually text, as it may exceed JSON numbers
        try:
            return int(value["intValue"])
        except (TypeError, ValueError):
            return value["intValue"]
    for key in _TYPED_VALUES:
        if key in value:
            return value[key]
    for key in ("arrayValue", "kvlistValue"):
        if isinstance(value.get(key), Mapping):
            values = value[key].get("values") or []
            return (
                [_plain_value(element) for element in values] if key == "arrayValue" else read_attributes(values, key)
            )
    return None


def _parse_json(value: Any, field: str) -> Any:
    """Return a structured attribute, which many exporters write as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise FieldError(field, f"not valid JSON ({error.msg}): {preview(value)}") from None


def _messages_with_parts(attributes: Mapping[str, Any], name: str, path: str) -> list[Message]:
    if attributes.get(name) is None:
        return []
    values = _parse_json(attributes[name], path + name)
    if not isinstance(values, list):
        raise FieldError(path + name, f"expected a list of messages, found {preview(values)}")
    return [message for index, raw in enumerate(values) for message in _split_parts(raw, f"{path}{name}[{index}]")]


def _system_message(attributes: Mapping[str, Any], path: str) -> Message | None:
    name = "gen_ai.system_instructions"
    value = attributes.get(name)
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return Message("system", value)
    value = _parse_json(value, path + name)
    return None if not value else _split_parts({"role": "system", "parts": value}, path + name)[0]


def _split_parts(raw: Any, field: str) -> list[Message]:
    """Read a message with parts; tool results become separate messages."""
    if not isinstance(raw, Mapping) or "parts" not in raw:
        return [read_message(raw, field)]
    parts = raw["parts"]
    if not isinstance(parts, list):
        raise FieldError(f"{field}.parts", f"expected a list, found {preview(parts)}")
    role = parse_role(raw.get("role"), f"{field}.role")
    metadata = {key: value for key, value in raw.items() if key not in ("role", "parts", "name") and value is not None}
    texts, thoughts, other_kinds = [], [], []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            texts.append(to_text(part.get("content", part.get("text", ""))))
        elif kind == "tool_call":
            calls.append(_part_tool_call(part, f"{field}.parts[{index}]"))
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result", ""))
            results.append(Message("tool", to_text(result), name=str(part.get("name") or ""), call_id=_part_id(part)))
        elif kind == "reasoning":
            thoughts.append(to_text(part.get("content", "")))
        elif isinstance(kind, str):
            other_kinds.append(kind)
        else:
            raise FieldError(f"{field}.parts[{index}]", f"expected a part with a type, found {preview(part)}")
    metadata |= {"reasoning": "\n".join(thoughts)} if thoughts else {}
    metadata |= {"parts": other_kinds} if other_kinds else {}
    if results and not (texts or calls or other_kinds):
        return results
    name = raw.get("name")
    message = Message(role, "\n".join(texts), tuple(calls), name if isinstance(name, str) else "", metadata=metadata)
    return [*results, message]


def _part_tool_call(part: Mapping[str, Any], field: str) -> ToolCall:
    name = part.get("name")
    if not isinstance(name, str) or not name:
        raise FieldError(f"{field}.name", "is missing" if name is None else f"expected text, found {preview(name)}")
    arguments = part.get("arguments")
    return ToolCall(name, "" if arguments is None else to_text(arguments), _part_id(part))


def _part_id(part: Mapping[str, Any]) -> str:
    return "" if part.get("id") is None else str(part["id"])


def _event_bodies(events: Sequence[Mapping[str, Any]], field: str) -> list[tuple[str, dict[str, Any]]]:
    """Return names and bodies of events; a body is the attributes, or JSON text in one of them."""
    bodies = []
    for index, event in enumerate(events):
        body = read_attributes(event.get("attributes"), f"{field}events[{index}].attributes")
        inner = body.pop("gen_ai.event.content", None)
        if inner is not None:
            value = _parse_json(inner, f"{field}events[{index}].gen_ai.event.content")
            body |= value if isinstance(value, dict) else {"content": to_text(value)}
        bodies.append((str(event.get("name", "")), body))
    return bodies


def _attribute_events(attributes: Mapping[str, Any], field: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the events in an attribute `events`, where some instrumentations put them."""
    values = attributes.get("events")
    if values is None or (isinstance(values, str) and not values.lstrip().startswith("[")):
        return []
    events = _parse_json(values, f"{field}attributes.events")
    return [(str(event.get("event.name", "")), dict(event)) for event in events or () if isinstance(event, Mapping)]


def _messages_of_events(
    bodies: Sequence[tuple[str, dict[str, Any]]], field: str
) -> tuple[list[Message], list[Message]]:
    prompt, answers = [], []
    for index, (name, body) in enumerate(bodies):
        path = f"{field}events[{index}]"
        if name == "gen_ai.choice":
            message = _parse_json(body.get("message", {"content": body.get("content")}), f"{path}.message")
            if isinstance(message, Mapping):
                finish = {"finish_reason": body["finish_reason"]} if body.get("finish_reason") else {}
                calls = {"tool_calls": body["tool_calls"]} if "tool_calls" in body else {}
                answers.append(_event_message({"role": "assistant", **message, **finish, **calls}, path))
        elif name in _EVENT_ROLES:
            prompt.append(_event_message({"role": _EVENT_ROLES[name], **body}, path))
    return prompt, answers


def _event_message(body: Mapping[str, Any], field: str) -> Message:
    fields = {key: value for key, value in body.items() if not key.startswith(("gen_ai.", "event."))}
    if isinstance(fields.get("tool_calls"), str):
        fields["tool_calls"] = _parse_json(fields["tool_calls"], f"{field}.tool_calls")
    if fields["role"] == "tool" and "id" in fields:
        fields["tool_call_id"] = fields.pop("id")
    if fields.get("content") is None:
        fields["content"] = ""
    elif not isinstance(fields["content"], str | list):
        fields["content"] = to_text(fields["content"])
    return read_message(fields, field)


def _messages_of_numbered(attributes: Mapping[str, Any], kind: str, path: str) -> list[Message]:
    """Read messages from attributes such as `gen_ai.prompt.0.content`."""
    fields_by_number: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if (match := _NUMBERED.match(key)) and match[1] == kind:
            fields_by_number.setdefault(int(match[2]), {})[match[3]] = value
    messages = []
    for number, fields in sorted(fields_by_number.items()):
        calls: dict[int, dict[str, Any]] = {}
        for key in [name for name in fields if name.startswith("tool_calls.")]:
            if match := _NUMBERED_CALL.match(key):
                calls.setdefault(int(match[1]), {})[match[2]] = fields.pop(key)
        role = fields.setdefault("role", "user" if kind == "prompt" else "assistant")
        content = fields.get("content")
        if isinstance(content, str) and content.startswith('[{"type"'):  # parts as JSON text
            content = _parse_json(content, f"{path}gen_ai.{kind}.{number}.content")
        record = {**fields, "content": "" if content is None else content}
        record |= {"tool_calls": [call for _, call in sorted(calls.items())]} if calls else {}
        messages.append(read_message(record | {"role": role}, f"{path}gen_ai.{kind}.{number}"))
    return messages


def _messages_of_text(value: Any, role: str, field: str) -> list[Message]:
    """Read a prompt or completion in one attribute: messages as JSON text, or plain text."""
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
    if not all(isinstance(record, Mapping) for record in values):
        return [Message(role, to_text(value))]
    return [_event_message({"role": role, **record}, f"{field}[{index}]") for index, record in enumerate(values)]


_EXPORT_KEYS = ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs")
_DETAILS_EVENT = "gen_ai.client.inference.operation.details"
_CONVERSATION_ATTRIBUTES = ("gen_ai.conversation.id", "session.id", "gen_ai.thread.id")
_USAGE_ATTRIBUTES = {
    "prompt": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "completion": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
}
_SKIPPED_OPERATIONS = ("embeddings", "execute_tool", "retrieval", "create_agent")


def is_span(raw: Raw) -> bool:
    """Return True if a record looks like a span, or an export of spans."""
    if any(key in raw for key in _EXPORT_KEYS):
        return True
    return "attributes" in raw and any(key in raw for key in ("name", "trace_id", "traceId", "context", "span_id"))


def span_calls(raw: Raw) -> Iterator[LoggedCall]:
    """Yield the chat calls in a record, including calls recorded without messages.

    Raises:
        FieldError: The record is not a span, or does not follow the conventions.
    """
    for span, resource, field in _each_span(raw):
        attributes = read_attributes(span.get("attributes"), f"{field}attributes")
        if any(key.startswith("gen_ai.") for key in attributes) or any(
            str(event.get("name", "")).startswith("gen_ai.") for event in _span_events(span, field)
        ):
            if attributes.get("gen_ai.operation.name") in _SKIPPED_OPERATIONS:
                continue
            yield _logged_call(span, attributes, resource, field)


def _each_span(raw: Raw) -> Iterator[tuple[Mapping[str, Any], dict[str, Any], str]]:
    """Yield each span with its resource's attributes, and its path for errors."""
    exports = [key for key in _EXPORT_KEYS if key in raw]
    if not exports:
        resource = raw.get("resource")
        inner = resource.get("attributes") if isinstance(resource, Mapping) else None
        yield raw, read_attributes(inner, "resource.attributes"), ""
        return
    for key in exports:
        for index, export in enumerate(_read_objects(raw, key, "")):
            path = f"{key}[{index}]."
            resource = export.get("resource")
            inner = resource.get("attributes") if isinstance(resource, Mapping) else None
            resource_attributes = read_attributes(inner, f"{path}resource.attributes")
            scopes = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "scopeLogs", "scope_logs")
            for scope in (name for name in scopes if name in export):
                for position, group in enumerate(_read_objects(export, scope, path)):
                    for list_ in (name for name in ("spans", "logRecords", "log_records") if name in group):
                        group_path = f"{path}{scope}[{position}]."
                        for number, span in enumerate(_read_objects(group, list_, group_path)):
                            if list_ == "spans" or _is_details(span, group_path):
                                yield span, resource_attributes, f"{group_path}{list_}[{number}]."


def _is_details(record: Mapping[str, Any], field: str) -> bool:
    name = record.get("eventName") or record.get("event_name")
    return (name or read_attributes(record.get("attributes"), f"{field}attributes").get("event.name")) == _DETAILS_EVENT


def _read_objects(holder: Mapping[str, Any], key: str, path: str) -> list[Mapping[str, Any]]:
    value = holder[key]
    if not isinstance(value, list) or not all(isinstance(element, Mapping) for element in value):
        raise FieldError(f"{path}{key}", f"expected a list of objects, found {preview(value)}")
    return value


def _span_events(span: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    return [] if span.get("events") is None else _read_objects(span, "events", field)


def _logged_call(
    span: Mapping[str, Any], attributes: dict[str, Any], resource: dict[str, Any], field: str
) -> LoggedCall:
    prompt, answers = span_messages(attributes, _span_events(span, field), field)
    trace = _first_text(span, "trace_id", "traceId")
    conversation = next((str(attributes[key]) for key in _CONVERSATION_ATTRIBUTES if attributes.get(key)), trace)
    answer: list[Message] = []
    if answers:
        first = answers[0]
        own = {**first.metadata, **_metadata(attributes)}
        if answers[1:]:
            own["other_choices"] = [choice.content for choice in answers[1:]]
        answer = [replace(first, latency=_read_latency(span), tokens=_read_tokens(attributes), metadata=own)]
    metadata = dict(resource)
    if TOOLS_ATTRIBUTE in attributes:
        metadata[TOOLS_ATTRIBUTE] = attributes[TOOLS_ATTRIBUTE]
    status = span.get("status")
    if isinstance(status, Mapping) and str(status.get("code", status.get("status_code"))).upper().endswith(
        ("2", "ERROR")
    ):
        metadata["error"] = status.get("message") or status.get("description") or attributes.get("error.type", "error")
    return LoggedCall(conversation, _first_text(span, "span_id", "spanId"), prompt, answer, metadata)


def _first_text(span: Mapping[str, Any], *names: str) -> str:
    for holder in (span, span.get("context"), span.get("spanContext")):
        if isinstance(holder, Mapping):
            for name in names:
                if holder.get(name):
                    return str(holder[name]).removeprefix("0x")
    return ""


def _metadata(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return all attributes without messages, and the model as `model`."""
    metadata = {key: value for key, value in attributes.items() if not CONTENT_ATTRIBUTE.match(key)}
    model = attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model")
    return metadata if model is None else {**metadata, "model": model}


def _read_tokens(attributes: Mapping[str, Any]) -> dict[str, int]:
    tokens = {}
    for name, keys in _USAGE_ATTRIBUTES.items():
        value = next((attributes[key] for key in keys if key in attributes), None)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            tokens[name] = int(value)
    return tokens


def _read_latency(span: Mapping[str, Any]) -> float | None:
    """Return the seconds between a span's start and end, or None if one is unknown."""
    start = _nanoseconds(span, "startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
    end = _nanoseconds(span, "endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")
    return None if start is None or end is None or end < start else (end - start) / 1e9


def _nanoseconds(span: Mapping[str, Any], *names: str) -> int | None:
    value = next((span[name] for name in names if span.get(name) is not None), None)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        # The magnitude tells if a time is in nano-, micro- or milliseconds, or in seconds.
        return value * (1 if value > 10**17 else 1000 if value > 10**14 else 10**6 if value > 10**11 else 10**9)
    if isinstance(value, float):
        return int(value * 1e9)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(number, int) for number in value):
        return int(value[0]) * 10**9 + int(value[1])  # seconds and nanoseconds, as written by the JavaScript exporter
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if moment is None else int(moment.timestamp() * 1_000_000) * 1000
