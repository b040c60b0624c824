"""FunctionChat-Bench's files, and files of the same two forms in any language, read as turns.

The ground truth has to obey the specifications that it is graded by: a file in which it does not is refused, for every
right output would fail. Beyond the published files, a ground truth may hold several calls.
What never belongs here: grading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError, DatasetError, MalformedOutput
from viva.engine.tools import Toolbox, ToolCall

from ..datasets.fields import FieldError, Raw, own_id, shown, text_field
from ..datasets.reading import read_records
from .turns import OUTPUT_TYPES, TOOL_LISTS, Acceptable, OutputType, Turn, shown_json
from .values import fits, named, required

__all__ = ["OutputType", "Turn", "read_dialogs", "read_singlecall"]

_ONLY = "only ground truth is allowed"
Found = Iterator[Turn]


def read_singlecall(path: Path) -> Found:
    """The turns of a file of single calls: a function a line, with its queries and tool lists.

    A line has ``query``, ``ground_truth`` and ``acceptable_arguments`` (lists of ``{"serial_num", "content"}`` that
    belong together by their serial numbers; the last may be missing) and ``tools`` (a list of ``{"type", "content"}``,
    the type one of ``TOOL_LISTS``). Each query is a turn under each tool list.

    :raises DatasetError: the file or a field cannot be used; the error names file, line and field.
    """
    return _read(path, _singlecall_turns)


def read_dialogs(path: Path) -> Found:
    """The turns of a file of dialogs: a dialog a line.

    A line has ``dialog_num``, ``tools`` and ``turns``; a turn has ``query`` (the messages before it), ``ground_truth``
    (an assistant message), ``type_of_output``, ``acceptable_arguments`` (may be missing) and ``serial_num`` (else
    ``turn_num``, else its place counts).

    :raises DatasetError: the file or a field cannot be used; the error names file, line and field.
    """
    return _read(path, _dialog_turns)


def _read(path: Path, turns: Any) -> Found:
    seen: dict[str, int] = {}
    for line, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            for turn in turns(raw):
                if turn.id in seen:
                    raise FieldError("serial_num", f"'{turn.id}' stands in line {seen[turn.id]} already; number anew")
                seen[turn.id] = line
                yield turn
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
    if not seen:
        raise DatasetError("holds no turn", path=str(path))


def _singlecall_turns(raw: Raw) -> Found:
    lists = {}
    for index, one in enumerate(_objects(raw, "tools")):
        name = one.get("type")
        if name not in TOOL_LISTS or name in lists:
            problem = "stands twice" if name in lists else f"is none of {', '.join(TOOL_LISTS)}"
            raise FieldError(f"tools[{index}].type", f"{shown(name)} {problem}")
        lists[name] = _toolbox(one.get("content"), f"tools[{index}].content")
    queries, truths = _by_serial(raw, "query"), _by_serial(raw, "ground_truth")
    rules = _by_serial(raw, "acceptable_arguments") if raw.get("acceptable_arguments") is not None else {}
    for name, held in (("ground_truth", truths), *([("acceptable_arguments", rules)] if rules else [])):
        if held.keys() != queries.keys():
            odd = sorted(held.keys() ^ queries.keys())
            raise FieldError(name, f"has other serial numbers than 'query': {', '.join(odd)}")
    for serial, (where, query) in queries.items():
        messages = [{"role": "user", "content": text_field(query, "content", where)}]
        place, truth = truths[serial]
        calls = _calls_of_text(truth.get("content"), f"{place}content")
        message = {"role": "assistant", "content": None, "tool_calls": [call.to_openai() for call in calls]}
        for name, box in lists.items():
            rule_at, rule = rules.get(serial, ("", {}))
            _check_calls(calls, box, f"{place}content")
            acceptable = _acceptable(rule.get("content"), calls, box, f"{rule_at}content")
            turn_id = f"singlecall/{serial}/{name}"
            yield Turn(turn_id, "singlecall", "call", box.specs, messages, message, acceptable, name)


def _dialog_turns(raw: Raw) -> Found:
    dialog = own_id(raw, "dialog_num")
    if dialog is None:
        raise FieldError("dialog_num", "is missing")
    box = _toolbox(raw.get("tools"), "tools")
    count = raw.get("tools_count", len(box))
    if count != len(box):
        raise FieldError("tools_count", f"says {shown(count)}, but 'tools' holds {len(box)}")
    for index, one in enumerate(_objects(raw, "turns")):
        where = f"turns[{index}]."
        serial = own_id(one, "serial_num") or own_id(one, "turn_num") or str(index + 1)
        kind = one.get("type_of_output")
        if kind not in OUTPUT_TYPES:
            raise FieldError(f"{where}type_of_output", f"{shown(kind)} is none of {', '.join(OUTPUT_TYPES)}")
        messages = [
            _message(message, f"{where}query[{place}].") for place, message in enumerate(_objects(one, "query", where))
        ]
        truth = _truth(one.get("ground_truth"), kind, f"{where}ground_truth")
        calls = _calls(truth.get("tool_calls"), f"{where}ground_truth.tool_calls")
        _check_calls(calls, box, f"{where}ground_truth.tool_calls")
        acceptable = _acceptable(one.get("acceptable_arguments"), calls, box, f"{where}acceptable_arguments")
        yield Turn(f"dialog/{dialog}/{serial}", "dialog", kind, box.specs, messages, truth, acceptable)


def _truth(given: Any, kind: OutputType, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or given.get("role") != "assistant":
        raise FieldError(where, f"expected an assistant message, found {shown(given)}")
    truth = _message(given, f"{where}.")
    if kind == "call" and not truth.get("tool_calls"):
        raise FieldError(f"{where}.tool_calls", "is missing, but 'type_of_output' is 'call'")
    if kind != "call" and truth.get("tool_calls"):
        raise FieldError(f"{where}.tool_calls", f"holds a call, but 'type_of_output' is '{kind}'")
    return truth


def _message(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A message with the fields that count; of a role that may stand in a history, and with something in it."""
    role = given.get("role")
    if role == "system":
        raise FieldError(f"{where}role", "is 'system'; the system prompt is a setting of the run, leave it out")
    if role not in ("user", "assistant", "tool"):
        raise FieldError(f"{where}role", f"expected user, assistant or tool, found {shown(role)}")
    calls = _calls(given.get("tool_calls"), f"{where}tool_calls") if role == "assistant" else []
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


