"""Memory for saved KV is used again, never by two at once, and idle memory stays within what is allowed."""

from __future__ import annotations

import errno
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.engine.backends.llama.kv_reuse import Buffer, BufferPool
from viva.engine.backends.llama.native import Regions, added_regions, private_memory, use_huge_pages

operations = st.lists(st.tuples(st.booleans(), st.integers(1, 5_000)), max_size=200)


@given(operations, st.integers(0, 20_000))
def test_no_memory_is_held_twice_and_what_is_idle_is_counted(steps: list[tuple[bool, int]], most_idle: int) -> None:
    buffers = BufferPool()
    held: list[Buffer] = []
    idle: list[Buffer] = []
    for taking, number in steps:
        if taking:
            before = {id(memory): memory.resident for memory in idle}
            memory = buffers.take(number, most_idle)
            assert number <= memory.resident <= memory.data.nbytes
            assert memory.resident < 1.25 * number or number == memory.resident
            assert all(memory is not other for other in held)
            if before.get(id(memory)) != memory.resident:  # more is in use: all but so much of what lay idle was let go
                assert buffers.idle_bytes <= most_idle
            idle = [other for _, _, other in buffers._idle]
            assert all(memory is not other for other in idle)
            held.append(memory)
        elif held:
            idle.append(held.pop(number % len(held)))
            buffers.release(idle[-1])
        assert buffers.idle_bytes == sum(memory.resident for memory in idle)


def test_what_one_state_leaves_the_next_takes() -> None:
    buffers = BufferPool()
    first = buffers.take(1_000, 0)
    buffers.release(first)
    assert buffers.take(900, 0) is first
    assert first.resident == 1_000  # of which all exists, though no more than 900 are wanted
    buffers.release(first)
    assert buffers.take(800, 10_000) is not first  # too large: left for others
    assert buffers.take(1_000, 0) is first


def test_a_state_that_has_grown_takes_the_memory_of_one_that_had_not() -> None:
    buffers = BufferPool()
    small, middle = buffers.take(600, 0), buffers.take(1_000, 0)
    buffers.release(small)
    buffers.release(middle)
    assert buffers.take(1_200, 10_000) is middle  # both have the room; of this one more exists already
    assert middle.resident == 1_200
    assert buffers.take(1_201, 10_000) is not small  # which has no room for it
    assert buffers.take(1_200, 10_000) is small


def test_where_addresses_are_short_no_more_is_reserved_than_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = mmap.mmap

    def short(number: int, size: int, **flags: int) -> mmap.mmap:
        if size > 1_000:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return pages(number, size, **flags)

    monkeypatch.setattr(mmap, "mmap", short)
    assert BufferPool().take(800, 0).data.nbytes == 800


@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory from /proc")
def test_what_is_let_go_is_the_systems_again_though_its_neighbours_stay() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    buffers = BufferPool()
    buffers.release(buffers.take(2**22, 0))
    buffers.take(2**24, 0)  # the first is let go, upon which a C library may take to its heap for what is smaller
    held = [buffers.take(2**20, 0) for _ in range(64)]
    for memory in held:
        memory.data[: memory.resident] = 1
    full = resident()
    for _ in range(32):
        buffers.release(held.pop(len(held) // 2))
    del memory
    buffers.take(2**22, 0)  # nothing that lies idle has room for it, and nothing may lie idle
    assert full - resident() > 30 * 2**20


@pytest.mark.parametrize(
    ("before", "after", "added"),
    [
        ([], [(0, 4)], [(0, 4)]),
        ([(0, 4)], [(0, 4)], []),
        ([(2, 4)], [(0, 6)], [(0, 2), (4, 6)]),  # neighbours on both sides were merged with it
        ([(0, 2), (4, 6)], [(0, 8)], [(2, 4), (6, 8)]),
        ([(0, 4)], [(2, 6), (8, 9)], [(4, 6), (8, 9)]),
        ([(0, 4)], [(1, 2)], []),
        ([(5, 6)], [(0, 1)], [(0, 1)]),
    ],
)
def test_only_new_memory_counts_as_added(before: Regions, after: Regions, added: Regions) -> None:
    assert added_regions(before, after) == added


def test_memory_in_huge_pages_keeps_its_contents() -> None:
    before = private_memory()
    memory = np.frombuffer(mmap.mmap(-1, 48 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    contents = np.random.default_rng(1).bytes(memory.nbytes)
    memory[:] = np.frombuffer(contents, dtype=np.uint8)
    regions = added_regions(before, private_memory())
    if before:  # systems without /proc tell nothing
        start, end = memory.ctypes.data, memory.ctypes.data + memory.nbytes
        assert sum(max(0, min(end, last) - max(start, first)) for first, last in regions) == memory.nbytes
    use_huge_pages(regions)
    assert memory.tobytes() == contents
