"""Requests from files: chat requests in OpenAI's form (bodies or batch lines), and judgments of MT-Bench.

An unsupported field of a chat request is refused if it would change the answer. A judgment's prompt becomes the request
and its recorded verdict the reference; a pairwise judgment gives two requests, one for each order. Files of judgments
contain no system prompts: these come from a separate file (`judge_prompts.jsonl` of FastChat), or ours are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from viva.agents.prompts import load_pack
from viva.data.items import FieldError, preview, record_id, text_field
from viva.data.record_files import read_records
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.messages import Message, Sampling
from viva.engine.tools import Toolbox, ToolCall

from .load_records import LoadRequest
from .recorded_requests import RequestsAndNotes
from .verdict_readers import READERS, choose_reader

LOAD_PACK = Path(__file__).parent / "prompts" / "load.yaml"
LOAD_TEMPLATES = {
    "judgments.rating": frozenset[str](),
    "judgments.pair": frozenset[str](),
    "lengths.shared": frozenset[str](),
    "lengths.task": frozenset({"number"}),
}
_JUDGMENT_SAMPLING = Sampling(temperature=0.0, max_tokens=2048)
_VERDICT_FORM = re.compile(
    r"\[\[(?:rating|A)\]\]"
)  # a prompt with the form of the verdict already contains the instruction
UNPARSED_SCORE = -1


def load_prompts() -> dict[str, str]:
    """Return those prompts of the pack that have no placeholders, by name."""
    pack = load_pack(str(LOAD_PACK), LOAD_TEMPLATES)
    return {name: pack.render(name) for name in LOAD_TEMPLATES if not LOAD_TEMPLATES[name]}


def judgment_requests(path: Path, prompts: Path | None = None) -> RequestsAndNotes:
    """Return the requests of a file of judgments, with notes for the user.

    Raises:
        DatasetError: A record is wrong; the message names file, line and field.
    """
    systems = {} if prompts is None else _system_prompts(prompts)
    own = load_prompts()
    requests: list[LoadRequest] = []
    lines: dict[str, int] = {}
    bare = 0
    for line, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            for request, template in _requests_of_judgment(raw):
                if request.id in lines:
                    raise FieldError(
                        "question_id", f"the judgment {request.id} is in line {lines[request.id]} already; keep one"
                    )
                lines[request.id] = line
                system = systems.get(template)
                if system is None and _VERDICT_FORM.search(request.messages[-1].content) is None:
                    system = own[f"judgments.{request.reader}"]
                    bare += 1
                if system:
                    request = _with_system(request, system)
                requests.append(request)
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
    notes = []
    if bare:
        notes.append(
            f"{path}: {bare} of {len(requests)} prompts contain no instruction, since it was in a system prompt; "
            "a built-in system prompt is used (--prompts FILE supplies the original ones)"
        )
    return requests, notes


def _requests_of_judgment(raw: Mapping[str, Any]) -> Iterator[tuple[LoadRequest, str]]:
    question = record_id(raw, "question_id")
    if question is None:
        raise FieldError("question_id", "is missing")
    judge = raw.get("judge")
    template = str(judge[1]) if isinstance(judge, list) and len(judge) > 1 else ""
    turn = record_id(raw, "turn") or "1"
    if "g1_user_prompt" not in raw:
        id_ = f"{question}/{record_id(raw, 'model') or 'answer'}/{turn}"
        score = raw.get("score")
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
            raise FieldError("score", f"expected a number, found {preview(score)}")
        reference = None if score is None or score == UNPARSED_SCORE else float(score)
        yield _judgment_request(id_, text_field(raw, "user_prompt"), "rating", question, reference), template
        return
    models = [record_id(raw, name) or name for name in ("model_1", "model_2")]
    ids = [f"{question}/{models[index]}-{models[1 - index]}/{turn}" for index in (0, 1)]
    for index, game in enumerate(("g1", "g2")):
        winner = raw.get(f"{game}_winner")
        first = ("model_1", "model_2")[index]  # the model whose answer comes first in this game
        label = {"tie": "tie", first: "A", ("model_2", "model_1")[index]: "B"}.get(str(winner))
        prompt = text_field(raw, f"{game}_user_prompt")
        yield _judgment_request(ids[index], prompt, "pair", question, label, ids[1 - index]), template


def _judgment_request(
    id_: str, prompt: str, reader: str, question: str, reference: float | str | None, pair: str = ""
) -> LoadRequest:
    return LoadRequest(
        id_,
        (Message("user", prompt),),
        _JUDGMENT_SAMPLING,
        reader=reader,
        reference=reference,
        pair=pair,
        item=question,
    )


def _with_system(request: LoadRequest, system: str) -> LoadRequest:
    return replace(request, messages=(Message("system", system), *request.messages))


def _system_prompts(path: Path) -> dict[str, str]:
    prompts: dict[str, str] = {}
    for line, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            prompts[text_field(raw, "name")] = str(raw.get("system_prompt") or "")
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
    return prompts


_LINE_FIELDS = ("id", "custom_id", "method", "url", "timestamp", "reference", "item", "pair", "reader", "affinity")
_IGNORED_FIELDS = ("model", "stream", "stream_options", "user", "metadata", "store", "seed", "service_tier",
    "prompt_cache_key",
         "safety_identifier")  # fmt: skip  # fields that do not change answers, or that the load test sets
_BODY_FIELDS = ("messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "response_format",
    "tools",
         "tool_choice", "parallel_tool_calls", "frequency_penalty", "presence_penalty", "top_k", "min_p", "n",
         "repeat_penalty")  # fmt: skip
_PARTIES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_DEFAULT_TOKENS = 1024
_ANY_OBJECT = {"type": "object", "additionalProperties": True}


def chat_requests(path: Path) -> RequestsAndNotes:
    """Return the requests of a file. Times count from the first request.

    Raises:
        DatasetError: A record is wrong; the message names file, line and field.
    """
    requests: list[LoadRequest] = []
    lines: dict[str, int] = {}
    for line, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            request = _chat_request(raw, line)
            if request.id in lines:
                raise FieldError("id", f"'{request.id}' is in line {lines[request.id]} already; ids are unique")
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
        lines[request.id] = line
        requests.append(request)
    for request in requests:
        if request.pair and request.pair not in lines:
            message = f"there is no request '{request.pair}'; name the request with the answers in the other order"
            raise DatasetError(message, path=str(path), line=lines[request.id], field="pair")
    timed = [request.at for request in requests if request.at is not None]
    if timed and len(timed) < len(requests):
        bare = next(request for request in requests if request.at is None)
        message = "is missing, although other lines have one; give it in all lines or in none"
        raise DatasetError(message, path=str(path), line=lines[bare.id], field="timestamp")
    return [_from_start(request, min(timed)) for request in requests] if timed else requests, []


def _from_start(request: LoadRequest, start: float) -> LoadRequest:
    return replace(request, at=(request.at or 0.0) - start)


def _chat_request(raw: Mapping[str, Any], line: int) -> LoadRequest:
    body = raw.get("body", raw)
    prefix = "body." if body is not raw else ""
    if not isinstance(body, Mapping):
        raise FieldError("body", f"expected an object, found {preview(body)}")
    for name, value in body.items():
        is_known = name in _BODY_FIELDS or name in _IGNORED_FIELDS or (body is raw and name in _LINE_FIELDS)
        if not is_known and value is not None:
            raise FieldError(prefix + name, "is not supported; leave it out")
    if body.get("n") not in (None, 1):
        raise FieldError(f"{prefix}n", f"expected 1, found {preview(body['n'])}")
    messages = _chat_messages(body.get("messages"), f"{prefix}messages")
    sampling = _request_sampling(body, prefix)
    reader = raw.get("reader")
    if reader is not None and reader not in READERS:
        raise FieldError("reader", f"expected one of {', '.join(READERS)}, found {preview(reader)}")
    reference = raw.get("reference")
    if reference is not None and (isinstance(reference, bool) or not isinstance(reference, str | int | float)):
        raise FieldError("reference", f"expected a number or a label, found {preview(reference)}")
    return LoadRequest(
        record_id(raw, "id") or record_id(raw, "custom_id") or f"line {line}",
        messages,
        sampling,
        affinity=record_id(raw, "affinity") or "",
        reader=str(reader) if reader is not None else choose_reader(sampling),
        reference=float(reference) if isinstance(reference, int | float) else reference,
        pair=record_id(raw, "pair") or "",
        at=_timestamp(raw.get("timestamp")),
        tools=_toolbox(body, prefix),
        item=record_id(raw, "item") or "",
    )


def _chat_messages(value: Any, field: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise FieldError(field, f"expected a list of messages, found {preview(value)}")
    messages = []
    for index, message in enumerate(value):
        at = f"{field}.{index}"
        if not isinstance(message, Mapping) or message.get("role") not in _PARTIES:
            raise FieldError(
                at, f"expected a message with one of the roles {', '.join(_PARTIES)}, found {preview(message)}"
            )
        calls = [_tool_call(call, f"{at}.tool_calls") for call in message.get("tool_calls") or ()]
        party: Any = _PARTIES[message["role"]]
        text = _message_text(message.get("content"), f"{at}.content")
        messages.append(Message(party, text, None, tuple(calls), str(message.get("tool_call_id") or ""),
                             str(message.get("name") or "") if party == "tool" else ""))  # fmt: skip
    return tuple(messages)


def _message_text(content: Any, field: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise FieldError(field, f"only text can be sent, found {preview(part)}")
    return "".join(part["text"] for part in parts)


def _tool_call(call: Any, field: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise FieldError(field, f"expected calls of functions with a name, found {preview(call)}")
    return ToolCall(str(call.get("id") or ""), function["name"], str(function.get("arguments") or ""))


def _request_sampling(body: Mapping[str, Any], prefix: str) -> Sampling:
    def number(name: str, default: float, low: float, high: float) -> float:
        value = body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise FieldError(prefix + name, f"expected a number from {low:g} to {high:g}, found {preview(value)}")
        return value

    field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    stop = body.get("stop") or []
    stops: Sequence[Any] = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(item, str) for item in stops):
        raise FieldError(f"{prefix}stop", f"expected texts, found {preview(stop)}")
    return Sampling(
        temperature=number("temperature", 1.0, 0, 2),
        top_p=number("top_p", 1.0, 0, 1),
        max_tokens=int(number(field, _DEFAULT_TOKENS, 1, 2**31 - 1)),
        stop=tuple(stops),
        schema=_response_schema(body.get("response_format"), f"{prefix}response_format"),
        top_k=int(number("top_k", 0, 0, 2**31 - 1)),
        min_p=number("min_p", 0.0, 0, 1),
        repeat_penalty=number("repeat_penalty", 1.0, 0.01, 100),
        frequency_penalty=number("frequency_penalty", 0.0, -2, 2),
        presence_penalty=number("presence_penalty", 0.0, -2, 2),
    )


def _response_schema(response_format: Any, field: str) -> Mapping[str, Any] | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")
        return schema if isinstance(schema, Mapping) else _ANY_OBJECT
    json_schema = response_format.get("json_schema") if kind == "json_schema" else None
    if not isinstance(json_schema, Mapping) or not isinstance(json_schema.get("schema"), Mapping):
        raise FieldError(
            field, f"expected text, json_object or json_schema with its schema, found {preview(response_format)}"
        )
    schema = json_schema["schema"]
    assert isinstance(schema, Mapping)
    return schema


def _toolbox(body: Mapping[str, Any], prefix: str) -> Toolbox | None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools or choice == "none":
        return None
    if choice not in (None, "auto", "required"):
        raise FieldError(f"{prefix}tool_choice", f"expected none, auto or required, found {preview(choice)}")
    try:
        return Toolbox(tools, required=choice == "required", single=body.get("parallel_tool_calls") is False)
    except ConfigurationError as error:
        raise FieldError(f"{prefix}tools", str(error)) from None


def _timestamp(value: Any) -> float | None:
    """Return the timestamp in seconds, from an arbitrary origin."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        raise FieldError(
            "timestamp", f"expected seconds or a date and time such as 2024-05-01T10:00:00Z, found {preview(value)}"
        ) from None
