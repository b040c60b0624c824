"""Settings of a Fusion-Eval run, for the command line, configuration files and embedding programs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ..assistant_roles import AssistantNames
from ..run_settings import (
    FilePath,
    ModelName,
    ModelNames,
    NewPath,
    RunSettings,
    count_option,
    file_or,
    pack_option,
    temperature_option,
    tokens_option,
)
from .task_files import SHIPPED_TASKS

Mode = Literal["plan", "noplan", "direct"]
PLAN: Mode = "plan"
DIRECT: Mode = "direct"


class FusionSettings(RunSettings):
    """Responses scored by judges with the help of assistants (Shu et al. 2023)."""

    task: Annotated[str, file_or(*SHIPPED_TASKS)] = Field(
        description=f"Task: {', '.join(SHIPPED_TASKS)}, or a YAML file."
    )
    data: FilePath = Field(description="Examples: a JSONL file or a JSON list, with the fields that the task names.")
    judge: ModelNames = Field(min_length=1, description="Model that judges.")
    assistant: AssistantNames = Field(
        default=[],
        description="Assistant: rouge-1, rouge-2, rouge-l, bleu, chrf, meteor (@TEXT: compared with this text), "
        "logprob:MODEL, judge:MODEL, nli:FOLDER, embedding:FOLDER, FILE.py#NAME; a prefix LABEL= sets its name.",
    )
    mode: Mode = Field(
        default="plan",
        description="plan: the judge has the assistants' numbers and a plan; noplan: the numbers; direct: neither.",
    )
    plan: NewPath | None = Field(default=None, description="YAML file of the plan.")
    planner: ModelName | None = Field(
        default=None, description="Model that writes the plan file before the run, if it does not exist yet."
    )
    n: int | None = count_option("Examples")
    predictions: int = Field(default=8, ge=1, le=100, description="Number of predictions per judge and example.")
    temperature: float = temperature_option("the judge", 0.5)
    scores: Literal["written", "expected"] = Field(
        default="written",
        description="written: scores as written; expected: whole numbers, weighted by their probabilities "
        "if the model returns them.",
    )
    folds: int = Field(default=5, ge=2, le=100, description="Number of folds for weights fitted on the other folds.")
    pack: FilePath = pack_option("fusion")
    judge_tokens: int = tokens_option("answer of the judge", 1024)

    examples: ClassVar[dict[str, str]] = {"task": "dialogue", "data": "replies.jsonl", "judge": "openai:gpt-4o"}

    @model_validator(mode="after")
    def _parts_of_the_mode(self) -> FusionSettings:
        if self.mode != DIRECT and not self.assistant:
            raise ValueError(f"assistant: mode {self.mode} needs at least one; add --assistant, or use --mode direct")
        if self.mode == PLAN and self.plan is None:
            raise ValueError("plan: mode plan needs a file; add --plan FILE (and --planner MODEL to have it written)")
        if self.planner is not None and self.plan is None:
            raise ValueError("planner: needs --plan FILE to write the plan to")
        return self
