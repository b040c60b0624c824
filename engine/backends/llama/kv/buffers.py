"""Host memory for saved KV, used again and again.

A page that a process touches for the first time costs up to twenty times what copying into it does, and a talk's KV is
saved anew after every turn: what one state leaves behind, the next one takes. States grow as their talks do, so memory
is reserved beyond what is asked for; addresses cost nothing until they are written. Each memory is a mapping of its
own, for the C library's heap keeps what is let go between states that stay, and spends pages that exist already on what
is only reserved. What never belongs here: which states are kept (``prefix``), what is in them.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_RESERVE = 2  # times what is asked for
_SLACK = 1.25  # free memory of which so many times what is asked for is in use, or more, is left for others


@dataclass(slots=True, eq=False)
class Memory:
    """``room`` to write in, of which the first ``used`` bytes have been written at some time: these exist."""

    room: npt.NDArray[np.uint8]
    used: int


class Buffers:
    """``take`` memory for a state, ``give`` it back; ``free`` is how many bytes in use lie idle."""

    def __init__(self) -> None:
        self.free = 0
        self._free: list[tuple[int, int, Memory]] = []  # by bytes in use; the identity tells those of one size apart

    def take(self, size: int, most_idle: int) -> Memory:
        """Memory to write ``size`` bytes in. Where more of it comes into use, at most ``most_idle`` bytes stay idle.

        :raises OSError: the system has none.
        """
        place = bisect_left(self._free, (size,))
        if place < len(self._free) and self._free[place][0] < _SLACK * size:
            return self._pop(place)
        smaller = next((i for i in reversed(range(place)) if self._free[i][2].room.nbytes >= size), None)
        memory = self._pop(smaller) if smaller is not None else None
        while self._free and self.free > most_idle:
            self._pop(-1)
        if memory is None:
            return Memory(_reserve(size), size)
        memory.used = size
        return memory

    def give(self, memory: Memory) -> None:
        """Nobody reads this any more."""
        insort(self._free, (memory.used, id(memory), memory))
        self.free += memory.used

    def _pop(self, place: int) -> Memory:
        memory = self._free.pop(place)[2]
        self.free -= memory.used
        return memory


def _reserve(size: int) -> npt.NDArray[np.uint8]:
    try:
        return _pages(_RESERVE * size)
    except OSError:  # addresses do cost where the system or a limit counts them as memory
        return _pages(size)


def _pages(size: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
