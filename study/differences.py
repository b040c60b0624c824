"""In what cells differ that are pooled and compared: what a reader should know before.

What never belongs here: doubts about figures (sections have their own).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viva.scenarios.contract import judge_role
from viva.scenarios.registry import scenario
from viva.scenarios.study.cells import StudyCell

from .systems import SystemsTogether


def differences(cells: Sequence[StudyCell], together: Sequence[SystemsTogether]) -> list[str]:
    """A sentence for each difference between cells beyond their place."""
    begun = [cell for cell in cells if cell.manifest]
    found = []
    for candidate in dict.fromkeys(cell.candidate for cell in begun):
        models = {cell.model for cell in begun if cell.candidate == candidate and not cell.model.startswith("replay:")}
        if len(models) > 1:
            found.append(f"'{candidate}' stands for {len(models)} models: {', '.join(sorted(models))}")
    judges: dict[str, set[str]] = {}
    for cell in begun:
        role = judge_role(scenario(cell.scenario).roles)
        model = None if role is None or role.many else cell.manifest["models"].get(role.name)
        if cell.evaluator is not None and isinstance(model, str) and not model.startswith("replay:"):
            judges.setdefault(cell.evaluator, set()).add(model)
    found += [
        f"the judge '{label}' stands for {len(models)} models: {', '.join(sorted(models))}"
        for label, models in judges.items()
        if len(models) > 1
    ]
    for dataset, digests in _versions(begun).items():
        if len(digests) > 1:
            apart = ", which stand apart" if _pooled(begun, dataset, together) else ""
            found.append(f"'{dataset}' was not the same file everywhere: {len(digests)} versions of it{apart}")
    for systems in together:
        for name, study in systems.readers.items():
            own = [cell for cell in begun if cell.scenario == name]
            found += _of_one_system(own, study.settings, study.parts)
    places: dict[tuple[Any, ...], list[str]] = {}
    for cell in begun:
        place = (cell.scenario, cell.candidate, cell.dataset, cell.seed, cell.evaluator)
        places.setdefault(place, []).append(cell.name)
    found += [f"of the same place, and all counted: {', '.join(names)}" for names in places.values() if len(names) > 1]
    return found


def tell_datasets_apart(cells: Sequence[StudyCell], together: Sequence[SystemsTogether]) -> None:
    """Give files of one name and other content names of their own, where figures are pooled and compared by item."""
    begun = [cell for cell in cells if cell.manifest]
    versions = _versions(begun)
    for cell in begun:
        name = cell.manifest["dataset"]["name"]
        if cell.dataset == name and len(versions[name]) > 1 and _pooled([cell], name, together):
            cell.dataset = f"{name} ({cell.manifest['dataset']['digest'][:6]})"


def _versions(cells: Sequence[StudyCell]) -> dict[str, set[str]]:
    """The contents of each dataset, by the name that its manifests have."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        found.setdefault(cell.manifest["dataset"]["name"], set()).add(cell.manifest["dataset"]["digest"])
    return found


def _pooled(cells: Sequence[StudyCell], dataset: str, together: Sequence[SystemsTogether]) -> bool:
    by_item = {name for systems in together for name, study in systems.readers.items() if study.by_item}
    return any(cell.scenario in by_item for cell in cells if cell.manifest["dataset"]["name"] == dataset)


def _of_one_system(cells: Sequence[StudyCell], settings: Sequence[str], parts: Sequence[str]) -> list[str]:
    """In which settings, and in which prompt packs and models of other roles, cells of one system differ."""
    found = []
    for name in settings:
        values = sorted({cell.settings(name) for cell in cells})
        if len(values) > 1:
            found.append(f"cells differ in {name}: {', '.join(map(str, values))}")
    for name in parts:
        if name == "pack":
            of = {cell.manifest["pack"]["digest"] for cell in cells}
        else:  # the model of a fork only repeats what another said
            models = [cell.manifest["models"].get(name) for cell in cells]
            of = {model for model in models if model is not None and not model.startswith("replay:")}
        if len(of) > 1:
            found.append(f"cells differ in their {name}: {len(of)} of them")
    return found
