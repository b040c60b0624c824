"""Single-answer grading as a scenario: judges grade one answer at a time, as in MT-Bench (Zheng et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from viva.agents.agent import Agent
from viva.agents.judge import SCALES, grade_form
from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine import seeds
from viva.engine.conversation import Conversation, ConversationStopped

from ..audit.simulated_judge import AnswerHint
from ..contract import (
    SCORE,
    Aggregate,
    Converse,
    Prepared,
    Role,
    Scenario,
    Scoring,
    SupportsForecast,
    SupportsTaskDetection,
    UsageForecast,
    estimate_tokens,
)
from ..default_aggregate import Measures
from ..inline_tasks import InlineTask, InlineTasks, inline_tasks, read_tasks, task_from_record
from ..run_aggregate import conversation_costs
from ..run_settings import FilePath, ModelNames, RunSettings, pack_option, temperature_option, tokens_option

JUDGE = "judge"
TEMPLATES = PackTemplates({
    "judge.system": frozenset[str](),
    "judge.grade": frozenset({"question", "answer", "reference", "scale"}),
    "judge.reference": frozenset({"text"}),
})  # fmt: skip


class AnswerToGrade(BaseModel):
    """A task: an answer to a question, optionally with a reference answer."""

    model_config = ConfigDict(extra="ignore")

    id: str | int | None = None
    question: str = Field(min_length=1)
    answer: str
    reference: str = ""


_TASK = TypeAdapter(AnswerToGrade)


class GradingSettings(RunSettings):
    """Single-answer grading by judges."""

    tasks: FilePath = Field(description="JSON Lines file with question, answer, and optionally id and reference.")
    judge: ModelNames = Field(min_length=1, description="Model that grades.")
    scale: Literal["1-10", "1-5", "letters", "words"] = Field(default="1-10", description="Labels of the grades.")
    temperature: float = temperature_option("the judge")
    judge_tokens: int = tokens_option("reasoning with grade", 1024)
    repeats: int = Field(default=1, ge=1, le=1000, description="How often each answer is graded.")
    pack: FilePath = pack_option("grading")

    examples: ClassVar[dict[str, str]] = {"tasks": "answers.jsonl"}


class SingleAnswerGrading(Scenario[GradingSettings, InlineTask], SupportsForecast, SupportsTaskDetection):
    """Single-answer grading; tasks may be passed in instead of named in the settings."""

    name = "grading"
    summary = "Single-answer grading: judges grade one answer at a time, as MT-Bench does."
    plural = "grades"
    data = "tasks"
    settings = GradingSettings
    roles = (Role(JUDGE, many=True),)
    templates = TEMPLATES

    def __init__(self, tasks: Iterable[Mapping[str, Any]] | None = None) -> None:
        self.inline_tasks: InlineTasks | None = None if tasks is None else inline_tasks(tasks, _TASK)

    def prepare(self, settings: GradingSettings) -> Prepared[InlineTask]:
        tasks = self.inline_tasks or read_tasks(Path(settings.tasks), _TASK)
        name = Path(settings.tasks).stem
        return Prepared(tasks, {"dataset": {"name": name, "digest": tasks.digest, "chosen": len(tasks)}})

    def protocol(
        self, settings: GradingSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[InlineTask]:
        assert pack is not None
        scale = SCALES[settings.scale]
        sampling = settings.sampling_of(JUDGE)

        async def converse(conversation: Conversation, task: InlineTask) -> dict[str, Any]:
            record: dict[str, Any] = {"task": task.id, "value": None}
            # For a simulated judge the quality of an answer is a hash of its text.
            hint = AnswerHint(seeds.uniform(task.payload.question, task.payload.answer, "quality"), scale)
            agent = Agent(conversation, JUDGE, pack.render("judge.system"), sampling, hint)
            try:
                prompt = _grading_prompt(pack, task.payload, scale.words())
                grade: Any = await agent.ask_for(grade_form(scale), prompt, task.payload.answer)
                record["value"] = {SCORE: None if grade is None else scale.points(grade.score)}
            except ConversationStopped as stop:
                record["stopped"] = {"by": stop.by, "reason": stop.reason}
            return record | conversation_costs(conversation)

        return converse

    def task(self, record: Any) -> InlineTask:
        return task_from_record(record, _TASK)

    def result_value(self, result: Any) -> Any:
        return result["value"]

    def accepts_record(self, raw: Mapping[str, Any]) -> bool:
        return "question" in raw and isinstance(raw.get("answer"), str) and "choices" not in raw

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> Aggregate:
        scale = SCALES[manifest["settings"].get("scale", "1-10")]
        return Measures(manifest, self.roles, {SCORE: (scale.points(scale.labels[0]), scale.points(scale.labels[-1]))})

    def forecast(
        self, settings: GradingSettings, prepared: Prepared[InlineTask], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        assert pack is not None
        total, scale = UsageForecast(), SCALES[settings.scale].words()
        for task in prepared.tasks:
            prompt = estimate_tokens(_grading_prompt(pack, task.payload, scale)) + estimate_tokens(
                pack.render("judge.system")
            )
            total += UsageForecast(1, prompt, settings.judge_tokens) * 2  # one retry if the grade is unreadable
        return {JUDGE: total}


def _grading_prompt(pack: PromptPack, task: AnswerToGrade, scale: str) -> str:
    reference = pack.render("judge.reference", text=task.reference) if task.reference else ""
    return pack.render("judge.grade", question=task.question, answer=task.answer, reference=reference, scale=scale)


SCENARIO = SingleAnswerGrading()
