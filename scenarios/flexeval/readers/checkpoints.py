"""LangGraph checkpoints (SQLite) as dialogs: the messages of each thread's latest checkpoint.

LangGraph's own reader imports the classes that a checkpoint names. This one imports nothing: it decodes JSON and
MessagePack to plain values and keeps the fields of a message, so a checkpoint by others cannot run code.
"""

from __future__ import annotations

import math
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from viva.data.items import FieldError, preview
from viva.engine.errors import DatasetError

from ..dialog import Dialog
from .records import UnreadableRecord, read_messages

CHECKPOINT_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_MAX_BYTES = 16_000_000  # of a checkpoint
_MAX_DEPTH = 100  # of values within values
_ROLES = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system", "function": "tool"}
_CLASS_ROLES = {
    f"{name}{suffix}": role
    for name, role in (("HumanMessage", "user"), ("AIMessage", "assistant"), ("SystemMessage", "system"),
                       ("ToolMessage", "tool"), ("FunctionMessage", "tool"))
    for suffix in ("", "Chunk")
}  # fmt: skip
# Columns that every version of LangGraph's table has. Checkpoints of subgraphs have another namespace.
_QUERY = """
    SELECT thread_id, checkpoint_id, type, length(checkpoint),
        CASE WHEN length(checkpoint) <= ? THEN checkpoint END, rowid
    FROM checkpoints AS latest
    WHERE checkpoint_ns = '' AND checkpoint_id = (
        SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = latest.thread_id AND checkpoint_ns = ''
    )
    ORDER BY rowid
"""


def read_checkpoints(path: Path) -> Iterator[Dialog | UnreadableRecord]:
    """Yield a dialog for each thread; its line is the number of its row.

    Raises:
        DatasetError: The file is no database of checkpoints.
    """
    try:
        # Without a log of changes nobody is writing, and the folder need not be writable.
        is_open = any(Path(f"{path}{suffix}").exists() for suffix in ("-wal", "-journal"))
        address = f"{path.absolute().as_uri()}?{'mode=ro' if is_open else 'immutable=1'}"
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            # A view could compute anything; LangGraph makes a table.
            tables = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'checkpoints' AND type = 'table'")
            if tables.fetchone() is None:
                raise DatasetError("has no table 'checkpoints'; expected checkpoints of LangGraph", path=str(path))
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            for thread, checkpoint_id, kind, size, data, row in database.execute(_QUERY, (_MAX_BYTES,)):
                try:
                    messages = _read_channel(_decode(kind, size, data))
                    yield Dialog.from_messages(str(thread), messages, {"checkpoint": str(checkpoint_id)})
                except FieldError as error:
                    problem = f"thread {preview(thread)}: field '{error.field}': {error}"
                    yield UnreadableRecord(str(path), row, problem, f"{path.stem}:{thread}")
    except sqlite3.Error as error:
        raise DatasetError(f"cannot be read as checkpoints of LangGraph: {error}", path=str(path)) from None


def _decode(kind: Any, size: Any, data: Any) -> Any:
    if not isinstance(data, bytes | str):
        raise FieldError("checkpoint", f"expected at most {_MAX_BYTES:,} bytes of data, found {size}")
    binary = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if kind == "msgpack":
        return _MessagePack(binary).read_all()
    if kind == "json":
        try:
            return orjson.loads(binary)
        except orjson.JSONDecodeError as error:
            raise FieldError("checkpoint", f"is not JSON: {error}") from None
    raise FieldError("type", f"expected json or msgpack, found {preview(kind)}")


def _read_channel(checkpoint: Any) -> list[Any]:
    """Return the messages of a checkpoint's channel `messages`."""
    values = checkpoint.get("channel_values") if isinstance(checkpoint, Mapping) else None
    messages = values.get("messages") if isinstance(values, Mapping) else None
    if not isinstance(messages, list) or not messages:
        raise FieldError("channel_values.messages", f"expected messages, found {preview(messages)}")
    kept = [raw for raw in messages if not (isinstance(raw, _Constructed) and raw.name == "RemoveMessage")]
    return read_messages([_openai_message(raw) for raw in kept], "messages")


