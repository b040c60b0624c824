"""Cells of a sweep: one candidate, dataset and seed under one scenario; each is an ordinary run in its own folder.

A cell's folder depends only on its candidate, dataset, seed and scenario, so adding cells moves no existing cell.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from viva.data.sources import hub_name, open_source
from viva.engine.backends.base import ModelSpec
from viva.engine.errors import ConfigurationError
from viva.scenarios.contract import SupportsRandomOrder
from viva.scenarios.models import check_prices, model_labels
from viva.scenarios.registry import get_scenario
from viva.scenarios.run_settings import ExamSettings, RunSettings

from .sweep_file import DatasetEntry, SweepFile, SweepPart, part_of, parts, validation_message

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,79}")
CELLS = "cells"


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of a sweep.

    `name` is the folder below the sweep's; `dataset` is the dataset's name as in manifests, `source` its origin.
    `candidate` and `evaluator` are labels; `model` is the candidate's full name.
    """

    name: str
    scenario: str
    candidate: str
    model: str
    dataset: str
    source: str
    seed: int
    evaluator: str | None
    settings: RunSettings

    @property
    def roles(self) -> dict[str, str]:
        """Models of the cell by role."""
        scenario = get_scenario(self.scenario)
        return {role.name: model for role in scenario.roles_of(self.settings) for model in role.models(self.settings)}

    @property
    def models(self) -> list[str]:
        """Models that the cell needs."""
        return list(dict.fromkeys([self.model, *self.roles.values()]))

    def to_record(self) -> dict[str, Any]:
        """Return plain data for the sweep's manifest, with all settings because defaults may change."""
        fields = ("name", "scenario", "candidate", "model", "dataset", "source", "seed", "evaluator")
        record = {field: getattr(self, field) for field in fields}
        return record | {"settings": self.settings.model_dump(mode="json")}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Cell:
        check_cell_name(record["name"])
        kind = part_of(record["scenario"]).scenario.settings
        settings = kind.model_validate({**kind.formerly, **record["settings"]})
        return cls(**{**record, "settings": settings})


def check_cell_name(name: Any) -> None:
    """Check that a cell's name in a sweep's manifest, which may be by others, leads to a folder below the sweep's.

    Raises:
        ConfigurationError: It leads elsewhere.
    """
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or "\0" in name or not all(part not in ("", ".", "..") for part in parts):
        raise ConfigurationError(f"the name of a cell, {str(name)[:80]!r}, is no folder below the sweep's")


def plan_cells(file: SweepFile, folder: Path, file_name: str) -> list[Cell]:
    """Return all cells of a sweep, in order of dataset, scenario section, seed, evaluator and candidate.

    `folder` is the base of relative paths in the file, `file_name` the file's name in error messages.

    Raises:
        ConfigurationError: A setting is wrong, or two datasets or cells have the same name.
    """
    labels = model_labels(file.candidates)
    sources: dict[str, str] = {}
    cells: list[Cell] = []
    for index, entry in enumerate(file.datasets):
        dataset = dataset_name(entry.dataset)
        if dataset in sources:
            raise ConfigurationError(
                f"{file_name}: datasets.{index}: {entry.dataset} and {sources[dataset]} both have the name "
                f"'{dataset}' in tables; rename one of the files or its folder"
            )
        sources[dataset] = entry.dataset
        for part in file.parts:
            kind = parts()[part]
            judges = model_labels(file.judges(part))
            for seed in file.seeds:
                for evaluator, judge in judges.items() or [(None, None)]:
                    base = _cell_settings(file, kind, entry, index, folder, file_name, seed, judge)
                    folders = [CELLS, kind.scenario.name, _folder_name(dataset), f"seed-{seed}"]
                    folders += [_folder_name(evaluator)] if evaluator is not None else []
                    for label, model in labels.items():
                        settings = base.model_copy(update={kind.candidate: [model]})
                        name = "/".join([*folders, _folder_name(label)])
                        scenario = kind.scenario.name
                        cells.append(
                            Cell(name, scenario, label, model, dataset, entry.dataset, seed, evaluator, settings)
                        )
    names: set[str] = set()
    for cell in cells:
        if cell.name in names:
            raise ConfigurationError(
                f"{file_name}: two cells would share {cell.name}; give the models different labels with ?label="
            )
        names.add(cell.name)
    return cells


