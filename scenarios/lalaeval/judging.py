"""Judge models as graders: they see what graders see, and grade by the same rubric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from viva.agents.agent import Agent
from viva.agents.judge import GradeScale, grade_form
from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Sampling

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
from .scenario import GraderPersona, JudgesSettings, answer_level

GRADER = "grader"
_PAGE_FIELDS = frozenset({"before", "question", "standard", "principle", "rubric", "labels"})
TEMPLATES = PackTemplates({
    "grader.system": frozenset[str](),
    "grader.before": frozenset({"context"}),
    "grader.standard": frozenset({"standard"}),
    "grader.principle": frozenset({"principle"}),
    "grader.one": _PAGE_FIELDS | {"answer"},
    "grader.all": _PAGE_FIELDS | {"answers", "fields"},
    "grader.answer": frozenset({"position", "answer"}),
})  # fmt: skip


class _PageModel(BaseModel):
    model_config = ConfigDict(extra="ignore")


class PageTurn(_PageModel):
    """A turn that graders see."""

    role: str
    text: str


class PageLabel(_PageModel):
    """A grade that may be given, and its meaning."""

    value: float
    meaning: str


class PageAnswer(_PageModel):
    """Answer under its blind position; graders do not learn its candidate."""

    id: str
    position: int
    turns: list[PageTurn]

    @property
    def text(self) -> str:
        """Text of its turns, each after its role; a single turn has no role."""
        if len(self.turns) == 1:
            return self.turns[0].text
        return "\n\n".join(f"{turn.role}: {turn.text}" for turn in self.turns)


class Page(_PageModel):
    """Page that a grader sees."""

    id: str
    text: str
    labels: list[PageLabel] = Field(min_length=2)
    answers: list[PageAnswer] = Field(min_length=1)
    context: list[PageTurn] = []
    standard_answer: str = ""
    principle: str = ""


_PAGE_ADAPTER = TypeAdapter(Page)


class JudgeGraders(Scenario[JudgesSettings, InlineTask], SupportsForecast):
    """Judge models as graders."""

    name = "lalaeval-judge"
    summary = "Judge models grade the answers of a grading folder as people do (LalaEval)."
    plural = "gradings"
    data = "pages"
    settings = JudgesSettings
    roles = (Role(GRADER, many=True, judge=True),)
    templates = TEMPLATES
    judging = frozenset({"grader_tokens"})

    def prepare(self, settings: JudgesSettings) -> Prepared[InlineTask]:
        tasks = read_tasks(Path(settings.pages), _PAGE_ADAPTER)
        name = Path(settings.pages).stem
        return Prepared(tasks, {"dataset": {"name": name, "digest": tasks.digest, "chosen": len(tasks)}})

    def protocol(
        self, settings: JudgesSettings, pack: PromptPack | None, records: Mapping[str, Any]
    ) -> Converse[InlineTask]:
        assert pack is not None
        sampling = settings.sampling_of(GRADER)
        show_all = settings.shown == "all"

        async def converse(conversation: Conversation, task: InlineTask) -> dict[str, Any]:
            page: Page = task.payload
            record: dict[str, Any] = {"task": task.id, "value": None, "grades": {}, "reasons": {}}
            groups = [page.answers] if show_all else [[answer] for answer in page.answers]
            try:
                for answers in groups:
                    graded = await _grade_answers(conversation, pack, sampling, page, answers, show_all=show_all)
                    for answer, (grade, reason) in zip(answers, graded, strict=True):
                        record["grades"][answer.id], record["reasons"][answer.id] = grade, reason
            except ConversationStopped as stop:
                record["stopped"] = {"by": stop.by, "reason": stop.reason}
            record["value"] = _page_value(page, record["grades"])
            record["usage"] = {role: used.to_record() for role, used in sorted(conversation.usage.items())}
            return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

        return converse

    def task(self, record: Any) -> InlineTask:
        return task_from_record(record, _PAGE_ADAPTER)

    def result_value(self, result: Any) -> Any:
        return result["grades"]

    def aggregate(self, manifest: dict[str, Any], scoring: Scoring) -> Aggregate:
        return Measures(manifest, self.roles, {"grade": (0.0, 100.0), "missing": (0.0, math.inf)})

    def forecast(
        self, settings: JudgesSettings, prepared: Prepared[InlineTask], pack: PromptPack | None
    ) -> dict[str, UsageForecast]:
        assert pack is not None
        total, system_tokens, show_all = (
            UsageForecast(),
            estimate_tokens(pack.render("grader.system")),
            settings.shown == "all",
        )
        for task in prepared.tasks:
            page: Page = task.payload
            for answers in [page.answers] if show_all else [[answer] for answer in page.answers]:
                prompt_tokens = system_tokens + estimate_tokens(
                    _question_prompt(pack, page, answers, show_all=show_all)
                )
                total += UsageForecast(1, prompt_tokens, settings.grader_tokens) * 2  # asked once more if unreadable
        return {GRADER: total}


async def _grade_answers(
    conversation: Conversation,
    pack: PromptPack,
    sampling: Sampling,
    page: Page,
    answers: list[PageAnswer],
    *,
    show_all: bool,
) -> list[tuple[float | None, str]]:
    """Return the grade and the reasoning for each answer; None if the verdict could not be read."""
    values = {f"{label.value:g}": label.value for label in page.labels}
    form = grade_form(GradeScale(" ".join(values), tuple(values)))
    levels = {answer.position: answer_level(answer.turns[-1].text, page.standard_answer) for answer in answers}
    hint = GraderPersona(levels, tuple(values.values()), "all" if show_all else "one")
    agent = Agent(conversation, GRADER, pack.render("grader.system"), sampling, hint)
    prompt = _question_prompt(pack, page, answers, show_all=show_all)
    answers_text = "\n".join(turn.text for answer in answers for turn in answer.turns)
    reply: Any = await agent.ask_for(
        _verdict_form(form, tuple(map(_field_name, answers))) if show_all else form, prompt, answers_text
    )
    if reply is None:
        return [(None, "")] * len(answers)
    verdicts = [getattr(reply, _field_name(answer)) for answer in answers] if show_all else [reply]
    return [(values[str(verdict.score)], verdict.reasoning) for verdict in verdicts]


@cache
def _verdict_form(form: type[BaseModel], names: tuple[str, ...]) -> type[BaseModel]:
    fields: dict[str, Any] = dict.fromkeys(names, (form, ...))
    return create_model("Grades", __config__=ConfigDict(extra="ignore"), **fields)


def _field_name(answer: PageAnswer) -> str:
    return f"answer_{answer.position}"


def _question_prompt(pack: PromptPack, page: Page, answers: list[PageAnswer], *, show_all: bool) -> str:
    context = "\n\n".join(f"{turn.role}: {turn.text}" for turn in page.context)
    parts = {
        "before": pack.render("grader.before", context=context) + "\n" if context else "",
        "question": page.text,
        "standard": pack.render("grader.standard", standard=page.standard_answer) + "\n"
        if page.standard_answer
        else "",
        "principle": pack.render("grader.principle", principle=page.principle) + "\n" if page.principle else "",
        "rubric": "\n".join(f"{label.value:g}: {label.meaning}" for label in page.labels),
        "labels": ", ".join(f"{label.value:g}" for label in page.labels),
    }
    if not show_all:
        return pack.render("grader.one", answer=answers[0].text, **parts)
    rendered = [pack.render("grader.answer", position=str(answer.position), answer=answer.text) for answer in answers]
    fields = ", ".join(f'"{_field_name(answer)}"' for answer in answers)
    return pack.render("grader.all", answers="\n".join(rendered), fields=fields, **parts)


def _page_value(page: Page, grades: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the aggregated values of a page: the mean grade in per cent of the highest, and the missing grades."""
    values = [grade for grade in grades.values() if grade is not None]
    top = max(label.value for label in page.labels)
    mean = 100 * sum(values) / (len(values) * top) if values and top > 0 else None
    return {"grade": mean, "missing": float(len(page.answers) - len(values))}


SCENARIO = JudgeGraders()