def _openai_message(raw: Any) -> Any:
    """Return a message of LangChain in OpenAI's format; a value that is none is returned unchanged."""
    if isinstance(raw, str):  # not yet converted by LangGraph
        return {"role": "user", "content": raw}
    fields, name = raw, ""
    if isinstance(raw, _Constructed):
        fields, name = raw.value, raw.name
    elif isinstance(raw, Mapping) and raw.get("type") == "constructor":
        identity = raw.get("id")
        fields, name = raw.get("kwargs"), str(identity[-1]) if isinstance(identity, list) and identity else ""
    if not isinstance(fields, Mapping):
        return raw
    role = _CLASS_ROLES.get(name) or _ROLES.get(str(fields.get("type")), fields.get("role"))
    message: dict[str, Any] = {"role": role, "content": _plain(fields.get("content"))}
    calls = fields.get("tool_calls")
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [_plain(call) for call in calls]
    for key in ("tool_call_id", "name"):
        if isinstance(fields.get(key), str):
            message[key] = fields[key]
    response = fields.get("response_metadata")
    response = response if isinstance(response, Mapping) else {}
    if isinstance(usage := response.get("token_usage") or fields.get("usage_metadata"), Mapping):
        message["usage"] = _plain(usage)
    if isinstance(model := response.get("model_name") or response.get("model"), str):
        message["model"] = model
    if isinstance(more := fields.get("additional_kwargs"), Mapping):
        kept = {key: _plain(value) for key, value in more.items() if key not in ("tool_calls", "function_call")}
        message["additional_kwargs"] = {key: value for key, value in kept.items() if value is not None} or None
    return message


class _Constructed:
    """An object of a class that a checkpoint names: the class's name and the value that it would be made from."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON data, objects by the value that they would be made from."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, _Constructed):
        return _plain(value.value, depth + 1)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


_NUMBERS = {  # by first byte: format and size of the numbers of MessagePack
    0xCA: (">f", 4), 0xCB: (">d", 8), 0xCC: (">B", 1), 0xCD: (">H", 2), 0xCE: (">I", 4), 0xCF: (">Q", 8),
    0xD0: (">b", 1), 0xD1: (">h", 2), 0xD2: (">i", 4), 0xD3: (">q", 8),
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
# By first byte: kind of a value with a length, and the number of bytes of the length.
_SIZED = {
    0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4), 0xC7: ("ext", 1), 0xC8: ("ext", 2), 0xC9: ("ext", 4),
    0xD9: ("text", 1), 0xDA: ("text", 2), 0xDB: ("text", 4), 0xDC: ("list", 2), 0xDD: ("list", 4),
    0xDE: ("map", 2), 0xDF: ("map", 4),
}  # fmt: skip
_CONSTRUCTORS = range(6)  # extension types of LangGraph: [module, class, value, …]


class _MessagePack:
    """Decoder of MessagePack. Objects that LangGraph would construct become `_Constructed`."""

    def __init__(self, data: bytes, depth: int = 0) -> None:
        self._data, self._at, self._depth = data, 0, depth

    def read_all(self) -> Any:
        """Return the only value of the data.

        Raises:
            FieldError: The data is not MessagePack.
        """
        value = self._read()
        if self._at != len(self._data):
            raise FieldError("checkpoint", f"is not MessagePack: data after byte {self._at}")
        return value

    def _take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise FieldError("checkpoint", f"is not MessagePack: ends within a value at byte {self._at}")
        self._at += size
        return data

    def _read(self) -> Any:
        first = self._take(1)[0]
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if first <= 0x7F or first >= 0xE0:
            return first if first <= 0x7F else first - 0x100
        if first in _NUMBERS:
            form, size = _NUMBERS[first]
            return struct.unpack(form, self._take(size))[0]
        if first <= 0xBF:  # the size is in the first byte
            kind, size = ("map", first & 15) if first <= 0x8F else ("list", first & 15)
            return self._read_sized(*(kind, size) if first <= 0x9F else ("text", first & 31))
        if 0xD4 <= first <= 0xD8:
            return self._read_sized("ext", 1 << (first - 0xD4))
        if first not in _SIZED:
            raise FieldError("checkpoint", f"is not MessagePack: byte 0x{first:02x} at {self._at - 1}")
        kind, width = _SIZED[first]
        return self._read_sized(kind, int.from_bytes(self._take(width), "big"))

    def _read_sized(self, kind: str, size: int) -> Any:
        if kind == "text":
            return self._take(size).decode("utf-8", "replace")
        if kind == "bytes":
            return self._take(size)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise FieldError("checkpoint", f"has values more than {_MAX_DEPTH} levels deep")
        value = self._read_nested(kind, size)
        self._depth -= 1
        return value

    def _read_nested(self, kind: str, size: int) -> Any:
        if kind == "list":
            return [self._read() for _ in range(size)]
        if kind == "map":
            return {self._key(self._read()): self._read() for _ in range(size)}
        code = self._take(1)[0]
        data = self._take(size)
        if code not in _CONSTRUCTORS:
            return None
        parts = _MessagePack(data, self._depth).read_all()
        if not isinstance(parts, list) or len(parts) < 3:
            raise FieldError("checkpoint", f"expected module, class and value, found {preview(parts)}")
        return _Constructed(str(parts[1]), parts[2])

    def _key(self, value: Any) -> Any:
        return value if isinstance(value, str | int | float | bool | None) else str(value)
