"""One record of a file of conversations into a dialog: OpenAI's chat form, ShareGPT's, or a single prompt.

What never belongs here: files and lines (``files``), a single message of OpenAI's form (``chat``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.data.fields import FieldError, Raw, own_id, shown

from ..units import Dialog, Message, ToolCall
from .chat import as_text, chat_messages, flattened, linked, role_of, tool_call

LISTS = ("messages", "input", "conversations", "conversation")
_IDS = ("id", "conversation_id")
_CALL_ROLES = ("function_call", "tool_call")
_RESULT_ROLES = ("observation", "tool", "function", "tool_response", "function_response")
_SHAREGPT_ROLES = {"claude": "assistant", "bard": "assistant", "bing": "assistant"}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line of a file that no dialog could be made of; ``line`` is 1-based. ``id`` is what a dialog of it would be
    called, empty where it was read by itself.
    """

    path: str
    line: int
    message: str
    id: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def unreadable(path: Path, line: int, error: Exception) -> Unreadable:
    """What is wrong with a line, as ``Unreadable``."""
    field = f"field '{error.field}': " if isinstance(error, FieldError) else ""
    return Unreadable(str(path), line, f"{field}{getattr(error, 'message', None) or error}")


def place_of(path: Path, line: int) -> str:
    """The id of a dialog that has none of its own: the file's name without its ending, and the line."""
    return f"{path.stem}:{line}"


def dialog_of(raw: Raw, place: str) -> Dialog:
    """The dialog of a record. ``place`` is its id where the record gives none (``id``, ``conversation_id``); all keys
    besides the messages and the id are its metadata.

    :raises FieldError: the record holds no messages, or one that cannot be read.
    """
    rest = dict(raw)
    field = next((name for name in LISTS if rest.get(name) is not None), None)
    if field is None:
        known = ", ".join(list(rest)[:10]) or "nothing"
        raise FieldError(
            "messages",
            "is missing; the messages stand under 'messages' or 'input' (OpenAI's form) or 'conversations' "
            f"(ShareGPT's); found: {known}",
        )
    values = rest.pop(field)
    if field == "input" and isinstance(values, str):
        messages = [Message("user", values)]
    elif _is_sharegpt(values):
        messages = _sharegpt(values, field)
        if isinstance(rest.get("system"), str) and messages[0].role != "system":
            messages.insert(0, Message("system", rest.pop("system")))
    else:
        messages = chat_messages(values, field)
    id_ = None
    for name in _IDS:
        if id_ is None and (id_ := own_id(rest, name)) is not None:
            del rest[name]
    return Dialog.of(id_ or place, messages, flattened(rest))


def _is_sharegpt(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and isinstance(values[0], Mapping) and "from" in values[0]


def _sharegpt(values: list[Any], field: str) -> list[Message]:
    return linked([_sharegpt_message(raw, f"{field}[{index}]") for index, raw in enumerate(values)])


def _sharegpt_message(raw: Any, field: str) -> Message:
    if not isinstance(raw, Mapping):
        raise FieldError(field, f"expected an object with from and value, found {shown(raw)}")
    rest = dict(raw)
    given, value = rest.pop("from", None), rest.pop("value", None)
    if value is None:
        raise FieldError(f"{field}.value", "is missing")
    name = given.strip().lower() if isinstance(given, str) else ""
    if name in _CALL_ROLES:
        return Message("assistant", "", _sharegpt_calls(value, f"{field}.value"), metadata=flattened(rest))
    if name in _RESULT_ROLES:
        return Message("tool", as_text(value), metadata=flattened(rest))
    if not isinstance(value, str):
        raise FieldError(f"{field}.value", f"expected text, found {shown(value)}")
    role = _SHAREGPT_ROLES.get(name) or role_of(given, f"{field}.from")
    return Message(role, value, metadata=flattened(rest))


def _sharegpt_calls(value: Any, field: str) -> tuple[ToolCall, ...]:
    """The calls that a ``function_call`` stands for: an object with name and arguments as JSON text, or a list."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise FieldError(field, f"expected a call as JSON with name and arguments, found {shown(value)}") from None
    return tuple(tool_call(one, field) for one in (value if isinstance(value, list) else [value]))
