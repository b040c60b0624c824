"""Settings of a KIEval run, for the command line, configuration files and embedding programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from viva.data.dataset import Cluster
from viva.engine.detectors import detector_factories
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Sampling

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

FirstAnswerMode = Literal["choice", "text", "five-shot", "published"]
# First answers that must name a choice: otherwise there is no interview.
CHOICE_MODES = ("five-shot", "published")
# What `as_published` sets (Yu et al. 2024, section 4, and their code's configuration); `n` may be another number.
PUBLISHED: dict[str, Any] = {
    "first_answer": "published",
    "in_order": True,
    "replace_unanswered": True,
    "fixed_seed": 0,
    "plain_calls": True,
    "pack": "kieval-as-published",
    "rounds": 5,
    "early_stop": True,
    "detectors": [],
    "assistant": [],
    "shuffled": False,
    "cluster": None,
    "scorer": "official",
    "decay": True,
    "temperature": 0.0,
    "candidate_tokens": 400,
    "interactor_tokens": 400,
    "evaluator_tokens": 400,
}
PUBLISHED_ITEMS = 200


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
    as_published: bool = Field(
        default=False, description="Interview as the paper did; this sets the options that docs/kieval.md lists."
    )
    n: int | None = count_option("Items")
    ids: FilePath | None = Field(default=None, description="File of item ids: use only these items.")
    in_order: bool = Field(default=False, description="Use the first -n items of the dataset instead of a sample.")
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
        "after five solved examples (five-shot: no interview if it names no choice; published: likewise, as in the "
        "authors' code).",
    )
    shots_from: DataSource | None = Field(
        default=None, description="Source of the five-shot examples (default: the dev split)."
    )
    replace_unanswered: bool = Field(
        default=False,
        description="For each item without an interview, give that candidate the next item of the dataset "
        "(with --in-order and -n).",
    )
    fixed_seed: int | None = Field(
        default=None, ge=0, description="Send this seed with every call (default: each call has its own)."
    )
    plain_calls: bool = Field(
        default=False, description="Send no JSON schema, and request no text a second time because it is unreadable."
    )
    judge_seeds: int = Field(
        default=1, ge=1, le=100, description="Judge every interview with this many seeds of the evaluator, and compare."
    )
    qualify: bool = Field(
        default=True, description="Test first whether interactor and evaluator are fit for their roles (viva qualify)."
    )
    pack: FilePath = pack_option("kieval")
    temperature: float = temperature_option("all three roles")
    evaluator_temperature: float | None = Field(
        default=None, ge=0, le=2, description="Sampling temperature of the evaluator (default: --temperature)."
    )
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

    @model_validator(mode="before")
    @classmethod
    def _set_as_published(cls, values: Any) -> Any:
        """Set the options of the paper; an option that says something else is a contradiction."""
        if not isinstance(values, dict) or values.get("as_published") is not True:
            return values
        for name, value in PUBLISHED.items():
            if (other := values.get(name, value)) != value:
                problem = f"as_published sets {name} to {_setting_text(value)}, found {_setting_text(other)}"
                raise ValueError(f"{problem}; leave one of the two out")
        return {**values, **PUBLISHED, "n": values.get("n") or PUBLISHED_ITEMS}

    @model_validator(mode="after")
    def _exams_choose_the_items(self) -> KievalSettings:
        for name in ("ids", "cluster", "in_order"):
            if self.adaptive is not None and getattr(self, name):
                raise ValueError(f"{name}: an adaptive run chooses its items by the bank; remove {name} or adaptive")
        return self

    @model_validator(mode="after")
    def _agree(self) -> KievalSettings:
        if self.shots_from is not None and self.first_answer not in CHOICE_MODES:
            raise ValueError("shots_from: only first_answer five-shot and published use examples")
        if self.in_order and (self.shuffled or self.cluster is not None):
            other = "shuffled" if self.shuffled else "cluster"
            raise ValueError(f"in_order: {other} asks for another order of the items; leave one of the two out")
        if self.replace_unanswered and not (self.in_order and self.n and self.first_answer in CHOICE_MODES):
            raise ValueError("replace_unanswered: needs in_order, a number of items (n), and first_answer five-shot or "
                             "published, which drop items")  # fmt: skip
        return self

    def sampling_of(self, role: str) -> Sampling:
        sampling = replace(super().sampling_of(role), seed=self.fixed_seed)
        temperature = getattr(self, f"{role}_temperature", None)
        return replace(sampling, temperature=self.temperature if temperature is None else temperature)

    @field_validator("detectors")
    @classmethod
    def _known_detectors(cls, names: list[str]) -> list[str]:
        try:
            detector_factories(names)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return names


def _setting_text(value: Any) -> str:
    """Return a setting's value as a user writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in (None, []) else str(value)
