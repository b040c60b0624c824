"""The format of journal rows: checksums, rare fields as one JSON object, texts packed against a dictionary.

A checksum covers every field of its row and detects damage (flipped bits, zeroed blocks), not tampering. A packed value
begins with a byte that no UTF-8 text begins with, then the number of its dictionary (0: none), then raw deflate (RFC
1951), so packed and plain values can share a column. Checksums cover the plain texts.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable
from struct import Struct
from types import NoneType
from typing import Any
from zlib import crc32

import orjson

from .likelihood import Likelihood
from .messages import Completion
from .tools import ToolCall

CALL_COLUMNS = "conversation, role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra"
_NUMBERS = Struct("<4q2d").pack


def call_checksum(row: tuple[Any, ...]) -> int:
    """Return the checksum of a row of `calls`; raise `struct.error` if a number does not fit."""
    number, role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra = row
    numbers = _NUMBERS(number, ordinal, prompt_tokens, completion_tokens, at, latency)
    return crc32(f"{role}\0{text}\0{finish}\0{extra or ''}".encode(), crc32(digest + numbers))


def first_call_checksum(row: tuple[Any, ...]) -> int:
    """Return the checksum as the first journals with checksums wrote it (their schema was the same)."""
    number, role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra = row
    numbers = crc32(digest, crc32(_NUMBERS(number, ordinal, prompt_tokens, completion_tokens, at, latency)))
    return crc32(f"{role}\0{text}\0{finish}\0{extra or ''}".encode(), numbers)


def is_call_checksum(checksum: int, row: tuple[Any, ...]) -> bool:
    """Return True if this is the checksum of a row of `calls`, in the current or the first format."""
    return checksum == call_checksum(row) or checksum == first_call_checksum(row)


def short_checksum(row: tuple[Any, ...]) -> int:
    """Return the checksum of a row of `started` or `ended`: a number and two texts."""
    number, first, second = row
    return crc32(f"{number}\0{first}\0{second}".encode())


def rare_fields(c: Completion) -> str | None:
    """Return an answer's rare fields as JSON; None if it has none."""
    if (  # in the hot path: nearly all answers have none of them
        c.first_token is None
        and c.pieces is None
        and c.logprobs is None
        and c.calls is None
        and c.expected is None
        and c.likelihoods is None
        and c.versions is None
        and not c.thoughts
        and not c.usage_note
        and not c.cached_tokens
        and c.attempts <= 1
    ):
        return None
    return orjson.dumps(_rare_fields_of(c)).decode()


def add_rare_fields(completion: Completion, text: str) -> None:
    """Restore the fields that `rare_fields` returned.

    Raises:
        ValueError: The text has other fields, or values of other types.
    """
    fields: dict[str, Any] = orjson.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("the rare fields of a call are no object")
    if (likelihoods := fields.pop("likelihoods", None)) is not None:
        completion.likelihoods = [Likelihood.from_record(record) for record in likelihoods]
    if (calls := fields.pop("calls", None)) is not None:
        completion.calls = [ToolCall.from_record(record) for record in calls]
    for name, value in fields.items():
        fits = _RARE_FIELDS.get(name)
        if fits is None or not fits(value):
            raise ValueError(f"a call has a rare field '{name}' of another kind")
        setattr(completion, name, value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_list_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(entry) in kinds for entry in value)


_RARE_FIELDS: dict[str, Callable[[Any], bool]] = {
    "attempts": _is_count,
    "cached_tokens": _is_count,
    "first_token": _is_number,
    "thoughts": _is_text,
    "usage_note": _is_text,
    "logprobs": _is_list_of(list),
    "pieces": _is_list_of(list),
    "expected": _is_list_of(int, float, NoneType),
    "versions": _is_list_of(str),
}


def _rare_fields_of(c: Completion) -> dict[str, Any]:
    fields: dict[str, Any] = {"attempts": c.attempts}
    for name in ("first_token", "logprobs", "pieces", "expected", "versions"):
        value = getattr(c, name)
        if value is not None:
            fields[name] = value
    if c.thoughts:
        fields["thoughts"] = c.thoughts
    if c.usage_note:
        fields["usage_note"] = c.usage_note
    if c.cached_tokens:
        fields["cached_tokens"] = c.cached_tokens
    if c.likelihoods is not None:
        fields["likelihoods"] = [likelihood.to_record() for likelihood in c.likelihoods]
    if c.calls is not None:
        fields["calls"] = [call.to_record() for call in c.calls]
    return fields


PACKED_MARK = b"\xff"
DICTIONARIES = "dictionaries"
DICTIONARIES_SCHEMA = f"""create table if not exists {DICTIONARIES} (
    number integer primary key, kind text not null, bytes blob not null, checksum integer not null)"""
