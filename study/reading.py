"""Cells read, each journal once, and the record that a report shows of every cell.

What never belongs here: anything over several cells, and what one system keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from viva.scenarios.registry import scenario
from viva.scenarios.study.cells import RunReading, StudyCell
from viva.scenarios.study.items import ItemNumbers
from viva.scenarios.study.sections import SystemStudy

from .cache import ReportCache, folder_state, key_of
from .systems import SystemsTogether

# What the cache keeps of a reading.
_KEPT = ("columns", "result", "ended", "failed", "usage", "damaged", "own_tables")


def read_cells(
    cells: Sequence[StudyCell],
    together: Sequence[SystemsTogether],
    scorings: Mapping[str, Any],
    items: dict[str, ItemNumbers],
    cache: ReportCache | None = None,
) -> list[RunReading]:
    """Read every cell, each journal once. ``items`` takes up the items' names by dataset. Of runs that are in the
    ``cache`` as they are, nothing is read.

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
        if cache is None:
            reader.read(group, own, numbers)
        else:
            _read_cached(reader, group, own, numbers, cache)
    return readings


def _read_cached(
    reader: SystemStudy, group: list[RunReading], scoring: Any, numbers: ItemNumbers, cache: ReportCache
) -> None:
    """Fill in the readings of one run from the cache, or read them and put them there."""
    cell = group[0].cell
    before = run_key(cell, scoring)
    # Columns hold the numbers of items, which follow from those that were met before.
    key = None if before is None else key_of("run", before, [one.cell.candidate for one in group], numbers.names)
    known = {"items": numbers, "run": cell.run, "manifest": cell.manifest}
    if (found := cache.load(key, known)) is not None:
        names, fields = found
        for name in names:
            numbers.number(name)
        for reading, values in zip(group, fields, strict=True):
            for name, value in zip(_KEPT, values, strict=True):
                setattr(reading, name, value)
        return
    met = len(numbers.names)
    reader.read(group, scoring, numbers)
    if run_key(cell, scoring) == before and not any(reading.damaged for reading in group):
        fields = [[getattr(reading, name) for name in _KEPT] for reading in group]
        cache.store(key, (numbers.names[met:], fields), known)


def run_key(cell: StudyCell, scoring: Any) -> str | None:
    """What a reading of a cell's run follows from; None where that cannot be told, and nothing is to be kept of it."""
    if cell.run is None:
        return key_of(None)
    ours = type(scenario(cell.scenario)).__module__.startswith("viva.scenarios.")
    state = folder_state(cell.run.path) if ours else None
    return None if state is None else key_of(str(cell.run.path), state, cell.scenario, cell.stopped_at, repr(scoring))


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
