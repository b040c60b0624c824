"""From a request in OpenAI's form to the engine's: messages, sampling, tools, and one seed for each choice.

The first choice has the client's own seed, so its answer is that of the engine for the same messages, sampling and
seed. What never belongs here: answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from viva.engine import seeds
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message, Request, Sampling, View, request_digest
from viva.engine.tools import Toolbox, ToolCall

from ..server.problems import Problem
from .forms import MOST_CHOICES, ChatForm, ChatMessage, NamedChoice, ResponseFormat, SamplingForm, TextForm
from .served import ServedModel

ANY_OBJECT: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
_MOST_SCHEMA = 1_000_000
_USUAL_TEXT_TOKENS = 16  # OpenAI's default of plain completions


@dataclass(slots=True)
class Choice:
    """One answer that is asked for: its index, and what the engine is asked. ``view``: its messages, of a chat."""

    index: int
    request: Request
    view: View | None = None
    conversation: str | None = None


@dataclass(slots=True)
class Question:
    """What a client asks: one choice or several, and how they are to be told. ``beginning``: one choice at a time is
    begun, so that the preparation of many does not fill one turn of the event loop.
    """

    model: ServedModel
    choices: list[Choice]
    stream: bool
    usage_in_stream: bool
    logprobs: bool
    beginning: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class ChatParts:
    """A chat request, read: what is made of it without the model, which takes a while where there is much of it."""

    form: ChatForm
    messages: list[Message]
    sampling: Sampling
    tools: Toolbox | None


def chat_parts(form: ChatForm, most_tokens: int) -> ChatParts:
    """The parts of a chat completion. ``most_tokens``: of an answer, where the client sets no bound.

    :raises Problem: it cannot be asked.
    """
    form.refuse_unknown()
    tools = _toolbox(form)
    asked = form.top_logprobs or 0 if form.logprobs else None
    if form.top_logprobs is not None and not form.logprobs:
        raise Problem(400, "top_logprobs: needs logprobs: true", field="top_logprobs")
    limit = form.max_completion_tokens or form.max_tokens or most_tokens
    sampling = _sampling(form, limit, _schema(form.response_format), asked)
    return ChatParts(form, _messages(form.messages), sampling, tools)


def chat_question(parts: ChatParts, model: ServedModel) -> Question:
    """The question of a chat completion.

    :raises Problem: it cannot be asked.
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
    return _question(form, model, choices, sampling.logprobs)


def text_question(form: TextForm, model: ServedModel) -> Question:
    """The question of plain completions: choices of the first prompt, then those of the next.

    :raises Problem: it cannot be asked, or the model has only a chat template.
    """
    form.refuse_unknown()
    if not model.backend.continues_text:
        raise Problem(400, f"{model.name} continues no plain text; use /v1/chat/completions", field="model")
    prompts = [form.prompt] if isinstance(form.prompt, str) else form.prompt
    if not prompts:
        raise Problem(400, "prompt: the list is empty", field="prompt")
    sampling = _sampling(form, form.max_tokens or _USUAL_TEXT_TOKENS, None, form.logprobs)
    choices: list[Choice] = []
    count = len(prompts) * (form.n or 1)
    if count > MOST_CHOICES:
        raise Problem(400, f"n: expected at most {MOST_CHOICES} choices of all prompts, found {count:,}", field="n")
    for prompt in prompts:
        said = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass")).digest()  # once, however many choices there are
        for seed in _seeds(form.seed, form.n or 1):
            digest = hashlib.blake2b(b"%b%d %b" % (sampling.digest, seed, said), digest_size=16)
            request = Request((), sampling, seed, digest.digest(), prompt=prompt)
            choices.append(Choice(len(choices), request))
    return _question(form, model, choices, form.logprobs)


def _question(form: SamplingForm, model: ServedModel, choices: list[Choice], logprobs: int | None) -> Question:
    if form.stream_options is not None and not form.stream:
        raise Problem(400, "stream_options: only with stream: true", field="stream_options")
    usage = form.stream_options is not None and form.stream_options.include_usage
    return Question(model, choices, bool(form.stream), usage, logprobs is not None)


def _seeds(seed: int | None, count: int) -> list[int]:
    """One seed a choice: the client's own, or a random one, then those that follow from it."""
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


def _schema(wanted: ResponseFormat | None) -> Mapping[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    _check_size([wanted.schema_, wanted.json_schema and wanted.json_schema.schema_], "response_format")
    if wanted.type == "json_object":
        return wanted.schema_ or ANY_OBJECT
    if wanted.json_schema is None:
        raise Problem(400, "response_format.json_schema is missing", field="response_format.json_schema")
    return wanted.json_schema.schema_


def _check_size(value: Any, field: str) -> None:
    """Check how much text there is in tools or a schema, which are written, hashed and compiled before the answer.

    :raises Problem: there is too much.
    """
    size, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        size += len(one) if isinstance(one, str) else 1
        if isinstance(one, dict):
            size += sum(map(len, one))
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        if size > _MOST_SCHEMA:
            raise Problem(400, f"{field}: expected at most {_MOST_SCHEMA:,} characters", field=field)


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
            known = ", ".join(offered.names)
            raise Problem(400, f"tool_choice: no function '{name[:60]}' is offered: {known}", field="tool_choice")
        return Toolbox([offered.specs[offered.names.index(name)]], required=True, single=True)
    except ConfigurationError as error:
        raise Problem(400, str(error), field="tools") from None


def _messages(given: Sequence[ChatMessage]) -> list[Message]:
    """The engine's messages; a tool's result gets the name of the function that it answers."""
    names: dict[str, str] = {}
    made = []
    for index, one in enumerate(given):
        calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in one.tool_calls or ())
        if calls and one.role != "assistant":
            raise Problem(400, f"messages.{index}.tool_calls: only the assistant calls", field=f"messages.{index}")
        names |= {call.id: call.name for call in calls}
        if one.role == "tool":
            id_ = one.tool_call_id
            if not id_:
                where = f"messages.{index}.tool_call_id"
                raise Problem(400, f"{where} is missing: which call does it answer?", field=where)
            made.append(Message("tool", one.text, call_id=id_, name=one.name or names.get(id_, "")))
        else:
            party = "system" if one.role == "developer" else one.role
            made.append(Message(party, one.text, calls=calls))
    return made
