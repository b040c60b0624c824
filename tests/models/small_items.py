"""A dialog and single calls as files of FunctionChat-Bench's form hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from small_turns import RIGHT, TOOLS, call, message, user

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


def items_file(folder: Path, *records: Any) -> Path:
    """A file of these records, a line each."""
    path = folder / "turns.jsonl"
    lines = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in records)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
