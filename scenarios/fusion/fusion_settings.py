"""Settings of a Fusion-Eval run, for the command line, configuration files and embedding programs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from viva.engine.backends.registry import with_absolute_path
from viva.engine.errors import ConfigurationError

from ..assistant_roles import full_assistant_names
from ..run_settings import RunSettings, absolute_file, context_folder
from .task_files import SHIPPED_TASKS

Mode = Literal["plan", "noplan", "direct"]
PLAN: Mode = "plan"
DIRECT: Mode = "direct"


class FusionSettings(RunSettings):
    """Responses scored by judges with the help of assistants (Shu et al. 2023)."""

    task: str = Field(description=f"Task: {', '.join(SHIPPED_TASKS)}, or a YAML file.")
    data: str = Field(description="Examples: a JSONL file, or a JSON file with a list, in the fields of the task.")
    judge: list[str] = Field(min_length=1, description="Model that judges; may be given several times.")
    assistant: list[str] = Field(
        default=[],
        description="Assistant: rouge-1, rouge-2, rouge-l, bleu, chrf, meteor (@TEXT: compared with this text), "
        "logprob:MODEL, judge:MODEL, nli:FOLDER, embedding:FOLDER, FILE.py#NAME; LABEL= before it names it. May be "
        "given several times.",
    )
    mode: Mode = Field(
        default="plan",
        description="plan: the judge has the assistants' numbers and a plan; noplan: the numbers; direct: neither.",
    )
    plan: str | None = Field(default=None, description="YAML file of the plan.")
    planner: str | None = Field(
        default=None, description="Model that writes the plan's file where it is not there yet; once, before the run."
    )
    n: int | None = Field(default=None, ge=1, description="Examples drawn by the seed (all if not given).")
    predictions: int = Field(default=8, ge=1, le=100, description="Predictions of each judge for each example.")
    temperature: float = Field(default=0.5, ge=0, le=2, description="Sampling temperature of the judge.")
    scores: Literal["written", "expected"] = Field(
        default="written",
        description="written: scores as they are written; expected: whole numbers, weighted by their probabilities "
        "where the model tells them.",
    )
    folds: int = Field(default=5, ge=2, le=100, description="Parts of the data, for weights fitted on the other parts.")
    pack: str = Field(default="fusion", description="Prompt pack: a shipped name or a YAML file.")
    judge_tokens: int = Field(default=1024, ge=1, description="Longest answer of the judge, in tokens.")

    examples: ClassVar[dict[str, str]] = {"task": "dialogue", "data": "replies.jsonl", "judge": "openai:gpt-4o"}

    # Files are remembered by their full path, so that a run can be resumed from another folder.
    @field_validator("data", "pack")
    @classmethod
    def _file_by_full_path(cls, name: str, info: ValidationInfo) -> str | None:
        return absolute_file(name, context_folder(info))

    @field_validator("task")
    @classmethod
    def _task_by_full_path(cls, name: str, info: ValidationInfo) -> str | None:
        return name if name in SHIPPED_TASKS else absolute_file(name, context_folder(info))

    @field_validator("plan")
    @classmethod
    def _plan_by_full_path(cls, name: str | None, info: ValidationInfo) -> str | None:
        # It need not be there yet.
        return None if name is None else str((context_folder(info) / Path(name).expanduser()).resolve())

    @field_validator("judge", "planner")
    @classmethod
    def _local_models_by_full_path(cls, models: str | list[str] | None, info: ValidationInfo) -> str | list[str] | None:
        folder = context_folder(info)
        if models is None:
            return None
        return (
            [with_absolute_path(model, folder) for model in models]
            if isinstance(models, list)
            else with_absolute_path(models, folder)
        )

    @field_validator("assistant")
    @classmethod
    def _assistants_by_full_path(cls, names: list[str], info: ValidationInfo) -> list[str]:
        try:
            return full_assistant_names(names, context_folder(info))
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _parts_of_the_mode(self) -> FusionSettings:
        if self.mode != DIRECT and not self.assistant:
            raise ValueError(f"assistant: mode {self.mode} needs one at least; add --assistant, or take --mode direct")
        if self.mode == PLAN and self.plan is None:
            raise ValueError("plan: mode plan needs a file; add --plan FILE (and --planner MODEL to have it written)")
        if self.planner is not None and self.plan is None:
            raise ValueError("planner: needs --plan FILE, the file that the plan is written to")
        return self
