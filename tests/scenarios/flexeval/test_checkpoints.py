"""LangGraph's checkpoints as conversations: both of its encodings, and files by somebody else."""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.data.items import FieldError
from viva.engine.errors import DatasetError
from viva.scenarios.flexeval.conversation_files import read_dialogs
from viva.scenarios.flexeval.dialog import Dialog
from viva.scenarios.flexeval.readers.checkpoints import _MessagePack
from viva.scenarios.flexeval.readers.records import UnreadableRecord

_TABLE = """CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',
    checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))"""
_CALL = {"name": "add", "args": {"a": 1, "b": 2.5}, "id": "c1", "type": "tool_call"}
_RESPONSE = {"model_name": "m", "token_usage": {"prompt_tokens": 5, "completion_tokens": 2}}
_ANSWER = {"content": "", "type": "ai", "tool_calls": [_CALL], "additional_kwargs": {"js_errors": "x"},
           "response_metadata": _RESPONSE}  # fmt: skip
_RESULT = {"content": "3.5", "type": "tool", "tool_call_id": "c1", "name": "add"}
_LAST = {"content": [{"type": "text", "text": "It is 3.5."}], "type": "ai"}
_MESSAGES = [("HumanMessage", {"content": "Add.", "type": "human"}), ("AIMessage", _ANSWER),
             ("ToolMessage", _RESULT), ("AIMessage", _LAST)]  # fmt: skip


def _packed(value: Any) -> bytes:
    """MessagePack as LangGraph writes it; a pair of class name and fields is an object of that class."""
    if isinstance(value, tuple):
        inner = _packed(["langchain_core.messages", *value, "model_validate_json"])
        return b"\xc9" + struct.pack(">I", len(inner)) + b"\x05" + inner
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if -32 <= value <= 127:
            return struct.pack("b", value)
        return b"\xd3" + struct.pack(">q", value) if value < 0 else b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return (bytes([0xA0 | len(data)]) if len(data) < 32 else b"\xdb" + struct.pack(">I", len(data))) + data
    if isinstance(value, list):
        head = bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdc" + struct.pack(">H", len(value))
        return head + b"".join(map(_packed, value))
    head = bytes([0x80 | len(value)]) if len(value) < 16 else b"\xde" + struct.pack(">H", len(value))
    return head + b"".join(_packed(key) + _packed(inner) for key, inner in value.items())


