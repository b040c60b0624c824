"""Models of Anthropic's Messages API: ``anthropic:MODEL`` or ``anthropic:URL#MODEL``.

Options: ``key_env`` (default ANTHROPIC_API_KEY if the model is named without a URL, none for a URL), those of
``EndpointOptions``, and ``json`` (``schema`` or ``prompt``) as for ``openai``; ``thinking`` (``on``, ``off``,
``adaptive`` or a budget in tokens), ``effort``, ``cache=on``.

The API refuses a schema with bounds of numbers and texts, and objects that are open: objects are closed here,
and a bound is written into the description. An error is ``{"type": "error", "error": {"type", "message"}}``, as
an answer or as an event of a stream; a stream that breaks off is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from ..clock import Clock
from ..errors import ConfigurationError, Rejected, Unavailable
from ..messages import Completion, Message, Request, Sampling
from ..tools import Toolbox, argument_text, number_calls
from .base import Backend, ModelSpec
from .endpoint import AnswerBody, Endpoint
from .endpoint_address import EndpointAddress, ProviderApi, resolve_endpoint
from .endpoint_answer import (
    PartWithoutText,
    is_thought,
    merge_counts,
    normalise_finish,
    parse_json,
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
    FormFallback,
    ProviderState,
    discard_piece,
)
from .endpoint_errors import Dialect, parse_time
from .redaction import Redactor
from .sse import JsonRecordStream

_SCHEMA_KEYWORDS = frozenset(["$ref", "type", "enum", "const", "title", "required"])
_SCHEMA_LISTS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}  # of alternatives, under the name that is known
_SCHEMA_MAPPINGS = ("properties", "$defs", "definitions")
_SCHEMA_FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"]
)


def to_supported_schema(schema: Any) -> Any:
    """The schema with what the API does not know written out as words."""
    if not isinstance(schema, Mapping):
        return schema
    taken: dict[str, Any] = {}
    words: list[str] = []
    for name, value in schema.items():
        if (
            name in _SCHEMA_KEYWORDS
            or (name == "format" and value in _SCHEMA_FORMATS)
            or (name == "minItems" and value in (0, 1))
        ):
            taken[name] = value
        elif name in _SCHEMA_LISTS:
            taken[_SCHEMA_LISTS[name]] = [to_supported_schema(one) for one in value]
        elif name in _SCHEMA_MAPPINGS:
            taken[name] = {key: to_supported_schema(one) for key, one in value.items()}
        elif name == "items":
            taken[name] = to_supported_schema(value)
        elif name not in ("description", "additionalProperties", "$schema", "$id"):
            words.append(f"{name}: {value}")
    if schema.get("type") == "object" or "properties" in schema:
        taken["additionalProperties"] = False
    described = " ".join([schema.get("description", ""), f"({', '.join(words)})" if words else ""]).strip()
    return taken | ({"description": described} if described else {})


_LIMIT_HEADER = "anthropic-ratelimit-"


class MessagesErrors(Dialect):
    """Errors as the Messages API words them."""

    def retry_after(self, error: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
        """``retry-after``; without it the time at which the limits that are used up are whole again."""
        given = super().retry_after(error, headers)
        if given is not None:
            return given
        now = parse_time(headers.get("Date")) or datetime.now(UTC)
        waits = [
            (reset - now).total_seconds()
            for name, value in headers.items()
            if name.lower().startswith(_LIMIT_HEADER) and name.lower().endswith("-remaining") and value.strip() == "0"
            if (reset := parse_time(headers.get(name[: -len("remaining")] + "reset"))) is not None
        ]
        return max(0.0, *waits) if waits else None


_NOT_IN_CALL_ID = re.compile(r"[^a-zA-Z0-9_-]")
_EMPTY_SCHEMA = {"type": "object", "properties": {}}
# What a sampling may ask for and the API does not know, with the value that asks for nothing.
_UNSUPPORTED_SAMPLING = {
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logprobs": None,
}


@dataclass(slots=True, frozen=True)
class RequestOptions:
    """What a model's name says of its requests.

    :param thinking: ``""`` for the model's default, ``off``, ``adaptive``, or a budget in tokens as text.
    :param effort: as the API names it, or nothing. :param sampling: whether temperature, top_p and top_k are sent.
    :param cache: whether prompts are cached by the API.
    """

    thinking: str = ""
    effort: str = ""
    sampling: bool = True
    cache: bool = False

    @property
    def budget(self) -> int:
        """Tokens for thoughts; 0 where no number is given."""
        return int(self.thinking) if self.thinking.isdigit() else 0


def build_request(
    request: Request, model: str, options: RequestOptions, form: str, returned: ProviderState, *, streaming: bool
) -> dict[str, Any]:
    """The body of a request.

    :param form: of structured output, ``schema`` or none.
    :raises ConfigurationError: the sampling asks for what the API does not have.
    """
    sampling = request.sampling
    _refuse_unknown(sampling, model)
    system, messages, signed = _request_turns(request, returned)
    body: dict[str, Any] = {"model": model, "max_tokens": sampling.max_tokens, "messages": messages}
    if system:
        body["system"] = system
    thinks = options.thinking not in ("", "off")
    if options.thinking == "off":
        body["thinking"] = {"type": "disabled"}
    elif options.thinking == "adaptive":
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
    elif thinks and signed:  # with a budget the API wants each turn that called tools to begin with its thoughts
        body["thinking"] = {"type": "enabled", "budget_tokens": options.budget}
        body["max_tokens"] += options.budget  # which counts towards it
    if options.sampling and not thinks:  # thinking takes none of these
        body["temperature"] = sampling.temperature
        if sampling.top_p < 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop_sequences"] = sampling.stop
    if request.tools is not None:
        body |= _tool_fields(request.tools)
    output: dict[str, Any] = {"effort": options.effort} if options.effort else {}
    if form != PROMPT_ONLY:
        output["format"] = {"type": "json_schema", "schema": to_supported_schema(sampling.schema)}
    if output:
        body["output_config"] = output
    if options.cache:
        body["cache_control"] = {"type": "ephemeral"}
    if streaming:
        body["stream"] = True
    return body


def _refuse_unknown(sampling: Sampling, model: str) -> None:
    asked = [name for name, off in _UNSUPPORTED_SAMPLING.items() if getattr(sampling, name) != off]
    if asked:
        raise ConfigurationError(
            f"{model}: the Messages API has no {', '.join(asked)}; leave it off, or ask a model that has it"
        )
    if not all(stop.strip() for stop in sampling.stop):
        raise ConfigurationError(f"{model}: the Messages API takes no stop string of blanks alone; name another one")


def _tool_fields(tools: Toolbox) -> dict[str, Any]:
    specs = []
    for spec in tools.specs:
        function = spec["function"]
        told = {"name": function["name"], "input_schema": _EMPTY_SCHEMA | (function.get("parameters") or {})}
        if function.get("description"):
            told["description"] = function["description"]
        specs.append(told)
    fields: dict[str, Any] = {"tools": specs}
    if tools.required or tools.single:
        fields["tool_choice"] = {"type": "any" if tools.required else "auto"}
        if tools.single:
            fields["tool_choice"]["disable_parallel_tool_use"] = True
    return fields


def _request_turns(request: Request, returned: ProviderState) -> tuple[str, list[dict[str, Any]], bool]:
    """Instructions, turns, and whether each turn since the user last spoke has the thoughts that the API wants back.

    System messages are joined, wherever they stand, for the API has one place for them; alone they are said by the
    user. Messages without any text are left out, for the API takes none.
    """
    system = "\n\n".join(one.content for one in request.messages if one.role == "system")
    turns: list[dict[str, Any]] = []
    ids = _CallIds()
    signed = True
    for index, message in enumerate(request.messages):
        if message.role == "system":
            continue
        if message.role == "user":
            signed = True
        blocks = _content_blocks(message, ids)
        if message.calls:
            kept = returned.of(request, index)
            signed = signed and kept is not None
            blocks = kept or blocks
        if blocks:
            role = "assistant" if message.role == "assistant" else "user"
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += blocks
            else:
                turns.append({"role": role, "content": list(blocks)})
    if not turns:
        return "", [{"role": "user", "content": system}], True
    return system, [_shorten_turn(turn) for turn in turns], signed


def _shorten_turn(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn of one text in the short form."""
    content: Sequence[dict[str, Any]] = turn["content"]
    return turn | {"content": content[0]["text"]} if len(content) == 1 and content[0]["type"] == "text" else turn


