"""The parts that the benchmark's files are made of: messages, calls, tool lists, acceptable arguments.

A ground truth has to obey the specifications that it is graded by, or every right output would fail.
What never belongs here: which fields hold the parts (``items``), and grading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from viva.data.fields import FieldError, Raw, own_id, shown, text_field
from viva.engine.errors import ConfigurationError, MalformedOutput
from viva.engine.tools import Toolbox, ToolCall

from .turns import Acceptable, OutputType, shown_json
from .values import fits, named, required

_ONLY = "only ground truth is allowed"


def truth_message(given: Any, kind: OutputType, where: str) -> dict[str, Any]:
    """A ground truth that is given as a message; it holds calls exactly where its type is ``call``."""
    if not isinstance(given, dict) or given.get("role") != "assistant":
        raise FieldError(where, f"expected an assistant message, found {shown(given)}")
    truth = history_message(given, f"{where}.")
    if kind == "call" and not truth.get("tool_calls"):
        raise FieldError(f"{where}.tool_calls", "is missing, but 'type_of_output' is 'call'")
    if kind != "call" and truth.get("tool_calls"):
        raise FieldError(f"{where}.tool_calls", f"holds a call, but 'type_of_output' is '{kind}'")
    return truth


def history_message(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A message with the fields that count; of a role that may stand in a history, and with something in it."""
    role = given.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        raise FieldError(f"{where}role", f"expected system, user, assistant or tool, found {shown(role)}")
    calls = message_calls_of(given.get("tool_calls"), f"{where}tool_calls") if role == "assistant" else []
    content = given.get("content")
    if calls and (content is None or (isinstance(content, str) and not content.strip())):
        return {"role": role, "content": None, "tool_calls": [call.to_openai() for call in calls]}
    if role == "tool" and content == "":  # a tool may have nothing to say
        message: dict[str, Any] = {"role": role, "content": ""}
    else:
        message = {"role": role, "content": text_field(given, "content", where)}
    if calls:
        message["tool_calls"] = [call.to_openai() for call in calls]
    if role == "tool":
        message["tool_call_id"] = own_id(given, "tool_call_id") or ""
        if given.get("name") is not None:
            message["name"] = text_field(given, "name", where)
    return message