def check_cost_bounds(cells: Iterable[Cell], file_name: str) -> None:
    """Check that every model has a price if a cost limit is set.

    Raises:
        ConfigurationError: A cost limit is set and a model has no price.
    """
    for cell in cells:
        try:
            check_prices(cell.settings, cell.models)
        except ConfigurationError as error:
            message = re.sub("--([a-z]+)-cost", r"\1_cost", str(error))
            raise ConfigurationError(f"{file_name}: {part_of(cell.scenario).name}: {message}") from None


def dataset_name(source: str) -> str:
    """Return a dataset's name in manifests and tables, without loading the dataset from a hub."""
    try:
        return hub_name(source) or open_source(source).name
    except ConfigurationError:  # the cells that need the dataset report the error
        return source.rpartition("/")[2].removesuffix(".jsonl") or source


def _cell_settings(
    file: SweepFile,
    part: SweepPart,
    entry: DatasetEntry,
    index: int,
    folder: Path,
    file_name: str,
    seed: int,
    judge: str | None,
) -> RunSettings:
    """Return a cell's settings with the first candidate as a placeholder."""
    kind = part.scenario.settings
    own = {name: value for name, value in entry.own.items() if name in kind.model_fields}
    values = dict(file.parts[part.name])
    if file.until is not None and part.scored:
        if not isinstance(part.scenario, SupportsRandomOrder):
            raise ConfigurationError(
                f"{part.scenario.name}: its tasks have no random order, which the rule under `until` needs; remove "
                "`until`"
            )
        own |= part.scenario.in_random_order(None)
        values |= part.scenario.in_random_order(file.until.cluster)
    values |= own
    values |= {part.scenario.data: entry.dataset, part.candidate: file.candidates[:1], "seed": seed}
    values |= {"concurrency": file.concurrency, "patience": file.patience, "chaos": file.chaos}
    values |= {} if file.durability is None else {"durability": file.durability}
    if judge is not None:
        values[part.judge(values) or ""] = judge
    try:
        settings: RunSettings = kind.model_validate(values, context={"folder": folder})
    except ValidationError as error:
        messages = []
        for detail in error.errors(include_url=False):
            location = f"datasets.{index}" if detail["loc"] and detail["loc"][0] in own else part.name
            messages.append(validation_message(detail, file_name, location))
        raise ConfigurationError("; ".join(messages)) from None
    if isinstance(settings, ExamSettings) and settings.adaptive is not None:
        _check_exam(settings, file, f"{file_name}: {part.name}")
    return settings


def _check_exam(settings: ExamSettings, file: SweepFile, field: str) -> None:
    """Check that cells can be adaptive exams, each of which sees one candidate."""
    if settings.learns:
        raise ConfigurationError(
            f"{field}.adaptive: a bank is learned from all candidates of a run, and a cell has one; run them together "
            "with viva run, and name the bank that this run leaves (its bank.json)"
        )
    if file.until is not None:
        raise ConfigurationError(
            f"{field}.adaptive: an adaptive exam ends by its own rule, `until` in the same section; remove the other "
            "`until`"
        )


def _folder_name(text: str) -> str:
    """Return the text if it is a valid folder name, else a simplified text with a hash."""
    if _FOLDER_NAME.fullmatch(text):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{re.sub('[^A-Za-z0-9._+=-]+', '_', text).strip('._-')[:60] or 'x'}-{digest}"


def local_weights(model: str) -> str | None:
    """Return the identity of a local model's weights, independent of its name; None for a remote model."""
    spec = ModelSpec.parse(model)
    return spec.where if spec.kind in ("llama", "hf") else None


def group_cells(cells: list[Cell], decided: bool) -> Iterator[list[Cell]]:
    """Yield the cells that begin together: under the rule `until: decided`, all on the same items; else one cell."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        alone = not decided or not part_of(cell.scenario).scored
        key = (cell.name,) if alone else (cell.dataset, str(cell.seed), str(cell.evaluator))
        groups.setdefault(key, []).append(cell)
    yield from groups.values()
