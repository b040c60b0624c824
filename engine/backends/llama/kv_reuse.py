"""KV reuse: prompts split at stable prefixes, a host cache of saved KV, and affinity of conversations to contexts.

The prefix store is a radix tree whose edges are segments: token ids and how they were computed. A state belongs to the
node whose path it was computed from, so a lookup finds a prefix of the request's own tokens or nothing; no hash can
collide. The store keeps within a byte budget and evicts the least recently used state.

With most templates the tokens of a prompt and its answer are a prefix of the next prompt, so KV is reused from turn to
turn. Other templates begin an answer in one form and later render it in another form; KV is then stored where the two
forms diverge.

The first write to a page costs up to twenty times as much as copying into it, so the memory of a dropped state is
reused for the next one.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import Rejected
from ...messages import Message, Pieces
from .native import NativeContext, Segment, Tokens

_RESERVE = 2  # addresses to reserve, as a multiple of the requested size
_SLACK = 1.25  # an idle buffer whose resident bytes exceed the request by this factor is left for larger states


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory for a state: the pages of the first `resident` bytes of `data` exist."""

    data: npt.NDArray[np.uint8]
    resident: int


class BufferPool:
    """Reusable buffers. `idle_bytes` is the number of resident bytes of released buffers."""

    def __init__(self) -> None:
        self.idle_bytes = 0
        self._idle: list[tuple[int, int, Buffer]] = []  # sorted by resident bytes; ids break ties

    def take(self, size: int, most_idle: int) -> Buffer:
        """Return a buffer for `size` bytes. If it needs new pages, at most `most_idle` bytes stay idle.

        Raises:
            OSError: The system is out of memory.
        """
        position = bisect_left(self._idle, (size,))
        if position < len(self._idle) and self._idle[position][0] < _SLACK * size:
            return self._pop(position)
        smaller = next((i for i in reversed(range(position)) if self._idle[i][2].data.nbytes >= size), None)
        memory = self._pop(smaller) if smaller is not None else None
        while self._idle and self.idle_bytes > most_idle:
            self._pop(-1)
        if memory is None:
            return Buffer(_reserve(size), size)
        memory.resident = size
        return memory

    def release(self, memory: Buffer) -> None:
        """Take back a buffer that is no longer read."""
        insort(self._idle, (memory.resident, id(memory), memory))
        self.idle_bytes += memory.resident

    def _pop(self, position: int) -> Buffer:
        memory = self._idle.pop(position)[2]
        self.idle_bytes -= memory.resident
        return memory


def _reserve(size: int) -> npt.NDArray[np.uint8]:
    try:
        return _pages(_RESERVE * size)
    except OSError:  # some systems and limits count reserved addresses as memory
        return _pages(size)


def _pages(size: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)


SegmentKey = tuple[bool, bytes]


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None
    key: SegmentKey
    tokens: int  # number of tokens from the root
    children: dict[SegmentKey, _Node] = field(default_factory=dict)
    state: Any = None
    size: int = 0
    owner: str = ""


class PrefixStore:
    """Stored states by prefix. `find` returns the longest stored prefix of a list of segments; `put` stores a state.

    `budget` is in bytes of state; a larger state is not stored. `on_removed` is called with each dropped state.
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
        """Return how many leading segments have a stored state (0: none), and that state, which now counts as used."""
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
        """Return True if exactly this prefix is stored. The look-up does not count as use."""
        node = self._node_of(segments)
        return node is not None and node.state is not None

    def put(self, segments: Sequence[Segment], state: Any, size: int, owner: str = "") -> bool:
        """Store the state computed for exactly these segments, replacing an older one; return True if it was stored.

        A state with an `owner` (a conversation) is dropped when the owner is released. If two owners store the same
        prefix, because their texts are equal so far, the state has no owner.
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

    def replace(self, segments: Sequence[Segment], state: Any, size: int) -> None:
        """Store another state in place of the one of exactly these segments."""
        node = self._node_of(segments)
        assert node is not None
        self._on_removed(node.state)
        self.used += size - node.size
        node.state, node.size = state, size

    def release(self, owner: str) -> None:
        """Drop the states that only this owner has stored."""
        for node in self._owned.get(owner, ())[:]:
            self._remove(node)

    def make_room(self, size: int) -> None:
        """Evict least recently used states until this many bytes of the budget are free or no state is left."""
        while self._recent and self.used + size > self.budget:
            self._remove(next(iter(self._recent.values())))
            self._evictions += 1

    def drop(self, segments: Sequence[Segment], owner: str = "") -> None:
        """Drop the state of exactly these segments if this owner stored it (its longer state replaces it)."""
        node = self._node_of(segments)
        if node is not None and node is not self._root and node.owner == owner:
            self._remove(node)

    def discard(self, segments: Sequence[Segment]) -> None:
        """Drop the state of exactly these segments, whoever stored it."""
        node = self._node_of(segments)
        if node is not None and node is not self._root:
            self._remove(node)

    def statistics(self) -> dict[str, int]:
        """Return tokens found and not found, bytes and number of states, and evictions."""
        return {
            "hit_tokens": self._hit_tokens,
            "computed_tokens": self._missed_tokens,
            "bytes": self.used,
            "states": len(self._recent),
            "evictions": self._evictions,
        }

    def _node_of(self, segments: Sequence[Segment]) -> _Node | None:
        node: _Node | None = self._root
        for segment in segments:
            node = node.children.get(segment.key()) if node is not None else None
        return node

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

    def _remove(self, node: _Node) -> None:
        self._drop_state(node)
        self._prune(node)

    def _prune(self, node: _Node) -> None:
        while node.parent is not None and node.state is None and not node.children:
            del node.parent.children[node.key]
            node = node.parent


