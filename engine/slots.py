"""Bounds the conversations in flight, of one run or of all parallel runs.

A slot is taken once for each conversation, not for each call. A run that finds no free slot queues once, however many
conversations it still has, and is served first in, first out, so waiting runs take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Give = Callable[[], None]


class Slots:
    """``limit`` slots. A waiter is identified by its ``give``, which is called once a slot is taken for it.

    ``give`` runs in the call that released the slot: it must be quick, must not raise, and must see to it that the slot
    is released.
    """

    __slots__ = ("_free", "_line", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = self._free = limit
        self._line: deque[Give] = deque()

    @property
    def taken(self) -> int:
        """Slots in use."""
        return self.limit - self._free

    def take(self) -> bool:
        """Take a slot if one is free. None is free while others wait, so no waiter is passed over."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    def wait(self, give: Give) -> None:
        """Queue for a slot; at most once a waiter."""
        self._line.append(give)

    def leave(self, give: Give) -> None:
        """Leave the queue, if it is in it."""
        if give in self._line:
            self._line.remove(give)

    def keep(self, give: Give) -> bool:
        """Whether the holder of a slot may use it for its next conversation: it is first in line, or no other waits."""
        line = self._line
        if not line:
            return True
        if line[0] == give:
            line.rotate(-1)
            return True
        return False

    def release(self) -> None:
        """Give a slot back; the first in line gets it."""
        if self._line:
            self._line.popleft()()
        else:
            self._free += 1
