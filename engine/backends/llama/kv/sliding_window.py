"""Saved KV of sliding windows: restored to the cells in which it was computed.

Of a sliding window llama.cpp saves only the cells that later tokens can see, and restores them from the first cell on.
Sums over cells then run in another order than before, and their last bits differ. ``with_all_cells`` adds the missing
cells, filled with zeros: nothing sees them, and each position is in the cell of its own number again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_CELL = np.dtype([("position", "<i4"), ("sequences", "<u4"), ("sequence", "<i4")])


def with_all_cells(state: Bytes) -> Bytes:
    """The saved state of one sequence with a cell for every position from 0 on.

    :raises ValueError: the state does not have the layout of a sliding window, in the order of positions.
    """
    return _WindowState(state).state()


class _WindowState:
    def __init__(self, state: Bytes) -> None:
        self._given = state
        self._at = 0
        self._parts: list[Bytes] = []

    def state(self) -> Bytes:
        self._copy(8)  # llama.cpp's magic number, and the sequence id
        for _ in range(self._number()):
            self._stream()
        if self._at != len(self._given):
            raise ValueError(f"{len(self._given) - self._at} bytes of the state are unknown")
        return np.concatenate(self._parts)

    def _stream(self) -> None:
        start = len(self._parts)
        held = self._number()
        if not held:
            return
        cells = self._take(held * _CELL.itemsize).view(_CELL)
        first = int(cells["position"][0])
        if (cells["sequences"] != 1).any() or (cells["position"] != np.arange(first, first + held)).any():
            raise ValueError("the cells of the state are not in the order of positions")
        missing = first
        self._parts[start] = np.array([held + missing], dtype="<u4").view(np.uint8)
        added = np.empty(missing, dtype=_CELL)
        added["position"], added["sequences"], added["sequence"] = np.arange(missing), 1, cells["sequence"][0]
        self._parts += [added.view(np.uint8), cells.view(np.uint8)]
        transposed, layers = self._number(), self._number()
        for _ in range(layers):
            self._rows(held, missing)
        if self._left_is_empty():  # some architectures store keys only
            return
        for _ in range(layers):
            if transposed:
                self._columns(held, missing)
            else:
                self._rows(held, missing)

    def _rows(self, held: int, missing: int) -> None:
        """One row per cell."""
        self._copy(4)
        size = int(self._copy(8).view("<u8")[0])
        self._parts.append(np.zeros(missing * size, dtype=np.uint8))
        self._copy(held * size)

    def _columns(self, held: int, missing: int) -> None:
        """One row per value of a cell, with a place for each cell."""
        self._copy(4)
        size, numbers = self._number(), self._number()
        wide = np.zeros((numbers, (missing + held) * size), dtype=np.uint8)
        wide[:, missing * size :] = self._take(numbers * held * size).reshape(numbers, -1)
        self._parts.append(wide.reshape(-1))

    def _left_is_empty(self) -> bool:
        """Whether only streams without cells follow."""
        return not self._given[self._at : self._at + 12].any()

    def _number(self) -> int:
        return int(self._copy(4).view("<u4")[0])

    def _copy(self, size: int) -> Bytes:
        part = self._take(size)
        self._parts.append(part)
        return part

    def _take(self, size: int) -> Bytes:
        part = self._given[self._at : self._at + size]
        if len(part) < size:
            raise ValueError("the state is truncated")
        self._at += size
        return part
