"""Files of conversations as dialogs: the forms, ids, and lines that cannot be read."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from viva.engine.errors import DatasetError
from viva.scenarios.flexeval.conversation_files import UnreadableRecord, expand_paths, read_dialogs, read_files
from viva.scenarios.flexeval.dialog import Dialog, Message, ToolCall

ASKED = {"role": "user", "content": "Is nine odd?"}
SAID = {"role": "assistant", "content": "Yes."}


def _file(folder: Path, *lines: Any, name: str = "talks.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    return path


def _one(folder: Path, record: dict[str, Any]) -> Dialog:
    [found] = read_dialogs(_file(folder, record))
    assert isinstance(found, Dialog), found
    return found


def _roles(dialog: Dialog) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in dialog.messages]


def test_messages_and_input_with_all_else_as_metadata(tmp_path: Path) -> None:
    first = {"input": [{**ASKED, "index": 0}, {**SAID, "latency": 1.5, "usage": {"prompt_tokens": 9}}], "lang": "en"}
    second = {"id": 7, "messages": [ASKED], "metadata": {"grade": 3}, "empty": None}
    found = list(read_dialogs(_file(tmp_path, first, "", second, {"input": "A prompt."})))
    assert [one.id for one in found if isinstance(one, Dialog)] == ["talks:1", "7", "talks:4"]
    one, two, three = (one for one in found if isinstance(one, Dialog))
    assert one.metadata == {"lang": "en"}
    assert one.messages[0].metadata == {"index": 0}
    assert (one.messages[1].latency, one.messages[1].tokens) == (1.5, {"prompt": 9})
    assert two.metadata == {"grade": 3}
    assert _roles(three) == [("user", "A prompt.")]


def test_a_dialog_written_as_a_record_is_read_back(tmp_path: Path) -> None:
    call = ToolCall("add", '{"a": 1}', "c1")
    messages = [
        Message("user", "1+1?", metadata={"mood": "calm"}),
        Message("assistant", "", (call,), latency=0.5),
        Message("tool", "2", call_id="c1", name="add"),
        Message("assistant", "2", tokens={"completion": 1}),
    ]
    written = Dialog.from_messages("d", messages, {"grade": 3})
    assert _one(tmp_path, written.to_record()) == written


def test_openai_parts_tools_and_old_roles(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "What is"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "it?"},
    ]
    dialog = _one(
        tmp_path,
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": parts},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "zoom", "arguments": {"by": 2}}}]},
                {"role": "tool", "tool_call_id": "c2", "content": "blurred"},
                {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
                {"role": "assistant", "content": None, "function_call": {"name": "ask", "arguments": "{}"}},
                {"role": "function", "name": "ask", "content": "sure"},
                {"role": "assistant", "content": None, "refusal": "I would rather not."},
            ]
        },
    )  # fmt: skip
    roles = "system user assistant tool tool assistant tool assistant"
    assert [one.role for one in dialog.messages] == roles.split()
    assert dialog.messages[0].metadata == {"role": "developer"}
    assert dialog.messages[1].content == "What is\nit?"
    assert dialog.messages[1].metadata == {"parts": ["image_url"]}
    assert [(one.text, one.result) for one in dialog.tool_calls] == [
        ('look({"at": 1})', "a cat"), ('zoom({"by":2})', "blurred"), ("ask({})", "sure")]  # fmt: skip
    assert dialog.messages[-1].content == "I would rather not."
    assert len(dialog.turns) == 2


def test_sharegpt_with_calls_and_a_system_prompt(tmp_path: Path) -> None:
    call = {"name": "sum", "arguments": {"of": [1, 2]}}
    dialog = _one(
        tmp_path,
        {
            "conversation_id": "s-1",
            "system": "You count.",
            "tools": "[]",
            "conversations": [
                {"from": "human", "value": "1 and 2?"},
                {"from": "function_call", "value": json.dumps([call, {**call, "name": "mean"}])},
                {"from": "observation", "value": "3"},
                {"from": "observation", "value": "1.5"},
                {"from": "gpt", "value": "Three.", "score": 4},
            ],
        },
    )
    assert (dialog.id, dialog.metadata) == ("s-1", {"tools": "[]"})
    assert _roles(dialog)[:2] == [("system", "You count."), ("user", "1 and 2?")]
    assert [(one.name, one.arguments, one.result) for one in dialog.tool_calls] == [
        ("sum", '{"of":[1,2]}', "3"), ("mean", '{"of":[1,2]}', "1.5")]  # fmt: skip
    assert dialog.messages[-1].metadata == {"score": 4}
    other = _one(tmp_path, {"conversations": [ASKED, SAID]})
    assert _roles(other) == [("user", "Is nine odd?"), ("assistant", "Yes.")]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object, found list"),
        ({"text": "hm"}, "field 'messages': is missing; .*found: text"),
        ({"messages": []}, "field 'messages': has no messages"),
        ({"messages": "hi"}, "field 'messages': expected a list of messages, found 'hi'"),
        ({"messages": [ASKED, "hi"]}, r"field 'messages\[1\]': expected an object with role and content, found 'hi'"),
        ({"messages": [{"content": "a"}]}, r"field 'messages\[0\].role': is missing"),
        ({"messages": [{"role": "narrator", "content": "a"}]}, r"role': expected one of system, .*found 'narrator'"),
        ({"messages": [{"role": "user"}]}, r"field 'messages\[0\].content': is missing"),
        ({"messages": [{"role": "user", "content": 3}]}, r"content': expected text or a list of parts, found 3"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, r"content\[0\].text': expected text"),
        ({"messages": [{**SAID, "tool_calls": [{"id": "x"}]}]}, r"messages\[0\].tool_calls\[0\].name': is missing"),
        ({"conversations": [{"from": "function_call", "value": "add(1)"}]}, "expected a call as JSON with name"),
        ({"id": [1], "messages": [ASKED]}, "field 'id': expected text or a whole number"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path: Path, line: Any, told: str) -> None:
    path = _file(tmp_path, {"messages": [ASKED]}, line, {"messages": [SAID]})
    first, bad, last = read_dialogs(path)
    assert isinstance(first, Dialog)
    assert isinstance(last, Dialog)
    assert isinstance(bad, UnreadableRecord)
    assert (bad.path, bad.line) == (str(path), 2)
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(bad.message)


def test_json_files_hold_a_list_one_object_or_lines(tmp_path: Path) -> None:
    talks: list[Any] = [{"messages": [ASKED]}, 5, {"id": "two", "input": "ü " * 200_000}]
    listed = _file(tmp_path, json.dumps(talks, indent=1, ensure_ascii=False), name="list.json")
    found = list(read_dialogs(listed))
    assert [getattr(one, "id", "") for one in found] == ["list:2", "", "two"]
    lines = listed.read_text().splitlines()
    assert isinstance(found[1], UnreadableRecord)
    assert lines[found[1].line - 1].strip() == "5,"
    single = _file(tmp_path, json.dumps({"messages": [ASKED]}, indent=2), name="one.json")
    assert [getattr(one, "id", "") for one in read_dialogs(single)] == ["one:1"]
    broken = _file(tmp_path, {"messages": [ASKED]}, "{oops", {"messages": [SAID]}, name="lines.json")
    assert [type(one).__name__ for one in read_dialogs(broken)] == ["Dialog", "UnreadableRecord", "Dialog"]
    cut = _file(tmp_path, '[{"messages": [', '{"role": "user", "content": "a"}', name="cut.json")
    with pytest.raises(DatasetError, match=r"cut\.json:1: not valid JSON: .*the rest of the file is not read"):
        list(read_dialogs(cut))
    with pytest.raises(DatasetError, match=r"cut\.json:2: expected a comma or the end of the list, found '{'"):
        list(read_dialogs(_file(tmp_path, '[{"input": "a"}', '{"input": "b"}]', name="cut.json")))


def test_ids_are_unique_over_several_files(tmp_path: Path) -> None:
    lines = ({"messages": [ASKED]}, {"id": "a", "messages": [ASKED]}, {"id": "a", "messages": [SAID]}, "oops")
    one, two = (_file(tmp_path / name, *lines) for name in ("x", "y"))
    found = list(read_files(expand_paths(["**/*.jsonl"], tmp_path)))
    assert [str(one), str(two)] == [str(path) for path in expand_paths(["**/*.jsonl"], tmp_path)]
    assert [one.id for one in found] == [
        "talks:1", "a", "talks:a", "talks:4", "talks:1:2", "talks:a:2", "talks:a:3", "talks:4:2"]  # fmt: skip
    assert all(isinstance(one, Dialog) and one.metadata == {"id": "a"} for one in (found[2], *found[5:7]))
    [hashed] = read_files([_file(tmp_path, {"id": "a#2", "input": "?"})])
    assert hashed.id == "a:2"


def test_patterns(tmp_path: Path) -> None:
    folder = tmp_path / "with [brackets]"
    names = ["b.jsonl", "a.jsonl", "deep/down/c.jsonl", "odd[1].jsonl"]
    paths = [_file(folder, ASKED, name=name) for name in names]
    assert expand_paths(["*.jsonl"], folder) == sorted(one for one in paths if one.parent == folder)
    assert expand_paths(["**/*.jsonl", "a.jsonl"], folder) == sorted(paths)
    assert expand_paths(["odd[1].jsonl", str(paths[0])], folder) == [paths[0], paths[3]]
    for pattern, told in (("*.csv", r"\*\.csv: no such file"), ("deep", "deep: is a folder without a run")):
        with pytest.raises(DatasetError, match=told):
            expand_paths([pattern], folder)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = _file(tmp_path, *({"messages": [{"role": "user", "content": "word " * 400}]} for _ in range(1500)))
    listed = _file(tmp_path, "[" + ",\n".join(path.read_text().split()[:0] + path.read_text().splitlines()) + "]",
                   name="list.json")  # fmt: skip
    for one in (path, listed):
        tracemalloc.start()
        assert sum(isinstance(found, Dialog) for found in read_dialogs(one)) == 1500
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < path.stat().st_size / 2, one
