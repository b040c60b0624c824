"""How far a cell has come, read from its folder: what is finished is known without opening any model.

What never belongs here: running (``sweep``) and results (``results``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from viva.engine.errors import ConfigurationError, JournalError, VivaError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.scenarios.registry import scenario
from viva.scoring.item_clusters import Clusters

from ..launch import check_settings, check_unchanged
from ..prepared_run import PreparedRun
from ..share import Share
from .cells import Cell
from .stopping import clusters_in

# waiting: has not begun. part: begun, and not at its end. stopped: its rule ended it before everything was held.
State = Literal["waiting", "part", "running", "done", "stopped", "failed"]


@dataclass(slots=True)
class CellState:
    """``planned``, ``finished`` and ``failed`` count conversations; ``run`` is None where nothing has been recorded,
    ``error`` says why a cell cannot go on. ``clusters`` are those in which its items are taken, None of one by one.
    """

    state: State
    planned: int | None = None
    finished: int = 0
    failed: int = 0
    run: RunFolder | None = None
    error: VivaError | None = None
    clusters: Clusters | None = None


def cell_state(cell: Cell, folder: Path, share: Share | None = None, *, retry_failed: bool = False) -> CellState:
    """How far a cell, or a share of it, has come in the folder of its run; rules that end interviews early are not
    asked here.

    With ``retry_failed`` a cell with failed conversations is not at its end. What cannot go on is a standing, too: its
    dataset is broken, its folder holds other settings, its dataset or pack has changed since.
    """
    which = scenario(cell.scenario)
    planned: int | None = None
    clusters: Clusters | None = None
    run: RunFolder | None = None
    settings = cell.settings
    try:
        if (folder / "manifest.json").exists():
            run = RunFolder.open(folder)
            check_settings(run, cell.scenario, cell.settings)
            settings = cell.settings.model_copy()
            if run.manifest["prompts"] is not None:
                settings.remember_prompts(run.manifest["prompts"])
        prepared = PreparedRun(which, settings, share)
        planned, clusters = prepared.total, clusters_in(prepared.opened.records)
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
    except JournalError as error:
        return CellState("failed", planned, error=error)
    at_end = (finished if retry_failed else ended) >= planned
    return CellState("done" if at_end else "part", planned, finished, ended - finished, run, clusters=clusters)


def recorded_run(folder: Path, cell: Cell) -> RunFolder | None:
    """A cell's run in its folder, as far as it has come; None if it has not begun, or if another run lies there."""
    try:
        run = RunFolder.open(folder)
        check_settings(run, cell.scenario, cell.settings)
    except ConfigurationError:
        return None
    return run if run.begun else None