def message_calls_of(given: Any, where: str) -> list[ToolCall]:
    """The calls of an assistant message; arguments may also be given as an object instead of its text."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise FieldError(where, f"expected a list of calls, found {shown(given)}")
    found = []
    for index, one in enumerate(given):
        place = f"{where}[{index}]"
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict):
            raise FieldError(place, f"expected an object with 'function', found {shown(one)}")
        found.append(_call(function, one.get("id"), index, f"{place}.function."))
    return found


def calls_of_text(given: Any, where: str) -> list[ToolCall]:
    """The calls of a single-call ground truth: ``{"name", "arguments"}`` or a list of such, also as JSON text."""
    value = _json(given, where) if isinstance(given, str) else given
    held = value if isinstance(value, list) else [value]
    if not held or not all(isinstance(one, dict) for one in held):
        raise FieldError(where, f"expected a call, or a list of calls, found {shown(given)}")
    return [_call(one, None, index, f"{where}.") for index, one in enumerate(held)]


def _call(function: Mapping[str, Any], given_id: Any, index: int, where: str) -> ToolCall:
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = shown_json(arguments)
    if not isinstance(arguments, str):
        raise FieldError(f"{where}arguments", f"expected a JSON object as text, found {shown(arguments)}")
    name = text_field(function, "name", where)
    call = ToolCall(given_id if isinstance(given_id, str) and given_id else f"call-{index + 1}", name, arguments)
    try:
        call.parsed()
    except MalformedOutput as error:
        raise FieldError(f"{where}arguments", str(error)) from None
    return call


def check_calls(calls: Sequence[ToolCall], box: Toolbox, where: str) -> None:
    """A right call names an offered function, and its arguments are of the types that are specified.

    :raises FieldError: one does not.
    """
    for call in calls:
        if call.name not in box.names:
            raise FieldError(where, f"the function '{call.name}' is not among the tools: {', '.join(box.names)}")
        for name, value in call.parsed().items():
            _check_value(call.name, name, value, box, where)
        known = properties(box, call.name)
        for name in required(box.parameters(call.name)):
            if name in known and name not in call.parsed():  # what is required but not specified nobody can give
                raise FieldError(where, f"{call.name} requires '{name}', which the ground truth lacks")


def _check_value(function: str, name: str, value: Any, box: Toolbox, where: str) -> None:
    schema = properties(box, function).get(name)
    if schema is None:
        raise FieldError(where, f"{function} has no parameter '{name}'")
    if not fits(value, schema):
        raise FieldError(where, f"{function}: '{name}' is specified as {named(schema)}, found {shown(value)}")


def properties(box: Toolbox, function: str) -> Mapping[str, Any]:
    """The parameters of a function, each with its schema."""
    held: Mapping[str, Any] = (box.parameters(function) or {}).get("properties", {})
    return held


def acceptable_values(given: Any, calls: Sequence[ToolCall], box: Toolbox, where: str) -> Acceptable:
    """What is said of further values: nothing, a sentence, or an object (for several calls a list of them, or null).

    Where a parameter is an array, a list is one value, and a list of lists gives several. A sentence in place of a
    number, list or truth value is no value: the judge is shown it and decides.
    """
    if given is None:
        return Acceptable()
    text = given if isinstance(given, str) else shown_json(given)
    if isinstance(given, str):
        if given.strip().rstrip(".").lower() == _ONLY:
            return Acceptable("only", text=text)
        if not given.lstrip().startswith(("{", "[")):
            text_field({"text": given}, "text", f"{where}: ")
            return Acceptable("remark", text=text)
        given = _json(given, where)
    held = given if isinstance(given, list) else [given]
    if len(held) != len(calls) or not all(one is None or isinstance(one, dict) for one in held):
        many = "an object" if len(calls) == 1 else f"a list of {len(calls)} objects, one for each call"
        raise FieldError(where, f"expected a sentence, or {many if calls else 'nothing'}, found {shown(given)}")
    values, remarked = [], False
    for call, one in zip(calls, held, strict=True):
        known = properties(box, call.name)
        given_of = {name: value for name, value in (one or {}).items() if not _is_sentence(value, known.get(name))}
        remarked |= len(given_of) < len(one or {})
        values.append({name: _alternatives(value, known.get(name, {})) for name, value in given_of.items()})
        for name, several in values[-1].items():
            if not several:
                raise FieldError(where, f"'{name}' has an empty list of values")
            for value in several:
                _check_value(call.name, name, value, box, where)
    return Acceptable("remark" if remarked else "values", tuple(values), text)


def _is_sentence(value: Any, schema: Any) -> bool:
    """Whether what stands in place of values is words about them, for a known parameter that takes no text."""
    return isinstance(value, str) and len(value.split()) > 1 and schema is not None and not fits(value, schema)


def acceptable_of_calls(given: Sequence[Any], calls: Sequence[ToolCall], box: Toolbox, where: str) -> Acceptable:
    """The same where each call of the ground truth says it of itself, as ``function.acceptable_arguments``.

    Where that is a sentence for some of several calls, the judge is shown all of it and decides.
    """
    told = [(one.get("function") or {}).get("acceptable_arguments") for one in given]
    rules = [
        acceptable_values(one, [call], box, f"{where}[{index}].function.acceptable_arguments")
        for index, (one, call) in enumerate(zip(told, calls, strict=True))
    ]
    kinds = {rule.kind for rule in rules}
    if kinds <= {"unsaid"}:
        return Acceptable()
    if len(rules) == 1:
        return rules[0]
    text = shown_json(told)
    values = tuple(rule.values[0] if rule.values else {} for rule in rules)
    if kinds == {"only"}:
        return Acceptable("only", text=rules[0].text)
    if kinds <= {"unsaid", "values"}:
        return Acceptable("values", values, text)
    return Acceptable("remark", values, text)


def _alternatives(value: Any, schema: Any) -> tuple[Any, ...]:
    several = isinstance(value, list) and all(fits(one, schema) for one in value)
    return tuple(value) if several else (value,)


def toolbox(given: Any, where: str) -> Toolbox:
    if not isinstance(given, list):
        raise FieldError(where, f"expected a list of tools, found {shown(given)}")
    try:
        return Toolbox(given)
    except ConfigurationError as error:
        raise FieldError(where, str(error)) from None


def objects(raw: Raw, name: str, within: str = "") -> list[dict[str, Any]]:
    value = raw.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise FieldError(within + name, f"expected a list of at least one object, found {shown(value)}")
    return value


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise FieldError(where, f"begins like JSON, but is none ({error}): {shown(text)}") from None
