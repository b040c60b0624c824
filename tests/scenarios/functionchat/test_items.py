"""FunctionChat-Bench's files and those of the same form: what comes out."""

from __future__ import annotations

import json
import os
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest
from small_items import DIALOG, SINGLE, items_file
from small_turns import RIGHT, call, message

from viva.engine.tools import Toolbox
from viva.scenarios.functionchat.rule_grading import grade
from viva.scenarios.functionchat.turn_files import DialogTurn, read_dialogs, read_singlecall
from viva.scenarios.functionchat.turns import OUTPUT_TYPES, TOOL_LISTS

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data").resolve()


def _published(name: str) -> Path:
    path = DATA / "functionchat" / name
    if not path.is_file():
        pytest.skip(f"{path} is missing (set VIVA_DATA to the folder with the benchmark data)")
    return path


def _check_typed(turn: DialogTurn) -> None:
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
    assert DialogTurn.from_record(json.loads(json.dumps(turn.to_record()))) == turn


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
    slot, booking, completion = read_dialogs(items_file(tmp_path, DIALOG))
    assert (slot.id, slot.type, slot.tool_list) == ("dialog/1/1", "slot", None)
    assert booking.acceptable.kind == "values"
    assert booking.acceptable.values == ({"restaurant": ("casa verde", "Verde"), "outdoor": (True,)},)
    assert grade(booking, "", [call("book_table", {**RIGHT, "restaurant": "Verde", "outdoor": True})]).passed is True
    assert [one["role"] for one in completion.messages] == ["user", "assistant", "tool"]
    assert completion.query().splitlines()[0] == "user: A table at Casa Verde for 4."
    assert "assistant: book_table({" in completion.query()


def test_single_calls_of_ones_own(tmp_path: Path) -> None:
    turns = {turn.id: turn for turn in read_singlecall(items_file(tmp_path, SINGLE))}
    assert list(turns) == [f"singlecall/{serial}/{name}" for serial in (1, 2) for name in ("exact", "4_close")]
    assert turns["singlecall/2/exact"].expected()[0].parsed() == {"restaurant": "Luna"}
    assert turns["singlecall/2/exact"].acceptable.kind == "remark"
    assert turns["singlecall/1/4_close"].acceptable.kind == "only"
    assert turns["singlecall/1/4_close"].query() == "Book it."


def test_several_calls_in_one_turn(tmp_path: Path) -> None:
    dialog = deepcopy(DIALOG)
    both = [call("cancel_table", {"restaurant": "Luna"}), call("cancel_table", {"restaurant": "달"})]
    dialog["turns"][1] |= {"ground_truth": message(*both), "acceptable_arguments": [None, {"restaurant": ["Moon"]}]}
    turn = list(read_dialogs(items_file(tmp_path, dialog)))[1]
    assert turn.acceptable.values == ({}, {"restaurant": ("Moon",)})
    moon = call("cancel_table", {"restaurant": "Moon"})
    assert grade(turn, "", [moon, both[0]]).passed is True
    assert grade(turn, "", [moon, moon]).passed is None  # the first of them says Moon where Luna was meant


def test_arrays_as_acceptable_values(tmp_path: Path) -> None:
    dialog = deepcopy(DIALOG)
    dialog["turns"][1]["acceptable_arguments"] = {"dishes": ["stew", "soup"]}
    assert list(read_dialogs(items_file(tmp_path, dialog)))[1].acceptable.values == ({"dishes": (["stew", "soup"],)},)
    dialog["turns"][1]["acceptable_arguments"] = {"dishes": [["stew"], ["soup", "soup"]]}
    assert list(read_dialogs(items_file(tmp_path, dialog)))[1].acceptable.values == (
        {"dishes": (["stew"], ["soup", "soup"])},
    )


def test_histories_as_servers_write_them(tmp_path: Path) -> None:
    record = deepcopy(DIALOG)
    query = record["turns"][2]["query"]
    assert [one["role"] for one in query[1:3]] == ["assistant", "tool"]
    query[1]["content"] = ""
    query[2]["content"] = ""
    del query[2]["tool_call_id"]
    history = list(read_dialogs(items_file(tmp_path, record)))[2].messages
    assert (history[1]["content"], history[2]["content"], history[2]["tool_call_id"]) == (None, "", "")
    query[2]["tool_call_id"] = 5
    assert list(read_dialogs(items_file(tmp_path, record)))[2].messages[2]["tool_call_id"] == "5"


def test_lists_as_values_of_optional_arrays(tmp_path: Path) -> None:
    record = deepcopy(DIALOG)
    spec = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
    record["tools"][0]["function"]["parameters"]["properties"]["tags"] = spec
    for written, meant in ((["a", "b"], (["a", "b"],)), ([["a"], ["b"]], (["a"], ["b"])), ([None], (None,))):
        record["turns"][1]["acceptable_arguments"] = {"tags": written}
        assert list(read_dialogs(items_file(tmp_path, record)))[1].acceptable.values == ({"tags": meant},)