def _calls(given: Any, where: str) -> list[ToolCall]:
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


def _calls_of_text(given: Any, where: str) -> list[ToolCall]:
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


def _check_calls(calls: Sequence[ToolCall], box: Toolbox, where: str) -> None:
    """A right call names an offered function, and its arguments are of the types that are specified.

    :raises FieldError: one does not.
    """
    for call in calls:
        if call.name not in box.names:
            raise FieldError(where, f"the function '{call.name}' is not among the tools: {', '.join(box.names)}")
        for name, value in call.parsed().items():
            _check_value(call.name, name, value, box, where)
        for name in required(box.parameters(call.name)):
            if name not in call.parsed():
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


def _acceptable(given: Any, calls: Sequence[ToolCall], box: Toolbox, where: str) -> Acceptable:
    """What is said of further values: nothing, a sentence, or an object (for several calls a list of them, or null).

    Where a parameter is an array, a list is one value, and a list of lists gives several.
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
    values = []
    for call, one in zip(calls, held, strict=True):
        known = properties(box, call.name)
        values.append({name: _alternatives(value, known.get(name, {})) for name, value in (one or {}).items()})
        for name, several in values[-1].items():
            if not several:
                raise FieldError(where, f"'{name}' has an empty list of values")
            for value in several:
                _check_value(call.name, name, value, box, where)
    return Acceptable("values", tuple(values), text)


def _alternatives(value: Any, schema: Any) -> tuple[Any, ...]:
    several = isinstance(value, list) and all(fits(one, schema) for one in value)
    return tuple(value) if several else (value,)


def _toolbox(given: Any, where: str) -> Toolbox:
    if not isinstance(given, list):
        raise FieldError(where, f"expected a list of tools, found {shown(given)}")
    try:
        return Toolbox(given)
    except ConfigurationError as error:
        raise FieldError(where, str(error)) from None


def _objects(raw: Raw, name: str, within: str = "") -> list[dict[str, Any]]:
    value = raw.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise FieldError(within + name, f"expected a list of at least one object, found {shown(value)}")
    return value


def _by_serial(raw: Raw, name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for index, one in enumerate(_objects(raw, name)):
        where = f"{name}[{index}]."
        serial = own_id(one, "serial_num")
        if serial is None or serial in found:
            problem = "is missing" if serial is None else f"{serial} stands twice"
            raise FieldError(f"{where}serial_num", problem)
        found[serial] = (where, one)
    return found


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise FieldError(where, f"begins like JSON, but is none ({error}): {shown(text)}") from None