def _content_blocks(message: Message, ids: _CallIds) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": ids.result(message.call_id), "content": message.content}]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": message.content}] if message.content.strip() else []
    calls = (
        {"type": "tool_use", "id": ids.call(one.id), "name": one.name, "input": one.as_object()}
        for one in message.calls
    )
    return [*blocks, *calls]


class _CallIds:
    """Identifiers of calls as the API takes them: letters, digits, ``_`` and ``-``, and each once in a request."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._last: dict[str, list[str]] = {}

    def call(self, given: str) -> str:
        name = _NOT_IN_CALL_ID.sub("_", given) or "call"
        times = self._times[name] = self._times.get(name, 0) + 1
        unique = name if times == 1 else f"{name}-{times}"
        self._last.setdefault(given, []).append(unique)
        return unique

    def result(self, given: str) -> str:
        """The call that a result answers: the last of that name."""
        known = self._last.get(given)
        return known[-1] if known else _NOT_IN_CALL_ID.sub("_", given)


_THOUGHT_BLOCKS = ("thinking", "redacted_thinking")
# Blocks that the API documents and that say nothing of the answer: tools that it runs itself and their results, files,
# summaries of what was left out of the context, a change of the model.
_IGNORED_BLOCKS = frozenset(("server_tool_use", "mcp_tool_use", "container_upload", "compaction", "fallback"))
_RESULT_SUFFIX = "_tool_result"


class ReadMessage(NamedTuple):
    """``returned``: the blocks that the API wants back with the results of tools; None where it wants none."""

    completion: Completion
    returned: list[Any] | None


def parse_message(data: bytes, label: str, redact: Redactor, *, tools: bool) -> ReadMessage:
    """Read an answer that was sent whole.

    :raises Rejected: a block is of a type that is no text.
    :raises Unavailable: it is no message; a proxy's page or half a body may pass, so retried.
    :raises AnswerTooLarge: it holds more values than an answer may.
    """
    try:
        return read_message(parse_json(data, label), redact, tools=tools)
    except PartWithoutText as block:
        raise Rejected(redact.cut(str(block), 200), model=label) from None
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = f"({redact.cut(str(error), 200)}): {redact.quote(data, 200)}"
        raise Unavailable(f"the answer is not a message of the Messages API {shown}", model=label) from None


def read_message(message: Any, redact: Redactor, *, tools: bool) -> ReadMessage:
    """Read the record of a message. ``tools``: some were offered. Counts are 0 where they are unknown.

    :raises PartWithoutText: a block is of a type that is no text, or there is nothing beside tools that the API runs.
    :raises KeyError, TypeError, AttributeError: it is of another form.
    """
    blocks = message["content"]
    if isinstance(blocks, str):
        blocks = [{"type": "text", "text": blocks}]
    if not isinstance(blocks, list):
        raise TypeError(f"content is {type(blocks).__name__}, not a list")
    texts, thoughts, calls, beside = [], [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use":
            calls.append((str(block.get("id") or ""), require_text(block["name"]), argument_text(block.get("input"))))
        elif is_thought(kind):
            thoughts.append(read_thoughts({"content": [block]}))
        elif kind in _IGNORED_BLOCKS or (isinstance(kind, str) and kind.endswith(_RESULT_SUFFIX)):
            beside.append(kind)
        else:
            texts.append(part_text(block))
    if beside and not calls and not any(texts):
        raise PartWithoutText(beside[0])
    usage = parse_usage(message.get("usage"), redact)
    completion = Completion(
        "".join(texts),
        normalise_finish(message.get("stop_reason"), tools, False, redact.answer),
        usage.prompt,
        usage.completion,
        calls=number_calls(calls) if calls else None,
        thoughts="\n\n".join(thought for thought in thoughts if thought),
        usage_note=usage.note,
        cached_tokens=usage.cached,
    )
    wanted_back = beside or any(block.get("type") in _THOUGHT_BLOCKS for block in blocks)
    return ReadMessage(
        redact_completion(completion, redact), _blocks_to_return(blocks) if calls and wanted_back else None
    )


def _blocks_to_return(blocks: list[Any]) -> list[Any] | None:
    """The blocks as they can be sent back; None if the arguments of a call were cut off."""
    try:
        return [block | {"input": orjson.loads(block["input"])} if isinstance(block.get("input"), str) else block
                for block in blocks]  # fmt: skip
    except orjson.JSONDecodeError:
        return None


# What a piece adds to which field of its block.
_DELTA_FIELDS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
}


async def read_stream(
    body: AnswerBody, on_text: Callable[[str], None], label: str, clock: Clock, endpoint: Endpoint, *, tools: bool
) -> ReadMessage:
    """Read to the end, handing on each piece of text, without the key. ``first_token`` is the clock's time of the first
    piece of text, or of a call.

    :raises BackendError: an error that the stream reports, by its type.
    :raises Rejected: a block is of a type that is no text.
    :raises Unavailable: the stream broke off, or held something that is no event of a message.
    :raises AnswerTooLarge: it is longer than an answer may be.
    """
    redact = endpoint.redact
    assembly = _Assembly()
    first: float | None = None
    out = redact.stream(on_text)
    stream = JsonRecordStream(body, endpoint, label)
    while not assembly.has_ended and (record := await stream.next()) is not None:
        try:
            piece = assembly.take(record)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise stream.malformed("what is no event of a message") from None
        if first is None and assembly.has_begun:
            first = clock.now()
        if piece:
            out.feed(piece)
    out.finish()
    if not assembly.is_whole:
        raise stream.broken_off()
    try:
        found = read_message(assembly.message(), redact, tools=tools)
    except PartWithoutText as block:
        raise Rejected(redact.cut(str(block), 200), model=label) from None
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = redact.cut(str(error), 200)
        raise Unavailable(f"the stream is not that of a message ({shown})", model=label) from None
    found.completion.first_token = first
    return found


class _Assembly:
    """A message as far as its events have come."""

    def __init__(self) -> None:
        self.has_ended = False
        self.has_begun = False  # something besides thoughts has come
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}

    @property
    def is_whole(self) -> bool:
        """Whether all has come: gateways may leave out the event that ends a message, behind the reason for its end."""
        return bool(self._message) and (self.has_ended or self._message.get("stop_reason") is not None)

    def take(self, record: dict[str, Any]) -> str:
        """Take an event; the text that it adds to the answer. Types of events that are not known are left out, as the
        API's versioning asks.

        :raises KeyError, TypeError, AttributeError: it is no event of a message.
        """
        kind = record["type"]
        if kind == "content_block_delta":
            return self._delta(record["index"], record["delta"])
        if kind == "content_block_start":
            return self._start(record["index"], record["content_block"])
        if kind == "message":  # sent whole, though a stream was asked for
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
        self.has_begun = self.has_begun or kind == "tool_use" or bool(text)
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
                self.has_begun = True
                return piece
        return ""

    def message(self) -> dict[str, Any]:
        """The whole message, as it would have been sent."""
        for (index, field), pieces in self._pieces.items():
            whole = "".join(pieces)
            if field == "input":
                self._blocks[index][field] = whole or self._blocks[index].get(field) or "{}"
            else:
                self._blocks[index][field] = whole
        return self._message | {"content": [self._blocks[index] for index in sorted(self._blocks)]}


_VERSION = "2023-06-01"  # of the API, as the header anthropic-version names it
_SERVICE = ProviderApi(
    kind="anthropic",
    url="https://api.anthropic.com",
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    example="claude-sonnet-4-5",
    calls="(/v1)?/(messages|models)",
)
_NEXT_FORM = {"schema": PROMPT_ONLY}
_MIN_THINKING_BUDGET = 1024  # tokens, as the API demands
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class AnthropicBackend(EndpointBackend):
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        place: EndpointAddress,
        asking: EndpointOptions,
        options: RequestOptions,
        *,
        form: str = "schema",
    ) -> None:
        headers = {"anthropic-version": _VERSION} | ({"x-api-key": place.key} if place.key else {})
        base_url = place.base_url.removesuffix("/v1")
        super().__init__(clock, place, asking, headers, base_url=base_url, dialect=MessagesErrors())
        self._options, self._forms, self._returned = options, FormFallback(form, _NEXT_FORM), ProviderState()

    @property
    def _list(self) -> tuple[str, str]:
        return "/v1/models?limit=1000", self.model

    @property
    def _advice(self) -> Mapping[str, str]:
        return {
            **dict.fromkeys(("temperature", "top_p", "top_k"), SAMPLING_ADVICE),
            **dict.fromkeys(
                ("thinking", "thinking.type.enabled", "thinking.type.adaptive", "thinking.type.disabled"),
                "give another thinking= in the model's name (off, adaptive, a number of tokens), or none",
            ),
            **dict.fromkeys(("effort", "output_config.effort"), "give another effort= in the model's name, or none"),
            "max_tokens": "add max_tokens=NUMBER to the model's name, which sends another limit",
        }

    def ended(self, affinity: str) -> None:
        self._returned.forget(affinity)

    async def generate(self, request: Request) -> Completion:
        """As the base says; a refused form of structured output raises ``FormRefused`` until one is accepted."""
        return await self._forms.ask(self._asking.settled(request), self._attempt, self.label)

    async def _attempt(self, request: Request, form: str) -> Completion:
        on_text, tools = request.on_text, request.tools is not None
        body = build_request(request, self.model, self._options, form, self._returned, streaming=on_text is not None)
        found: list[ReadMessage] = []

        async def receive(answer: AnswerBody) -> Completion:
            if on_text is not None or answer.is_stream:
                hear = on_text or discard_piece
                read = await read_stream(answer, hear, self.label, self._clock, self._endpoint, tools=tools)
            else:
                read = await self._whole(
                    answer, lambda data: parse_message(data, self.label, self._redact, tools=tools)
                )
            found.append(read)
            return read.completion

        completion = await self._ask(request, f"{self.base_url}/v1/messages", self._asking.body_of(body), receive)
        self._returned.keep(request, completion, found[-1].returned)
        return completion

    def statistics(self) -> dict[str, Any]:
        return {"json_mode": self._forms.chosen, "connections": self._endpoint.connections}


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """A model of the Messages API from its name.

    :raises ConfigurationError: the public API is named but no key is set, or an option is wrong.
    """
    place = resolve_endpoint(spec, _SERVICE)
    asking = EndpointOptions.of(spec)
    options = RequestOptions(
        thinking=_parse_thinking(spec),
        effort=spec.one_of("effort", _EFFORTS),
        sampling=asking.sampling,
        cache=spec.one_of("cache", ("on", "off")) == "on",
    )
    return AnthropicBackend(
        clock,
        place,
        asking,
        options,
        form=spec.one_of("json", ("schema", PROMPT_ONLY), "schema"),
    )


def _parse_thinking(spec: ModelSpec) -> str:
    given = spec.take("thinking", "") or ""
    if given == "on":
        return "adaptive"
    if given in ("", "off", "adaptive") or (given.isascii() and given.isdigit() and int(given) >= _MIN_THINKING_BUDGET):
        return given
    raise ConfigurationError(
        f"model '{spec.text}': thinking={given}: expected on, off, adaptive, or a number of tokens from "
        f"{_MIN_THINKING_BUDGET}"
    )
