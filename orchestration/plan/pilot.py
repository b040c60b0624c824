"""A pilot: a share of a sweep held for real, in the sweep's own folder, so that the sweep goes on behind it.

What never belongs here: what is made of it (``plan``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from viva.engine.backends.base import Backend
from viva.engine.clock import Clock
from viva.engine.runner import Outcome, Plan

from ..launch import continued_run, empty_results
from ..prepared_run import PreparedRun
from ..sweep.file import read_file
from ..sweep.progress import CellRun
from ..sweep.stopping import Stopping
from ..sweep.sweep import Sweep, planned_sweep

FEWEST = 3  # conversations of a cell; one of them would say nothing of how much they differ


class Pilot(Sweep):
    """As ``Sweep``, of which each cell holds ``share`` of its conversations, ``FEWEST`` at least.

    They are spread evenly over the cell's, for their order may mean something; where items come in random order, they
    are the first.
    """

    share: float = 0.05

    async def _launch(self, run: CellRun, stopping: Stopping | None) -> Outcome:
        cell = run.cell
        launch = continued_run(
            cell.scenario, cell.settings, self.out / cell.name, self.clock, retry_failed=self.retry_failed
        )
        launch.prepared = _Part(launch.prepared, self.share, evenly=self.recorded.until is None)
        run.aggregate = empty_results(launch.folder)
        launch.events.listen(run.hear)
        return await launch.run(run.carried_by, self._shared)


class _Part(PreparedRun):
    """Some of a run's conversations, under their own numbers and keys."""

    def __init__(self, whole: PreparedRun, share: float, *, evenly: bool) -> None:
        self.__dict__.update(whole.__dict__)
        self._whole, self._evenly = whole.total, evenly
        self.total = min(whole.total, max(FEWEST, math.ceil(share * whole.total)))

    def plans(self, backends: dict[str, Backend]) -> Iterator[Plan]:
        for place, plan in enumerate(super().plans(backends)):
            if self._chosen(place):
                yield plan

    def _chosen(self, place: int) -> bool:
        if not self._evenly:
            return place < self.total
        return (place + 1) * self.total // self._whole > place * self.total // self._whole


def pilot_of(file: Path, out: Path | None, share: float, clock: Clock | None = None, **how: Any) -> Pilot:
    """The pilot of the sweep in a file; ``out``, ``clock`` and ``how`` as for ``planned_sweep``.

    :raises ConfigurationError: the file is wrong.
    :raises ValueError: ``share`` is not above 0 and at most 1.
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share is {share}; it is above 0 and at most 1")
    whole, (checked, _) = planned_sweep(file, out, clock), read_file(file)
    pilot = Pilot(whole.recorded, checked, whole.out, whole.clock, **how)
    pilot.share = share
    return pilot
