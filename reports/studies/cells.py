"""Cells of a study: the candidates of runs, and the cells of sweeps, as their manifests describe them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError, JournalError, VivaError
from viva.engine.run_folder import RunFolder
from viva.orchestration.completeness import planned_conversations
from viva.orchestration.launch import recorded_settings, results_and_damage
from viva.scenarios.contract import Role, SupportsRemarks, compared_role, judge_role
from viva.scenarios.models import lineup_labels, lineups
from viva.scenarios.registry import get_scenario
from viva.scenarios.study_cells import StudyCell, brief_error
from viva.sweeps.recorded_sweep import RecordedCell, recorded_cells
from viva.sweeps.sweep_folder import is_sweep


def find_cells(folders: Sequence[Path], left_out: dict[str, str] | None = None) -> list[StudyCell]:
    """Return the cells of runs and sweeps, in the order of the folders; duplicates count once.

    If there are several folders, unusable ones are left out, and `left_out` gets why, by folder; None refuses them.

    Raises:
        ConfigurationError: if a folder is neither a run nor a sweep, or no manifest is usable.
    """
    cells: list[StudyCell] = []
    known_keys: set[tuple[Path, str]] = set()
    for folder, name in zip(folders, _folder_names(folders), strict=True):
        try:
            folder_cells = _cells_of_folder(folder, name, alone=len(folders) == 1)
        except Exception as error:
            if left_out is None or not (os.path.lexists(folder / "manifest.json") or is_sweep(folder)):
                raise
            left_out[name] = str(unusable_run(folder, error))
            if len(left_out) == len(folders):
                raise unusable_run(folder, error) from error
            continue
        for cell in folder_cells:
            path = cell.run.path if cell.run is not None else folder / cell.name
            key = (path.resolve(), cell.candidate)
            if key not in known_keys:
                known_keys.add(key)
                cells.append(cell)
    return cells


def unusable_run(folder: Path, error: Exception) -> VivaError:
    """Return the error for a run or sweep that cannot be reported; it names the folder."""
    if isinstance(error, VivaError):
        return error
    return JournalError(f"{folder}: cannot be reported, since something recorded is wrong: {brief_error(error)}")


def _cells_of_folder(folder: Path, name: str, *, alone: bool) -> list[StudyCell]:
    if is_sweep(folder):
        return [_sweep_cell(recorded, "" if alone else f"{name}/") for recorded in recorded_cells(folder)]
    return _cells_of_run(RunFolder.open(folder), name)


def refuse_adaptive(cells: Iterable[StudyCell]) -> None:
    """Raise ConfigurationError for adaptive runs: means over chosen items compare no models."""
    for cell in cells:
        if cell.is_adaptive:
            raise ConfigurationError(
                f"{cell.folder}: an adaptive run chose other items for each candidate, so plain means over them would "
                "mislead; its own report has its figures: viva report RUN. Two adaptive runs, of probes and of "
                "interviews, are reported together: viva report PROBES INTERVIEWS"
            )


def exam_records(cells: Iterable[StudyCell], left_out: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the estimates of adaptive exams as plain data; `remarks` are those of the cell's run.

    `exam` is None for a cell that has not begun. `left_out` gets why unreadable runs are left out, by folder; None
    refuses them.

    Raises:
        JournalError: A journal is damaged.
    """
    reports: dict[Path, tuple[dict[str, Any], list[str]]] = {}
    records = []
    for cell in cells:
        if left_out is not None and cell.folder in left_out:
            continue
        fields = ("name", "folder", "scenario", "candidate", "model", "dataset", "seed", "evaluator", "planned")
        record: dict[str, Any] = {name: getattr(cell, name) for name in fields}
        record |= {"bank": None, "until": None, "exam": None, "remarks": []}
        if cell.run is not None and cell.run.begun:
            if cell.run.path not in reports:
                try:
                    aggregate, _ = results_and_damage(cell.run)
                    remarks = aggregate.remarks() if isinstance(aggregate, SupportsRemarks) else []
                    reports[cell.run.path] = aggregate.report(), remarks
                except Exception as error:
                    if left_out is None:
                        raise
                    left_out[cell.folder] = str(unusable_run(cell.run.path, error))
                    continue
            report, remarks = reports[cell.run.path]
            record |= {"bank": report["adaptive"]["bank"], "until": report["adaptive"]["until"], "remarks": remarks}
            record["exam"] = report["candidates"][cell.candidate].get("adaptive")
        records.append(record)
    return records


def _sweep_cell(recorded: RecordedCell, prefix: str) -> StudyCell:
    name = prefix + recorded.name
    run, roles = recorded.folder, get_scenario(recorded.scenario).roles
    cell = StudyCell(name, name, recorded.scenario, recorded.candidate, recorded.model, recorded.dataset, recorded.seed)
    cell.evaluator, cell.run, cell.until, cell.planned = recorded.evaluator, run, recorded.until, recorded.planned
    cell.compared, cell.is_adaptive = compared_role(roles).name, recorded.is_adaptive
    if run is not None:
        cell.labels = lineup_labels(roles, run.manifest)
        cell.manifest = run.manifest
        cell.evaluator = cell.evaluator or _evaluator_of(cell, roles)
    return cell


def _cells_of_run(run: RunFolder, name: str) -> list[StudyCell]:
    scenario, settings = recorded_settings(run)  # checks the manifest
    roles = scenario.roles_of(settings)
    manifest, compared = run.manifest, " and ".join(role.name for role in roles if role.many)
    models, dataset = manifest["models"], manifest["dataset"]["name"]
    lineup_by_label = lineups(roles, models)
    cells = []
    for label, lineup in lineup_by_label.items():
        own = name if len(lineup_by_label) == 1 else f"{name}#{label}"
        model = " and ".join(models[role][model_label] for role, model_label in lineup.items())
        cell = StudyCell(own, name, scenario.name, label, model, dataset, manifest["seed"], run=run, manifest=manifest)
        cell.compared, cell.labels, cell.planned = compared, list(lineup_by_label), planned_conversations(run, label)
        cell.evaluator, cell.is_adaptive = _evaluator_of(cell, roles), manifest.get("bank") is not None
        cells.append(cell)
    return cells


def _evaluator_of(cell: StudyCell, roles: Iterable[Role]) -> str | None:
    role = judge_role(roles)
    # If judges are compared, a cell's own model is the judge.
    return None if role is None or role.many else cell.label(role.name)


def _folder_names(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder: its own, with as many of its parents as make it unique."""
    parts = [folder.resolve().parts for folder in folders]
    different = set(parts)
    counts: dict[int, Counter[tuple[str, ...]]] = {}  # by length, the ends of that many parts
    names = []
    for mine in parts:
        length = 1
        while length < len(mine):
            if length not in counts:
                counts[length] = Counter(other[-length:] for other in different)
            if counts[length][mine[-length:]] == 1:
                break
            length += 1
        names.append("/".join(mine[-length:]))
    return names
