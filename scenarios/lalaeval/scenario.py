"""LalaEval's scenario: every candidate answers every question of a round; settings, and simulated models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from viva.agents.agent import Agent
from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine import seeds
from viva.engine.backends.simulated import SENTENCES, SimulatedBackend, SimulatedReply
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Request

from ..contract import (
    Aggregate,
    Converse,
    Prepared,
    Role,
    Scenario,
    Scoring,
    SupportsForecast,
    UsageForecast,
    estimate_tokens,
)
from ..default_aggregate import Measures
from ..inline_tasks import InlineTask, read_tasks, task_from_record
from ..run_settings import FilePath, ModelNames, RunSettings, pack_option, temperature_option, tokens_option
from ..simulated_knowledge import judgement


class AnswersSettings(RunSettings):
    """Answers of candidates to the questions of a LalaEval round (Sun et al. 2024)."""

    questions: FilePath = Field(description="JSON lines of questions, as `viva grade bank export` writes them.")
    candidate: ModelNames = Field(min_length=1, description="Model that answers.")
    temperature: float = temperature_option("the candidates")
    candidate_tokens: int = tokens_option("answer to a round", 1024)
    pack: FilePath = pack_option("lalaeval")

    examples: ClassVar[dict[str, str]] = {"questions": "questions.jsonl"}


class JudgesSettings(RunSettings):
    """Judge models that grade the pages of a grading folder as people do."""

    pages: FilePath = Field(description="JSON lines of pages, as `viva grade judge` writes them.")
    grader: ModelNames = Field(min_length=1, description="Model that grades.")
    shown: Literal["one", "all"] = Field(
        default="one", description="one: each answer by itself; all: all answers of a question, in blind positions."
    )
    temperature: float = temperature_option("the graders")
    grader_tokens: int = tokens_option("reasoning with grades", 1024)
    pack: FilePath = pack_option("lalaeval-judge")

    examples: ClassVar[dict[str, str]] = {"pages": "pages.jsonl", "grader": "openai:gpt-4o"}


WRONG, PARTLY, RIGHT, MORE = range(4)  # quality of an answer
SEVERITY = "severity"  # a judge's trait: probability of one grade lower; higher if negative
_EASIER = {"simple": 0.15, "intermediate": 0.0, "difficult": -0.15}
_WRONG_WORDS = (
    "There is no rule for this; it is left to whoever happens to be asked.",
    "It works the other way round, as a look at any brochure shows.",
    "That was given up years ago and is not done anywhere today.",
    "Nobody keeps a record of it, so every answer is as good as another.",
)


@dataclass(slots=True, frozen=True)
class AnswerPersona:
    """Simulated candidate that answers a question of the bank. `last` is True in the question's last round."""

    id: str
    standard: str
    difficulty: str
    last: bool = True

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Return its answer, which depends only on its label, its knowledge and the question."""
        level = simulated_level(model.label, model.knowledge, self.id, self.difficulty)
        if not self.last:
            return "Noted. Please go on." if level else "I am not sure what you mean.", None
        return simulated_answer(self.standard, level, seeds.uniform(model.label, self.id, "words")), None


def simulated_level(label: str, knowledge: float, question: str, difficulty: str) -> int:
    """Return the quality of a candidate's answer: WRONG, PARTLY, RIGHT or MORE.

    It is wrong as often as the candidate lacks `knowledge`, less often for simple questions.
    """
    if seeds.uniform(label, question, "knows") >= min(1.0, max(0.0, knowledge + _EASIER.get(difficulty, 0.0))):
        return WRONG
    draw = seeds.uniform(label, question, "how")
    return PARTLY if draw < 0.3 else RIGHT if draw < 0.75 else MORE


def simulated_answer(standard: str, level: int, chance: float = 0.0) -> str:
    """Return an answer of this quality; `chance`, in [0, 1), selects the words."""
    if level == WRONG:
        return _WRONG_WORDS[int(chance * len(_WRONG_WORDS))]
    if level == PARTLY:
        return f"In short: {_first_half(standard)} – and the rest depends."
    return standard if level == RIGHT else f"{standard}\n\n{SENTENCES[int(chance * len(SENTENCES))]}"


def answer_level(answer: str, standard: str) -> int:
    """Return the quality of a simulated candidate's answer."""
    if standard in answer:
        return RIGHT if answer.strip() == standard.strip() else MORE
    return PARTLY if _first_half(standard) in answer else WRONG


def grade_at(level: int, grades: Sequence[float]) -> float:
    """Return the grade that an answer of this quality deserves: for WRONG the worst of `grades`, then one step each."""
    return sorted(grades)[min(level, len(grades) - 1)]


def biased_grade(true: float, grades: Sequence[float], severity: float, noise: float, chance: Sequence[float]) -> float:
    """Return the grade that a biased grader gives to an answer that deserves `true`.

    It is one grade lower with probability `severity` (higher if negative), and also one grade up or down with
    probability `noise`. `chance`: three draws in [0, 1). Grades stay within the scale.
    """
    ordered = sorted(grades)
    index = ordered.index(true)
    if chance[0] < abs(severity):
        index += -1 if severity > 0 else 1
    if chance[1] < noise:
        index += -1 if chance[2] < 0.5 else 1
    return ordered[min(len(ordered) - 1, max(0, index))]


