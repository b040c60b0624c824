"""The order in which a sweep's cells run: such that the weights of local models are loaded as rarely as possible.

Pure. What never belongs here: loading, and any other reason to run one cell before another.
"""

from __future__ import annotations

from collections.abc import Sequence


def ordered(needs: Sequence[frozenset[str]]) -> list[int]:
    """The places of ``needs`` in the order to run.

    ``needs`` says for each unit which weights it needs in memory. What all units need stays there and counts for
    nothing. Units of the same need run one after the other; after a need comes the one that has the fewest weights to
    load, of those the one that keeps most, of those the first. Where needs differ in one model that is the fewest loads
    there can be, each of the models once; where they differ in two (every candidate with every evaluator) it goes to
    and fro through the grid.
    """
    if not needs:
        return []
    shared = frozenset.intersection(*needs)
    left: dict[frozenset[str], list[int]] = {}
    for place, need in enumerate(needs):
        left.setdefault(need - shared, []).append(place)
    loaded: frozenset[str] = frozenset()
    order: list[int] = []
    while left:
        need = min(left, key=lambda one: (len(one - loaded), -len(one & loaded)))
        order += left.pop(need)
        loaded = need or loaded
    return order
