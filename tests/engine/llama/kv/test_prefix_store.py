"""The prefix store against a dictionary: same answers, exact bytes, never over budget, no node without a use."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import numpy as np
from case_tables import case_table

from viva.engine.backends.llama.kv_reuse import PrefixStore, SegmentKey
from viva.engine.backends.llama.native import Segment

Path = tuple[SegmentKey, ...]


def run(*tokens: int, decoded: bool = False) -> Segment:
    return Segment(np.array(tokens, dtype=np.int32), decoded)


def path_of(segments: list[Segment]) -> Path:
    return tuple(segment.key() for segment in segments)


def nodes(store: PrefixStore) -> set[Path]:
    """The paths of all nodes but the root."""
    found: set[Path] = set()
    waiting: list[tuple[Path, Any]] = [((), store._root)]
    while waiting:
        path, node = waiting.pop()
        for key, child in node.children.items():
            found.add((*path, key))
            waiting.append(((*path, key), child))
    return found


class Plain:
    """What the store should do, in the most obvious way."""

    def __init__(self, budget: int) -> None:
        self.budget, self.evictions, self.hits, self.missed = budget, 0, 0, 0
        self.kept: OrderedDict[Path, tuple[object, int]] = OrderedDict()  # least recently used first

    @property
    def used(self) -> int:
        return sum(size for _, size in self.kept.values())

    def find(self, segments: list[Segment]) -> tuple[int, object]:
        path = path_of(segments)
        count = next((n for n in range(len(path), 0, -1) if path[:n] in self.kept), 0)
        self.hits += sum(len(segment.tokens) for segment in segments[:count])
        self.missed += sum(len(segment.tokens) for segment in segments[count:])
        if count == 0:
            return 0, None
        self.kept.move_to_end(path[:count])
        return count, self.kept[path[:count]][0]

    def keep(self, segments: list[Segment], state: object, size: int) -> bool:
        if size > self.budget or not segments:
            return False
        self.kept.pop(path_of(segments), None)
        self.kept[path_of(segments)] = (state, size)
        while self.used > self.budget:
            self.kept.popitem(last=False)
            self.evictions += 1
        return True


@case_table(("seed", "budget"), [(1, 0), (2, 7), (3, 25), (4, 100), (5, 10**6)])
def test_ten_thousand_operations_equal_a_dictionary(seed: int, budget: int) -> None:
    rng = random.Random(seed)
    store, plain = PrefixStore(budget), Plain(budget)
    largest = min(budget, 200) + 2
    for step in range(10_000 if budget < 1000 else 3_000):
        segments = [
            run(*rng.choices((1, 2), k=rng.randint(1, 2)), decoded=rng.random() < 0.3) for _ in range(rng.randint(0, 4))
        ]
        path = path_of(segments)
        match rng.choice(("keep", "keep", "find", "find", "drop", "has")):
            case "keep":
                # Half of the states are small, so that several fit; a few are larger than everything.
                state, size = (path, step), rng.randint(0, rng.choice((largest, max(1, budget // 5))))
                assert store.put(segments, state, size) == plain.keep(segments, state, size)
            case "find":
                count, state = store.find(segments)
                assert (count, state) == plain.find(segments)
                assert state is None if count == 0 else state[0] == path[:count]
            case "drop":
                store.drop(segments)
                plain.kept.pop(path, None)
            case "has":
                assert store.has(segments) == (path in plain.kept)
        assert store.used == plain.used <= budget
        if step % 20 == 0:
            assert nodes(store) == {kept[:n] for kept in plain.kept for n in range(1, len(kept) + 1)}
    assert list(plain.kept) == [state[0] for state in (node.state for node in store._recent.values())]
    assert store.statistics() == {
        "hit_tokens": plain.hits,
        "computed_tokens": plain.missed,
        "bytes": plain.used,
        "states": len(plain.kept),
        "evictions": plain.evictions,
    }


def test_what_was_kept_for_a_talk_goes_with_it_and_memory_is_handed_back() -> None:
    gone: list[str] = []
    store = PrefixStore(20, gone.append)
    store.put([run(1)], "shared", 1)
    store.put([run(1), run(2)], "mine", 2, "talk")
    store.put([run(1), run(2), run(3)], "my newest", 3, "talk")
    store.put([run(1), run(4)], "another's", 4, "other talk")
    store.put([run(1), run(2)], "of both", 5, "other talk")
    store.drop([run(1), run(2)], "talk")  # it is not its alone
    assert gone == ["mine"]
    store.release("talk")
    store.release("talk")
    store.release("nobody")
    assert gone == ["mine", "my newest"]
    assert [store.find([run(1), run(token)])[1] for token in (2, 3, 4)] == ["of both", "shared", "another's"]
    store.release("other talk")
    assert gone[-1] == "another's"
    store.put([run(5)], "large", 20)
    assert sorted(gone) == ["another's", "mine", "my newest", "of both", "shared"]
    assert (store.used, len(nodes(store))) == (20, 1)
    store.drop([run(5)])
    assert (store.used, gone[-1]) == (0, "large")
