"""Affinity: a conversation keeps its context, new ones go to the emptiest, and ended ones no longer count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from viva.engine.backends.llama.kv_reuse import Affinity

STEPS = st.lists(st.tuples(st.sampled_from(["assign", "end", "alone"]), st.integers(0, 9), st.integers(0, 1)))


@given(STEPS, st.integers(1, 4))
def test_conversations_keep_their_context_and_are_spread_evenly(
    steps: list[tuple[str, int, int]], contexts: int
) -> None:
    assigned = [0] * contexts
    backends = [Affinity(assigned), Affinity(assigned)]  # two that share the contexts
    known: dict[tuple[int, str], int] = {}
    for what, number, which in steps:
        affinity, conversation = backends[which], f"conversation-{number}"
        fewest = min(assigned)
        if what == "end":
            affinity.end(conversation)
            known.pop((which, conversation), None)
        elif what == "alone":
            context, ongoing = affinity.assign("")
            assert ongoing
            assert assigned[context] == fewest + 1
            affinity.release(context)
        else:
            context, ongoing = affinity.assign(conversation)
            assert ongoing == ((which, conversation) in known)
            assert context == known.setdefault((which, conversation), context)
            assert ongoing or assigned[context] == fewest + 1
        assert assigned == [list(known.values()).count(context) for context in range(contexts)]
    for affinity in backends:
        affinity.clear()
    assert assigned == [0] * contexts
