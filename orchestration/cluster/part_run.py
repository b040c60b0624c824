"""A part while the cluster holds it: whether a machine has begun it, how far it is, what has become of it.

What never belongs here: decisions (``cluster_sweep``), and what the worker does (``task``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from viva.engine.errors import VivaError

from ..sweep.portion import Portion
from ..sweep.progress import CellRun
from .attempts import numbers, progress_of
from .demands import Amounts, Demand
from .division import Part

_COUNTS = ("done", "failed", "in_flight", "calls", "tokens", "cost")
_TO_DO = ("waiting", "part")


class PartRun:
    """``cells`` tell of the part's cells, or of its share of a cell. ``running``: a machine has begun it."""

    def __init__(self, part: Part, demand: Demand, cells: Sequence[CellRun]) -> None:
        self.part, self.demand, self.cells = part, demand, cells
        self.running = False
        self._before = 0  # attempts that had begun when it was handed to Ray
        self._missing_since: float | None = None

    @property
    def to_do(self) -> bool:
        """Whether something of it is left; a share may have no conversations at all."""
        return any(run.state in _TO_DO and run.total != 0 for run in self.cells)

    def submitted(self, out: Path) -> None:
        """It is about to be handed to Ray."""
        self._before = max(numbers(out, self.part.id), default=0)

    def look(self, out: Path) -> None:
        """Read what its latest attempt tells."""
        number = max(numbers(out, self.part.id), default=0)
        if number > self._before:
            self.running = True
            told = progress_of(out, self.part.id, number).get("cells", {})
            for run in self.cells:
                if run.state in (*_TO_DO, "running"):
                    run.state = "running"
                    _take(run, told.get(run.cell.name, {}))

    def missing_for(self, machines: Sequence[Amounts], now: float) -> tuple[str | None, float]:
        """What no machine has of what it demands (None: one has all), and for how many seconds that has been so."""
        missing = self.demand.missing(machines)
        if missing is None:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        return missing, 0.0 if self._missing_since is None else now - self._missing_since

    def ended(self, told: Mapping[str, Mapping[str, Any]], errors: Mapping[str, VivaError | None]) -> None:
        """Its attempt has come to an end, with these states and errors."""
        self.running = False
        for run in self.cells:
            one = told[run.cell.name]
            _take(run, one)
            run.state, run.total, run.error, run.in_flight = one["state"], one["total"], errors[run.cell.name], 0

    def fail(self, error: VivaError) -> None:
        """What is left of it comes to no end."""
        self.running = False
        for run in self.cells:
            if run.state not in ("done", "stopped", "failed"):
                run.state, run.error, run.in_flight = "failed", error, 0

    def withdraw(self) -> None:
        """It is left for later."""
        self.running = False
        for run in self.cells:
            if run.state == "running":
                run.state, run.in_flight = "part" if run.done else "waiting", 0


def shard_run(run: CellRun, part: Part, out: Path, *, retry_failed: bool) -> CellRun:
    """A share of a cell, as far as it has come in the sweep's folder."""
    own = CellRun(run.cell, run.folder)
    own.take(Portion(share=part.share).find(own, out, retry_failed=retry_failed))
    assert part.share is not None
    if own.folder == run.folder and part.share.index > 1:  # merged: that is the whole cell, which counts once
        own.total = own.done = own.failed = 0
    return own


def add_up(run: CellRun, shards: Iterable[CellRun]) -> None:
    """Make a cell tell what its shards tell together."""
    of = list(shards)
    for name in _COUNTS:
        setattr(run, name, sum(getattr(one, name) for one in of))
    totals = [one.total for one in of]
    run.total = None if None in totals else sum(total for total in totals if total is not None)
    states = ["done" if one.total == 0 else one.state for one in of]
    run.error = next((one.error for one in of if one.error is not None), None)
    if "failed" in states or "running" in states:
        run.state = "running" if "running" in states else "failed"
    elif set(states) == {"done"}:
        run.state = "done"
    else:
        run.state = "part" if run.done else "waiting"


def _take(run: CellRun, told: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        if name in told:
            setattr(run, name, told[name])
    if told.get("total") is not None:
        run.total = told["total"]
