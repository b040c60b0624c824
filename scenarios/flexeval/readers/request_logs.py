"""Logs of requests to a chat endpoint, with one request and its response per line.

    {"request": {"model": …, "messages": […]}, "response": {"choices": […], "usage": {…}}, "latency": 1.2}

`body` may replace `request` (a batch's input joined with its output), and the response may be inside a `body`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from viva.data.items import FieldError, Raw, preview

from ..dialog import Message
from .logged_calls import LoggedCall
from .records import parse_seconds, read_message, read_messages, token_usage

_CONVERSATION_KEYS = ("conversation_id", "session_id", "thread_id", "chat_id")
_MILLISECOND_KEYS = ("latency_ms", "duration_ms", "response_time_ms", "elapsed_ms")
_SECOND_KEYS = ("latency", "latency_s", "latency_seconds", "duration", "duration_s", "elapsed")
_CONTENT_KEYS = ("messages", "choices", "usage", "tools", "functions", "object", "id")


def is_request(raw: Raw) -> bool:
    """Return True if a record looks like a logged request."""
    request = _request_body(raw)[1]
    return request is not None and ("messages" in request or "response" in raw)


def request_calls(raw: Raw) -> Iterator[LoggedCall]:
    """Yield the call of a record. The first choice is the answer; texts of other choices go to its metadata.

    Raises:
        FieldError: The record has no messages.
    """
    name, request = _request_body(raw)
    if request is None:
        raise FieldError("request", f"is missing; expected 'request' or 'body' with messages, found: {_key_list(raw)}")
    if "messages" not in request:
        raise FieldError(f"{name}.messages", f"is missing; the request has: {_key_list(request)}")
    messages = read_messages(request["messages"], f"{name}.messages")
    response = raw.get("response")
    if response is not None and not isinstance(response, Mapping):
        raise FieldError("response", f"expected an object, found {preview(response)}")
    response = response or {}
    body = response["body"] if isinstance(response.get("body"), Mapping) else response
    metadata = _metadata(raw, name, request, response, body)
    answer = _answer_messages(body, _read_latency(raw), metadata)
    if not answer and (problem := raw.get("error") or response.get("error") or body.get("error")):
        metadata["error"] = problem
    values = (holder.get(key) for holder in _metadata_holders(raw, request) for key in _CONVERSATION_KEYS)
    conversation = next((str(value) for value in values if value), "")
    id_ = next((str(value) for value in (raw.get("custom_id"), body.get("id"), raw.get("id")) if value), "")
    yield LoggedCall(conversation, id_, messages, answer, metadata)


def _request_body(raw: Raw) -> tuple[str, Mapping[str, Any] | None]:
    for name in ("request", "body"):
        if isinstance(raw.get(name), Mapping):
            inner = raw[name]
            if "messages" not in inner and isinstance(inner.get("body"), Mapping):
                return f"{name}.body", inner["body"]
            return name, inner
    return "request", None


def _metadata_holders(raw: Raw, request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the mappings that may contain the id of the conversation."""
    candidates = (raw, raw.get("metadata"), request.get("metadata"), request)
    return [candidate for candidate in candidates if isinstance(candidate, Mapping)]


def _read_latency(raw: Raw) -> float | None:
    for key in _SECOND_KEYS:
        if (value := parse_seconds(raw.get(key))) is not None:
            return value
    for key in _MILLISECOND_KEYS:
        if (value := parse_seconds(raw.get(key))) is not None:
            return value / 1000
    return None


def _answer_messages(body: Mapping[str, Any], latency: float | None, metadata: dict[str, Any]) -> list[Message]:
    choices = body.get("choices")
    if choices is None:
        return []
    if not isinstance(choices, list) or not all(isinstance(choice, Mapping) for choice in choices):
        raise FieldError("response.choices", f"expected a list of objects, found {preview(choices)}")
    messages = []
    for index, choice in enumerate(choices):
        field = f"response.choices[{index}].message"
        message = choice.get("message")
        messages.append(read_message(message, field) if message is not None else _text_completion(choice, field))
    if not messages:
        return []
    first = messages[0]
    own: dict[str, Any] = dict(first.metadata)
    if choices[0].get("finish_reason") is not None:
        own["finish_reason"] = choices[0]["finish_reason"]
    if (model := body.get("model") or metadata.get("model")) is not None:
        own["model"] = model
    if messages[1:]:
        own["other_choices"] = [message.content for message in messages[1:]]
    tokens = token_usage(body.get("usage"))
    return [Message("assistant", first.content, first.tool_calls, first.name, "", latency, tokens, own)]


def _text_completion(choice: Mapping[str, Any], field: str) -> Message:
    if isinstance(choice.get("text"), str):
        return Message("assistant", choice["text"])
    raise FieldError(field, f"is missing; the choice has: {_key_list(choice)}")


def _metadata(
    raw: Raw, name: str, request: Mapping[str, Any], response: Mapping[str, Any], body: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything besides the messages in the record, the request and the response."""
    outer = {key: value for key, value in raw.items() if key not in (name.split(".")[0], "response")}
    metadata: dict[str, Any] = {}
    for holder in (body, response, request, outer):
        metadata |= {
            key: value for key, value in holder.items() if key not in (*_CONTENT_KEYS, "body") and value is not None
        }
    return metadata


def _key_list(raw: Mapping[str, Any]) -> str:
    return ", ".join(list(raw)[:10]) or "nothing"
