"""The host cache: KV of idle conversations in host memory, saved from lanes and restored to them."""

from __future__ import annotations

from collections.abc import Sequence

from ..native import NativeContext
from ..segment import Segment
from .buffers import BufferPool
from .prefix_store import PrefixStore


class HostCache:
    """The prefix store of one context and the memory of its states. ``budget`` is in bytes."""

    def __init__(self, context: NativeContext, budget: int) -> None:
        self._context = context
        self._buffers = BufferPool()
        self.store = PrefixStore(budget, self._buffers.release)

    def restore(self, lane: int, segments: Sequence[Segment]) -> int:
        """Give a lane the longest cached KV that is a prefix of these segments; returns how many of them it covers."""
        count, state = self.store.find(segments)
        if state is None:
            self._context.forget(lane)
        else:
            self._context.restore(lane, state.data)
        return count

    def save(self, lane: int, path: Sequence[Segment], owner: str = "") -> None:
        """Store a lane's KV, which was computed for exactly these segments, if the budget and the system allow it."""
        size, budget = self._context.saved_size(lane), self.store.budget
        if size > budget:
            return
        self.store.make_room(size)  # first, so that the memory of dropped states can be reused
        try:
            buffer = self._buffers.take(size, budget - self.store.used - size)
        except OSError:  # out of memory: what is not cached is computed again
            return
        self._context.save(lane, buffer.data)
        if not self.store.put(path, buffer, buffer.resident, owner):
            self._buffers.release(buffer)
