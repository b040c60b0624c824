"""Host memory for saved KV, used again and again.

A page that a process touches for the first time costs up to twenty times what copying into it does, and a talk's KV is
saved anew after every turn: what one state leaves behind, the next one takes. What never belongs here: which states are
kept (``prefix``), what is in them.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

Memory = npt.NDArray[np.uint8]

_GRAIN = 8  # a new buffer is larger than asked for by one part in so many, at most
_SLACK = 2  # a free buffer so many times as large as asked for, or larger, is left for others


class Buffers:
    """``take`` memory for a state, ``give`` it back; ``free`` is how many bytes lie idle."""

    def __init__(self) -> None:
        self.free = 0
        self._free: list[tuple[int, int, Memory]] = []  # by size; the address tells those of one size apart

    def take(self, size: int, most_idle: int) -> Memory:
        """Memory of ``size`` bytes or some more. Where it has to be new, at most ``most_idle`` bytes stay idle."""
        place = bisect_left(self._free, (size,))
        if place < len(self._free) and self._free[place][0] < _SLACK * size:
            memory = self._free.pop(place)[2]
            self.free -= memory.nbytes
            return memory
        while self._free and self.free > most_idle:
            self.free -= self._free.pop()[0]
        return np.empty(capacity(size), dtype=np.uint8)

    def give(self, memory: Memory) -> None:
        """Nobody reads this any more."""
        insort(self._free, (memory.nbytes, memory.ctypes.data, memory))
        self.free += memory.nbytes


def capacity(size: int) -> int:
    """How large a new buffer for so many bytes is: one of few sizes, so that it will fit others."""
    grain = max(1, (1 << max(0, size.bit_length() - 1)) // _GRAIN)
    return -(-size // grain) * grain
