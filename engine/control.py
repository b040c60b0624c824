"""Gate before a run's calls: while the run goes on, it holds back the calls of all models or of single ones."""

from __future__ import annotations

import asyncio

from .cancellation import cancellable_wait

EVERY = ""  # instead of a model's label: all models


class Gate:
    """Gate of one run. `closed` is True if it holds back any calls; nothing else is asked on the hot path."""

    __slots__ = ("_changed", "_labels", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._labels: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def closed_for(self) -> frozenset[str]:
        """Labels of the models whose calls are held back, or `EVERY`."""
        return frozenset(self._labels)

    def hold(self, label: str = EVERY) -> None:
        """Hold back the calls that begin from now on."""
        self._labels.add(label)
        self.closed = True

    def release(self, label: str = EVERY) -> None:
        """Let calls begin again."""
        self._labels.discard(label)
        self.closed = bool(self._labels)
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, label: str) -> None:
        """Wait until calls of this model may begin; raise `RunStopping` once the run is asked to stop."""
        while self._labels & {EVERY, label}:
            with cancellable_wait():
                await self._changed.wait()
