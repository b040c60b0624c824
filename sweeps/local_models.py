"""Local models in a sweep: an order of cells that loads weights rarely, and the models in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from viva.engine.backends.registry import BackendPool

from .cells import local_weights


def order_by_weights(needs: Sequence[frozenset[str]]) -> list[int]:
    """Return the indices of `needs` in the order to run.

    `needs` has the weights that each unit needs in memory. Weights that all units need stay loaded and are ignored.
    Units with equal needs run consecutively. The next unit is the one that loads the fewest weights; among equals, the
    one that keeps most loaded weights, then the first. If needs differ in one model, each model is loaded once, which
    is optimal. If they differ in two (every candidate with every evaluator), the order goes back and forth in the grid.
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
    """Return the weights that models need in memory."""
    return frozenset(weights for model in models if (weights := local_weights(model)) is not None)


class LoadedModels:
    """Local models in memory.

    `units` are the models of each unit of cells in running order. Besides the weights that all units share, at most
    `limit` weights are in memory at once, or as many as one unit needs if that is more.
    """

    def __init__(self, pool: BackendPool, units: Sequence[Collection[str]], limit: int) -> None:
        self._pool, self._limit = pool, limit
        self._units = [frozenset(model for model in models if local_weights(model)) for models in units]
        needs = [weights_of(models) for models in self._units]
        self._shared = frozenset.intersection(*needs) if needs else frozenset[str]()
        self._open: set[str] = set()
        self._next = 0  # index of the first unit that has not begun

    async def make_room(self, in_use: Collection[str]) -> bool:
        """Close models to make room for the next unit; return False if models that must be closed are `in_use`."""
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
        """Register the models of the next unit, which its cells are about to open."""
        self._open |= self._units[self._next]
        self._next += 1

    async def close_unused(self, in_use: Collection[str]) -> None:
        """Close models that are not `in_use` and that no further cell needs."""
        later = frozenset[str]().union(*self._units[self._next :])
        await self._close([model for model in self._open if model not in in_use and model not in later])

    def _next_use(self, weights: str) -> int:
        later = (at for at in range(self._next, len(self._units)) if weights in weights_of(self._units[at]))
        return next(later, len(self._units))

    async def _close(self, models: list[str]) -> None:
        for model in sorted(models):
            self._open.discard(model)
            await self._pool.close(model)
