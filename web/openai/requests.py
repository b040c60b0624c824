"""Requests in OpenAI's format as pydantic models, and their conversion to the engine's requests.

An unsupported field that would change the answer is refused by name, never ignored; `IGNORED` fields change
nothing. The first choice uses the client's own seed, so its answer equals the engine's for the same messages, sampling
and seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from viva.engine import seeds
from viva.engine.backends.endpoint_answer import part_text
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message, Request, Sampling, View, request_digest
from viva.engine.tools import Toolbox, ToolCall

from ..problems import Problem
from .served_models import ServedModel

# OpenAI fields that do not affect a model's answer.
IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_retention"})
MOST_CHOICES = 128
_MOST_MESSAGES = 1_024  # maximum messages; templates render a conversation once for each of its answers
_MOST_PARTS = 1_024  # maximum content parts or calls of a message
_MOST_TOOLS = 512
_MOST_STOP_TEXTS = 16
_MOST_PROMPTS = 128

# Only the first error of a list is reported (`fail_fast`), because finding all errors takes seconds.
Stop = Annotated[str, StringConstraints(max_length=1_000)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="allow")


class CalledFunction(_Form):
    """The function of a call, with its arguments as JSON text."""

    name: str
    arguments: str = ""


class MessageCall(_Form):
    """A call in an assistant message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(_Form):
    """A message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: Annotated[list[MessageCall], Field(fail_fast=True, max_length=_MOST_PARTS)] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _of_text(cls, content: Any) -> Any:
        """Join content parts that have text; refuse other types by name."""
        if not isinstance(content, list):
            return content
        if len(content) > _MOST_PARTS:
            raise ValueError(f"expected at most {_MOST_PARTS:,} parts, found {len(content):,}")
        return "".join(map(_text_of_part, content))

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content or ""


def _text_of_part(part: Any) -> str:
    fields = part if isinstance(part, dict) else {}
    try:
        text = part_text(part)
    except TypeError:
        text = ""
    if not text and fields.get("text") != "":
        kind = fields.get("type")
        raise ValueError(f"only text is supported, found a part of type {kind!r:.40}")
    return text


class StreamOptions(_Form):
    """Options of a stream."""

    include_usage: bool = False


class NamedSchema(_Form):
    """A JSON schema that the answer must follow."""

    name: str = "answer"
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Form):
    """The format of the answer. `schema` beside `json_object` is the dialect of llama.cpp's servers."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class ChosenFunction(_Form):
    """The name of a function."""

    name: str


