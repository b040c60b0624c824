"""FunctionChat-Bench's files and those of the same form: what comes out, and what is refused where."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from small_turns import RIGHT, TOOLS, call, message, user

from viva.engine.errors import DatasetError
from viva.engine.tools import Toolbox
from viva.scenarios.functionchat.grading import grade
from viva.scenarios.functionchat.items import Turn, read_dialogs, read_singlecall
from viva.scenarios.functionchat.turns import OUTPUT_TYPES, TOOL_LISTS

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data").resolve()
BOOKED = message(call("book_table", RIGHT))

DIALOG: dict[str, Any] = {
    "dialog_num": 1,
    "tools_count": 3,
    "tools": TOOLS,
    "turns": [
        {
            "turn_num": 1,
            "serial_num": 1,
            "query": [user("A table at Casa Verde.")],
            "ground_truth": {"role": "assistant", "content": "For how many?"},
            "type_of_output": "slot",
            "acceptable_arguments": None,
        },
        {
            "turn_num": 2,
            "serial_num": 2,
            "query": [
                user("A table at Casa Verde."),
                {"role": "assistant", "content": "For how many?"},
                user("4, in the garden, 120.5 euros at most, and soup."),
            ],
            "ground_truth": BOOKED,
            "type_of_output": "call",
            "acceptable_arguments": '{"restaurant": ["casa verde", "Verde"], "outdoor": true}',
        },
        {
            "turn_num": 3,
            "serial_num": 3,
            "query": [
                user("A table at Casa Verde for 4."),
                BOOKED,
                {"role": "tool", "tool_call_id": "call-1", "name": "book_table", "content": '{"booked": true}'},
            ],
            "ground_truth": {"role": "assistant", "content": "It is booked."},
            "type_of_output": "completion",
        },
    ],
}
SINGLE: dict[str, Any] = {
    "function_num": 1,
    "function_name": "book_table",
    "query": [{"serial_num": 1, "content": "Book it."}, {"serial_num": 2, "content": "Cancel Luna."}],
    "ground_truth": [
        {"serial_num": 2, "content": '{"name": "cancel_table", "arguments": "{\\"restaurant\\": \\"Luna\\"}"}'},
        {"serial_num": 1, "content": json.dumps({"name": "book_table", "arguments": json.dumps(RIGHT)})},
    ],
    "acceptable_arguments": [
        {"serial_num": 1, "content": "Only ground truth is allowed."},
        {"serial_num": 2, "content": "The name may be in any language."},
    ],
    "tools": [{"type": "exact", "content": TOOLS[:2]}, {"type": "4_close", "content": TOOLS}],
}
Reader = Callable[[Path], Iterator[Turn]]


def _file(folder: Path, *records: Any) -> Path:
    path = folder / "turns.jsonl"
    lines = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in records)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _published(name: str) -> Path:
    path = DATA / "functionchat" / name
    if not path.is_file():
        pytest.skip(f"{path} is missing (set VIVA_DATA to the folder with the benchmark data)")
    return path


def _check_typed(turn: Turn) -> None:
    box = Toolbox(turn.tools)
    assert turn.id.startswith(turn.subset)
    assert turn.type in OUTPUT_TYPES
    assert all(one["role"] in ("user", "assistant", "tool") for one in turn.messages)
    assert all(isinstance(one["content"], str) or one["tool_calls"] for one in turn.messages)
    assert turn.ground_truth["role"] == "assistant"
    if turn.type == "call":
        assert all(one.name in box.names and isinstance(one.parsed(), dict) for one in turn.expected())
    else:
        assert turn.ground_truth["content"].strip()
        assert not turn.expected()
    for values in turn.acceptable.values:
        assert all(isinstance(several, tuple) and several for several in values.values())
    assert Turn.from_record(json.loads(json.dumps(turn.to_record()))) == turn


def test_the_published_single_calls() -> None:
    turns = list(read_singlecall(_published("FunctionChat-Singlecall.jsonl")))
    assert Counter(turn.tool_list for turn in turns) == dict.fromkeys(TOOL_LISTS, 100)
    sizes = {"exact": 1, "4_random": 4, "4_close": 4, "8_random": 8, "8_close": 8}
    assert all(len(turn.tools) == sizes[turn.tool_list or ""] for turn in turns)
    assert {turn.type for turn in turns} == {"call"}
    assert len({turn.id for turn in turns}) == 500
    assert len({turn.cluster for turn in turns}) == 100
    assert len({turn.expected()[0].name for turn in turns}) == 25
    for turn in turns:
        _check_typed(turn)


def test_the_published_dialogs() -> None:
    turns = list(read_dialogs(_published("FunctionChat-Dialog.jsonl")))
    assert Counter(turn.type for turn in turns) == {"call": 70, "completion": 71, "slot": 36, "relevance": 23}
    assert len({turn.id for turn in turns}) == 200
    sizes = Counter(turn.cluster for turn in turns)
    assert len(sizes) == 45
    assert (min(sizes.values()), max(sizes.values())) == (3, 8)
    for turn in turns:
        _check_typed(turn)


def test_published_ground_truths_pass_without_a_judge() -> None:
    singlecall = read_singlecall(_published("FunctionChat-Singlecall.jsonl"))
    for turn in (*singlecall, *read_dialogs(_published("FunctionChat-Dialog.jsonl"))):
        graded = grade(turn, turn.ground_truth["content"] or "", turn.expected())
        assert (graded.passed, graded.tags, graded.why) == (True, [], ""), turn.id


def test_every_acceptable_value_passes() -> None:
    tried = 0
    for turn in read_singlecall(_published("FunctionChat-Singlecall.jsonl")):
        for right, rule in zip(turn.expected(), turn.acceptable.values, strict=bool(turn.acceptable.values)):
            for name, values in rule.items():
                for value in values:
                    assert grade(turn, "", [call(right.name, {**right.parsed(), name: value})]).passed is True
                    tried += 1
    assert tried > 300


def test_dialogs_of_ones_own(tmp_path: Path) -> None:
    slot, booking, completion = read_dialogs(_file(tmp_path, DIALOG))
    assert (slot.id, slot.type, slot.tool_list) == ("dialog/1/1", "slot", None)
    assert booking.acceptable.kind == "values"
    assert booking.acceptable.values == ({"restaurant": ("casa verde", "Verde"), "outdoor": (True,)},)
    assert grade(booking, "", [call("book_table", {**RIGHT, "restaurant": "Verde", "outdoor": True})]).passed is True
    assert [one["role"] for one in completion.messages] == ["user", "assistant", "tool"]
    assert completion.query().splitlines()[0] == "user: A table at Casa Verde for 4."
    assert "assistant: book_table({" in completion.query()


def test_single_calls_of_ones_own(tmp_path: Path) -> None:
    turns = {turn.id: turn for turn in read_singlecall(_file(tmp_path, SINGLE))}
    assert list(turns) == [f"singlecall/{serial}/{name}" for serial in (1, 2) for name in ("exact", "4_close")]
    assert turns["singlecall/2/exact"].expected()[0].parsed() == {"restaurant": "Luna"}
    assert turns["singlecall/2/exact"].acceptable.kind == "remark"
    assert turns["singlecall/1/4_close"].acceptable.kind == "only"
    assert turns["singlecall/1/4_close"].query() == "Book it."


def test_several_calls_in_one_turn(tmp_path: Path) -> None:
    dialog = deepcopy(DIALOG)
    both = [call("cancel_table", {"restaurant": "Luna"}), call("cancel_table", {"restaurant": "달"})]
    dialog["turns"][1] |= {"ground_truth": message(*both), "acceptable_arguments": [None, {"restaurant": ["Moon"]}]}
    turn = list(read_dialogs(_file(tmp_path, dialog)))[1]
    assert turn.acceptable.values == ({}, {"restaurant": ("Moon",)})
    moon = call("cancel_table", {"restaurant": "Moon"})
    assert grade(turn, "", [moon, both[0]]).passed is True
    assert grade(turn, "", [moon, moon]).passed is None  # the first of them says Moon where Luna was meant


def test_arrays_as_acceptable_values(tmp_path: Path) -> None:
    dialog = deepcopy(DIALOG)
    dialog["turns"][1]["acceptable_arguments"] = {"dishes": ["stew", "soup"]}
    assert list(read_dialogs(_file(tmp_path, dialog)))[1].acceptable.values == ({"dishes": (["stew", "soup"],)},)
    dialog["turns"][1]["acceptable_arguments"] = {"dishes": [["stew"], ["soup", "soup"]]}
    assert list(read_dialogs(_file(tmp_path, dialog)))[1].acceptable.values == (
        {"dishes": (["stew"], ["soup", "soup"])},
    )


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
    (read_dialogs, DIALOG, (*T1, "query", 0, "role"), "system", "turns[1].query[0].role", "setting"),
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
    file = _file(tmp_path, other, _set(record, path, value))
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


def test_histories_as_servers_write_them(tmp_path: Path) -> None:
    record = deepcopy(DIALOG)
    query = record["turns"][2]["query"]
    assert [one["role"] for one in query[1:3]] == ["assistant", "tool"]
    query[1]["content"] = ""
    query[2]["content"] = ""
    del query[2]["tool_call_id"]
    history = list(read_dialogs(_file(tmp_path, record)))[2].messages
    assert (history[1]["content"], history[2]["content"], history[2]["tool_call_id"]) == (None, "", "")
    query[2]["tool_call_id"] = 5
    assert list(read_dialogs(_file(tmp_path, record)))[2].messages[2]["tool_call_id"] == "5"


def test_lists_as_values_of_optional_arrays(tmp_path: Path) -> None:
    record = deepcopy(DIALOG)
    spec = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
    record["tools"][0]["function"]["parameters"]["properties"]["tags"] = spec
    for written, meant in ((["a", "b"], (["a", "b"],)), ([["a"], ["b"]], (["a"], ["b"])), ([None], (None,))):
        record["turns"][1]["acceptable_arguments"] = {"tags": written}
        assert list(read_dialogs(_file(tmp_path, record)))[1].acceptable.values == ({"tags": meant},)


def test_a_turn_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="'dialog/1/1' stands in line 1 already"):
        list(read_dialogs(_file(tmp_path, DIALOG, DIALOG)))


@pytest.mark.parametrize(
    ("text", "says"), [("", "holds no turn"), ("{", "not valid JSON"), ("[]", "expected a JSON object")]
)
def test_what_is_no_such_file(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        list(read_dialogs(_file(tmp_path, text)))
