"""Packed texts of a journal: deflate against a dictionary of like texts, in the place of the text itself.

A packed value begins with a byte that no UTF-8 text begins with, then the number of its dictionary (0: none), then raw
deflate (RFC 1951). So packed and plain values stand side by side in one column, and a row that comes later is plain.
Checksums of rows are those of the plain texts.
What never belongs here: which rows are packed (``compaction``).
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable
from typing import Any

MARK = b"\xff"
DICTIONARIES = "dictionaries"
SCHEMA = f"""create table if not exists {DICTIONARIES} (
    number integer primary key, kind text not null, bytes blob not null, checksum integer not null)"""
_MOST_NUMBERS = 255
_LARGEST = 1_000_000_000  # bytes of a text: what SQLite allows for one value
_DICTIONARY = 16_384  # bytes; deflate looks back 32,768
_SHARE = 20  # a dictionary takes no more than this part of the texts that it is for
_LONGEST_SAMPLE = 2_048


class Packer:
    """Packs texts of one kind. ``number`` and ``dictionary`` as the journal holds them."""

    __slots__ = ("_base", "_head")

    def __init__(self, number: int = 0, dictionary: bytes = b"") -> None:
        self._head = MARK + bytes([number])
        self._base = zlib.compressobj(6, wbits=-15, zdict=dictionary) if number else zlib.compressobj(6, wbits=-15)

    def packed(self, text: bytes) -> bytes | None:
        """The packed form; None where it is no shorter."""
        one = self._base.copy()
        found = self._head + one.compress(text) + one.flush()
        return found if len(found) < len(text) else None


class Unpacker:
    """Reads texts of one open journal, packed or plain. Dictionaries are read when a value first needs one.

    ``table``: where they stand, of an attached database with its name.
    """

    __slots__ = ("_connection", "_dictionaries", "_table")

    def __init__(self, connection: sqlite3.Connection, table: str = DICTIONARIES) -> None:
        self._connection, self._table = connection, table
        self._dictionaries: dict[int, bytes] = {}

    def text(self, value: bytes) -> str:
        """The text that a value stands for.

        :raises ValueError: it is damaged, or its dictionary is.
        """
        return (value if value[:1] != MARK else self._unpacked(value)).decode()

    def _unpacked(self, value: bytes) -> bytes:
        number = value[1]
        try:
            reader = zlib.decompressobj(-15, self._dictionary(number) if number else b"")
            text = reader.decompress(value[2:], _LARGEST)
        except (zlib.error, sqlite3.Error) as error:
            raise ValueError(f"a packed text cannot be read: {error}") from None
        if not reader.eof:
            raise ValueError("a packed text is cut off")
        return text

    def _dictionary(self, number: int) -> bytes:
        known = self._dictionaries.get(number)
        if known is None:
            row = self._connection.execute(
                f"select bytes, checksum from {self._table} where number = ?", (number,)
            ).fetchone()
            if row is None or zlib.crc32(row[0]) != row[1]:
                raise ValueError(f"dictionary {number} of the journal is missing or damaged")
            known = self._dictionaries[number] = bytes(row[0])
        return known


class Packers:
    """The packers of a journal that is open for writing, by kind of text; dictionaries that it holds are used again."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._packers: dict[str, Packer] = {}
        if connection.execute("select 1 from sqlite_master where name = ?", (DICTIONARIES,)).fetchone():
            for number, kind, held, checksum in connection.execute(f"select * from {DICTIONARIES}"):
                if zlib.crc32(held) == checksum:
                    self._packers[_text(kind)] = Packer(number, held)

    def made(self, kind: str, samples: Iterable[bytes], total: int) -> Packer:
        """The packer of a kind; where there is none, one with a dictionary of samples, which is put into the journal.

        :param total: bytes of all texts of this kind.
        """
        if kind not in self._packers:
            self._packers[kind] = self._new(kind, dictionary_of(samples, total))
        return self._packers[kind]

    def _new(self, kind: str, dictionary: bytes) -> Packer:
        [(last,)] = self._connection.execute(f"select coalesce(max(number), 0) from {DICTIONARIES}").fetchall()
        if not dictionary or last >= _MOST_NUMBERS:
            return Packer()
        row = (last + 1, kind, dictionary, zlib.crc32(dictionary))
        self._connection.execute(f"insert into {DICTIONARIES} values (?, ?, ?, ?)", row)
        return Packer(last + 1, dictionary)


def dictionary_of(samples: Iterable[bytes], total: int) -> bytes:
    """A dictionary for texts of which there are ``total`` bytes: different samples, as far as it may be long."""
    size = min(_DICTIONARY, total // _SHARE)
    return b"".join(dict.fromkeys(one[:_LONGEST_SAMPLE] for one in samples))[:size]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
