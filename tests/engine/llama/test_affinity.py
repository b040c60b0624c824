"""Seats: a talk stays where it began, new ones go where the fewest are, and what has gone counts no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from viva.engine.backends.llama.affinity import Seats

STEPS = st.lists(st.tuples(st.sampled_from(["take", "end", "alone"]), st.integers(0, 9), st.integers(0, 1)))


@given(STEPS, st.integers(1, 4))
def test_talks_stay_and_are_spread_evenly(steps: list[tuple[str, int, int]], contexts: int) -> None:
    taken = [0] * contexts
    backends = [Seats(taken), Seats(taken)]  # two that share the contexts
    known: dict[tuple[int, str], int] = {}
    for what, number, which in steps:
        seats, talk = backends[which], f"talk-{number}"
        fewest = min(taken)
        if what == "end":
            seats.end(talk)
            known.pop((which, talk), None)
        elif what == "alone":
            seat, begun = seats.take("")
            assert begun
            assert taken[seat] == fewest + 1
            seats.leave(seat)
        else:
            seat, begun = seats.take(talk)
            assert begun == ((which, talk) in known)
            assert seat == known.setdefault((which, talk), seat)
            assert begun or taken[seat] == fewest + 1
        assert taken == [list(known.values()).count(context) for context in range(contexts)]
    for seats in backends:
        seats.clear()
    assert taken == [0] * contexts
