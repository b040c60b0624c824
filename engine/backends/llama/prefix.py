"""The prefix store: KV of runs of tokens, kept in host memory under a byte budget, least recently used out first.

A radix tree whose edges are segments: the very token ids and the way they were computed. A state hangs at the node
whose path it was computed from, so what a request finds is a prefix of its own tokens or nothing; there is no hash to
collide and no length to trust. The caller saves and restores; the store only keeps.

What never belongs here: llama.cpp, lanes, requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .chat import Segment

Key = tuple[bool, bytes]


@dataclass(slots=True)
class _Node:
    parent: _Node | None
    key: Key
    tokens: int  # from the root to here
    children: dict[Key, _Node] = field(default_factory=dict)
    state: Any = None
    size: int = 0


class PrefixStore:
    """``find`` the longest kept prefix of a list of segments; ``keep`` the state of one.

    ``budget`` is in bytes of state; a state larger than all of it is not kept.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self._root = _Node(None, (False, b""), 0)
        self._recent: OrderedDict[int, _Node] = OrderedDict()
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

    def keep(self, segments: Sequence[Segment], state: Any, size: int) -> bool:
        """Keep the state computed for exactly these segments, making room; says whether it was kept."""
        if size > self.budget or not segments:
            return False
        node = self._root
        for segment in segments:
            key = segment.key()
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(node, key, node.tokens + len(segment.tokens))
            node = child
        self._drop_state(node)
        node.state, node.size = state, size
        self._recent[id(node)] = node
        self.used += size
        while self.used > self.budget:
            oldest = next(iter(self._recent.values()))
            self._drop_state(oldest)
            self._prune(oldest)
            self._evictions += 1
        return True

    def drop(self, segments: Sequence[Segment]) -> None:
        """Forget the state kept for exactly these segments, if any (a longer one has taken its place)."""
        node: _Node | None = self._root
        for segment in segments:
            node = node.children.get(segment.key()) if node is not None else None
        if node is not None and node is not self._root:
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
            node.state, node.size = None, 0
            del self._recent[id(node)]

    def _prune(self, node: _Node) -> None:
        while node.parent is not None and node.state is None and not node.children:
            del node.parent.children[node.key]
            node = node.parent