_MAX_DICTIONARIES = 255
_LARGEST = 64 * 2**20  # bytes of a packed text when unpacked: no answer, and no result of a step, is longer
_LONGEST_DICTIONARY = 16_384  # bytes; deflate looks back 32,768
_DICTIONARY_SHARE = 20  # a dictionary is at most 1/20 of the size of its texts
_LONGEST_SAMPLE = 2_048


class Packer:
    """Compressor for texts of one kind. `number` and `dictionary` are those in the journal."""

    __slots__ = ("_base", "_head")

    def __init__(self, number: int = 0, dictionary: bytes = b"") -> None:
        self._head = PACKED_MARK + bytes([number])
        self._base = zlib.compressobj(6, wbits=-15, zdict=dictionary) if number else zlib.compressobj(6, wbits=-15)

    def pack(self, text: bytes) -> bytes | None:
        """Return the packed form; None if it is not shorter, or if the text is too long to be unpacked again."""
        if len(text) > _LARGEST:
            return None
        compressor = self._base.copy()
        data = self._head + compressor.compress(text) + compressor.flush()
        return data if len(data) < len(text) else None


class Unpacker:
    """Reader for texts of one open journal, packed or plain. Dictionaries are loaded on first use.

    `table` is the table of dictionaries, with its database's name if attached. `size` is the number of bytes of all
    texts read so far.
    """

    __slots__ = ("_connection", "_dictionaries", "_table", "size")

    def __init__(self, connection: sqlite3.Connection, table: str = DICTIONARIES) -> None:
        self._connection, self._table = connection, table
        self._dictionaries: dict[int, bytes] = {}
        self.size = 0

    def text(self, value: bytes) -> str:
        """Return the text of a stored value; raise `ValueError` if the value or its dictionary is damaged."""
        data = value if value[:1] != PACKED_MARK else self._unpack(value)
        self.size += len(data)
        return data.decode()

    def _unpack(self, value: bytes) -> bytes:
        number = value[1]
        try:
            reader = zlib.decompressobj(-15, self._dictionary(number) if number else b"")
            text = reader.decompress(value[2:], _LARGEST)
        except (zlib.error, sqlite3.Error) as error:
            raise ValueError(f"a packed text cannot be read: {error}") from None
        if not reader.eof:
            raise ValueError(f"a packed text is cut off, or longer than {_LARGEST:,} bytes")
        return text

    def _dictionary(self, number: int) -> bytes:
        dictionary = self._dictionaries.get(number)
        if dictionary is None:
            row = self._connection.execute(
                f"select bytes, checksum from {self._table} where number = ?", (number,)
            ).fetchone()
            if row is None or zlib.crc32(row[0]) != row[1]:
                raise ValueError(f"dictionary {number} of the journal is missing or damaged")
            dictionary = self._dictionaries[number] = bytes(row[0])
        return dictionary


class Packers:
    """Packers of a journal that is open for writing, by kind of text; its existing dictionaries are reused."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._packers: dict[str, Packer] = {}
        if connection.execute("select 1 from sqlite_master where name = ?", (DICTIONARIES,)).fetchone():
            for number, kind, dictionary, checksum in connection.execute(f"select * from {DICTIONARIES}"):
                if zlib.crc32(dictionary) == checksum:
                    self._packers[_decode_text(kind)] = Packer(number, dictionary)

    def get_or_create(self, kind: str, samples: Iterable[bytes], total: int) -> Packer:
        """Return the packer of a kind, or create one whose dictionary has samples of the kind's texts.

        `total` is the number of bytes of all texts of the kind; it bounds the dictionary's size.
        """
        if kind not in self._packers:
            self._packers[kind] = self._create(kind, build_dictionary(samples, total))
        return self._packers[kind]

    def _create(self, kind: str, dictionary: bytes) -> Packer:
        [(last,)] = self._connection.execute(f"select coalesce(max(number), 0) from {DICTIONARIES}").fetchall()
        if not dictionary or last >= _MAX_DICTIONARIES:
            return Packer()
        row = (last + 1, kind, dictionary, zlib.crc32(dictionary))
        self._connection.execute(f"insert into {DICTIONARIES} values (?, ?, ?, ?)", row)
        return Packer(last + 1, dictionary)


def build_dictionary(samples: Iterable[bytes], total: int) -> bytes:
    """Return a dictionary of distinct samples; its size is bounded by a share of the `total` bytes of all texts."""
    size = min(_LONGEST_DICTIONARY, total // _DICTIONARY_SHARE)
    return b"".join(dict.fromkeys(sample[:_LONGEST_SAMPLE] for sample in samples))[:size]


def _decode_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
