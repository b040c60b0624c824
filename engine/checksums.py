"""Checksums of journal rows: written with each row, verified when it is read back.

A checksum covers every field of its row, the texts with marks between them. It finds damage (flipped bits, zeroed
blocks); it is no protection against somebody who writes both.
What never belongs here: SQL, and what is done about a damaged row.
"""

from __future__ import annotations

from struct import Struct
from typing import Any
from zlib import crc32

_NUMBERS = Struct("<4q2d").pack


def call_checksum(row: tuple[Any, ...]) -> int:
    """The checksum of a row of ``calls``, in the order of its columns.

    :raises struct.error: a number is not of its column's type, or has more than 64 bits.
    """
    number, role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra = row
    numbers = _NUMBERS(number, ordinal, prompt_tokens, completion_tokens, at, latency)
    return crc32(f"{role}\0{text}\0{finish}\0{extra or ''}".encode(), crc32(digest + numbers))


def first_call_checksum(row: tuple[Any, ...]) -> int:
    """As ``call_checksum``, the way the first journals with checksums have it: their schema is the same."""
    number, role, ordinal, digest, text, finish, prompt_tokens, completion_tokens, at, latency, extra = row
    numbers = crc32(digest, crc32(_NUMBERS(number, ordinal, prompt_tokens, completion_tokens, at, latency)))
    return crc32(f"{role}\0{text}\0{finish}\0{extra or ''}".encode(), numbers)


def is_call_checksum(checksum: int, row: tuple[Any, ...]) -> bool:
    """Whether this is the checksum of a row of ``calls``, as journals have it now or as the first ones had it."""
    return checksum == call_checksum(row) or checksum == first_call_checksum(row)


def short_checksum(row: tuple[Any, ...]) -> int:
    """The checksum of a row of ``started`` or ``ended``: a number and two texts."""
    number, one, other = row
    return crc32(f"{number}\0{one}\0{other}".encode())
