"""State of a cell: read from the cell's folder without opening a model, and updated while the cell runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio

from viva.engine.errors import ConfigurationError, JournalError, VivaError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.engine.runner import Outcome, Runner
from viva.orchestration.completeness import planned_in_total
from viva.orchestration.launch import check_settings, check_unchanged
from viva.orchestration.prepared_run import PreparedRun, Shard
from viva.orchestration.run_progress import RunProgress
from viva.scenarios.registry import get_scenario
from viva.scenarios.run_settings import BANK_FILE
from viva.scoring.aggregates import ItemClusters

from .cells import Cell
from .early_stopping import read_clusters

# waiting: not begun. part: begun and not finished. stopped: ended early by the stopping rule.
CellStatus = Literal["waiting", "part", "running", "done", "stopped", "failed"]


@dataclass(slots=True)
class CellState:
    """State of a cell. `planned`, `finished` (without failed ones) and `failed` count conversations.

    `run` is None if nothing has been recorded; `error` says why a cell cannot continue. `clusters` has the clusters of
    items if items are taken in whole clusters; None if they are taken one by one.
    """

    state: CellStatus
    planned: int | None = None
    finished: int = 0
    failed: int = 0
    run: RunFolder | None = None
    error: VivaError | None = None
    clusters: ItemClusters | None = None


def read_cell_state(cell: Cell, folder: Path, shard: Shard | None = None, *, retry_failed: bool = False) -> CellState:
    """Return the progress of a cell, or of one shard of it, from the folder of its run.

    Stopping rules are not evaluated. With `retry_failed`, a cell with failed conversations is unfinished. The state is
    failed if the dataset is broken, the folder has other settings, or the dataset or prompt pack has changed.
    """
    scenario = get_scenario(cell.scenario)
    planned: int | None = None
    clusters: ItemClusters | None = None
    run: RunFolder | None = None
    settings = cell.settings
    try:
        if (folder / "manifest.json").exists():
            run = RunFolder.open(folder)
            check_settings(run, cell.scenario, cell.settings)
            settings = cell.settings.model_copy()
            if run.manifest["prompts"] is not None:
                settings.remember_prompts(run.manifest["prompts"])
        bank = None if run is None else folder / BANK_FILE
        prepared = PreparedRun(scenario, settings, shard, None if run is None else run.manifest, bank)
        planned, clusters = prepared.total, read_clusters(prepared.opened.records)
        if run is not None:
            check_unchanged(run, prepared)
    except VivaError as error:
        return CellState("failed", planned, error=error)
    if run is None:
        return CellState("waiting", planned, clusters=clusters)
    if not run.begun:
        return CellState("part", planned, clusters=clusters)
    try:
        with History(run.journal) as history:
            ended, finished = len(history.ended_numbers()), len(history.ended_numbers(failed=False))
        if prepared.is_adaptive:
            planned = planned_in_total(run) or planned  # of ended exams: the items that were chosen
    except JournalError as error:
        return CellState("failed", planned, error=error)
    at_end = (finished if retry_failed else ended) >= planned
    return CellState("done" if at_end else "part", planned, finished, ended - finished, run, clusters=clusters)


def open_recorded_run(folder: Path, cell: Cell) -> RunFolder | None:
    """Return a cell's run; None if it has not begun in the cell's folder, or if another run is there."""
    try:
        run = RunFolder.open(folder)
        check_settings(run, cell.scenario, cell.settings)
    except ConfigurationError:
        return None
    return run if run.begun else None


class CellRun(RunProgress):
    """Progress of a cell while it runs.

    `total` is the number of planned conversations, `folder` the run's folder, and `shard` the shard this process runs
    (None: the whole cell).
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        super().__init__()
        self.cell, self.folder = cell, folder
        self.shard: Shard | None = None
        self.state: CellStatus = "waiting"
        self.total: int | None = None
        self.error: VivaError | None = None
        self.runner: Runner | None = None
        self._headline = ""
        self._before = 0, 0

    @property
    def headline(self) -> str:
        """Score so far; empty if there is no score, or it has not been read."""
        if self.aggregate is None:
            return self._headline
        return self.aggregate.headline().removeprefix(self.cell.candidate).strip()

    def apply(self, state: CellState) -> None:
        """Take over the state read from the cell's folder."""
        self.state, self.total, self.error = state.state, state.planned, state.error
        self.done, self.failed = state.finished + state.failed, state.failed

    def progress_record(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        return {"state": self.state, "planned": self.total, "done": self.done}

    def on_stopped_by_rule(self) -> None:
        """Mark the cell as stopped early, unless it has finished or failed."""
        if self.state in ("waiting", "part"):
            self.state = "stopped"

    def on_begin(self) -> None:
        """Mark the cell as running; its dataset and models are about to be opened."""
        self.state = "running"
        self._before = self.done, self.failed
        self.done = self.failed = 0  # the run reports recorded conversations again
        self.opening = anyio.CancelScope()
        self.begun = anyio.Event()

    def on_started(self, runner: Runner) -> None:
        """Register the runner once conversations can start."""
        self.runner = runner
        self.begun.set()

    def on_end(self, outcome: Outcome | None, error: VivaError | None, *, stopped: bool) -> None:
        """Record the end: an outcome, an error, or neither if the cell was interrupted before it began."""
        self._headline, self.aggregate = self.headline, None
        if self.runner is None:  # no conversation could start: restore the recorded counts
            self.done, self.failed = self._before
        self.runner, self.in_flight = None, 0
        self.begun.set()
        if outcome is not None:
            error = outcome.error
        if error is not None:
            self.state, self.error = "failed", error
        elif outcome is not None and (outcome.how == "done" or self.done == self.total):
            self.state = "done"
        else:
            self.state = "stopped" if stopped else "part" if outcome is not None or self.done else "waiting"
