"""KV that is in no lane: saved to host memory when a lane is done, put back when a request begins with it.

What never belongs here: which requests there are (``lanes``), what is kept and for how long (``prefix``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..native import NativeContext
from ..segment import Segment
from .buffers import Buffers
from .prefix_store import PrefixStore


class HostKV:
    """The prefix store of one context, and the memory that its states lie in. ``budget`` is in bytes."""

    def __init__(self, context: NativeContext, budget: int) -> None:
        self._context = context
        self._buffers = Buffers()
        self.store = PrefixStore(budget, self._buffers.give)

    def restore(self, lane: int, segments: Sequence[Segment]) -> int:
        """Give a lane the longest kept KV that is a prefix of these segments, or none; of how many of them it is."""
        count, state = self.store.find(segments)
        if state is None:
            self._context.forget(lane)
        else:
            self._context.restore(lane, state.room)
        return count

    def save(self, lane: int, path: Sequence[Segment], owner: str = "") -> None:
        """Keep a lane's KV, which was computed for exactly these segments, where budget and system have room for it."""
        size, budget = self._context.saved_size(lane), self.store.budget
        if size > budget:
            return
        self.store.make_room(size)  # first, for what goes leaves its memory
        try:
            memory = self._buffers.take(size, budget - self.store.used - size)
        except OSError:  # the system has no more memory: what is not kept is computed anew
            return
        self._context.save(lane, memory.room)
        if not self.store.keep(path, memory, memory.used, owner):
            self._buffers.give(memory)
