"""Cells read, each journal once, and the record that a report shows of every cell.

What never belongs here: anything over several cells, and what one system keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from viva.scenarios.study.cells import RunReading, StudyCell
from viva.scenarios.study.items import ItemNumbers

from .systems import SystemsTogether


def read_cells(
    cells: Sequence[StudyCell],
    together: Sequence[SystemsTogether],
    scorings: Mapping[str, Any],
    items: dict[str, ItemNumbers],
) -> list[RunReading]:
    """Read every cell, each journal once. ``items`` takes up the items' names by dataset.

    :raises JournalError: a journal is damaged.
    """
    readings = [RunReading(cell) for cell in cells]
    runs: dict[Path, list[RunReading]] = {}
    for one in readings:
        if one.cell.run is not None and one.cell.run.begun:
            runs.setdefault(one.cell.run.path, []).append(one)
    for group in runs.values():
        cell = group[0].cell
        numbers = items.setdefault(cell.dataset, ItemNumbers())
        systems = next(one for one in together if cell.scenario in one.readers)
        reader = systems.readers[cell.scenario]
        # How the results of a system that lends its figures are scored is its own affair.
        own = scorings[reader.which.name] if reader is systems.study else reader.scoring([cell], None)
        reader.read(group, own, numbers)
    return readings


def cell_record(reading: RunReading) -> dict[str, Any]:
    """A cell as every report shows it; its system may add to it."""
    cell, manifest = reading.cell, reading.cell.manifest
    record: dict[str, Any] = {
        "name": cell.name,
        "scenario": cell.scenario,
        "candidate": cell.candidate,
        "model": cell.model,
        "dataset": cell.dataset,
        "seed": cell.seed,
        "evaluator": cell.evaluator,
        "tier": manifest.get("tier"),
        "pack": manifest.get("pack"),
        "planned": cell.planned,
        "ended": reading.ended,
        "state": reading.state,
        "result": reading.result,
        "usage": reading.usage,
        "until": cell.until,
    }
    return record | ({"damaged": reading.damaged} if reading.damaged else {})
