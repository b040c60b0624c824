"""Requests from a file of chat requests in OpenAI's form, one a line: bodies as they are sent, or a batch file's lines.

Beside the body's fields a line may have ``id`` (or ``custom_id``), ``timestamp`` (seconds, or a date and time),
``reference``, ``item``, ``pair``, ``reader`` and ``affinity``. A field that would change the answer and cannot be
obeyed is refused. What never belongs here: answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from viva.data.fields import FieldError, own_id, shown
from viva.data.reading import read_records
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.messages import Message, Sampling
from viva.engine.tools import Toolbox, ToolCall

from .judging import READERS, reader_for
from .records import LoadRequest
from .work_runs import Found

_OURS = ("id", "custom_id", "method", "url", "timestamp", "reference", "item", "pair", "reader", "affinity")
_SAME = ("model", "stream", "stream_options", "user", "metadata", "store", "seed", "service_tier", "prompt_cache_key",
         "safety_identifier")  # fmt: skip  # change no answer, or are set by the load test itself
_BODY = ("messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "response_format", "tools",
         "tool_choice", "parallel_tool_calls", "frequency_penalty", "presence_penalty", "top_k", "min_p", "n",
         "repeat_penalty")  # fmt: skip
_PARTIES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_USUAL_TOKENS = 1024
_ANY_OBJECT = {"type": "object", "additionalProperties": True}


def chat_requests(path: Path) -> Found:
    """The requests of a file. Times count from the first of them.

    :raises DatasetError: a record is wrong; the message names file, line and field.
    """
    requests: list[LoadRequest] = []
    lines: dict[str, int] = {}
    for line, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            request = _request(raw, line)
            if request.id in lines:
                raise FieldError("id", f"'{request.id}' is in line {lines[request.id]} already; ids are unique")
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
        lines[request.id] = line
        requests.append(request)
    for request in requests:
        if request.pair and request.pair not in lines:
            message = f"there is no request '{request.pair}'"
            raise DatasetError(message, path=str(path), line=lines[request.id], field="pair")
    timed = [request.at for request in requests if request.at is not None]
    if timed and len(timed) < len(requests):
        bare = next(request for request in requests if request.at is None)
        message = "is missing, and other lines have one"
        raise DatasetError(message, path=str(path), line=lines[bare.id], field="timestamp")
    return [_from_start(request, min(timed)) for request in requests] if timed else requests, []


def _from_start(request: LoadRequest, start: float) -> LoadRequest:
    return replace(request, at=(request.at or 0.0) - start)


def _request(raw: Mapping[str, Any], line: int) -> LoadRequest:
    body = raw.get("body", raw)
    within = "body." if body is not raw else ""
    if not isinstance(body, Mapping):
        raise FieldError("body", f"expected an object, found {shown(body)}")
    for name, value in body.items():
        known = name in _BODY or name in _SAME or (body is raw and name in _OURS)
        if not known and value is not None:
            raise FieldError(within + name, "is not supported; leave it out")
    if body.get("n") not in (None, 1):
        raise FieldError(f"{within}n", f"expected 1, found {shown(body['n'])}")
    messages = _messages(body.get("messages"), f"{within}messages")
    sampling = _sampling(body, within)
    reader = raw.get("reader")
    if reader is not None and reader not in READERS:
        raise FieldError("reader", f"expected one of {', '.join(READERS)}, found {shown(reader)}")
    reference = raw.get("reference")
    if reference is not None and (isinstance(reference, bool) or not isinstance(reference, str | int | float)):
        raise FieldError("reference", f"expected a number or a label, found {shown(reference)}")
    return LoadRequest(
        own_id(raw, "id") or own_id(raw, "custom_id") or f"line {line}",
        messages,
        sampling,
        affinity=own_id(raw, "affinity") or "",
        reader=str(reader) if reader is not None else reader_for(sampling),
        reference=float(reference) if isinstance(reference, int | float) else reference,
        pair=own_id(raw, "pair") or "",
        at=_time(raw.get("timestamp")),
        tools=_toolbox(body, within),
        item=own_id(raw, "item") or "",
    )


def _messages(given: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise FieldError(where, f"expected a list of messages, found {shown(given)}")
    found = []
    for place, one in enumerate(given):
        at = f"{where}.{place}"
        if not isinstance(one, Mapping) or one.get("role") not in _PARTIES:
            raise FieldError(at, f"expected a message with one of the roles {', '.join(_PARTIES)}, found {shown(one)}")
        calls = [_call(call, f"{at}.tool_calls") for call in one.get("tool_calls") or ()]
        party: Any = _PARTIES[one["role"]]
        text = _content(one.get("content"), f"{at}.content")
        found.append(Message(party, text, None, tuple(calls), str(one.get("tool_call_id") or ""),
                             str(one.get("name") or "") if party == "tool" else ""))  # fmt: skip
    return tuple(found)


def _content(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise FieldError(where, f"only text can be sent, found {shown(part)}")
    return "".join(part["text"] for part in parts)


def _call(call: Any, where: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise FieldError(where, f"expected calls of functions with a name, found {shown(call)}")
    return ToolCall(str(call.get("id") or ""), function["name"], str(function.get("arguments") or ""))


def _sampling(body: Mapping[str, Any], within: str) -> Sampling:
    def number(name: str, default: float, low: float, high: float) -> float:
        value = body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise FieldError(within + name, f"expected a number from {low:g} to {high:g}, found {shown(value)}")
        return value

    field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    stop = body.get("stop") or []
    stops: Sequence[Any] = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise FieldError(f"{within}stop", f"expected texts, found {shown(stop)}")
    return Sampling(
        temperature=number("temperature", 1.0, 0, 2),
        top_p=number("top_p", 1.0, 0, 1),
        max_tokens=int(number(field, _USUAL_TOKENS, 1, 2**31 - 1)),
        stop=tuple(stops),
        schema=_schema(body.get("response_format"), f"{within}response_format"),
        top_k=int(number("top_k", 0, 0, 2**31 - 1)),
        min_p=number("min_p", 0.0, 0, 1),
        repeat_penalty=number("repeat_penalty", 1.0, 0.01, 100),
        frequency_penalty=number("frequency_penalty", 0.0, -2, 2),
        presence_penalty=number("presence_penalty", 0.0, -2, 2),
    )


def _schema(wanted: Any, where: str) -> Mapping[str, Any] | None:
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = wanted.get("schema")
        return schema if isinstance(schema, Mapping) else _ANY_OBJECT
    named = wanted.get("json_schema") if kind == "json_schema" else None
    if not isinstance(named, Mapping) or not isinstance(named.get("schema"), Mapping):
        raise FieldError(where, f"expected text, json_object or json_schema with its schema, found {shown(wanted)}")
    schema = named["schema"]
    assert isinstance(schema, Mapping)
    return schema


def _toolbox(body: Mapping[str, Any], within: str) -> Toolbox | None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools or choice == "none":
        return None
    if choice not in (None, "auto", "required"):
        raise FieldError(f"{within}tool_choice", f"expected none, auto or required, found {shown(choice)}")
    try:
        return Toolbox(tools, required=choice == "required", single=body.get("parallel_tool_calls") is False)
    except ConfigurationError as error:
        raise FieldError(f"{within}tools", str(error)) from None


def _time(value: Any) -> float | None:
    """Seconds on any clock."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        raise FieldError(
            "timestamp", f"expected seconds or a date and time such as 2024-05-01T10:00:00Z, found {shown(value)}"
        ) from None
