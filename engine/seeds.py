"""Source of every random choice: a hash of named parts, never arrival order, so that runs are reproducible."""

from __future__ import annotations

import hashlib
import random
import struct

_SEPARATOR = b"\x1f"
# 31 bits: positive in every endpoint's integer type; llama.cpp reads 0 as "the default seed", so 0 never occurs.
_RANGE = 2**31 - 1


def _hasher(parts: tuple[object, ...]) -> hashlib.blake2b:
    return hashlib.blake2b(_SEPARATOR.join(str(part).encode() for part in parts), digest_size=8)


def derive(*parts: object) -> int:
    """Return a seed in 1 … 2³¹−1 that depends only on `parts`, e.g. `derive(run_seed, conversation, role, turn)`."""
    return int.from_bytes(_hasher(parts).digest(), "big") % _RANGE + 1


def uniform(*parts: object) -> float:
    """Return a number in [0, 1) that depends only on `parts`."""
    return int.from_bytes(_hasher(parts).digest(), "big") / 2**64


def draws(*parts: object) -> list[float]:
    """Return sixteen independent numbers in [0, 1) that depend only on `parts`, for the price of one hash."""
    data = _SEPARATOR.join(str(part).encode() for part in parts)
    words = struct.unpack(">16I", hashlib.blake2b(data, digest_size=64).digest())
    return [word / 2**32 for word in words]


def generator(*parts: object) -> random.Random:
    """Return a private generator for several consecutive draws (takes about 10 µs: not for the hot path)."""
    return random.Random(int.from_bytes(_hasher(parts).digest(), "big"))


class ConversationSeeds:
    """Seeds of one conversation.

    `ConversationSeeds(run_seed, key).seed(role, turn)` is `derive(run_seed, key, role, turn)` with a shared start.
    """

    __slots__ = ("_start",)

    def __init__(self, *parts: object) -> None:
        self._start = _hasher(parts)

    def seed(self, role: str, turn: int) -> int:
        """Return the seed of `role`'s call number `turn`; equal to `derive(*parts, role, turn)`."""
        line = self._start.copy()
        line.update(f"\x1f{role}\x1f{turn}".encode())
        return int.from_bytes(line.digest(), "big") % _RANGE + 1
