"""The prefix store: saved KV by token prefix, within a byte budget, evicting the least recently used.

A radix tree whose edges are segments: the token ids and the way in which they were computed. A state hangs at the node
whose path it was computed from, so a lookup finds a prefix of the request's own tokens or nothing; no hash can collide
and no length has to be trusted. Saving and restoring is the caller's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..segment import Segment

SegmentKey = tuple[bool, bytes]


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None
    key: SegmentKey
    tokens: int  # from the root
    children: dict[SegmentKey, _Node] = field(default_factory=dict)
    state: Any = None
    size: int = 0
    owner: str = ""


class PrefixStore:
    """``find`` the longest stored prefix of a list of segments; ``put`` the state of one.

    ``budget`` is in bytes of state; a larger state is not stored. ``on_removed`` is called with each state that is
    dropped.
    """

    def __init__(self, budget: int, on_removed: Callable[[Any], None] = lambda _: None) -> None:
        self.budget = budget
        self._on_removed = on_removed
        self.used = 0
        self._root = _Node(None, (False, b""), 0)
        self._recent: OrderedDict[int, _Node] = OrderedDict()
        self._owned: dict[str, list[_Node]] = {}
        self._hit_tokens = self._missed_tokens = self._evictions = 0

    def find(self, segments: Sequence[Segment]) -> tuple[int, Any]:
        """How many leading segments have a stored state (0: none), and that state, which counts as used now."""
        node, best, count = self._root, self._root, 0
        for depth, segment in enumerate(segments, 1):
            child = node.children.get(segment.key())
            if child is None:
                break
            node = child
            if node.state is not None:
                best, count = node, depth
        total = sum(len(segment.tokens) for segment in segments)
        self._hit_tokens += best.tokens
        self._missed_tokens += total - best.tokens
        if count:
            self._recent.move_to_end(id(best))
        return count, best.state

    def has(self, segments: Sequence[Segment]) -> bool:
        """Whether exactly this prefix is stored. Does not count as use."""
        node: _Node | None = self._root
        for segment in segments:
            node = node.children.get(segment.key()) if node is not None else None
        return node is not None and node.state is not None

    def put(self, segments: Sequence[Segment], state: Any, size: int, owner: str = "") -> bool:
        """Store the state computed for exactly these segments, replacing an older one. Returns whether it was stored.

        A state with an ``owner`` (a conversation) is dropped when the owner is released. If two owners store the same
        prefix, their texts being equal so far, the state has no owner.
        """
        if size > self.budget or not segments:
            return False
        node = self._root
        for segment in segments:
            key = segment.key()
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(node, key, node.tokens + len(segment.tokens))
            node = child
        if node.state is not None and node.owner != owner:
            owner = ""
        self._drop_state(node)
        node.state = state  # before evicting: a node without a state is pruned with its last child
        self.make_room(size)
        node.size, node.owner = size, owner
        if owner:
            self._owned.setdefault(owner, []).append(node)
        self._recent[id(node)] = node
        self.used += size
        return True

    def release(self, owner: str) -> None:
        """Drop the states that only this owner has stored."""
        for node in self._owned.get(owner, ())[:]:
            self._drop_state(node)
            self._prune(node)

    def make_room(self, size: int) -> None:
        """Evict the least recently used states until this many bytes of the budget are free, or no state is left."""
        while self._recent and self.used + size > self.budget:
            oldest = next(iter(self._recent.values()))
            self._drop_state(oldest)
            self._prune(oldest)
            self._evictions += 1

    def drop(self, segments: Sequence[Segment], owner: str = "") -> None:
        """Drop the state of exactly these segments if this owner stored it (a longer one replaces it)."""
        node: _Node | None = self._root
        for segment in segments:
            node = node.children.get(segment.key()) if node is not None else None
        if node is not None and node is not self._root and node.owner == owner:
            self._drop_state(node)
            self._prune(node)

    def statistics(self) -> dict[str, int]:
        """Tokens found and not found, bytes and number of states, evictions."""
        return {
            "hit_tokens": self._hit_tokens,
            "computed_tokens": self._missed_tokens,
            "bytes": self.used,
            "states": len(self._recent),
            "evictions": self._evictions,
        }

    def _drop_state(self, node: _Node) -> None:
        if node.state is not None:
            self.used -= node.size
            self._on_removed(node.state)
            if node.owner:
                owned = self._owned[node.owner]
                owned.remove(node)
                if not owned:
                    del self._owned[node.owner]
            node.state, node.size, node.owner = None, 0, ""
            del self._recent[id(node)]

    def _prune(self, node: _Node) -> None:
        while node.parent is not None and node.state is None and not node.children:
            del node.parent.children[node.key]
            node = node.parent
