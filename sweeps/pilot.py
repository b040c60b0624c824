"""Pilot: a fraction of a sweep's conversations, run in the sweep's folder, so that the sweep can continue there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from viva.engine.backends.base import Backend
from viva.engine.clock import Clock
from viva.engine.runner import Outcome, Plan
from viva.orchestration.launch import continued_run, empty_results
from viva.orchestration.prepared_run import PreparedRun

from .cell_run import CellRun
from .early_stopping import CellWatch
from .sweep import Sweep, open_sweep
from .sweep_file import read_sweep_file

FEWEST_CONVERSATIONS = 3  # conversations of a cell; a single one would not show how much conversations vary


class Pilot(Sweep):
    """Sweep whose cells each run a `fraction` of their conversations, at least `FEWEST_CONVERSATIONS`.

    These conversations are spread evenly over the cell, because the order of items may have a meaning. If items come in
    random order, the cell's first conversations are run.
    """

    fraction: float = 0.05

    async def _launch(self, run: CellRun, stopping: CellWatch | None) -> Outcome:
        cell = run.cell
        launch = continued_run(
            cell.scenario, cell.settings, self.out / cell.name, self.clock, retry_failed=self.retry_failed
        )
        launch.prepared = _PilotRun(launch.prepared, self.fraction, evenly=self.recorded.until is None)
        run.aggregate = empty_results(launch.folder)
        launch.events.listen(run.hear)
        return await launch.run(run.on_started, self._shared)


class _PilotRun(PreparedRun):
    """Subset of a run's conversations; they keep the numbers and keys that they have in the run."""

    def __init__(self, run: PreparedRun, fraction: float, *, evenly: bool) -> None:
        self.__dict__.update(run.__dict__)
        self._planned, self._evenly = run.total, evenly
        self.total = min(run.total, max(FEWEST_CONVERSATIONS, math.ceil(fraction * run.total)))

    def plans(self, backends: dict[str, Backend]) -> Iterator[Plan]:
        for index, plan in enumerate(super().plans(backends)):
            if self._chosen(index):
                yield plan

    def _chosen(self, index: int) -> bool:
        if not self._evenly:
            return index < self.total
        return (index + 1) * self.total // self._planned > index * self.total // self._planned


def open_pilot(file: Path, out: Path | None, fraction: float, clock: Clock | None = None, **options: Any) -> Pilot:
    """Open the pilot of the sweep in a file; `out`, `clock` and `options` as in `open_sweep`.

    Raises:
        ConfigurationError: The file is wrong.
        ValueError: `fraction` is not above 0 and at most 1.
    """
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"fraction is {fraction}; expected a number above 0 and at most 1")
    sweep, (checked, _) = open_sweep(file, out, clock), read_sweep_file(file)
    pilot = Pilot(sweep.recorded, checked, sweep.out, sweep.clock, **options)
    pilot.fraction = fraction
    return pilot
