"""Models of Anthropic's Messages API: `anthropic:MODEL` or `anthropic:URL#MODEL`.

Options: `key_env` (default: ANTHROPIC_API_KEY for a model without a URL, none for a URL), those of `EndpointOptions`,
`json` (`schema` or `prompt`) as for `openai`, `thinking` (`on`, `off`, `adaptive` or a budget in tokens), `effort`,
`cache=on`.

The API refuses schemas with bounds on numbers and texts, and objects that allow further properties. We therefore forbid
further properties and write bounds into the description. Errors have the form `{"type": "error", "error": {"type",
"message"}}`, as an answer or as a stream event. A truncated stream is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ..clock import Clock
from ..durations import seconds_until
from ..errors import ConfigurationError
from ..messages import Completion, Message, Request
from ..tools import Toolbox, argument_text, number_calls
from .base import Backend, ModelSpec
from .batch_api import AnthropicBatches
from .endpoint_address import EndpointAddress, ProviderApi, resolve_endpoint
from .endpoint_answer import (
    PartWithoutText,
    ReadAnswer,
    is_thought,
    merge_counts,
    normalise_finish,
    parse_usage,
    part_text,
    read_thoughts,
    redact_completion,
    require_text,
)
from .endpoint_backend import (
    PROMPT_ONLY,
    SAMPLING_ADVICE,
    EndpointBackend,
    EndpointOptions,
    alternating_turns,
)
from .endpoint_errors import Dialect
from .sse import JsonRecordStream, RecordAssembly

_SCHEMA_KEYWORDS = frozenset(["$ref", "type", "enum", "const", "title", "required"])
_SCHEMA_LISTS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}  # keyword: its equivalent that the API accepts
_SCHEMA_MAPPINGS = ("properties", "$defs", "definitions")
_SCHEMA_FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"]
)


def to_supported_schema(schema: Any) -> Any:
    """Return the schema with unsupported keywords rewritten as text in descriptions."""
    if not isinstance(schema, Mapping):
        return schema
    supported: dict[str, Any] = {}
    words: list[str] = []
    for name, value in schema.items():
        if (
            name in _SCHEMA_KEYWORDS
            or (name == "format" and value in _SCHEMA_FORMATS)
            or (name == "minItems" and value in (0, 1))
        ):
            supported[name] = value
        elif name in _SCHEMA_LISTS:
            supported[_SCHEMA_LISTS[name]] = [to_supported_schema(item) for item in value]
        elif name in _SCHEMA_MAPPINGS:
            supported[name] = {key: to_supported_schema(item) for key, item in value.items()}
        elif name == "items":
            supported[name] = to_supported_schema(value)
        elif name not in ("description", "additionalProperties", "$schema", "$id"):
            words.append(f"{name}: {value}")
    if schema.get("type") == "object" or "properties" in schema:
        supported["additionalProperties"] = False
    described = " ".join([schema.get("description", ""), f"({', '.join(words)})" if words else ""]).strip()
    return supported | ({"description": described} if described else {})


_LIMIT_HEADER = "anthropic-ratelimit-"


class MessagesErrors(Dialect):
    """Errors as the Messages API words them."""

    def retry_after(self, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
        """Return `retry-after`, or the time until all exhausted limits are reset."""
        retry_after = super().retry_after(error, headers)
        if retry_after is not None:
            return retry_after
        waits = [
            seconds_until(headers.get(name[: -len("remaining")] + "reset"), headers.get("Date"))
            for name, value in headers.items()
            if name.lower().startswith(_LIMIT_HEADER) and name.lower().endswith("-remaining") and value.strip() == "0"
        ]
        return max((wait for wait in waits if wait is not None), default=None)


_NOT_IN_CALL_ID = re.compile(r"[^a-zA-Z0-9_-]")
_EMPTY_SCHEMA = {"type": "object", "properties": {}}


def _tool_fields(tools: Toolbox) -> dict[str, Any]:
    specs = []
    for spec in tools.specs:
        function = spec["function"]
        tool = {"name": function["name"], "input_schema": _EMPTY_SCHEMA | (function.get("parameters") or {})}
        if function.get("description"):
            tool["description"] = function["description"]
        specs.append(tool)
    fields: dict[str, Any] = {"tools": specs}
    if tools.required or tools.single:
        fields["tool_choice"] = {"type": "any" if tools.required else "auto"}
        if tools.single:
            fields["tool_choice"]["disable_parallel_tool_use"] = True
    return fields


def _shorten_turn(turn: dict[str, Any]) -> dict[str, Any]:
    """Return a turn in the short form if it consists of one text."""
    content: Sequence[dict[str, Any]] = turn["content"]
    return turn | {"content": content[0]["text"]} if len(content) == 1 and content[0]["type"] == "text" else turn


def _content_blocks(message: Message, ids: _CallIds) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": ids.result(message.call_id), "content": message.content}]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": message.content}] if message.content.strip() else []
    calls = (
        {"type": "tool_use", "id": ids.call(call.id), "name": call.name, "input": call.as_object()}
        for call in message.calls
    )
    return [*blocks, *calls]


class _CallIds:
    """Call ids in the form that the API accepts: letters, digits, `_` and `-`, unique within a request."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._last: dict[str, list[str]] = {}

    def call(self, call_id: str) -> str:
        name = _NOT_IN_CALL_ID.sub("_", call_id) or "call"
        times = self._times[name] = self._times.get(name, 0) + 1
        unique = name if times == 1 else f"{name}-{times}"
        self._last.setdefault(call_id, []).append(unique)
        return unique

    def result(self, call_id: str) -> str:
        """Return the id of the latest call with this original id."""
        known = self._last.get(call_id)
        return known[-1] if known else _NOT_IN_CALL_ID.sub("_", call_id)


