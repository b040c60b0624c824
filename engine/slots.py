"""How many conversations may be in flight at once, over one run or over all runs that go on side by side.

A slot is taken once for each conversation, never for a call. Who finds none free stands in line, once however many
conversations it still has, and is served first in, first out: runs that wait side by side go on in turn.

What never belongs here: limits of a model (``limits``), and who wants a slot for what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Give = Callable[[], None]


class Slots:
    """So many slots. A party is known by its ``give``, which is called with a slot taken for it when its turn comes.

    ``give`` is called in the turn of whoever released the slot: it must be quick, must not raise, and must see to it
    that the slot is released.
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
        """Take a slot if one is free; nobody is passed over, for none is free while somebody waits."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    def wait(self, give: Give) -> None:
        """Stand in line; a party stands there at most once."""
        self._line.append(give)

    def leave(self, give: Give) -> None:
        """Leave the line; nothing happens to who does not stand in it."""
        if give in self._line:
            self._line.remove(give)

    def keep(self, give: Give) -> bool:
        """Whether a party that is done with a slot may use it again: it is its turn, or nobody waits."""
        line = self._line
        if not line:
            return True
        if line[0] == give:
            line.rotate(-1)
            return True
        return False

    def release(self) -> None:
        """Give a slot back: to the first in line, else to nobody."""
        if self._line:
            self._line.popleft()()
        else:
            self._free += 1
