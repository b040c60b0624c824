"""What is refused of files of FunctionChat-Bench's form, by line and field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from small_items import DIALOG, SINGLE, items_file
from small_turns import TOOLS

from viva.engine.errors import DatasetError
from viva.scenarios.functionchat.turn_files import DialogTurn, read_dialogs, read_singlecall

Reader = Callable[[Path], Iterator[DialogTurn]]


def _set(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    record = deepcopy(record)
    place = record
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return record


T1 = ("turns", 1)
ARGUMENTS = (*T1, "ground_truth", "tool_calls", 0, "function", "arguments")
REFUSED: list[tuple[Reader, Any, tuple[Any, ...], Any, str, str]] = [
    (read_dialogs, DIALOG, ("dialog_num",), None, "dialog_num", "missing"),
    (read_dialogs, DIALOG, ("tools",), [], "tools", "empty"),
    (read_dialogs, DIALOG, ("tools",), {}, "tools", "list of tools"),
    (read_dialogs, DIALOG, ("tools_count",), 2, "tools_count", "holds 3"),
    (read_dialogs, DIALOG, ("turns",), [], "turns", "at least one"),
    (read_dialogs, DIALOG, (*T1, "serial_num"), 1, "serial_num", "dialog/1/1"),
    (read_dialogs, DIALOG, (*T1, "type_of_output"), "chat", "turns[1].type_of_output", "'chat'"),
    (read_dialogs, DIALOG, (*T1, "type_of_output"), "slot", "turns[1].ground_truth.tool_calls", "'slot'"),
    (read_dialogs, DIALOG, ("turns", 0, "type_of_output"), "call", "turns[0].ground_truth.tool_calls", "missing"),
    (read_dialogs, DIALOG, (*T1, "query"), "hello", "turns[1].query", "'hello'"),
    (read_dialogs, DIALOG, (*T1, "query", 0, "role"), "bot", "turns[1].query[0].role", "'bot'"),
    (read_dialogs, DIALOG, (*T1, "query", 1, "content"), None, "turns[1].query[1].content", "missing"),
    (
        read_dialogs,
        DIALOG,
        ("tools", 0, "function", "parameters", "required"),
        True,
        "tools",
        "list of names, found True",
    ),
    (read_dialogs, DIALOG, (*T1, "ground_truth", "role"), "user", "turns[1].ground_truth", "assistant message"),
    (read_dialogs, DIALOG, ARGUMENTS, "{", "turns[1].ground_truth.tool_calls[0].function.arguments", "not JSON"),
    (read_dialogs, DIALOG, ARGUMENTS, "{}", "turns[1].ground_truth.tool_calls", "requires 'restaurant'"),
    (
        read_dialogs,
        DIALOG,
        ARGUMENTS,
        '{"restaurant": "Luna", "guests": 2.0}',
        "turns[1].ground_truth.tool_calls",
        "'guests' is specified as integer, found 2.0",
    ),
    (
        read_dialogs,
        DIALOG,
        ARGUMENTS,
        {"restaurant": "Luna", "guests": 2, "cat": 1},
        "turns[1].ground_truth.tool_calls",
        "'cat'",
    ),
    (
        read_dialogs,
        DIALOG,
        (*T1, "ground_truth", "tool_calls", 0, "function", "name"),
        "fly",
        "turns[1].ground_truth.tool_calls",
        "'fly' is not among the tools",
    ),
    (read_dialogs, DIALOG, (*T1, "acceptable_arguments"), "{oops", "turns[1].acceptable_arguments", "JSON"),
    (read_dialogs, DIALOG, (*T1, "acceptable_arguments"), {"resto": "x"}, "turns[1].acceptable_arguments", "'resto'"),
    (read_dialogs, DIALOG, (*T1, "acceptable_arguments"), {"guests": []}, "turns[1].acceptable_arguments", "empty"),
    (read_dialogs, DIALOG, (*T1, "acceptable_arguments"), {"guests": "4"}, "turns[1].acceptable_arguments", "integer"),
    (read_dialogs, DIALOG, (*T1, "acceptable_arguments"), [{}, {}], "turns[1].acceptable_arguments", "an object"),
    (read_dialogs, DIALOG, ("turns", 0, "acceptable_arguments"), {"a": 1}, "turns[0].acceptable_arguments", "nothing"),
    (read_singlecall, SINGLE, ("query",), None, "query", "None"),
    (read_singlecall, SINGLE, ("query", 0, "serial_num"), None, "query[0].serial_num", "missing"),
    (read_singlecall, SINGLE, ("query", 0, "serial_num"), 2, "query[1].serial_num", "twice"),
    (read_singlecall, SINGLE, ("query", 0, "serial_num"), 9, "ground_truth", "1, 9"),
    (read_singlecall, SINGLE, ("acceptable_arguments", 0, "serial_num"), 9, "acceptable_arguments", "1, 9"),
    (read_singlecall, SINGLE, ("query", 0, "content"), "", "query[0].content", "found ''"),
    (read_singlecall, SINGLE, ("tools", 0, "type"), "2_close", "tools[0].type", "'2_close'"),
    (read_singlecall, SINGLE, ("tools", 0, "type"), "4_close", "tools[1].type", "twice"),
    (read_singlecall, SINGLE, ("tools", 0, "content"), TOOLS[:1], "ground_truth[0].content", "'cancel_table'"),
    (read_singlecall, SINGLE, ("ground_truth", 1, "content"), "{nope", "ground_truth[1].content", "JSON"),
    (read_singlecall, SINGLE, ("ground_truth", 1, "content"), "[]", "ground_truth[1].content", "a call"),
]


@pytest.mark.parametrize(("read", "record", "path", "value", "field", "says"), REFUSED)
def test_a_wrong_field_is_named(
    tmp_path: Path, read: Reader, record: Any, path: tuple[Any, ...], value: Any, field: str, says: str
) -> None:
    other = {**deepcopy(record), "dialog_num": 7} if "dialog_num" in record else _renumbered(record)
    file = items_file(tmp_path, other, _set(record, path, value))
    with pytest.raises(DatasetError) as caught:
        list(read(file))
    assert (caught.value.path, caught.value.line, caught.value.field) == (str(file), 2, field)
    assert says in caught.value.message


def _renumbered(record: Any) -> Any:
    record = deepcopy(record)
    for name in ("query", "ground_truth", "acceptable_arguments"):
        for one in record[name]:
            one["serial_num"] += 100
    return record


def test_a_turn_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="'dialog/1/1' is already in line 1"):
        list(read_dialogs(items_file(tmp_path, DIALOG, DIALOG)))


@pytest.mark.parametrize(
    ("text", "says"), [("", "has no turns"), ("{", "not valid JSON"), ("[1]", "expected a JSON object")]
)
def test_what_is_no_suchitems_file(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        list(read_dialogs(items_file(tmp_path, text)))