_THOUGHT_BLOCKS = ("thinking", "redacted_thinking")
# Documented blocks that carry no part of the answer: server-side tools and their results, files, summaries of dropped
# context, and model changes.
_IGNORED_BLOCKS = frozenset(("server_tool_use", "mcp_tool_use", "container_upload", "compaction", "fallback"))
_RESULT_SUFFIX = "_tool_result"


def _blocks_to_return(blocks: list[Any]) -> list[Any] | None:
    """Return the blocks to send back, or None if a call's arguments were truncated."""
    try:
        return [block | {"input": orjson.loads(block["input"])} if isinstance(block.get("input"), str) else block
                for block in blocks]  # fmt: skip
    except orjson.JSONDecodeError:
        return None


# Delta type: the field of the block that it extends.
_DELTA_FIELDS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
}


class _MessageAssembly(RecordAssembly):
    """A message assembled from stream events."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}

    @property
    def is_whole(self) -> bool:
        """Return True if the message is complete. Gateways may omit the event that ends it."""
        return bool(self._message) and (self.has_ended or self._message.get("stop_reason") is not None)

    def take(self, record: dict[str, Any]) -> str:
        """Add an event. Unknown types are ignored, as the API's versioning policy requires."""
        kind = record["type"]
        if kind == "content_block_delta":
            return self._delta(record["index"], record["delta"])
        if kind == "content_block_start":
            return self._start(record["index"], record["content_block"])
        if kind == "message":  # a complete message, although a stream was requested
            content = record["content"]
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            self._message, self.has_ended = dict(record), True
            return "".join([self._start(index, block) for index, block in enumerate(content)])
        if kind == "message_start":
            self._message = dict(record["message"])
        elif kind == "message_delta":
            self._message |= record["delta"]
            self._message["usage"] = merge_counts(self._message.get("usage"), record.get("usage"))
        elif kind == "message_stop":
            self.has_ended = True
        return ""

    def _start(self, index: int, block: dict[str, Any]) -> str:
        self._blocks[index] = dict(block)
        kind, text = block["type"], block.get("text")
        self.has_call = self.has_call or kind == "tool_use"
        return text if isinstance(text, str) and not is_thought(kind) else ""

    def _delta(self, index: int, delta: dict[str, Any]) -> str:
        kind = delta["type"]
        block = self._blocks[index]
        if kind == "input_json_delta":
            self._pieces.setdefault((index, "input"), []).append(delta["partial_json"])
        elif kind in _DELTA_FIELDS or isinstance(delta.get("text"), str):
            field, name = _DELTA_FIELDS.get(kind, ("text", "text"))
            piece: str = delta[name]
            self._pieces.setdefault((index, field), [block.get(field) or ""]).append(piece)
            if field == "text" and not is_thought(block["type"]):
                return piece
        return ""

    def answer(self) -> dict[str, Any]:
        for (index, field), pieces in self._pieces.items():
            whole = "".join(pieces)
            if field == "input":
                self._blocks[index][field] = whole or self._blocks[index].get(field) or "{}"
            else:
                self._blocks[index][field] = whole
        return self._message | {"content": [self._blocks[index] for index in sorted(self._blocks)]}