@dataclass(slots=True, frozen=True)
class Slot:
    """A stored state that is in a slot of the context."""

    number: int


class KVCache:
    """The prefix store of one context and the memory of its states.

    States are stored in the context's slots, and, beyond these, in `budget` bytes of the host's memory: the least
    recently used state in a slot makes room for a new one.
    """

    def __init__(self, context: NativeContext, budget: int) -> None:
        self._context = context
        self._buffers = BufferPool()
        self.store = PrefixStore(budget, self._release)
        self._free = list(range(context.lanes, context.lanes + context.slots))
        self._used: OrderedDict[int, Sequence[Segment]] = OrderedDict()  # prefixes in slots, least recently used first

    def restore(self, lane: int, segments: Sequence[Segment]) -> int:
        """Replace a lane's KV by the longest cached prefix of these segments; return its segments' number (0: none)."""
        count, state = self.store.find(segments)
        if state is None:
            self._context.forget(lane)
        elif isinstance(state, Slot):
            self._used.move_to_end(state.number)
            self._context.copy(state.number, lane)
        else:
            self._context.restore(lane, state.data)
        return count

    def save(self, lane: int, path: Sequence[Segment], owner: str = "") -> None:
        """Store a lane's KV, computed for exactly these segments, if slots, budget and memory allow it."""
        if self._context.slots:
            if not self._free:
                number, oldest = self._used.popitem(last=False)
                self._move_to_host(number, oldest)
            number = self._free.pop()
            self._context.copy(lane, number)
            self._used[number] = path
            self.store.put(path, Slot(number), 0, owner)
        elif (buffer := self._to_host(lane)) is not None and not self.store.put(path, buffer, buffer.resident, owner):
            self._buffers.release(buffer)

    def _to_host(self, lane: int) -> Buffer | None:
        """Return a copy of a lane's or slot's KV in the host's memory; None if budget or memory are too small."""
        size, budget = self._context.saved_size(lane), self.store.budget
        if size > budget:
            return None
        self.store.make_room(size)  # first, so that the memory of dropped states can be reused
        try:
            buffer = self._buffers.take(size, budget - self.store.used - size)
        except OSError:  # out of memory: whatever is not cached is computed again
            return None
        self._context.save(lane, buffer.data)
        return buffer

    def _move_to_host(self, number: int, path: Sequence[Segment]) -> None:
        buffer = self._to_host(number)
        if number in self._free:  # its state was the least recently used of all and made room
            if buffer is not None:
                self._buffers.release(buffer)
        elif buffer is not None:
            self.store.replace(path, buffer, buffer.resident)
        else:
            self.store.discard(path)

    def _release(self, state: Any) -> None:
        if isinstance(state, Slot):
            self._used.pop(state.number, None)
            self._context.forget(state.number)
            self._free.append(state.number)
        else:
            self._buffers.release(state)


PromptWriter = Callable[[Sequence[Message]], list[Segment]]


@dataclass(slots=True, frozen=True)
class PromptSplit:
    """A prompt in segments.

    `stable_segments` is the number of segments that surely begin the next prompt, or 0 if all do. `may_continue` is
    True if the next prompt may begin with all segments and the answer.
    """

    segments: list[Segment]
    stable_segments: int = 0
    may_continue: bool = True


def split_prompt(write: PromptWriter, messages: Sequence[Message]) -> PromptSplit:
    """Return the segments that `write` returns, also split where the generation prompt diverges from the next prompt.

    Raises:
        Rejected: Raised by `write`.
    """
    segments = write(messages)
    tokens = _concatenated(segments)
    without_tokens = _stable_length(write, messages, tokens, None)
    if without_tokens == len(tokens):  # then the earlier prompts are prefixes, too
        return PromptSplit(segments)
    with_tokens = _stable_length(write, messages, tokens, [(True, [0])])
    parts = [
        _common_prefix(prompt, tokens)
        for index, message in enumerate(messages)
        if message.role == "assistant" and (prompt := _tokens_or_none(write, messages[:index])) is not None
    ]
    borders = {without_tokens, *(length for length, whole in parts if not whole)}
    ends = [length for length, _ in parts[1:]] + [len(tokens)]
    recomputed = [(length, end) for (length, whole), end in zip(parts, ends, strict=False) if not whole]
    cut = _cut(segments, borders, recomputed)
    sizes = np.cumsum([len(segment.tokens) for segment in cut])
    stable_segments = int(np.searchsorted(sizes, without_tokens)) + 1 if without_tokens else 0
    return PromptSplit(cut, stable_segments, with_tokens == len(tokens))


