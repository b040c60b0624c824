"""Settings of a KIEval run, for the command line, configuration files and embedding programs."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from viva.data.dataset import Cluster
from viva.engine.detectors import detector_factories
from viva.engine.errors import ConfigurationError

from ..assistant_roles import AssistantNames
from ..run_settings import (
    DataSource,
    ExamSettings,
    FilePath,
    ModelName,
    ModelNames,
    RunSettings,
    count_option,
    pack_option,
    skip_option,
    temperature_option,
    tokens_option,
)
from .score import ScorerName

FirstAnswerMode = Literal["choice", "text", "five-shot"]


class KievalSettings(ExamSettings):
    """KIEval (Yu et al. 2024, section 3)."""

    dataset: DataSource = Field(
        description="Benchmark: NAME (viva list datasets), FILE, form:PATH[:split] or hf:owner/name[:split]."
    )
    candidate: ModelNames = Field(min_length=1, description="Model to examine.")
    interactor: ModelName = Field(description="Model that asks the questions.")
    evaluator: ModelName = Field(description="Model that judges.")
    assistant: AssistantNames = Field(
        default=[],
        description="Show the evaluator this assistant's score of each reply: rouge-l, bleu, logprob:MODEL, "
        "FILE.py#NAME, … (docs/judges.md). It compares the reply with the right answer; append @question or @dialogue "
        "for another text.",
    )
    n: int | None = count_option("Items")
    ids: FilePath | None = Field(default=None, description="File of item ids: use only these items.")
    shuffled: bool = Field(default=False, description="Shuffle the items by the seed.")
    cluster: Cluster | None = Field(
        default=None,
        description="Keep items of one subject or passage together, in an order set by the seed; they do not count as "
        "independent.",
    )
    rounds: int = Field(default=5, ge=1, le=100, description="Maximum number of rounds of question and reply.")
    early_stop: bool = Field(
        default=True, description="Let the evaluator end an interview; its stop flags are recorded either way."
    )
    overlap: bool = Field(
        default=False, description="Ask the next question while the last reply is still being judged."
    )
    detectors: list[Literal["empty", "repetition", "role_shift"]] = Field(
        default=[], description="End an interview when a reply is empty, loops, or shifts role, even while it streams."
    )
    scorer: ScorerName = Field(
        default="official", description="How rounds are aggregated into a score: official, linear or corrected."
    )
    decay: bool = Field(default=True, description="Weight early rounds more.")
    first_answer: FirstAnswerMode = Field(
        default="choice",
        description="What the roles see of the first answer: its choice (choice), its words (text), or its choice "
        "after five solved examples (five-shot: no interview if it names no choice).",
    )
    shots_from: DataSource | None = Field(
        default=None, description="Source of the five-shot examples (default: the dev split)."
    )
    qualify: bool = Field(
        default=True, description="Test first whether interactor and evaluator are fit for their roles (viva qualify)."
    )
    pack: FilePath = pack_option("kieval")
    temperature: float = temperature_option("all three roles")
    candidate_tokens: int = tokens_option("reply of the candidate", 400)
    interactor_tokens: int = tokens_option("question", 400)
    evaluator_tokens: int = tokens_option("verdict", 400)
    skip_bad_items: bool = skip_option("are not items")

    circumstances: ClassVar[frozenset[str]] = RunSettings.circumstances | {"qualify"}
    formerly: ClassVar[dict[str, Any]] = {"first_answer": "text"}
    first_defaults: ClassVar[dict[str, Any]] = {
        "candidate_tokens": 512,
        "interactor_tokens": 256,
        "evaluator_tokens": 1024,
    }

    @model_validator(mode="after")
    def _exams_choose_the_items(self) -> KievalSettings:
        for name in ("ids", "cluster"):
            if self.adaptive is not None and getattr(self, name) is not None:
                raise ValueError(f"{name}: an adaptive run chooses its items by the bank; remove {name} or adaptive")
        return self

    @model_validator(mode="after")
    def _examples_have_a_use(self) -> KievalSettings:
        if self.shots_from is not None and self.first_answer != "five-shot":
            raise ValueError("shots_from: only first_answer five-shot uses examples")
        return self

    @field_validator("detectors")
    @classmethod
    def _known_detectors(cls, names: list[str]) -> list[str]:
        try:
            detector_factories(names)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return names
