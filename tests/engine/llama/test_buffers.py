"""Memory for saved KV is used again, never by two at once, and idle memory stays within what is allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from viva.engine.backends.llama.buffers import Buffers, Memory, capacity

operations = st.lists(st.tuples(st.booleans(), st.integers(1, 5_000)), max_size=200)


@given(operations, st.integers(0, 20_000))
def test_no_memory_is_held_twice_and_what_is_idle_is_counted(steps: list[tuple[bool, int]], most_idle: int) -> None:
    buffers = Buffers()
    held: list[Memory] = []
    idle: list[Memory] = []
    for taking, number in steps:
        if taking:
            memory = buffers.take(number, most_idle)
            assert number <= memory.nbytes <= max(capacity(number), 2 * number)
            assert all(memory is not other for other in held)
            if any(memory is other for other in idle):
                idle = [other for other in idle if other is not memory]
            else:  # it is new: all but so much of what lay idle was let go first
                assert buffers.free <= most_idle
                idle = [other for _, _, other in buffers._free]
            held.append(memory)
        elif held:
            idle.append(held.pop(number % len(held)))
            buffers.give(idle[-1])
        assert buffers.free == sum(memory.nbytes for memory in idle)


@given(st.integers(1, 10**9))
def test_a_new_buffer_is_an_eighth_larger_at_most(size: int) -> None:
    assert size <= capacity(size) <= size + size // 8 + 1


def test_what_one_state_leaves_the_next_takes() -> None:
    buffers = Buffers()
    first = buffers.take(1_000, 0)
    first[:] = 7
    buffers.give(first)
    assert buffers.take(900, 0) is first
    buffers.give(first)
    assert buffers.take(100, 10_000) is not first  # far too large: left for others
    assert buffers.take(1_000, 0) is first
