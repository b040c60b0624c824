"""Collecting answers: every candidate is asked every question of a round, round by round where it has several.

What never belongs here: which questions (``drawing``), grading, and wording (``packs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from viva.agents.agent import Agent
from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Sampling

from ..contract import Aggregate, Converse, Prepared, Role, Scenario, Scoring
from ..forecast import Use, tokens_in
from ..given import GivenTask, task_of, tasks_in_file
from ..measures import Measures
from .persona import AnswerPersona
from .settings import AnswersSettings

CANDIDATE = "candidate"
TEMPLATES = PackTemplates({"candidate.system": frozenset[str](), "candidate.question": frozenset({"question"})})


class AskedQuestion(BaseModel):
    """A question as it is asked, a text for each round; what it has besides is for graders."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(min_length=1)
    question: list[str] = Field(min_length=1)
    standard_answer: str = ""
    difficulty: Literal["simple", "intermediate", "difficult"] = "intermediate"

    @field_validator("question", mode="before")
    @classmethod
    def _of_one_round(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


_TASK = TypeAdapter(AskedQuestion)


class CollectedAnswers(Measures):
    """Counts of collected answers. While they come nothing is said of their length, which is no score."""

    def headline(self) -> str:
        return ""


class Answers(Scenario[AnswersSettings, GivenTask]):
    """Answers of candidates, to be graded by people."""

    name = "lalaeval"
    summary = "Collects answers to the questions of a bank, for people to grade (LalaEval)."
    plural = "answers"
    data = "questions"
    settings = AnswersSettings
    roles = (Role(CANDIDATE, many=True),)
    templates = TEMPLATES

    def prepare(self, settings: AnswersSettings) -> Prepared[GivenTask]:
        tasks = tasks_in_file(Path(settings.questions), _TASK)
        name = Path(settings.questions).stem
        return Prepared(tasks, {"dataset": {"name": name, "digest": tasks.digest, "chosen": len(tasks)}})

    def protocol(
        self, settings: AnswersSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[GivenTask]:
        assert pack is not None
        sampling = Sampling(temperature=settings.temperature, max_tokens=settings.candidate_tokens)

        async def converse(conversation: Conversation, task: GivenTask) -> dict[str, Any]:
            asked: AskedQuestion = task.payload
            record: dict[str, Any] = {"task": task.id, "value": None, "answers": []}
            agent = Agent(conversation, CANDIDATE, pack.render("candidate.system"), sampling)
            answers: list[str] = record["answers"]
            try:
                for number, question in enumerate(asked.question, 1):
                    conversation.tell(lambda question=question: [("question", question)])  # type: ignore[misc]
                    last = number == len(asked.question)
                    agent.hint = AnswerPersona(asked.id, asked.standard_answer, asked.difficulty, last)
                    completion = await agent.ask(pack.render("candidate.question", question=question))
                    answers.append(completion.text)
                record["value"] = {"rounds": len(answers), "characters": sum(map(len, answers))}
            except ConversationStopped as stop:
                record["stopped"] = {"by": stop.by, "reason": stop.reason}
            record["usage"] = {role: used.to_record() for role, used in sorted(conversation.usage.items())}
            return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

        return converse

    def task(self, record: Any) -> GivenTask:
        return task_of(record, _TASK)

    def value(self, result: Any) -> Any:
        return result["answers"]

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> Aggregate:
        return CollectedAnswers(manifest, CANDIDATE)

    def forecast(
        self, settings: AnswersSettings, prepared: Prepared[GivenTask], pack: PromptPack | None
    ) -> dict[str, Use]:
        assert pack is not None
        total, begun = Use(), tokens_in(pack.render("candidate.system"))
        for task in prepared.tasks:
            seen = begun
            for question in task.payload.question:
                seen += tokens_in(pack.render("candidate.question", question=question))
                total += Use(1, seen, settings.candidate_tokens)
                seen += settings.candidate_tokens
        return {CANDIDATE: total}


SCENARIO = Answers()
