"""Host memory for saved KV, reused from state to state.

The first write to a page costs up to twenty times as much as copying into it, and a conversation's KV is saved after
every turn; so the memory of a dropped state is used for the next one. States grow with their conversations, so address
space is reserved beyond the requested size; it costs nothing until it is written. Each buffer is a mapping of its own,
because the C library's heap keeps freed memory between live blocks, and uses pages that exist already for address space
that is only reserved.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_RESERVE = 2  # times the requested size
_SLACK = 1.25  # idle buffers with this many times the requested bytes resident, or more, are left for larger states


@dataclass(slots=True, eq=False)
class Buffer:
    """``data`` is the array to write into; the pages of its first ``resident`` bytes exist."""

    data: npt.NDArray[np.uint8]
    resident: int


class BufferPool:
    """``take`` a buffer for a state, ``release`` it later. ``idle_bytes``: resident bytes of the released buffers."""

    def __init__(self) -> None:
        self.idle_bytes = 0
        self._idle: list[tuple[int, int, Buffer]] = []  # sorted by resident bytes; ids break ties

    def take(self, size: int, most_idle: int) -> Buffer:
        """A buffer for ``size`` bytes. If new pages are needed for it, at most ``most_idle`` bytes stay idle.

        :raises OSError: the system has no memory.
        """
        place = bisect_left(self._idle, (size,))
        if place < len(self._idle) and self._idle[place][0] < _SLACK * size:
            return self._pop(place)
        smaller = next((i for i in reversed(range(place)) if self._idle[i][2].data.nbytes >= size), None)
        memory = self._pop(smaller) if smaller is not None else None
        while self._idle and self.idle_bytes > most_idle:
            self._pop(-1)
        if memory is None:
            return Buffer(_reserve(size), size)
        memory.resident = size
        return memory

    def release(self, memory: Buffer) -> None:
        """Take back a buffer that is no longer read."""
        insort(self._idle, (memory.resident, id(memory), memory))
        self.idle_bytes += memory.resident

    def _pop(self, place: int) -> Buffer:
        memory = self._idle.pop(place)[2]
        self.idle_bytes -= memory.resident
        return memory


def _reserve(size: int) -> npt.NDArray[np.uint8]:
    try:
        return _pages(_RESERVE * size)
    except OSError:  # some systems and limits count reserved addresses as memory
        return _pages(size)


def _pages(size: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
