"""From the folders a report is asked for to its cells: which candidate met which dataset, and where that is recorded.

A cell is what one candidate did under one seed (and evaluator): a cell of a sweep, or one candidate of a run.
What never belongs here: reading journals, and statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.orchestration.launch import recorded_settings
from viva.orchestration.sweep.results import RecordedCell, cells_of, is_sweep, planned_of
from viva.scenarios.kieval.score import SCORERS, Scorer
from viva.scenarios.models import model_labels

INTERVIEWS, PROBES = "kieval", "probe"


@dataclass(slots=True)
class Cell:
    """One cell. ``run`` is None where it has not begun; ``folder`` is what ``viva show`` is given, seen from beside
    the folders that were named; ``planned`` counts conversations; ``until`` tells of a stop rule, where one is set.
    """

    name: str
    folder: str
    scenario: str
    candidate: str
    model: str
    dataset: str
    seed: int
    evaluator: str | None = None
    run: RunFolder | None = None
    planned: int | None = None
    until: dict[str, Any] | None = None
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def stopped_at(self) -> int | None:
        """How many conversations count, the first of the seeded order; None: all that there are."""
        return None if self.until is None else self.until.get("stopped_at")

    def settings(self, name: str) -> Any:
        """One of the run's settings, None where it has not begun."""
        return self.manifest.get("settings", {}).get(name)

    def repeats(self, role: str) -> bool:
        """Whether another run's words stand in for this role, as in a fork."""
        model = self.model if role == "candidate" else self.manifest.get("models", {}).get(role)
        return model is not None and model.startswith("replay:")

    def label(self, role: str) -> str | None:
        """The name in tables of the model in another role than the candidate's; None where a recording plays it."""
        model = self.manifest.get("models", {}).get(role)
        return None if model is None or self.repeats(role) else next(iter(model_labels([model])))


def find_cells(folders: Sequence[Path]) -> list[Cell]:
    """The cells of runs and sweeps, in the order of the folders. What is named twice counts once.

    :raises ConfigurationError: a folder is neither a run nor a sweep, or of a scenario that no report is known for.
    """
    cells: list[Cell] = []
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


def study_scorer(cells: Iterable[Cell], name: str | None) -> Scorer:
    """The one scorer of a study: the one named, else that of all its interviews.

    Its switches are those of the runs; where they differ, both are on, for talks that went on after a flag can be cut
    there, but those that ended there cannot go on.

    :raises ConfigurationError: no such scorer, or the runs name several.
    """
    if name is not None and name not in SCORERS:
        raise ConfigurationError(f"unknown scorer '{name}'; known: {', '.join(SCORERS)}")
    recorded = [cell.manifest["settings"] for cell in cells if cell.scenario == INTERVIEWS and cell.manifest]
    names = list(dict.fromkeys(settings["scorer"] for settings in recorded))
    if name is None and len(names) > 1:
        raise ConfigurationError(f"the runs have different scorers ({', '.join(names)}); choose one with --scorer")
    switches = {
        switch: next(iter(values)) if len(values) == 1 else True
        for switch in ("decay", "early_stop")
        for values in [{settings[switch] for settings in recorded}]
    }
    return Scorer(name or (names[0] if names else "official"), **switches)


def notes(cells: Sequence[Cell]) -> list[str]:
    """What a reader should know before cells are pooled and compared: in what they differ beyond their place."""
    begun = [cell for cell in cells if cell.manifest]
    told = []
    for candidate in dict.fromkeys(cell.candidate for cell in begun):
        models = {cell.model for cell in begun if cell.candidate == candidate and not cell.model.startswith("replay:")}
        if len(models) > 1:
            told.append(f"'{candidate}' stands for {len(models)} models: {', '.join(sorted(models))}")
    for dataset in dict.fromkeys(cell.dataset for cell in begun):
        digests = {cell.manifest["dataset"]["digest"] for cell in begun if cell.dataset == dataset}
        if len(digests) > 1:
            told.append(f"'{dataset}' was not the same file everywhere: {len(digests)} versions of it")
    told += _differences([cell for cell in begun if cell.scenario == INTERVIEWS], ("rounds",), ("pack", "interactor"))
    told += _differences([cell for cell in begun if cell.scenario == PROBES], ("shots",), ("pack",))
    places: dict[tuple[Any, ...], list[str]] = {}
    for cell in begun:
        place = (cell.scenario, cell.candidate, cell.dataset, cell.seed, cell.evaluator)
        places.setdefault(place, []).append(cell.name)
    told += [f"of the same place, and all counted: {', '.join(names)}" for names in places.values() if len(names) > 1]
    return told


def _differences(cells: Sequence[Cell], settings: Sequence[str], parts: Sequence[str]) -> list[str]:
    """In which settings and parts of their manifests cells of one scenario differ."""
    told = []
    for name in settings:
        values = sorted({cell.settings(name) for cell in cells})
        if len(values) > 1:
            told.append(f"cells differ in {name}: {', '.join(map(str, values))}")
    for name in parts:
        if name == "interactor":  # that of a fork only repeats what another asked
            models = [cell.manifest["models"][name] for cell in cells]
            of = {model for model in models if not model.startswith("replay:")}
        else:
            of = {cell.manifest[name]["digest"] for cell in cells}
        if len(of) > 1:
            told.append(f"cells differ in their {name}: {len(of)} of them")
    return told


def _swept(recorded: RecordedCell, prefix: str) -> Cell:
    name = prefix + recorded.name
    run = recorded.folder
    cell = Cell(name, name, recorded.scenario, recorded.candidate, recorded.model, recorded.dataset, recorded.seed)
    cell.evaluator, cell.run, cell.until, cell.planned = recorded.evaluator, run, recorded.until, recorded.planned
    if run is not None:
        cell.manifest = run.manifest
        cell.evaluator = cell.evaluator or cell.label("evaluator")
    return cell


def _cells_of_run(run: RunFolder, name: str) -> list[Cell]:
    recorded_settings(run)  # checks the manifest
    manifest = run.manifest
    scenario = manifest["scenario"]
    if scenario not in (INTERVIEWS, PROBES):
        raise ConfigurationError(
            f"{run.path}: a run of '{scenario}'; several folders, --scorer, --html, --csv, --parquet, --latex and "
            f"--markdown are for {INTERVIEWS} and {PROBES} only: report it alone and without them"
        )
    models, dataset = manifest["models"]["candidate"], manifest["dataset"]["name"]
    cells = []
    for label, model in models.items():
        own = name if len(models) == 1 else f"{name}#{label}"
        cell = Cell(own, name, scenario, label, model, dataset, manifest["seed"], run=run, manifest=manifest)
        cell.evaluator, cell.planned = cell.label("evaluator"), planned_of(run)
        cells.append(cell)
    return cells


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