def expected_biased_grade(true: float, grades: Sequence[float], severity: float, noise: float) -> float:
    """Return the mean of `biased_grade`."""
    habits = ((abs(severity), -1.0), (1 - abs(severity), 1.0))
    moves = ((noise / 2, (-1.0, 0.0)), (noise / 2, (-1.0, 0.9)), (1 - noise, (1.0, 0.0)))
    return math.fsum(
        often * weight * biased_grade(true, grades, severity, noise, (habit, *move))
        for often, habit in habits
        for weight, move in moves
    )


@dataclass(slots=True, frozen=True)
class GraderPersona:
    """Simulated judge that knows the quality of answers by position; `severity` is a trait of the model."""

    levels: Mapping[int, int]
    grades: tuple[float, ...]
    form: str

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Return its grades as JSON."""
        verdicts = {str(position): self._verdict(model, request, position) for position in self.levels}
        reply = (
            next(iter(verdicts.values()))
            if self.form == "one"
            else {f"answer_{key}": verdict for key, verdict in verdicts.items()}
        )
        return judgement(model, orjson.dumps(reply).decode(), chance), None

    def _verdict(self, model: SimulatedBackend, request: Request, position: int) -> dict[str, object]:
        draws = seeds.draws(request.seed, "grade", position)
        true = grade_at(self.levels[position], self.grades)
        grade = biased_grade(true, self.grades, model.traits.get(SEVERITY, 0.0), model.noise, draws)
        return {"reasoning": "Set against the standard answer.", "score": f"{grade:g}"}


def _first_half(standard: str) -> str:
    words = standard.split(" ")
    return " ".join(words[: max(1, (len(words) + 1) // 2)])


CANDIDATE = "candidate"
TEMPLATES = PackTemplates({"candidate.system": frozenset[str](), "candidate.question": frozenset({"question"})})


class AskedQuestion(BaseModel):
    """Question as sent to candidates, one text per round; its other fields are for graders."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(min_length=1)
    question: list[str] = Field(min_length=1)
    standard_answer: str = ""
    difficulty: Literal["simple", "intermediate", "difficult"] = "intermediate"

    @field_validator("question", mode="before")
    @classmethod
    def _of_one_round(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


_QUESTION_ADAPTER = TypeAdapter(AskedQuestion)


class AnswerCounts(Measures):
    """Counts of collected answers, without a headline, since length is not a score."""

    def headline(self) -> str:
        return ""


class CollectAnswers(Scenario[AnswersSettings, InlineTask], SupportsForecast):
    """Scenario that collects candidates' answers for people to grade."""

    name = "lalaeval"
    summary = "Collects answers to the questions of a bank, for people to grade (LalaEval)."
    plural = "answers"
    data = "questions"
    settings = AnswersSettings
    roles = (Role(CANDIDATE, many=True),)
    templates = TEMPLATES

    def prepare(self, settings: AnswersSettings) -> Prepared[InlineTask]:
        tasks = read_tasks(Path(settings.questions), _QUESTION_ADAPTER)
        name = Path(settings.questions).stem
        return Prepared(tasks, {"dataset": {"name": name, "digest": tasks.digest, "chosen": len(tasks)}})

    def protocol(
        self, settings: AnswersSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[InlineTask]:
        assert pack is not None
        sampling = settings.sampling_of(CANDIDATE)

        async def converse(conversation: Conversation, task: InlineTask) -> dict[str, Any]:
            task_question: AskedQuestion = task.payload
            record: dict[str, Any] = {"task": task.id, "value": None, "answers": []}
            agent = Agent(conversation, CANDIDATE, pack.render("candidate.system"), sampling)
            answers: list[str] = record["answers"]
            try:
                for number, question in enumerate(task_question.question, 1):
                    conversation.tell(lambda question=question: [("question", question)])  # type: ignore[misc]
                    last = number == len(task_question.question)
                    agent.hint = AnswerPersona(
                        task_question.id, task_question.standard_answer, task_question.difficulty, last
                    )
                    completion = await agent.ask(pack.render("candidate.question", question=question))
                    answers.append(completion.text)
                record["value"] = {"rounds": len(answers), "characters": sum(map(len, answers))}
            except ConversationStopped as stop:
                record["stopped"] = {"by": stop.by, "reason": stop.reason}
            record["usage"] = {role: used.to_record() for role, used in sorted(conversation.usage.items())}
            return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

        return converse

    def task(self, record: Any) -> InlineTask:
        return task_from_record(record, _QUESTION_ADAPTER)

    def result_value(self, result: Any) -> Any:
        return result["answers"]

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> Aggregate:
        return AnswerCounts(manifest, self.roles)

    def forecast(
        self, settings: AnswersSettings, prepared: Prepared[InlineTask], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        assert pack is not None
        total, system_tokens = UsageForecast(), estimate_tokens(pack.render("candidate.system"))
        for task in prepared.tasks:
            prompt_tokens = system_tokens
            for question in task.payload.question:
                prompt_tokens += estimate_tokens(pack.render("candidate.question", question=question))
                total += UsageForecast(1, prompt_tokens, settings.candidate_tokens)
                prompt_tokens += settings.candidate_tokens
        return {CANDIDATE: total}


SCENARIO = CollectAnswers()
