"""Recorded sweep: `sweep.json` (contents of its file, and its cells), and the cells as recorded in their folders.

Reports need neither the sweep's file nor the datasets, and no model is opened.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError, JournalError, JournalNotice
from viva.engine.files import describe_version_problem, write_atomically
from viva.engine.permissions import grant_from_seal, seal_manifest
from viva.engine.run_folder import RunFolder, read_manifest
from viva.orchestration.completeness import planned_conversations
from viva.scoring.early_stopping import StoppingRule

from .cell_run import open_recorded_run
from .cells import Cell, check_cell_name, group_cells
from .early_stopping import CellWatch, read_clusters
from .sweep_file import lists_of_values, part_of
from .sweep_folder import SWEEP_FILE, shards_of

SWEEP_VERSION = 2
READABLE_VERSIONS = (1, SWEEP_VERSION)  # version 1 omits settings that had default values


@dataclass(frozen=True, slots=True)
class RecordedSweep:
    """Manifest of a sweep.

    `folder` is the base of the relative paths in the sweep's file, `contents` the file's contents, and `until` its
    stopping rule.
    """

    folder: Path
    contents: dict[str, Any]
    until: StoppingRule | None
    cells: list[Cell]


def write_sweep(out: Path, recorded: RecordedSweep) -> None:
    """Write the manifest, unless it is unchanged.

    Raises:
        JournalError: The manifest cannot be written.
    """
    data = {
        "sweep": SWEEP_VERSION,
        "folder": str(recorded.folder),
        "file": recorded.contents,
        "cells": [cell.to_record() for cell in recorded.cells],
    }
    text = orjson.dumps(seal_manifest(data), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str)
    try:
        if not (out / SWEEP_FILE).exists() or (out / SWEEP_FILE).read_bytes() != text:
            write_atomically(out / SWEEP_FILE, text)
    except OSError as error:
        raise JournalError(f"{out}: cannot write {SWEEP_FILE}: {error}") from error


def read_sweep(out: Path) -> RecordedSweep:
    """Return the manifest of the sweep in a folder.

    Raises:
        ConfigurationError: There is no manifest, or it has another version.
    """
    file = out / SWEEP_FILE
    data = read_manifest(file, "the folder of a sweep")
    version = data.get("sweep") if isinstance(data, dict) else None
    if version not in READABLE_VERSIONS or isinstance(version, bool):
        raise ConfigurationError(f"{file}: {describe_version_problem('sweep', version, READABLE_VERSIONS)}")
    grant_from_seal(data)
    try:
        rule = data["file"].get("until")
        until = None if rule is None else StoppingRule.parse(rule)
        contents = lists_of_values(data["file"])
        return RecordedSweep(
            Path(data["folder"]),
            contents,
            until,
            [_cell_from_record(record, data["sweep"]) for record in data["cells"]],
        )
    except (AttributeError, KeyError, TypeError, ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"{file}: cannot be used: {error}") from None


def cell_names(out: Path, limit: int) -> list[str]:
    """Return the names of a sweep's first cells, at most `limit`, without reading what they are.

    Raises:
        ConfigurationError: There is no manifest, or a name leads out of the sweep's folder.
    """
    data = read_manifest(out / SWEEP_FILE, "the folder of a sweep")
    cells = data.get("cells") if isinstance(data, dict) else None
    names = [cell.get("name") for cell in cells[:limit] if isinstance(cell, dict)] if isinstance(cells, list) else []
    for name in names:
        check_cell_name(name)
    return [str(name) for name in names]


def _cell_from_record(record: dict[str, Any], version: int) -> Cell:
    if version == 1:
        defaults = part_of(record["scenario"]).scenario.settings.first_defaults
        record = {**record, "settings": {**defaults, **record["settings"]}}
    return Cell.from_record(record)


@dataclass(slots=True)
class RecordedCell:
    """Cell of a recorded sweep.

    `name` is its folder below the sweep's; `candidate` and `evaluator` are labels (`evaluator` is None without a
    judge), `model` is the candidate's full name, and `dataset` its name as in manifests. `folder` is None if the cell
    has not begun, or if its folder was made with other settings; `planned` counts its conversations (None: not begun).
    `until` is the record of its stopping watch (`StoppingWatch.to_record`; None without a rule); with the rule
    `decided`, all candidates on the same items share one watch.
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
    is_adaptive: bool = False


def recorded_cells(folder: Path) -> list[RecordedCell]:
    """Return the cells of the sweep in a folder, in the order of its file. Unmerged shards cause a warning.

    Raises:
        ConfigurationError: The folder is not a sweep's.
        JournalError: A journal that a stopping rule needs cannot be read.
    """
    recorded = read_sweep(folder)
    cells: dict[str, RecordedCell] = {}
    for cell in recorded.cells:
        run = open_recorded_run(folder / cell.name, cell)
        cells[cell.name] = RecordedCell(
            cell.name,
            cell.scenario,
            cell.candidate,
            cell.model,
            cell.dataset if run is None else str(run.manifest["dataset"]["name"]),
            cell.seed,
            cell.evaluator,
            run,
            None if run is None else planned_conversations(run),
            None,
            getattr(cell.settings, "adaptive", None) is not None,
        )
    unmerged = sum(entry.folder is None and bool(shards_of(folder / entry.name)) for entry in cells.values())
    if unmerged:
        message = f"{folder}: {unmerged} of {len(cells)} cells are in unmerged shards: run `viva sweep merge {folder}`"
        warnings.warn(message, JournalNotice, stacklevel=2)
    until = recorded.until
    if until is not None:
        scored = [cell for cell in recorded.cells if part_of(cell.scenario).scored]
        for group in group_cells(scored, until.decided):
            runs = {cell.name: run for cell in group if (run := cells[cell.name].folder) is not None}
            if runs:
                largest = max(runs.values(), key=planned_conversations)
                stopping = CellWatch(until, group, planned_conversations(largest), read_clusters(largest.manifest))
                for cell in group:
                    if cell.name in runs:
                        stopping.read(cell, runs[cell.name])
                for cell in group:
                    cells[cell.name].until = stopping.watch.to_record()
    return list(cells.values())
