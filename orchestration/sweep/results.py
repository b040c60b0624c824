"""A sweep read back: its cells as their folders have them, for reports.

No model is opened and no dataset is read. What never belongs here: scores and tables.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viva.engine.errors import JournalNotice
from viva.engine.folder import RunFolder
from viva.scenarios.registry import recorded_scenario

from ..share import Share
from .cell_state import recorded_run
from .cells import groups
from .parts import part_of
from .record import read_sweep
from .shards import shards_of
from .stopping import Stopping, clusters_in
from .sweep_folder import is_sweep

__all__ = ["RecordedCell", "cells_of", "is_sweep", "planned_of", "whole_of"]


@dataclass(slots=True)
class RecordedCell:
    """One cell. ``name`` is its folder below the sweep's, ``candidate`` and ``evaluator`` are labels (``evaluator``
    None where nobody judges), ``model`` the candidate's name in full, ``dataset`` its name as manifests have it.

    ``folder`` is None where the cell has not begun, or where what lies there was made with other settings; ``planned``
    counts its conversations (None: not begun). ``until`` is the record of the watch over it (``Watch.to_record``), None
    where no rule ends interviews early; under ``decided`` all candidates on the same items have the same one.
    """

    name: str
    scenario: str
    candidate: str
    model: str
    dataset: str
    seed: int
    evaluator: str | None
    folder: RunFolder | None
    planned: int | None
    until: dict[str, Any] | None


def cells_of(folder: Path) -> list[RecordedCell]:
    """The cells of the sweep in a folder, in the order of its file. Shards that are not merged are told as a notice.

    :raises ConfigurationError: the folder is not that of a sweep.
    :raises JournalError: a journal that a rule must look at cannot be read.
    """
    recorded = read_sweep(folder)
    found: dict[str, RecordedCell] = {}
    for cell in recorded.cells:
        run = recorded_run(folder / cell.name, cell)
        found[cell.name] = RecordedCell(
            cell.name,
            cell.scenario,
            cell.candidate,
            cell.model,
            cell.dataset if run is None else str(run.manifest["dataset"]["name"]),
            cell.seed,
            cell.evaluator,
            run,
            None if run is None else planned_of(run),
            None,
        )
    apart = sum(one.folder is None and bool(shards_of(folder / one.name)) for one in found.values())
    if apart:
        said = f"{folder}: {apart} of {len(found)} cells are held in shards that are not merged: `viva merge {folder}`"
        warnings.warn(said, JournalNotice, stacklevel=2)
    until = recorded.until
    if until is not None:
        scored = [cell for cell in recorded.cells if part_of(cell.scenario).scored]
        for group in groups(scored, until.decided):
            runs = {cell.name: run for cell in group if (run := found[cell.name].folder) is not None}
            if runs:
                largest = max(runs.values(), key=planned_of)
                stopping = Stopping(until, group, planned_of(largest), clusters_in(largest.manifest))
                for cell in group:
                    if cell.name in runs:
                        stopping.read(cell, runs[cell.name])
                for cell in group:
                    found[cell.name].until = stopping.watch.to_record()
    return list(found.values())


def planned_of(run: RunFolder) -> int:
    """How many conversations a cell's run is to hold; of a shard, those of its share."""
    share, whole = Share.of_manifest(run.manifest), whole_of(run)
    return whole if share is None else share.count(whole)


def whole_of(run: RunFolder) -> int:
    """As ``planned_of``; of a shard, how many all shards are to hold."""
    which = recorded_scenario(run.manifest)
    settings = which.settings.model_construct(**run.manifest["settings"])
    return which.tasks_in(run.manifest) * which.repeats(settings)
