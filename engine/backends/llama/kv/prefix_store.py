"""The prefix store: KV of runs of tokens, kept in host memory under a byte budget, least recently used out first.

A radix tree whose edges are segments: the very token ids and the way they were computed. A state hangs at the node
whose path it was computed from, so what a request finds is a prefix of its own tokens or nothing; there is no hash to
collide and no length to trust. The caller saves and restores; the store only keeps.

What never belongs here: llama.cpp, lanes, requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..segment import Segment

Key = tuple[bool, bytes]


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None
    key: Key
    tokens: int  # from the root to here
    children: dict[Key, _Node] = field(default_factory=dict)
    state: Any = None
    size: int = 0
    owner: str = ""


class PrefixStore:
    """``find`` the longest kept prefix of a list of segments; ``keep`` the state of one.

    ``budget`` is in bytes of state; a state larger than all of it is not kept. ``gone`` is told of each state that was
    kept and is no more.
    """

    def __init__(self, budget: int, gone: Callable[[Any], None] = lambda _: None) -> None:
        self.budget = budget
        self._gone = gone
        self.used = 0
        self._root = _Node(None, (False, b""), 0)
        self._recent: OrderedDict[int, _Node] = OrderedDict()
        self._owned: dict[str, list[_Node]] = {}
        self._hit_tokens = self._missed_tokens = self._evictions = 0

    def find(self, segments: Sequence[Segment]) -> tuple[int, Any]:
        """How many leading segments have a kept state (0: none), and that state; it counts as used now."""
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
        """Whether exactly this prefix is kept; counts for nothing."""
        node: _Node | None = self._root
        for segment in segments:
            node = node.children.get(segment.key()) if node is not None else None
        return node is not None and node.state is not None

    def keep(self, segments: Sequence[Segment], state: Any, size: int, owner: str = "") -> bool:
        """Keep the state computed for exactly these segments, in place of an older one; says whether it was kept.

        A state with an ``owner`` (a talk) goes when that is released. Where two own the same, being word for word the
        same so far, nobody does.
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
        node.state = state  # before room is made: a node without one goes with the last that is below it
        self.make_room(size)
        node.size, node.owner = size, owner
        if owner:
            self._owned.setdefault(owner, []).append(node)
        self._recent[id(node)] = node
        self.used += size
        return True

    def release(self, owner: str) -> None:
        """Forget the states kept for this owner alone: it is done."""
        for node in self._owned.get(owner, ())[:]:
            self._drop_state(node)
            self._prune(node)

    def make_room(self, size: int) -> None:
        """Let the least recently used states go until so many bytes are left of the budget, or none is kept."""
        while self._recent and self.used + size > self.budget:
            oldest = next(iter(self._recent.values()))
            self._drop_state(oldest)
            self._prune(oldest)
            self._evictions += 1

    def drop(self, segments: Sequence[Segment], owner: str = "") -> None:
        """Forget the state kept for exactly these segments if it is this owner's (a longer one takes its place)."""
        node: _Node | None = self._root
        for segment in segments:
            node = node.children.get(segment.key()) if node is not None else None
        if node is not None and node is not self._root and node.owner == owner:
            self._drop_state(node)
            self._prune(node)

    def statistics(self) -> dict[str, int]:
        """Tokens found and not found, bytes kept, states kept, evictions."""
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
            self._gone(node.state)
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
