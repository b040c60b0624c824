"""Local models in a sweep: the order of cells that loads weights least often, and which models are in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from viva.engine.backends.registry import BackendPool

from .cells import local_weights


def order_by_weights(needs: Sequence[frozenset[str]]) -> list[int]:
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
    remaining: dict[frozenset[str], list[int]] = {}
    for index, need in enumerate(needs):
        remaining.setdefault(need - shared, []).append(index)
    loaded: frozenset[str] = frozenset()
    order: list[int] = []
    while remaining:
        need = min(remaining, key=lambda candidate: (len(candidate - loaded), -len(candidate & loaded)))
        order += remaining.pop(need)
        loaded = need or loaded
    return order


def weights_of(models: Collection[str]) -> frozenset[str]:
    """The weights that models need in memory."""
    return frozenset(weights for model in models if (weights := local_weights(model)) is not None)


class LoadedModels:
    """``units`` are the models that each unit of cells needs, in the order of running; at most ``most`` weights besides
    those that all units share are in memory at once, or as many as one unit needs.
    """

    def __init__(self, pool: BackendPool, units: Sequence[Collection[str]], limit: int) -> None:
        self._pool, self._limit = pool, limit
        self._units = [frozenset(model for model in models if local_weights(model)) for models in units]
        needs = [weights_of(models) for models in self._units]
        self._shared = frozenset.intersection(*needs) if needs else frozenset[str]()
        self._open: set[str] = set()
        self._next = 0  # the first unit that has not begun

    async def make_room(self, in_use: Collection[str]) -> bool:
        """Before the next unit begins: close what it leaves no room for; False if that is still ``in_use``."""
        needed = weights_of(self._units[self._next])
        allowed = max(self._limit, len(needed - self._shared))
        while len((weights_of(self._open) | needed) - self._shared) > allowed:
            idle = weights_of(self._open) - weights_of(in_use) - needed - self._shared
            if not idle:
                return False
            latest = max(sorted(idle), key=self._next_use)
            await self._close([model for model in self._open if local_weights(model) == latest])
        return True

    def begin(self) -> None:
        """The next unit begins: its cells open what they need."""
        self._open |= self._units[self._next]
        self._next += 1

    async def close_unused(self, in_use: Collection[str]) -> None:
        """After a cell has ended: close what no cell under way and none to come needs."""
        later = frozenset[str]().union(*self._units[self._next :])
        await self._close([model for model in self._open if model not in in_use and model not in later])

    def _next_use(self, weights: str) -> int:
        later = (at for at in range(self._next, len(self._units)) if weights in weights_of(self._units[at]))
        return next(later, len(self._units))

    async def _close(self, models: list[str]) -> None:
        for model in sorted(models):
            self._open.discard(model)
            await self._pool.close(model)
