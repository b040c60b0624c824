"""Simulated assistant, judge and user of tool-use dialogs; the assistant is right or makes realistic mistakes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from viva.engine.backends.simulated import SimulatedBackend, SimulatedReply
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message, Request
from viva.engine.tools import Toolbox, ToolCall, argument_text, number_calls

from ..simulated_knowledge import judgement, question
from .user_tasks import ToolSimulator

_TEXTS = (
    "I can take care of that for you.",
    "Could you tell me a little more about what you need?",
    "I am afraid there is nothing I can do about that.",
)
_RESULT = '{"status": "ok", "result": null}'


@dataclass(slots=True, frozen=True)
class AssistantHint:
    """A candidate that may know the right answer, an assistant's message in OpenAI's form."""

    ground_truth: Any

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        # Sampled per call, not per item: turns of one dialog and repeated runs differ as with a real model.
        right = correct_answer(self.ground_truth)
        if request.tools is None or chance[1] < model.knowledge:
            return right
        return wrong_answer(right, request, request.tools, chance[2:4])


@dataclass(slots=True, frozen=True)
class NextCallHint:
    """A candidate that knows the next expected call, computed when it is asked."""

    simulator: ToolSimulator

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        return AssistantHint(self.ground_truth).simulated(model, request, chance)

    @property
    def ground_truth(self) -> dict[str, Any]:
        """The next expected call, or a closing message if all have been made."""
        missing = self.simulator.missing()
        if not missing:
            return {"role": "assistant", "content": "That is done."}
        expected = self.simulator.task.expected[missing[0]]
        call = ToolCall("call-1", expected.name, orjson.dumps(expected.arguments).decode())
        return {"role": "assistant", "tool_calls": [call.to_openai()]}


@dataclass(slots=True, frozen=True)
class RulingHint:
    """A judge that may know whether the answer is right."""

    passed: bool

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        return judgement(model, verdict_text(self.passed != (chance[1] < model.noise)), chance), None


@dataclass(slots=True, frozen=True)
class UserHint:
    """A user who keeps asking."""

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        return question(chance), None


def correct_answer(truth: Any) -> SimulatedReply:
    """Return the text and the calls of an assistant message in OpenAI's form.

    Raises:
        ConfigurationError: The message does not have that form.
    """
    try:
        functions = [(entry.get("id"), entry["function"]) for entry in truth.get("tool_calls") or ()]
        calls = number_calls((id_ or "", f["name"], argument_text(f.get("arguments"))) for id_, f in functions)
        return str(truth.get("content") or ""), calls or None
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigurationError(f"hint 'ground_truth' is not an assistant's message ({error!r}): {truth!r}") from None


def wrong_answer(truth: SimulatedReply, request: Request, tools: Toolbox, chance: Sequence[float]) -> SimulatedReply:
    """Return an answer other than the true one; two numbers in [0, 1) choose its kind.

    Instead of a call: another function, a missing or an additional key, a value of another type, or words. Instead of
    words: a call, a result passed on as raw JSON, or other words.
    """
    text, calls = truth
    kind, detail = chance
    if not calls:
        if kind < 0.5:
            return "", [_invented_call(tools, detail)]
        if kind < 0.75:
            return _last_result(request.messages), None
        alternatives = [alternative for alternative in _TEXTS if alternative != text]
        return alternatives[int(detail * len(alternatives))], None
    index = int(detail * len(calls))
    ways = [_change_function, _drop_key, _add_key, _change_type]
    first = int(kind * (len(ways) + 1))
    if first < len(ways):
        # Some mistakes are impossible with some calls; an additional key always works.
        for way in ways[first:] + ways[:first]:
            wrong = way(calls[index], tools, detail)
            if wrong is not None:
                return text, [*calls[:index], wrong, *calls[index + 1 :]]
    return _TEXTS[int(detail * len(_TEXTS))], None


def verdict_text(passed: bool) -> str:
    """Return reasons, followed by the verdict as JSON."""
    reasons = (
        "Function, keys and values are what the talk asks for, and nothing is made up."
        if passed
        else "What the talk asks for and what the answer does are not the same."
    )
    return f"{reasons}\n{json.dumps({'verdict': 'pass' if passed else 'fail'})}"


def _change_function(call: ToolCall, tools: Toolbox, chance: float) -> ToolCall | None:
    names = [name for name in tools.names if name != call.name]
    return ToolCall(call.id, names[int(chance * len(names))], call.arguments) if names else None


def _drop_key(call: ToolCall, tools: Toolbox, chance: float) -> ToolCall | None:
    arguments = call.parsed()
    if not arguments:
        return None
    left_out = list(arguments)[int(chance * len(arguments))]
    return _with_arguments(call, {name: value for name, value in arguments.items() if name != left_out})


def _add_key(call: ToolCall, tools: Toolbox, chance: float) -> ToolCall | None:
    arguments = call.parsed()
    properties = (tools.parameters(call.name) or {}).get("properties", {})
    unused = [name for name in properties if name not in arguments]
    name = unused[int(chance * len(unused))] if unused else "note"
    while name in arguments:
        name += "_2"
    return _with_arguments(call, {**arguments, name: _value_for(properties.get(name, {}))})


def _change_type(call: ToolCall, tools: Toolbox, chance: float) -> ToolCall | None:
    arguments = call.parsed()
    if not arguments:
        return None
    name = list(arguments)[int(chance * len(arguments))]
    value = arguments[name]
    return _with_arguments(call, {**arguments, name: [value] if isinstance(value, str) else _compact(value)})


def _with_arguments(call: ToolCall, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(call.id, call.name, _compact(arguments))


def _invented_call(tools: Toolbox, chance: float) -> ToolCall:
    """Return a call that nobody asked for, with made-up required arguments."""
    name = tools.names[int(chance * len(tools.names))]
    schema = tools.parameters(name) or {}
    properties = schema.get("properties", {})
    required = schema.get("required")
    parameters = list(properties) if required is None else required
    return ToolCall("call-1", name, _compact({key: _value_for(properties.get(key, {})) for key in parameters}))


def _value_for(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return "unknown"
    if schema.get("enum"):
        return schema["enum"][0]
    plain = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}
    kind = schema.get("type")
    return plain.get(kind, "unknown") if isinstance(kind, str) else "unknown"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _last_result(messages: Sequence[Message]) -> str:
    return next((message.content for message in reversed(messages) if message.role == "tool"), _RESULT)
