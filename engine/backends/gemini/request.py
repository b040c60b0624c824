"""Requests of the Gemini API: from the engine's messages, tools and sampling to a body.

What never belongs here: HTTP, keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from ...errors import ConfigurationError
from ...messages import Message, Request, Sampling
from ...tools import Toolbox
from ..answer_forms import NOTHING
from ..returned_parts import ReturnedParts

_OWN_ID = re.compile(r"call-\d+")  # given by the engine where the API gave none
# What a sampling may ask for and the API does not know, with the value that asks for nothing.
_UNKNOWN = {"min_p": 0.0, "repeat_penalty": 1.0}
_MOST_STOPS = 5
_SEEDS = 2**31 - 1  # seeds are whole numbers of 32 bits
# From this generation on a call must come back with its signature; the API documents this one for calls without any.
_SIGNED = re.compile(r"gemini-(\d+)")
_FIRST_SIGNED = 3
_NO_SIGNATURE = "skip_thought_signature_validator"
_HARMS = ("HARASSMENT", "HATE_SPEECH", "SEXUALLY_EXPLICIT", "DANGEROUS_CONTENT")
LEVELS = ("minimal", "low", "medium", "high")


@dataclass(slots=True, frozen=True)
class RequestOptions:
    """What a model's name says of its requests.

    :param thinking: ``""`` for the model's default, ``off``, ``auto``, one of ``LEVELS``, or a budget in tokens as
        text. :param sampling: whether temperature, topP and topK are sent. :param filters: whether the API's filters of
        content keep their thresholds.
    """

    thinking: str = ""
    sampling: bool = True
    filters: bool = True

    def thinking_config(self) -> dict[str, Any]:
        """The API's ``thinkingConfig``; empty for the model's default."""
        if not self.thinking:
            return {}
        if self.thinking == "off":
            return {"thinkingBudget": 0}
        told = (
            {"thinkingLevel": self.thinking.upper()}
            if self.thinking in LEVELS
            else {"thinkingBudget": self.budget or -1}
        )
        return told | {"includeThoughts": True}

    @property
    def budget(self) -> int:
        """Tokens for thoughts; 0 where no number is given."""
        return int(self.thinking) if self.thinking.isdigit() else 0


def body_of(
    request: Request, model: str, options: RequestOptions, form: str, returned: ReturnedParts
) -> dict[str, Any]:
    """The body of a request.

    :param form: of structured output, ``schema``, ``object`` or none.
    :raises ConfigurationError: the sampling asks for what the API does not have.
    """
    system, contents = _conversation(request, returned, _must_sign(model))
    body: dict[str, Any] = {"contents": contents, "generationConfig": _generation(request, model, options, form)}
    if system:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    if request.tools is not None:
        body |= _tools(request.tools)
    if not options.filters:
        body["safetySettings"] = [{"category": f"HARM_CATEGORY_{harm}", "threshold": "BLOCK_NONE"} for harm in _HARMS]
    return body


def _generation(request: Request, model: str, options: RequestOptions, form: str) -> dict[str, Any]:
    sampling: Sampling = request.sampling
    asked = [name for name, off in _UNKNOWN.items() if getattr(sampling, name) != off]
    if asked:
        raise ConfigurationError(
            f"{model}: the Gemini API has no {', '.join(asked)}; leave it off, or ask a model that has it"
        )
    if len(sampling.stop) > _MOST_STOPS:
        raise ConfigurationError(f"{model}: the Gemini API takes {_MOST_STOPS} stop strings, not {len(sampling.stop)}")
    config: dict[str, Any] = {"maxOutputTokens": sampling.max_tokens + options.budget, "seed": request.seed & _SEEDS}
    if options.sampling:
        config |= {"temperature": sampling.temperature, "topP": sampling.top_p}
        if sampling.top_k:
            config["topK"] = sampling.top_k
    if sampling.stop:
        config["stopSequences"] = sampling.stop
    if sampling.frequency_penalty:
        config["frequencyPenalty"] = sampling.frequency_penalty
    if sampling.presence_penalty:
        config["presencePenalty"] = sampling.presence_penalty
    if sampling.logprobs is not None:
        config |= {"responseLogprobs": True, "logprobs": sampling.logprobs}
    if form != NOTHING:
        config["responseMimeType"] = "application/json"
    if form == "schema":
        config["responseJsonSchema"] = sampling.schema
    thinking = options.thinking_config()
    return config | ({"thinkingConfig": thinking} if thinking else {})


def _tools(tools: Toolbox) -> dict[str, Any]:
    declared = []
    for spec in tools.specs:
        function = spec["function"]
        told = {"name": function["name"], "description": function.get("description", "")}
        if function.get("parameters"):
            told["parametersJsonSchema"] = function["parameters"]
        declared.append(told)
    fields: dict[str, Any] = {"tools": [{"functionDeclarations": declared}]}
    if tools.required:
        fields["toolConfig"] = {"functionCallingConfig": {"mode": "ANY"}}
    return fields


def _conversation(request: Request, returned: ReturnedParts, sign: bool) -> tuple[str, list[dict[str, Any]]]:
    """Instructions and turns. System messages are joined, wherever they stand; alone they are said by the user."""
    system = "\n\n".join(one.content for one in request.messages if one.role == "system")
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for index, message in enumerate(request.messages):
        if message.role == "system":
            continue
        names |= {call.id: call.name for call in message.calls}
        parts = (returned.of(request, index) if message.calls else None) or _parts(message, names, sign)
        if parts:
            role = "model" if message.role == "assistant" else "user"
            if turns and turns[-1]["role"] == role:
                turns[-1]["parts"] += parts
            else:
                turns.append({"role": role, "parts": list(parts)})
    if not turns:
        return "", [{"role": "user", "parts": [{"text": system}]}]
    return system, turns


def _parts(message: Message, names: dict[str, str], sign: bool) -> list[dict[str, Any]]:
    if message.role == "tool":
        answered = {
            "name": message.name or names.get(message.call_id, "function"),
            "response": _result(message.content),
        }
        return [{"functionResponse": _with_id(answered, message.call_id)}]
    parts: list[dict[str, Any]] = [{"text": message.content}] if message.content else []
    for place, call in enumerate(message.calls):
        part: dict[str, Any] = {"functionCall": _with_id({"name": call.name, "args": call.as_object()}, call.id)}
        if sign and place == 0:  # of calls side by side only the first is signed
            part["thoughtSignature"] = _NO_SIGNATURE
        parts.append(part)
    return parts


def _with_id(record: dict[str, Any], given: str) -> dict[str, Any]:
    return record if not given or _OWN_ID.fullmatch(given) else record | {"id": given}


def _result(content: str) -> dict[str, Any]:
    """A tool's result as the object that the API wants; anything else under the name that the API documents for it."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"output": content}


def _must_sign(model: str) -> bool:
    found = _SIGNED.search(model)
    return found is not None and int(found[1]) >= _FIRST_SIGNED
