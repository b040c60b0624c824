"""Settings of a KIEval run, for the command line, configuration files and embedding programs."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from viva.data.dataset import Cluster
from viva.data.sources import absolute_source
from viva.engine.backends.registry import with_absolute_path
from viva.engine.detectors import detector_makers
from viva.engine.errors import ConfigurationError

from ..assistant_roles import full_assistant_names
from ..run_settings import RunSettings, absolute_file, context_folder
from .score import ScorerName

FirstAnswerMode = Literal["choice", "text", "five-shot"]


class KievalSettings(RunSettings):
    """KIEval (Yu et al. 2024, section 3)."""

    dataset: str = Field(
        description="Benchmark: NAME (viva list datasets), FILE, form:PATH[:split] or hf:owner/name[:split]."
    )
    candidate: list[str] = Field(min_length=1, description="Model under examination; may be given several times.")
    interactor: str = Field(description="Model that asks.")
    evaluator: str = Field(description="Model that judges.")
    assistant: list[str] = Field(
        default=[],
        description="Assistant whose number about each reply the evaluator is told: rouge-l, bleu, logprob:MODEL, "
        "FILE.py#NAME, … (docs/judges.md); @question or @dialogue compares with these, else with the right answer. May "
        "be given several times.",
    )
    n: int | None = Field(default=None, ge=1, description="Items drawn by the seed (all if not given).")
    ids: str | None = Field(default=None, description="File of item ids: only items on this list are used.")
    shuffled: bool = Field(
        default=False, description="Take the items in an order that the seed gives, not in the file's."
    )
    cluster: Cluster | None = Field(
        default=None,
        description="Items of one subject, or about one passage, are not independent: take them together, in an order "
        "that the seed gives.",
    )
    rounds: int = Field(default=5, ge=1, le=100, description="Rounds of question and reply at most.")
    early_stop: bool = Field(
        default=True, description="Let the evaluator end a talk; its flags are recorded either way."
    )
    overlap: bool = Field(
        default=False, description="Ask the next question while the last reply is still being judged."
    )
    detectors: list[Literal["empty", "repetition", "role_shift"]] = Field(
        default=[], description="End a talk when a reply is empty, loops, or shifts role, even while it streams."
    )
    scorer: ScorerName = Field(
        default="official", description="How rounds become a score: official, linear or corrected."
    )
    decay: bool = Field(default=True, description="Let early rounds weigh more.")
    first_answer: FirstAnswerMode = Field(
        default="choice",
        description="What roles see of the first answer: the choice it names (choice), its words (text), or the choice "
        "named after five solved examples, and no interview where none is named (five-shot).",
    )
    shots_from: str | None = Field(
        default=None, description="Where five-shot's examples come from (default: the dev split)."
    )
    pack: str = Field(default="kieval", description="Prompt pack: a shipped name or a YAML file.")
    temperature: float = Field(default=0.0, ge=0, le=2, description="Sampling temperature of all three roles.")
    candidate_tokens: int = Field(default=400, ge=1, description="Longest reply of the candidate, in tokens.")
    interactor_tokens: int = Field(default=400, ge=1, description="Longest question.")
    evaluator_tokens: int = Field(default=400, ge=1, description="Longest verdict.")
    skip_bad_items: bool = Field(default=False, description="Leave out lines that are not items, and count them.")

    formerly: ClassVar[dict[str, Any]] = {"first_answer": "text"}
    first_defaults: ClassVar[dict[str, Any]] = {
        "candidate_tokens": 512,
        "interactor_tokens": 256,
        "evaluator_tokens": 1024,
    }

    # Files are remembered by their full path, so that a run can be resumed from another folder.
    @field_validator("dataset", "shots_from")
    @classmethod
    def _dataset_by_full_path(cls, source: str | None, info: ValidationInfo) -> str | None:
        return None if source is None else absolute_source(source, context_folder(info))

    @model_validator(mode="after")
    def _examples_have_a_use(self) -> KievalSettings:
        if self.shots_from is not None and self.first_answer != "five-shot":
            raise ValueError("shots_from: only first_answer five-shot shows examples")
        return self

    @field_validator("pack", "ids")
    @classmethod
    def _file_by_full_path(cls, name: str | None, info: ValidationInfo) -> str | None:
        return absolute_file(name, context_folder(info))

    @field_validator("candidate", "interactor", "evaluator")
    @classmethod
    def _local_models_by_full_path(cls, models: str | list[str], info: ValidationInfo) -> str | list[str]:
        folder = context_folder(info)
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

    @field_validator("detectors")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        try:
            detector_makers(names)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return names
