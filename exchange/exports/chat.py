"""Exports to chat lines: OpenAI's fine-tuning format, and ShareGPT's.

Each line is one dialog of the compared model. A conversation produces no line if it failed, or if the model only
returned log-likelihoods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from viva.engine.messages import Message
from viva.engine.tools import ToolCall

from ..files import TransferResult, json_lines
from .conversations import Conversation, Dialog, ExportCell, read_arguments, read_conversations

_FROM = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}


def export_openai(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """Write one `{"messages": […]}` per line, with `tools` if the model was offered any."""
    return _export(cells, out, openai_line)


def export_sharegpt(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """Write one `{"id": …, "conversations": [{"from": "human", "value": …}]}` per line, with `system` and `tools`."""
    return _export(cells, out, sharegpt_line)


def _export(cells: Sequence[ExportCell], out: Path, line: Callable[[str, Dialog], dict[str, Any]]) -> TransferResult:
    result = TransferResult(files=[out])
    failed = 0
    skipped: Counter[str] = Counter()
    with json_lines(out) as write:
        for cell in cells:
            for conversation in read_conversations(cell):
                if conversation.error is not None:
                    failed += 1
                    continue
                if not conversation.dialogs:
                    skipped[conversation.problem or "the model only returned log-likelihoods"] += 1
                for number, dialog in enumerate(conversation.dialogs, 1):
                    write(line(_id(cell, conversation, number), dialog))
                    result.records += 1
    if failed:
        result.notes.append(f"{failed:,} conversations failed and were skipped")
    result.notes += [f"{count:,} conversations have no dialog to export: {reason}" for reason, count in skipped.items()]
    return result


def _id(cell: ExportCell, conversation: Conversation, number: int) -> str:
    return f"{cell.name}:{conversation.key}" + (f":{number}" if number > 1 else "")


def openai_line(_: str, dialog: Dialog) -> dict[str, Any]:
    """Return a dialog in OpenAI's format, which has no id."""
    line: dict[str, Any] = {"messages": [message.to_openai() for message in dialog.messages]}
    return line | ({} if dialog.tools is None else {"tools": dialog.tools.specs})


def sharegpt_line(name: str, dialog: Dialog) -> dict[str, Any]:
    """Return a dialog in ShareGPT's format: tool calls are `function_call` turns, their results `observation` turns."""
    messages = list(dialog.messages)
    line: dict[str, Any] = {"id": name}
    if messages[0].role == "system":
        line["system"] = messages.pop(0).content
    line["conversations"] = [turn for message in messages for turn in _sharegpt_turns(message)]
    return line | ({} if dialog.tools is None else {"tools": orjson.dumps(dialog.tools.specs).decode()})


def _sharegpt_turns(message: Message) -> list[dict[str, str]]:
    calls = [{"from": "function_call", "value": _sharegpt_call(call)} for call in message.calls]
    turns = [{"from": _FROM[message.role], "value": message.content}] if message.content or not calls else []
    return turns + calls


def _sharegpt_call(call: ToolCall) -> str:
    return orjson.dumps({"name": call.name, "arguments": read_arguments(call)}).decode()
