"""FunctionChat-Bench's files, and files of the same three forms in any language, read as turns.

``singlecall``  a function a line, with queries and tool lists. ``dialog``: a dialog a line, with its turns.
``common``      a turn a line, with a category: CallDecision, Parallel and Sequential (the authors' word for the form).

What never belongs here: what the fields hold (``parts``), and grading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from viva.data.fields import FieldError, Raw, own_id, shown, text_field
from viva.data.reading import read_records
from viva.engine.errors import DatasetError

from .parts import (
    acceptable_of_calls,
    acceptable_values,
    calls_of_text,
    check_calls,
    history_message,
    message_calls_of,
    objects,
    toolbox,
    truth_message,
)
from .turns import OUTPUT_TYPES, TOOL_LISTS, DialogTurn, OutputType, Subset

__all__ = ["DialogTurn", "OutputType", "read_common", "read_dialogs", "read_singlecall"]

_ADVICE = "mend the line, or skip such lines with --skip-bad-items"
Found = Iterator[DialogTurn]
Note = Callable[[DatasetError], None]


def read_singlecall(path: Path, skipped: Note | None = None) -> Found:
    """The turns of a file of single calls: a function a line, with its queries and tool lists.

    A line has ``query``, ``ground_truth`` and ``acceptable_arguments`` (lists of ``{"serial_num", "content"}`` that
    belong together by their serial numbers; the last may be missing) and ``tools`` (a list of ``{"type", "content"}``,
    the type one of ``TOOL_LISTS``). Each query is a turn under each tool list.

    :param skipped: is told of each line that cannot be used, and the line is passed over; without it, it is raised.
    :raises DatasetError: the file or a field cannot be used; the error names file, line and field.
    """
    return _read(path, _singlecall_turns, skipped)


def read_dialogs(path: Path, skipped: Note | None = None) -> Found:
    """The turns of a file of dialogs: a dialog a line.

    A line has ``dialog_num``, ``tools`` and ``turns``; a turn has ``query`` (the messages before it), ``ground_truth``
    (an assistant message), ``type_of_output``, ``acceptable_arguments`` (may be missing) and ``serial_num`` (else
    ``turn_num``, else its place counts).

    ``skipped`` and errors as in ``read_singlecall``.
    """
    return _read(path, _dialog_turns, skipped)


def read_common(path: Path, subset: Subset = "common", skipped: Note | None = None) -> Found:
    """The turns of a file of the common form: a turn a line.

    A line has ``serial_num`` (unique within its category), ``category``, ``input_messages`` (the messages before the
    turn, a system message of its own among them as a rule), ``input_tools``, ``type_of_output``, ``ground_truth`` (an
    assistant message; or, of a call, its ``name`` and ``arguments``) and ``acceptable_arguments`` (may be missing, and
    may stand in the ground truth's calls instead).

    ``skipped`` and errors as in ``read_singlecall``.
    """
    return _read(path, lambda raw: _common_turn(raw, subset), skipped)


def _read(path: Path, turns: Callable[[Raw], Found], skipped: Note | None) -> Found:
    seen: dict[str, int] = {}
    for line, raw in read_records(path):
        found: list[DialogTurn] = []
        problem: DatasetError | None = None
        if isinstance(raw, DatasetError):
            problem = raw
        else:
            try:
                found = list(turns(raw))
                here: set[str] = set()
                for turn in found:
                    first = line if turn.id in here else seen.get(turn.id)
                    if first is not None:
                        raise FieldError("serial_num", f"'{turn.id}' stands in line {first} already; number anew")
                    here.add(turn.id)
            except FieldError as error:
                advice = "" if skipped else f"; {_ADVICE}"
                problem = DatasetError(f"{error}{advice}", path=str(path), line=line, field=error.field)
        if problem is None:
            seen.update((turn.id, line) for turn in found)
            yield from found
        elif skipped is None:
            raise problem
        else:
            skipped(problem)
    if not seen:
        raise DatasetError("holds no turn", path=str(path))


def _singlecall_turns(raw: Raw) -> Found:
    lists = {}
    for index, one in enumerate(objects(raw, "tools")):
        name = one.get("type")
        if name not in TOOL_LISTS or name in lists:
            problem = "stands twice" if name in lists else f"is none of {', '.join(TOOL_LISTS)}"
            raise FieldError(f"tools[{index}].type", f"{shown(name)} {problem}")
        lists[name] = toolbox(one.get("content"), f"tools[{index}].content")
    queries, truths = _by_serial(raw, "query"), _by_serial(raw, "ground_truth")
    rules = _by_serial(raw, "acceptable_arguments") if raw.get("acceptable_arguments") is not None else {}
    for name, held in (("ground_truth", truths), *([("acceptable_arguments", rules)] if rules else [])):
        if held.keys() != queries.keys():
            odd = sorted(held.keys() ^ queries.keys())
            raise FieldError(name, f"has other serial numbers than 'query': {', '.join(odd)}")
    for serial, (where, query) in queries.items():
        messages = [{"role": "user", "content": text_field(query, "content", where)}]
        place, truth = truths[serial]
        calls = calls_of_text(truth.get("content"), f"{place}content")
        message = {"role": "assistant", "content": None, "tool_calls": [call.to_openai() for call in calls]}
        for name, box in lists.items():
            rule_at, rule = rules.get(serial, ("", {}))
            check_calls(calls, box, f"{place}content")
            acceptable = acceptable_values(rule.get("content"), calls, box, f"{rule_at}content")
            turn_id = f"singlecall/{serial}/{name}"
            yield DialogTurn(turn_id, "singlecall", "call", box.specs, messages, message, acceptable, name)


def _dialog_turns(raw: Raw) -> Found:
    dialog = own_id(raw, "dialog_num")
    if dialog is None:
        raise FieldError("dialog_num", "is missing")
    box = toolbox(raw.get("tools"), "tools")
    count = raw.get("tools_count", len(box))
    if count != len(box):
        raise FieldError("tools_count", f"says {shown(count)}, but 'tools' holds {len(box)}")
    for index, one in enumerate(objects(raw, "turns")):
        where = f"turns[{index}]."
        serial = own_id(one, "serial_num") or own_id(one, "turn_num") or str(index + 1)
        kind = _output_type(one.get("type_of_output"), f"{where}type_of_output")
        messages = [
            history_message(message, f"{where}query[{place}].")
            for place, message in enumerate(objects(one, "query", where))
        ]
        truth = truth_message(one.get("ground_truth"), kind, f"{where}ground_truth")
        calls = message_calls_of(truth.get("tool_calls"), f"{where}ground_truth.tool_calls")
        check_calls(calls, box, f"{where}ground_truth.tool_calls")
        acceptable = acceptable_values(one.get("acceptable_arguments"), calls, box, f"{where}acceptable_arguments")
        yield DialogTurn(f"dialog/{dialog}/{serial}", "dialog", kind, box.specs, messages, truth, acceptable)


def _common_turn(raw: Raw, subset: Subset) -> Found:
    serial, category = own_id(raw, "serial_num"), text_field(raw, "category")
    if serial is None:
        raise FieldError("serial_num", "is missing")
    kind = _output_type(raw.get("type_of_output"), "type_of_output")
    box = toolbox(raw.get("input_tools"), "input_tools")
    messages = [
        history_message(message, f"input_messages[{place}].")
        for place, message in enumerate(objects(raw, "input_messages"))
    ]
    truth = raw.get("ground_truth")
    if kind == "call" and isinstance(truth, dict) and "tool_calls" not in truth and "role" not in truth:
        calls = calls_of_text(truth, "ground_truth")
        told = {"role": "assistant", "content": None, "tool_calls": [call.to_openai() for call in calls]}
        where = "ground_truth"
    else:
        told = truth_message(truth, kind, "ground_truth")
        where = "ground_truth.tool_calls"
        calls = message_calls_of(told.get("tool_calls"), where)
    check_calls(calls, box, where)
    within = truth.get("tool_calls") if isinstance(truth, dict) else None
    if raw.get("acceptable_arguments") is None and within:
        rule = acceptable_of_calls(within, calls, box, where)
    else:
        rule = acceptable_values(raw.get("acceptable_arguments"), calls, box, "acceptable_arguments")
    yield DialogTurn(f"{subset}/{category}/{serial}", subset, kind, box.specs, messages, told, rule, category=category)


def _output_type(kind: Any, where: str) -> OutputType:
    if kind not in OUTPUT_TYPES:
        raise FieldError(where, f"{shown(kind)} is none of {', '.join(OUTPUT_TYPES)}")
    found: OutputType = kind
    return found


def _by_serial(raw: Raw, name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for index, one in enumerate(objects(raw, name)):
        where = f"{name}[{index}]."
        serial = own_id(one, "serial_num")
        if serial is None or serial in found:
            problem = "is missing" if serial is None else f"{serial} stands twice"
            raise FieldError(f"{where}serial_num", problem)
        found[serial] = (where, one)
    return found
