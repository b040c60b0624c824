"""From the folders a report is asked for to its cells: which candidate met which dataset, and where that is recorded.

What never belongs here: reading journals, and statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from viva.engine.folder import RunFolder
from viva.orchestration.launch import recorded_settings
from viva.orchestration.sweep.results import RecordedCell, cells_of, is_sweep, planned_of
from viva.scenarios.contract import Role, judge_role, many_role
from viva.scenarios.registry import scenario
from viva.scenarios.study.cells import StudyCell


def find_cells(folders: Sequence[Path]) -> list[StudyCell]:
    """The cells of runs and sweeps, in the order of the folders. What is named twice counts once.

    :raises ConfigurationError: a folder is neither a run nor a sweep, or its manifest cannot be used.
    """
    cells: list[StudyCell] = []
    seen: set[tuple[Path, str]] = set()
    for folder, name in zip(folders, _names(folders), strict=True):
        if is_sweep(folder):
            prefix = "" if len(folders) == 1 else f"{name}/"
            found = [_swept(recorded, prefix) for recorded in cells_of(folder)]
        else:
            found = _cells_of_run(RunFolder.open(folder), name)
        for cell in found:
            where = cell.run.path if cell.run is not None else folder / cell.name
            key = (where.resolve(), cell.candidate)
            if key not in seen:
                seen.add(key)
                cells.append(cell)
    return cells


def _swept(recorded: RecordedCell, prefix: str) -> StudyCell:
    name = prefix + recorded.name
    run, roles = recorded.folder, scenario(recorded.scenario).roles
    cell = StudyCell(name, name, recorded.scenario, recorded.candidate, recorded.model, recorded.dataset, recorded.seed)
    cell.evaluator, cell.run, cell.until, cell.planned = recorded.evaluator, run, recorded.until, recorded.planned
    cell.compared = many_role(roles).name
    if run is not None:
        cell.manifest = run.manifest
        cell.evaluator = cell.evaluator or _judge(cell, roles)
    return cell


def _cells_of_run(run: RunFolder, name: str) -> list[StudyCell]:
    which, settings = recorded_settings(run)  # checks the manifest
    roles = which.roles_of(settings)
    manifest, compared = run.manifest, many_role(roles).name
    models, dataset = manifest["models"][compared], manifest["dataset"]["name"]
    cells = []
    for label, model in models.items():
        own = name if len(models) == 1 else f"{name}#{label}"
        cell = StudyCell(own, name, which.name, label, model, dataset, manifest["seed"], run=run, manifest=manifest)
        cell.compared, cell.planned = compared, planned_of(run)
        cell.evaluator = _judge(cell, roles)
        cells.append(cell)
    return cells


def _judge(cell: StudyCell, roles: Iterable[Role]) -> str | None:
    role = judge_role(roles)
    # Where judges are what is compared, a cell's own model is the judge.
    return None if role is None or role.many else cell.label(role.name)


def _names(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, with as many of those above it as tell it from the others."""
    parts = [folder.resolve().parts for folder in folders]
    different = set(parts)
    names = []
    for mine in parts:
        length = 1
        while length < len(mine) and sum(other[-length:] == mine[-length:] for other in different) > 1:
            length += 1
        names.append("/".join(mine[-length:]))
    return names
