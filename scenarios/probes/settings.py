"""The settings of a probe run.

What never belongs here: settings of every run (``scenario.RunSettings``), and defaults anywhere else.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from viva.data.sources import full_source
from viva.engine.backends.registry import full_path

from ..settings import RunSettings, folder_of, full_file

Method = Literal["letter", "text", "generate", "loss"]


class ProbeSettings(RunSettings):
    """Static probes: what a model recalls (KIEval, section 4.2, Table 3)."""

    dataset: str = Field(
        description="Benchmark: NAME (viva list datasets), FILE, form:PATH[:split] or hf:owner/name[:split]."
    )
    candidate: list[str] = Field(min_length=1, description="Model to probe; may be given several times.")
    method: list[Method] = Field(
        default=["letter"],
        min_length=1,
        description="letter, text (each option's words), generate (read from an answer) or loss; several may be given.",
    )
    n: int | None = Field(default=None, ge=1, description="Items drawn by the seed (all if not given).")
    ids: str | None = Field(default=None, description="File of item ids: only these are probed.")
    shots: int = Field(default=5, ge=0, le=100, description="Examples before each question, drawn by the seed.")
    shots_from: str | None = Field(
        default=None, description="Where examples come from (default: the dataset's dev split)."
    )
    against: str | None = Field(
        default=None,
        description="A second set for method loss: the gap of mean losses, and how well detectors part the two.",
    )
    against_n: int | None = Field(
        default=None, ge=1, description="Items drawn of the second set (default: as many as -n)."
    )
    members: Literal["dataset", "against"] = Field(
        default="dataset", description="Which of the two sets is taken for the one seen in training."
    )
    answer_tokens: int = Field(default=32, ge=1, description="Longest answer of method generate, in tokens.")
    pack: str = Field(default="probe", description="Prompt pack: a shipped name or a YAML file.")
    skip_bad_items: bool = Field(default=False, description="Leave out lines that are not items, and count them.")

    @field_validator("dataset", "shots_from", "against")
    @classmethod
    def _dataset_by_full_path(cls, source: str | None, info: ValidationInfo) -> str | None:
        return None if source is None else full_source(source, folder_of(info))

    @field_validator("pack", "ids")
    @classmethod
    def _file_by_full_path(cls, name: str | None, info: ValidationInfo) -> str | None:
        return full_file(name, folder_of(info))

    @field_validator("candidate")
    @classmethod
    def _local_models_by_full_path(cls, models: list[str], info: ValidationInfo) -> list[str]:
        return [full_path(model, folder_of(info)) for model in models]

    @field_validator("method")
    @classmethod
    def _each_once(cls, methods: list[Method]) -> list[Method]:
        return list(dict.fromkeys(methods))

    @model_validator(mode="after")
    def _second_set_has_a_use(self) -> ProbeSettings:
        if self.against is not None and "loss" not in self.method:
            raise ValueError("against: only method loss compares two sets; add --method loss")
        if self.against is None and self.members == "against":
            raise ValueError("members: there is no second set that could have been seen in training; add --against")
        return self