class NamedChoice(_Form):
    """The one function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class SamplingForm(_Form):
    """Fields that chat and plain completions share."""

    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True, max_length=_MOST_STOP_TEXTS)] | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    logit_bias: dict[str, Any] | None = None
    prompt_cache_key: str | None = Field(default=None, max_length=512)
    # Not in OpenAI's API, but accepted by all local servers.
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repeat_penalty: float | None = Field(default=None, ge=0.01, le=100)

    def refuse_unknown(self) -> None:
        """Check that no field is set that is not supported.

        Raises:
            Problem: A field is set that is not supported.
        """
        if self.logit_bias:
            raise Problem(400, "logit_bias is not supported", field="logit_bias")
        for name, value in (self.model_extra or {}).items():
            if name not in IGNORED and value is not None:
                field = name[:60]
                raise Problem(400, f"'{field}' is not supported; leave it out", field=field, code="unknown_parameter")


class ChatForm(SamplingForm):
    """The body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(fail_fast=True, min_length=1, max_length=_MOST_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=_MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None


class TextForm(SamplingForm):
    """The body of `POST /v1/completions`."""

    prompt: str | Annotated[list[str], Field(fail_fast=True, max_length=_MOST_PROMPTS)]
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def refuse_unknown(self) -> None:
        """Check that no field is set that is not supported.

        Raises:
            Problem: A field is set that is not supported.
        """
        super().refuse_unknown()
        if self.echo:
            raise Problem(
                400,
                "echo is not supported: this server does not score texts; use the model file itself (llama:FILE)",
                field="echo",
            )
        if self.suffix:
            raise Problem(400, "suffix is not supported", field="suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise Problem(400, "best_of is not supported; leave it out", field="best_of")


ANY_OBJECT: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
_LONGEST_SCHEMA = 1_000_000
_DEFAULT_TEXT_TOKENS = 16  # OpenAI's default for plain completions


@dataclass(slots=True)
class Choice:
    """A requested answer: its index and the engine's request.

    For a chat, `view` has its messages, and `conversation` is the client's name for the conversation, if any.
    """

    index: int
    request: Request
    view: View | None = None
    conversation: str | None = None


@dataclass(slots=True)
class CompletionRequest:
    """A client's request: one or more choices, and the format of the answer.

    Choices begin one at a time (`beginning`), so that preparing many does not fill one turn of the event loop.
    """

    model: ServedModel
    choices: list[Choice]
    stream: bool
    usage_in_stream: bool
    logprobs: bool
    beginning: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class ChatParts:
    """A parsed chat request: everything that needs no model and takes a while for long requests."""

    form: ChatForm
    messages: list[Message]
    sampling: Sampling
    tools: Toolbox | None


def chat_parts(form: ChatForm, most_tokens: int) -> ChatParts:
    """Parse a chat completion. `most_tokens`: tokens of an answer if the client sets no limit."""
    form.refuse_unknown()
    tools = _toolbox(form)
    top_logprobs = form.top_logprobs or 0 if form.logprobs else None
    if form.top_logprobs is not None and not form.logprobs:
        raise Problem(400, "top_logprobs: needs logprobs: true", field="top_logprobs")
    limit = form.max_completion_tokens or form.max_tokens or most_tokens
    sampling = _sampling(form, limit, _schema(form.response_format), top_logprobs)
    return ChatParts(form, _messages(form.messages), sampling, tools)


def chat_request(parts: ChatParts, model: ServedModel) -> CompletionRequest:
    """Return the engine's requests for a chat completion.

    Raises:
        Problem: The model cannot answer the request.
    """
    form, sampling, tools = parts.form, parts.sampling, parts.tools
    name = form.prompt_cache_key
    view = model.remembered.view(name, parts.messages)
    affinity = "" if name is None else model.remembered.affinity(name)
    messages = view.messages
    choices = [
        Choice(
            index,
            Request(
                messages,
                sampling,
                seed,
                request_digest(view, sampling, seed, tools),
                affinity,
                "assistant",
                index,
                tools=tools,
                affinity=affinity,
            ),
            view,
            name,
        )
        for index, seed in enumerate(_seeds(form.seed, form.n or 1))
    ]
    return _completion_request(form, model, choices, sampling.logprobs)


def text_request(form: TextForm, model: ServedModel) -> CompletionRequest:
    """Return the engine's requests for plain completions: choices of the first prompt, then of the next.

    Raises:
        Problem: The model cannot answer the request, or has only a chat template.
    """
    form.refuse_unknown()
    if not model.backend.continues_text:
        raise Problem(400, f"{model.name} does not support plain completions; use /v1/chat/completions", field="model")
    prompts = [form.prompt] if isinstance(form.prompt, str) else form.prompt
    if not prompts:
        raise Problem(400, "prompt: the list is empty", field="prompt")
    sampling = _sampling(form, form.max_tokens or _DEFAULT_TEXT_TOKENS, None, form.logprobs)
    choices: list[Choice] = []
    count = len(prompts) * (form.n or 1)
    if count > MOST_CHOICES:
        raise Problem(400, f"n: expected at most {MOST_CHOICES} choices over all prompts, found {count:,}", field="n")
    for prompt in prompts:
        prompt_digest = hashlib.blake2b(
            prompt.encode("utf-8", "surrogatepass")
        ).digest()  # once, however many choices there are
        for seed in _seeds(form.seed, form.n or 1):
            digest = hashlib.blake2b(b"%b%d %b" % (sampling.digest, seed, prompt_digest), digest_size=16)
            request = Request((), sampling, seed, digest.digest(), prompt=prompt)
            choices.append(Choice(len(choices), request))
    return _completion_request(form, model, choices, form.logprobs)


def _completion_request(
    form: SamplingForm, model: ServedModel, choices: list[Choice], logprobs: int | None
) -> CompletionRequest:
    if form.stream_options is not None and not form.stream:
        raise Problem(400, "stream_options: only with stream: true", field="stream_options")
    usage = form.stream_options is not None and form.stream_options.include_usage
    return CompletionRequest(model, choices, bool(form.stream), usage, logprobs is not None)


def _seeds(seed: int | None, count: int) -> list[int]:
    """Return one seed for each choice: the client's own or a random one, then seeds derived from it."""
    first = secrets.randbelow(2**31 - 1) + 1 if seed is None else seed
    return [first, *(seeds.derive("choice", first, index) for index in range(1, count))]


def _sampling(form: SamplingForm, limit: int, schema: Mapping[str, Any] | None, logprobs: int | None) -> Sampling:
    stops = [form.stop] if isinstance(form.stop, str) else form.stop or []
    return Sampling(
        temperature=1.0 if form.temperature is None else form.temperature,
        top_p=1.0 if form.top_p is None else form.top_p,
        max_tokens=limit,
        stop=tuple(stop for stop in stops if stop),
        schema=schema,
        logprobs=logprobs,
        top_k=form.top_k or 0,
        min_p=form.min_p or 0.0,
        repeat_penalty=1.0 if form.repeat_penalty is None else form.repeat_penalty,
        frequency_penalty=form.frequency_penalty or 0.0,
        presence_penalty=form.presence_penalty or 0.0,
    )


def _schema(response_format: ResponseFormat | None) -> Mapping[str, Any] | None:
    if response_format is None or response_format.type == "text":
        return None
    _check_size(
        [response_format.schema_, response_format.json_schema and response_format.json_schema.schema_],
        "response_format",
    )
    if response_format.type == "json_object":
        return response_format.schema_ or ANY_OBJECT
    if response_format.json_schema is None:
        raise Problem(400, "response_format.json_schema is missing", field="response_format.json_schema")
    return response_format.json_schema.schema_


def _check_size(value: Any, field: str) -> None:
    """Check the size of tools or a schema, which are rendered, hashed and compiled before the answer."""
    size, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        size += len(item) if isinstance(item, str) else 1
        if isinstance(item, dict):
            size += sum(map(len, item))
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        if size > _LONGEST_SCHEMA:
            raise Problem(400, f"{field}: expected at most {_LONGEST_SCHEMA:,} characters", field=field)


def _toolbox(form: ChatForm) -> Toolbox | None:
    specs, choice = form.tools or [], form.tool_choice
    _check_size(specs, "tools")
    if not specs:
        if choice not in (None, "none", "auto"):
            raise Problem(400, "tool_choice: needs tools", field="tool_choice")
        return None
    if choice == "none":
        return None
    single = form.parallel_tool_calls is False
    try:
        offered = Toolbox(specs, required=choice == "required", single=single)
        if not isinstance(choice, NamedChoice):
            return offered
        name = choice.function.name
        if name not in offered.names:
            names = ", ".join(offered.names)
            raise Problem(400, f"tool_choice: no function '{name[:60]}' is offered: {names}", field="tool_choice")
        return Toolbox([offered.specs[offered.names.index(name)]], required=True, single=True)
    except ConfigurationError as error:
        raise Problem(400, str(error), field="tools") from None


def _messages(chat: Sequence[ChatMessage]) -> list[Message]:
    """Convert to the engine's messages; a tool's result gets the name of the function it answers."""
    names: dict[str, str] = {}
    messages = []
    for index, message in enumerate(chat):
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()
        )
        if calls and message.role != "assistant":
            raise Problem(
                400, f"messages.{index}.tool_calls: only assistant messages can have calls", field=f"messages.{index}"
            )
        names |= {call.id: call.name for call in calls}
        if message.role == "tool":
            id_ = message.tool_call_id
            if not id_:
                field = f"messages.{index}.tool_call_id"
                raise Problem(400, f"{field} is missing: name the call that this message answers", field=field)
            messages.append(Message("tool", message.text, call_id=id_, name=message.name or names.get(id_, "")))
        else:
            party = "system" if message.role == "developer" else message.role
            messages.append(Message(party, message.text, calls=calls))
    return messages
