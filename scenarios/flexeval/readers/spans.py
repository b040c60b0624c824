"""Spans of model calls by OpenTelemetry's semantic conventions for generative AI, one span or one export a line.

A line is a span as an object (``name``, ``attributes``, times, ``events``), or an export in OTLP/JSON
(``resourceSpans``; ``resourceLogs`` with the event ``gen_ai.client.inference.operation.details``). Attributes of
today's conventions and of earlier ones are read (``span_messages``). Spans that are no calls of a chat model are passed
over. What never belongs here: which calls make one dialog (``calls``).

Sources: https://opentelemetry.io/docs/specs/semconv/gen-ai/ and https://opentelemetry.io/docs/specs/otlp/ (JSON).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from viva.data.fields import FieldError, Raw, shown

from ..units import Message
from .calls import LoggedCall
from .span_messages import CONTENT, TOOLS, attributes_of, span_messages

_EXPORTS = ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs")
_DETAILS = "gen_ai.client.inference.operation.details"
_CONVERSATIONS = ("gen_ai.conversation.id", "session.id", "gen_ai.thread.id")
_USAGE = {
    "prompt": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "completion": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
}
_PASSED_OVER = ("embeddings", "execute_tool", "retrieval", "create_agent")


def is_span(raw: Raw) -> bool:
    """Whether a record looks like a span, or an export of spans."""
    if any(key in raw for key in _EXPORTS):
        return True
    return "attributes" in raw and any(key in raw for key in ("name", "trace_id", "traceId", "context", "span_id"))


def span_calls(raw: Raw) -> Iterator[LoggedCall]:
    """The calls of chat models that a record holds; those without recorded messages come without any.

    :raises FieldError: it is no span, or one of its fields is not as the conventions say.
    """
    for span, resource, field in _spans(raw):
        attributes = attributes_of(span.get("attributes"), f"{field}attributes")
        if any(key.startswith("gen_ai.") for key in attributes) or any(
            str(one.get("name", "")).startswith("gen_ai.") for one in _events(span, field)
        ):
            if attributes.get("gen_ai.operation.name") in _PASSED_OVER:
                continue
            yield _call(span, attributes, resource, field)


def _spans(raw: Raw) -> Iterator[tuple[Mapping[str, Any], dict[str, Any], str]]:
    """Each span with its resource's attributes, and the path of its fields for errors."""
    exports = [key for key in _EXPORTS if key in raw]
    if not exports:
        resource = raw.get("resource")
        inner = resource.get("attributes") if isinstance(resource, Mapping) else None
        yield raw, attributes_of(inner, "resource.attributes"), ""
        return
    for key in exports:
        for index, one in enumerate(_objects(raw, key, "")):
            path = f"{key}[{index}]."
            resource = one.get("resource")
            inner = resource.get("attributes") if isinstance(resource, Mapping) else None
            known = attributes_of(inner, f"{path}resource.attributes")
            scopes = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "scopeLogs", "scope_logs")
            for scope in (name for name in scopes if name in one):
                for place, group in enumerate(_objects(one, scope, path)):
                    for list_ in (name for name in ("spans", "logRecords", "log_records") if name in group):
                        within = f"{path}{scope}[{place}]."
                        for number, span in enumerate(_objects(group, list_, within)):
                            if list_ == "spans" or _is_details(span, within):
                                yield span, known, f"{within}{list_}[{number}]."


def _is_details(record: Mapping[str, Any], field: str) -> bool:
    name = record.get("eventName") or record.get("event_name")
    return (name or attributes_of(record.get("attributes"), f"{field}attributes").get("event.name")) == _DETAILS


def _objects(holder: Mapping[str, Any], key: str, path: str) -> list[Mapping[str, Any]]:
    value = holder[key]
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise FieldError(f"{path}{key}", f"expected a list of objects, found {shown(value)}")
    return value


def _events(span: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    return [] if span.get("events") is None else _objects(span, "events", field)


def _call(span: Mapping[str, Any], attributes: dict[str, Any], resource: dict[str, Any], field: str) -> LoggedCall:
    sent, answers = span_messages(attributes, _events(span, field), field)
    trace = _id(span, "trace_id", "traceId")
    conversation = next((str(attributes[key]) for key in _CONVERSATIONS if attributes.get(key)), trace)
    answer: list[Message] = []
    if answers:
        first = answers[0]
        own = {**first.metadata, **_own(attributes)}
        if answers[1:]:
            own["other_choices"] = [one.content for one in answers[1:]]
        answer = [replace(first, latency=_latency(span), tokens=_tokens(attributes), metadata=own)]
    metadata = dict(resource)
    if TOOLS in attributes:
        metadata[TOOLS] = attributes[TOOLS]
    status = span.get("status")
    if isinstance(status, Mapping) and str(status.get("code", status.get("status_code"))).upper().endswith(
        ("2", "ERROR")
    ):
        metadata["error"] = status.get("message") or status.get("description") or attributes.get("error.type", "error")
    return LoggedCall(conversation, _id(span, "span_id", "spanId"), sent, answer, metadata)


def _id(span: Mapping[str, Any], *names: str) -> str:
    for holder in (span, span.get("context"), span.get("spanContext")):
        if isinstance(holder, Mapping):
            for name in names:
                if holder.get(name):
                    return str(holder[name]).removeprefix("0x")
    return ""


def _own(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """All attributes that hold no message, under their names; the model also as ``model``."""
    found = {key: value for key, value in attributes.items() if not CONTENT.match(key)}
    model = attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model")
    return found if model is None else {**found, "model": model}


def _tokens(attributes: Mapping[str, Any]) -> dict[str, int]:
    found = {}
    for name, keys in _USAGE.items():
        value = next((attributes[key] for key in keys if key in attributes), None)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            found[name] = int(value)
    return found


def _latency(span: Mapping[str, Any]) -> float | None:
    """The seconds from a span's begin to its end; None where one of the two is not known."""
    begin = _nanoseconds(span, "startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
    end = _nanoseconds(span, "endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")
    return None if begin is None or end is None or end < begin else (end - begin) / 1e9


def _nanoseconds(span: Mapping[str, Any], *names: str) -> int | None:
    value = next((span[name] for name in names if span.get(name) is not None), None)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        # A moment of this century in nano-, micro- or milliseconds, or in seconds: its size tells.
        return value * (1 if value > 10**17 else 1000 if value > 10**14 else 10**6 if value > 10**11 else 10**9)
    if isinstance(value, float):
        return int(value * 1e9)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, int) for one in value):
        return int(value[0]) * 10**9 + int(value[1])  # seconds and nanoseconds, as JavaScript's exporter writes them
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if moment is None else int(moment.timestamp() * 1_000_000) * 1000