_VERSION = "2023-06-01"  # value of the header anthropic-version
_SERVICE = ProviderApi(
    kind="anthropic",
    url="https://api.anthropic.com",
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    example="claude-sonnet-4-5",
    calls="(/v1)?/(messages|models)",
)
_NEXT_FORM = {"schema": PROMPT_ONLY}
_MIN_THINKING_BUDGET = 1024  # tokens; the API's minimum
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
# Sampling settings that the API lacks, with their neutral values.
_UNSUPPORTED_SAMPLING = {
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logprobs": None,
}
_ADVICE = {
    **dict.fromkeys(("temperature", "top_p", "top_k"), SAMPLING_ADVICE),
    **dict.fromkeys(
        ("thinking", "thinking.type.enabled", "thinking.type.adaptive", "thinking.type.disabled"),
        "give another thinking= in the model's name (off, adaptive, a number of tokens), or none",
    ),
    **dict.fromkeys(("effort", "output_config.effort"), "give another effort= in the model's name, or none"),
    "max_tokens": "add max_tokens=NUMBER to the model's name to send another limit",
}


class AnthropicBackend(EndpointBackend):
    """Backend for the Messages API.

    Args:
        thinking: "" for the model's default, `off`, `adaptive`, or a token budget as text.
        effort: A value of the API's `effort` setting, or "".
        cache: Let the API cache prompts.
    """

    form = "a message of the Messages API"
    dialect = MessagesErrors()
    models_path = "/v1/models?limit=1000"
    next_form = _NEXT_FORM
    api_name = "Messages"
    batch_api = AnthropicBatches
    unsupported = _UNSUPPORTED_SAMPLING

    def __init__(
        self,
        clock: Clock,
        address: EndpointAddress,
        asking: EndpointOptions,
        form: str = "schema",
        *,
        thinking: str = "",
        effort: str = "",
        cache: bool = False,
    ) -> None:
        super().__init__(clock, address, asking, form)
        self._thinking, self._effort, self._cache = thinking, effort, cache

    def _base_url(self, url: str) -> str:
        return url.removesuffix("/v1")

    def _own_headers(self, address: EndpointAddress) -> dict[str, str]:
        return {"anthropic-version": _VERSION} | ({"x-api-key": address.key} if address.key else {})

    def _call_url(self, *, streaming: bool) -> str:
        return f"{self.base_url}/v1/messages"

    @property
    def _advice(self) -> Mapping[str, str]:
        return _ADVICE

    def _body(self, request: Request, form: str, *, streaming: bool) -> dict[str, Any]:
        sampling = request.sampling
        if not all(stop.strip() for stop in sampling.stop):
            raise ConfigurationError(
                f"{self.model}: the Messages API accepts no stop string that consists of blanks; use another one"
            )
        system, messages, signed = self._turns(request)
        body: dict[str, Any] = {"model": self.model, "max_tokens": sampling.max_tokens, "messages": messages}
        if system:
            body["system"] = system
        thinks = self._thinking not in ("", "off")
        if self._thinking == "off":
            body["thinking"] = {"type": "disabled"}
        elif self._thinking == "adaptive":
            body["thinking"] = {"type": "adaptive", "display": "summarized"}
        elif thinks and signed:  # with a budget, each turn that called tools must begin with its thinking blocks
            body["thinking"] = {"type": "enabled", "budget_tokens": int(self._thinking)}
            body["max_tokens"] += int(self._thinking)  # thinking counts towards max_tokens
        if self._asking.sampling and not thinks:  # these settings are not allowed with thinking
            body["temperature"] = sampling.temperature
            if sampling.top_p < 1.0:
                body["top_p"] = sampling.top_p
            if sampling.top_k:
                body["top_k"] = sampling.top_k
        if sampling.stop:
            body["stop_sequences"] = sampling.stop
        if request.tools is not None:
            body |= _tool_fields(request.tools)
        output: dict[str, Any] = {"effort": self._effort} if self._effort else {}
        if form != PROMPT_ONLY:
            output["format"] = {"type": "json_schema", "schema": to_supported_schema(sampling.schema)}
        if output:
            body["output_config"] = output
        if self._cache:
            body["cache_control"] = {"type": "ephemeral"}
        if streaming:
            body["stream"] = True
        return body

    def _turns(self, request: Request) -> tuple[str, list[dict[str, Any]], bool]:
        """Return (instructions, turns, True if all turns since the user's last message have thinking blocks)."""
        ids = _CallIds()
        signed = True

        def blocks_of(index: int, message: Message) -> list[dict[str, Any]]:
            nonlocal signed
            blocks = _content_blocks(message, ids)
            if message.role == "user":
                signed = True
            if not message.calls:
                return blocks
            kept = self._returned.parts_of(request, index)
            signed = signed and kept is not None
            return kept or blocks

        system, turns = alternating_turns(request.messages, "content", "assistant", blocks_of)
        return system, [_shorten_turn(turn) for turn in turns], signed

    def _read(self, answer: Any, *, tools: bool) -> ReadAnswer:
        blocks = answer["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        if not isinstance(blocks, list):
            raise TypeError(f"content is {type(blocks).__name__}, not a list")
        texts, thoughts, calls, beside = [], [], [], []
        for block in blocks:
            kind = block.get("type")
            if kind == "tool_use":
                name = require_text(block["name"])
                calls.append((str(block.get("id") or ""), name, argument_text(block.get("input"))))
            elif is_thought(kind):
                thoughts.append(read_thoughts({"content": [block]}))
            elif kind in _IGNORED_BLOCKS or (isinstance(kind, str) and kind.endswith(_RESULT_SUFFIX)):
                beside.append(kind)
            else:
                texts.append(part_text(block))
        if beside and not calls and not any(texts):
            raise PartWithoutText(beside[0])
        completion: Completion = parse_usage(answer.get("usage"), self._redact).completion_with(
            "".join(texts),
            normalise_finish(answer.get("stop_reason"), tools, False, self._redact.answer),
            calls=number_calls(calls) if calls else None,
            thoughts="\n\n".join(filter(None, thoughts)),
        )
        wanted_back = beside or any(block.get("type") in _THOUGHT_BLOCKS for block in blocks)
        returned = _blocks_to_return(blocks) if calls and wanted_back else None
        return ReadAnswer(redact_completion(completion, self._redact), returned)

    def _assembly(self, records: JsonRecordStream) -> RecordAssembly:
        return _MessageAssembly()


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a Messages API model from its name."""
    return AnthropicBackend(
        clock,
        resolve_endpoint(spec, _SERVICE),
        EndpointOptions.from_spec(spec),
        spec.one_of("json", (*_NEXT_FORM, PROMPT_ONLY), "schema"),
        thinking=_parse_thinking(spec),
        effort=spec.one_of("effort", _EFFORTS),
        cache=spec.one_of("cache", ("on", "off")) == "on",
    )


def _parse_thinking(spec: ModelSpec) -> str:
    option = spec.take("thinking", "") or ""
    if option == "on":
        return "adaptive"
    if option in ("", "off", "adaptive") or (
        option.isascii() and option.isdigit() and int(option) >= _MIN_THINKING_BUDGET
    ):
        return option
    raise ConfigurationError(
        f"model '{spec.text}': thinking={option}: expected on, off, adaptive, or a number of tokens from "
        f"{_MIN_THINKING_BUDGET}"
    )