def _as_json(messages: list[Any]) -> bytes:
    listed = [
        one if isinstance(one, str) else
        {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", one[0]], "kwargs": one[1]}
        for one in messages
    ]  # fmt: skip
    return json.dumps({"v": 1, "channel_values": {"messages": listed}}).encode()


def _as_msgpack(messages: list[Any]) -> bytes:
    return _packed({"v": 4, "channel_values": {"messages": messages}})


def _database(path: Path, rows: list[tuple[str, str, str, str, Any]]) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(_TABLE)
        for thread, space, checkpoint, kind, data in rows:
            database.execute("INSERT INTO checkpoints VALUES (?, ?, ?, NULL, ?, ?, '{}')",
                             (thread, space, checkpoint, kind, data))  # fmt: skip
    return path


@pytest.mark.parametrize("kind", ["json", "msgpack"])
def test_the_latest_checkpoint_of_each_thread_is_a_conversation(tmp_path: Path, kind: str) -> None:
    write = _as_json if kind == "json" else _as_msgpack
    rows = [
        ("t1", "", "1ef-1", kind, write(_MESSAGES[:1])),
        ("t1", "", "1ef-2", kind, write(_MESSAGES)),
        ("t1", "sub:1", "1ef-3", kind, write(_MESSAGES[:1])),
        ("t2", "", "1ef-4", kind, write(["Hi.", *_MESSAGES[3:]])),
    ]
    first, second = read_dialogs(_database(tmp_path / "saved.sqlite", rows))
    assert isinstance(first, Dialog)
    assert (first.id, first.metadata) == ("t1", {"checkpoint": "1ef-2"})
    assert [(one.role, one.text) for one in first.messages] == [
        ("user", "Add."), ("assistant", ""), ("tool", "3.5"), ("assistant", "It is 3.5."),
    ]  # fmt: skip
    [call] = first.tool_calls
    assert (call.name, json.loads(call.arguments), call.result) == ("add", {"a": 1, "b": 2.5}, "3.5")
    answer = first.messages[1]
    assert (answer.tokens, answer.metadata["model"]) == ({"prompt": 5, "completion": 2}, "m")
    assert answer.metadata["additional_kwargs"] == {"js_errors": "x"}
    assert isinstance(second, Dialog)
    assert [one.text for one in second.messages] == ["Hi.", "It is 3.5."]


@case_table("kind, data, told", [
    ("pickle", b"\x80\x04K\x01.", "expected json or msgpack, found 'pickle'"),
    ("json", b"{", "is not JSON"),
    ("json", b"[" * 100_000, "is not JSON"),
    ("json", b"{}", "expected messages, found None"),
    ("json", b'{"channel_values": {"messages": [7]}}', "expected an object with role and content, found 7"),
    ("json", b'{"channel_values": {"messages": [{"type": "odd", "content": "x"}]}}', "role"),
    ("json", None, "expected at most 16,000,000 bytes"),
    ("json", b" " * 16_000_001, "expected at most 16,000,000 bytes"),
    ("msgpack", b"\xdd\xff\xff\xff\xff", "ends within a value at byte 5"),
    ("msgpack", b"\xc1", "byte 0xc1"),
    ("msgpack", b"\x91" * 200 + b"\x01", "values more than 100 levels deep"),
    ("msgpack", b"\x01\x01", "data after byte 1"),
    ("msgpack", b"\xd4\x05\x01", "expected module, class and value"),
])  # fmt: skip
def test_a_thread_that_cannot_be_read_is_named_and_the_others_are_read(
    tmp_path: Path, kind: str, data: Any, told: str
) -> None:
    rows = [("bad", "", "1", kind, data), ("good", "", "2", "json", _as_json(_MESSAGES))]
    bad, good = read_dialogs(_database(tmp_path / "saved.db", rows))
    assert isinstance(bad, UnreadableRecord)
    assert "thread 'bad': field" in bad.message
    assert told in bad.message
    assert isinstance(good, Dialog)


def test_no_class_of_a_checkpoint_is_imported(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "planted_module.py").write_text(f"open({str(mark)!r}, 'w')\nclass HumanMessage:\n    pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        calls = [_packed(["planted_module", "HumanMessage", {"content": "Hi.", "type": "human"}]),
                 _packed(["os", "system", f"touch {mark}"])]  # fmt: skip
        objects = [b"\xc7" + bytes([len(inner)]) + bytes([code]) + inner for inner in calls for code in range(6)]
        names = _packed("channel_values"), _packed("messages")
        data = b"\x81" + names[0] + b"\x81" + names[1] + b"\xdc" + struct.pack(">H", len(objects)) + b"".join(objects)
        lc = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [f"touch {mark}"], "kwargs": {}}
        plain = json.dumps({"channel_values": {"messages": [lc]}}).encode()
        rows = [("m", "", "1", "msgpack", data), ("j", "", "2", "json", plain)]
        assert all(isinstance(one, UnreadableRecord) for one in read_dialogs(_database(tmp_path / "x.db", rows)))
    finally:
        sys.path.remove(str(tmp_path))
    assert not mark.exists()
    assert "planted_module" not in sys.modules


@case_table("make, told", [
    ("text", "file is not a database"),
    ("empty", "has no table 'checkpoints'"),
    ("view", "has no table 'checkpoints'"),
    ("columns", "no such column: thread_id"),
])  # fmt: skip
def test_a_file_without_checkpoints_is_refused(tmp_path: Path, make: str, told: str) -> None:
    path = tmp_path / "odd.db"
    if make == "text":
        path.write_text("no database " * 100)
    else:
        with closing(sqlite3.connect(path)) as database, database:
            endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS thread_id FROM n"
            statements = {
                "view": f"CREATE VIEW checkpoints AS {endless}",
                "columns": "CREATE TABLE checkpoints (a)",
            }
            database.execute(statements.get(make, "CREATE TABLE other (a)"))
    with pytest.raises(DatasetError, match=told):
        list(read_dialogs(path))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=20,
)


@settings(deadline=None, max_examples=100)
@given(_VALUES, st.binary(max_size=40))
def test_messagepack_is_read_back_and_any_bytes_are_a_value_or_refused(value: Any, data: bytes) -> None:
    assert _MessagePack(_packed(value)).read_all() == value
    with suppress(FieldError):
        _MessagePack(data).read_all()