def continues_from_answer(
    write: PromptWriter, messages: Sequence[Message], segments: list[Segment], answer: Message
) -> bool:
    """Return True if the next prompt begins with these segments and the known tokens of this answer.

    If a template trims answers or inserts something before them, the result depends on the answer's own text.
    """
    following = [Message("tool", "\u00a7", call_id=call.id, name=call.name) for call in answer.calls]
    later = _tokens_or_none(write, [*messages, answer, *(following or [Message("user", "\u00a7")])])
    answer_tokens = [np.array(ids, dtype=np.int32) for _, ids in answer.pieces or []]
    return later is None or _common_prefix(np.concatenate([_concatenated(segments), *answer_tokens]), later)[1]


def _cut(segments: list[Segment], borders: set[int], recomputed: list[tuple[int, int]]) -> list[Segment]:
    """Split the segments at the borders. Answers that begin in a `recomputed` range join their neighbours."""
    made: list[Segment] = []
    start, joins = 0, False
    for segment in segments:
        end = start + len(segment.tokens)
        prompt = segment.decoded and any(first <= start < last for first, last in recomputed)
        places = [start, *sorted(border for border in borders if start < border < end), end]
        for first, last in pairwise(places):
            part = Segment(segment.tokens[first - start : last - start], segment.decoded and not prompt)
            if (joins or prompt) and made and first not in borders and not (made[-1].decoded or part.decoded):
                part = Segment(np.concatenate([made.pop().tokens, part.tokens]))
            made.append(part)
            joins = prompt
        start = end
    return made


def _stable_length(write: PromptWriter, messages: Sequence[Message], tokens: Tokens, pieces: Pieces | None) -> int:
    """Return how many of a prompt's `tokens` begin the next prompt, if the answer has these `pieces`."""
    later = _tokens_or_none(write, [*messages, Message("assistant", "\u00a7", pieces), Message("user", "\u00a7")])
    return len(tokens) if later is None else _common_prefix(tokens, later)[0]


def _tokens_or_none(write: PromptWriter, messages: Sequence[Message]) -> Tokens | None:
    """Return the tokens of a prompt; None if the template refuses it."""
    try:
        return _concatenated(write(messages))
    except Rejected:
        return None


def _concatenated(segments: list[Segment]) -> Tokens:
    return np.concatenate([segment.tokens for segment in segments]) if segments else np.empty(0, dtype=np.int32)


def _common_prefix(prompt: Tokens, tokens: Tokens) -> tuple[int, bool]:
    """Return the length of the common prefix, and True if it is the whole `prompt`."""
    size = min(len(prompt), len(tokens))
    different = np.flatnonzero(prompt[:size] != tokens[:size])
    length = int(different[0]) if len(different) else size
    return length, length == len(prompt)


_MAX_CONVERSATIONS = 50_000


class Affinity:
    """The conversations of one backend and their contexts.

    `assigned` counts the conversations of each context; all backends with the same contexts share this list.
    """

    def __init__(self, assigned: list[int]) -> None:
        self._assigned = assigned
        self._contexts: OrderedDict[str, int] = OrderedDict()

    def assign(self, conversation: str) -> tuple[int, bool]:
        """Return the context of a conversation, and True if the conversation is ongoing.

        A new conversation goes to the context with the fewest conversations. A request without a conversation ("") is
        reported as ongoing and counts until it is answered: the caller must then `release` its context.
        """
        if (context := self._contexts.get(conversation)) is not None:
            self._contexts.move_to_end(conversation)
            return context, True
        context = min(range(len(self._assigned)), key=self._assigned.__getitem__)
        self._assigned[context] += 1
        if not conversation:
            return context, True
        self._contexts[conversation] = context
        if len(self._contexts) > _MAX_CONVERSATIONS:
            self.release(self._contexts.popitem(last=False)[1])
        return context, False

    def release(self, context: int) -> None:
        """Count one conversation fewer at this context."""
        self._assigned[context] -= 1

    def end(self, conversation: str) -> None:
        """Remove an ended conversation; an unknown one is ignored."""
        if (context := self._contexts.pop(conversation, None)) is not None:
            self.release(context)

    def clear(self) -> None:
        """Remove all conversations of this backend."""
        for context in self._contexts.values():
            self.release(context)
        self._contexts.clear()
