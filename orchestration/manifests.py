"""What the scenarios write into the manifest of a run, typed, and checked before anything is made of it.

What never belongs here: the engine's fields (``engine.manifest``), and writing manifests (``launch``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from viva.engine.errors import ConfigurationError
from viva.engine.manifest import RunManifest, checked
from viva.scenarios.candidates import candidate_labels


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", defer_build=True)


class PackRecord(_Part):
    """Which prompt pack a run has."""

    name: str
    version: str
    digest: str


class DataRecord(_Part):
    """Which data a run has. ``chosen`` counts what the run takes of it."""

    name: str
    digest: str
    chosen: int = Field(ge=0)


class DatasetRecord(DataRecord):
    """A dataset of multiple-choice items; ``skipped`` counts lines that were none."""

    items: int = Field(ge=0)
    skipped: int = Field(ge=0)


Price = Annotated[list[float], Field(min_length=2, max_length=2)]


class ScenarioManifest(RunManifest):
    """What every scenario's manifest has, scenarios of other packages included."""

    scenario: str
    seed: int
    tier: Literal["A", "C"]
    settings: dict[str, Any]


class _OwnManifest(ScenarioManifest):
    """What the manifests of our own scenarios have in common."""

    prices: dict[str, Price]
    pack: PackRecord
    prompts: str


class _KievalModels(_Part):
    candidate: dict[str, str]
    interactor: str
    evaluator: str


class KievalManifest(_OwnManifest):
    """The manifest of a run of interviews."""

    models: _KievalModels
    dataset: DatasetRecord


class _ProbeModels(_Part):
    candidate: dict[str, str]


class ProbeManifest(_OwnManifest):
    """The manifest of a run of probes."""

    models: _ProbeModels
    dataset: DatasetRecord
    against: DatasetRecord | None
    examples: DatasetRecord | None


class _FunctionChatModels(_Part):
    candidate: dict[str, str]
    judge: str | None = None
    interactor: str | None = None


class FunctionChatManifest(_OwnManifest):
    """The manifest of a run of tool-use dialogs."""

    models: _FunctionChatModels
    dataset: DataRecord


_MODELS: dict[str, type[_OwnManifest]] = {
    "kieval": KievalManifest,
    "probe": ProbeManifest,
    "functionchat": FunctionChatManifest,
}


def check_manifest(data: dict[str, Any], file: Path) -> str:
    """See that a manifest is whole and of one piece; the name of its scenario.

    :raises ConfigurationError: it is not; the message names file and field.
    """
    name = checked(ScenarioManifest, data, file).scenario
    if name in _MODELS:
        checked(_MODELS[name], data, file)
    return name


def check_models(data: dict[str, Any], settings: Any, file: Path) -> None:
    """See that the models, prices and seed of a manifest are those of its ``settings``.

    :raises ConfigurationError: they are not; the message names file and field.
    """
    if data["seed"] != settings.seed:
        raise _contradiction(file, "seed")
    if data["scenario"] not in _MODELS:
        return
    models = data["models"]
    if models["candidate"] != candidate_labels(settings.candidate):
        raise _contradiction(file, "models.candidate")
    others = {role: model for role, model in models.items() if role != "candidate"}
    for role, model in others.items():
        if hasattr(settings, role) and getattr(settings, role) != model:
            raise _contradiction(file, f"models.{role}")
    for model in (*models["candidate"].values(), *filter(None, others.values())):
        if model not in data["prices"]:
            raise ConfigurationError(f"{file}: field 'prices.{model}': missing; restore the file from a copy")


def _contradiction(file: Path, field: str) -> ConfigurationError:
    return ConfigurationError(f"{file}: field '{field}': not what field 'settings' says; restore the file from a copy")
