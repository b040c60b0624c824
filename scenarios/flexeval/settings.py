"""The settings of a suite's run. The suite file says what is tested; what is given here wins over it.

What never belongs here: what a suite file may say (``spec``), and settings of every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from viva.engine.backends.application.mapping import inline_name
from viva.engine.backends.base import ModelSpec
from viva.engine.backends.registry import full_path

from ..settings import RunSettings, folder_of, full_file
from .spec import Suite
from .suite_file import SuiteFile, read_suite

AS_RECORDED = "recorded:conversations"  # the model that never answers: conversations are scored as they stand


class FlexEvalSettings(RunSettings):
    """Suites: custom evaluation of deployed systems and of finished dialogs (Christie et al. 2024)."""

    suite: str = Field(description="The suite file; FILE#NAME where it holds several.")
    candidate: list[str] = Field(
        default=[], description="System under test in place of the suite's; may be given several times."
    )
    grader: str | None = Field(default=None, description="Model that grades rubrics, in place of the suite's.")
    graders: list[str] = Field(default=[], description="Several graders; each grades every rubric.")
    interactor: str | None = Field(default=None, description="Model that plays the user, in place of the suite's.")
    repeats: int = Field(default=1, ge=1, le=1000, description="How often each conversation is tested.")
    n: int | None = Field(default=None, ge=1, description="Only the first so many conversations.")
    watched: str | None = Field(
        default=None, description="Dialogs of a log that is watched, in place of the suite's conversations."
    )
    baseline: str | None = Field(default=None, description="Run folder that the gate compares with.")
    pack: str = Field(default="flexeval", description="Prompt pack: a shipped name or a YAML file.")

    examples: ClassVar[dict[str, str]] = {"suite": "suite.yaml"}

    @model_validator(mode="before")
    @classmethod
    def _from_the_suite(cls, data: Any, info: ValidationInfo) -> Any:
        """What is not given is taken from the suite. Settings of a manifest are whole, and no file is read for them."""
        if not isinstance(data, Mapping) or not isinstance(data.get("suite"), str) or data.keys() >= _WHOLE:
            return data
        suite = read_named(data["suite"], folder_of(info)).suite
        live = bool(data.get("watched"))
        told: dict[str, Any] = {
            "candidate": [AS_RECORDED] if live else system_models(suite),
            "interactor": suite.interactor if suite.complete == "dialog" and not live else None,
            "repeats": 1 if live else suite.repeats,
            "baseline": suite.baseline,
            "seed": suite.seed,
            "concurrency": suite.concurrency,
            "max_cost": suite.budget.cost,
            "max_calls": suite.budget.calls,
            "max_tokens_total": suite.budget.tokens,
            "max_seconds": suite.budget.seconds,
        }
        if not (data.get("grader") or data.get("graders")):
            models = list(grader_models(suite).values())
            told |= {"grader": models[0]} if len(models) == 1 else {"graders": models}
        return {**{name: value for name, value in told.items() if value is not None}, **data}

    @field_validator("candidate", "graders", "grader", "interactor")
    @classmethod
    def _local_models_by_full_path(cls, models: str | list[str] | None, info: ValidationInfo) -> str | list[str] | None:
        folder = folder_of(info)
        if isinstance(models, list):
            return [full_path(model, folder) for model in models]
        return None if models is None else full_path(models, folder)

    @field_validator("suite")
    @classmethod
    def _suite_by_full_path(cls, name: str, info: ValidationInfo) -> str:
        file, hash_, wanted = name.partition("#")
        return f"{full_file(file, folder_of(info))}{hash_}{wanted}"

    @field_validator("pack")
    @classmethod
    def _file_by_full_path(cls, name: str | None, info: ValidationInfo) -> str | None:
        return full_file(name, folder_of(info))

    @field_validator("baseline")
    @classmethod
    def _folder_by_full_path(cls, name: str | None, info: ValidationInfo) -> str | None:
        return None if name is None else str((folder_of(info) / name).absolute())

    @model_validator(mode="after")
    def _somebody_answers(self) -> FlexEvalSettings:
        if not self.candidate:
            raise ValueError(
                "system: the suite names no system under test; write `system: MODEL` there, give --candidate MODEL, or "
                "write `complete: none` to score the conversations as they stand"
            )
        return self


_WHOLE = frozenset({"suite", "candidate", "grader", "graders", "interactor", "repeats", "baseline", "pack"})


def read_named(name: str, folder: Path = Path()) -> SuiteFile:
    """The suite of ``FILE`` or ``FILE#NAME``.

    :raises ConfigurationError: as ``read_suite``.
    """
    file, _, wanted = name.partition("#")
    return read_suite(folder / file, wanted or None)


def system_models(suite: Suite) -> list[str]:
    """The names of the models under test."""
    if suite.complete == "none":
        return [AS_RECORDED]
    if isinstance(suite.system, str):
        return [suite.system]
    if "url" in suite.system:
        return [labelled(inline_name(suite.system), "application")]
    return [labelled(one if isinstance(one, str) else inline_name(one), label) for label, one in suite.system.items()]


def grader_models(suite: Suite) -> dict[str, str]:
    """The graders' models by label."""
    if suite.grader is None or isinstance(suite.grader, str):
        return {} if suite.grader is None else {"grader": suite.grader}
    return {label: labelled(model, label) for label, model in suite.grader.items()}


def labelled(model: str, label: str) -> str:
    """A model's name that goes by this label in tables and keys."""
    if ModelSpec.parse(model).options.get("label") is not None:
        return model
    return f"{model}{'&' if ModelSpec.parse(model).options else '?'}label={label}"
