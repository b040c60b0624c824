"""Requests of the Messages API: from the engine's messages, tools and sampling to a body.

What never belongs here: HTTP, keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigurationError
from ...messages import Message, Request, Sampling
from ...tools import Toolbox
from ..answer_forms import NOTHING
from ..returned_parts import ReturnedParts
from .schema import taken_schema

_ID_SIGNS = re.compile(r"[^a-zA-Z0-9_-]")
_EMPTY = {"type": "object", "properties": {}}
# What a sampling may ask for and the API does not know, with the value that asks for nothing.
_UNKNOWN = {"min_p": 0.0, "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "logprobs": None}


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


def body_of(
    request: Request, model: str, options: RequestOptions, form: str, returned: ReturnedParts, *, streaming: bool
) -> dict[str, Any]:
    """The body of a request.

    :param form: of structured output, ``schema`` or none.
    :raises ConfigurationError: the sampling asks for what the API does not have.
    """
    sampling = request.sampling
    _refuse_unknown(sampling, model)
    system, messages, signed = _conversation(request, returned)
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
        body |= _tools(request.tools)
    output: dict[str, Any] = {"effort": options.effort} if options.effort else {}
    if form != NOTHING:
        output["format"] = {"type": "json_schema", "schema": taken_schema(sampling.schema)}
    if output:
        body["output_config"] = output
    if options.cache:
        body["cache_control"] = {"type": "ephemeral"}
    if streaming:
        body["stream"] = True
    return body


def _refuse_unknown(sampling: Sampling, model: str) -> None:
    asked = [name for name, off in _UNKNOWN.items() if getattr(sampling, name) != off]
    if asked:
        raise ConfigurationError(
            f"{model}: the Messages API has no {', '.join(asked)}; leave it off, or ask a model that has it"
        )
    if not all(stop.strip() for stop in sampling.stop):
        raise ConfigurationError(f"{model}: the Messages API takes no stop string of blanks alone; name another one")


def _tools(tools: Toolbox) -> dict[str, Any]:
    specs = []
    for spec in tools.specs:
        function = spec["function"]
        told = {"name": function["name"], "input_schema": _EMPTY | (function.get("parameters") or {})}
        if function.get("description"):
            told["description"] = function["description"]
        specs.append(told)
    fields: dict[str, Any] = {"tools": specs}
    if tools.required or tools.single:
        fields["tool_choice"] = {"type": "any" if tools.required else "auto"}
        if tools.single:
            fields["tool_choice"]["disable_parallel_tool_use"] = True
    return fields


def _conversation(request: Request, returned: ReturnedParts) -> tuple[str, list[dict[str, Any]], bool]:
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
        blocks = _blocks(message, ids)
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
    return system, [_plain(turn) for turn in turns], signed


def _plain(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn of one text in the short form."""
    content: Sequence[dict[str, Any]] = turn["content"]
    return turn | {"content": content[0]["text"]} if len(content) == 1 and content[0]["type"] == "text" else turn


def _blocks(message: Message, ids: _CallIds) -> list[dict[str, Any]]:
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
        name = _ID_SIGNS.sub("_", given) or "call"
        times = self._times[name] = self._times.get(name, 0) + 1
        unique = name if times == 1 else f"{name}-{times}"
        self._last.setdefault(given, []).append(unique)
        return unique

    def result(self, given: str) -> str:
        """The call that a result answers: the last of that name."""
        known = self._last.get(given)
        return known[-1] if known else _ID_SIGNS.sub("_", given)
