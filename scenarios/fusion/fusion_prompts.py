"""Prompts of the judge: the prompt pack with the task and the plan, frozen at the start of a run.

The texts are in `prompts/fusion.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from viva.agents.assistants.assistant import Assistant, AssistantResult, Example, describe_assistants, format_results
from viva.agents.assistants.registry import open_assistants as named_assistants
from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine.errors import ConfigurationError
from viva.engine.yaml_file import parse_yaml

from ..assistant_roles import check_assistant_texts
from .fusion_settings import DIRECT, PLAN, FusionSettings
from .judge_plan import Plan, plan_text, read_plan, write_plan
from .task_files import JudgedExample, TaskFile, read_task, task_text, text_digest

_PLACEHOLDERS = frozenset({"about", "criteria", "form"})
_TASK, _PLAN = "task_file", "plan_file"  # keys of the task and the plan in the pack's text
TEMPLATES = PackTemplates({
    "judge.direct": _PLACEHOLDERS,
    "judge.noplan": _PLACEHOLDERS | {"assistants"},
    "judge.plan": _PLACEHOLDERS | {"assistants", "plan"},
    "judge.example": frozenset({"texts"}),
    "judge.advised": frozenset({"texts", "numbers"}),
    "judge.again": frozenset({"problem"}),
    "planner.system": frozenset(),
    "planner.question": frozenset({"about", "criteria", "assistants"}),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class JudgePrompts:
    """The prompts of a run's judges, with its task, plan and assistants."""

    pack: PromptPack
    mode: str
    task: TaskFile
    plan: Plan | None
    assistants: tuple[Assistant, ...]

    def system(self) -> str:
        form = ", ".join(f'"{name}": {{"explanation": "…", "score": …}}' for name in self.task.criteria)
        values = {"about": self.task.about.strip(), "criteria": self.task.describe_criteria(), "form": f"{{{form}}}"}
        if self.mode != DIRECT:
            values["assistants"] = describe_assistants(self.assistants)
        if self.mode == PLAN:
            assert self.plan is not None
            values["plan"] = self.plan.text.strip()
        return self.pack.render(f"judge.{self.mode}", **values)

    def question(self, example: JudgedExample, advice: list[AssistantResult]) -> str:
        texts = "\n\n".join(
            f"{text.title}:\n{example.texts[name].strip() or '(nothing)'}"
            for name, text in self.task.texts.items()
            if name in example.texts
        )
        if self.mode == DIRECT:
            return self.pack.render("judge.example", texts=texts)
        return self.pack.render("judge.advised", texts=texts, numbers=format_results(advice))

    def assistant_example(self, example: JudgedExample, hint: Any = None) -> Example:
        task = self.task
        around = {name: text for name, text in example.texts.items() if name != task.response}
        against = task.against or ""
        return Example(example.texts.get(task.response, ""), around, against, tuple(task.context), hint)

    def records(self, settings: FusionSettings) -> dict[str, Any]:
        """Return the manifest's records of task and plan, besides the pack's own text."""
        recorded = _read_task_and_plan(self.pack.text)
        records: dict[str, Any] = {
            "task": {"name": self.task.name, "digest": text_digest(recorded[_TASK])},
            "plan": None,
        }
        if recorded[_PLAN] is not None:
            text = recorded[_PLAN]
            records["plan"] = {"name": Path(settings.plan or "").name, "digest": text_digest(text), "text": text}
        return records


def open_pack(settings: FusionSettings) -> PromptPack:
    """Return the pack of a run with its task and plan; for a recorded run, as recorded.

    A planner writes the plan if its file does not exist yet.

    Raises:
        ConfigurationError: Pack, task or plan cannot be used; the message names file, line and field.
    """
    if settings.recorded_prompts is not None:
        return TEMPLATES.read(settings.recorded_prompts, settings.pack)
    pack = TEMPLATES.open(settings.pack)
    task_source = task_text(settings.task)
    task = read_task(task_source, settings.task)
    assistants = named_assistants(settings.assistant, task.against)
    texts = [text for text in task.texts if text != task.response]
    check_assistant_texts(assistants, texts, task.against, settings.task)
    planned: str | None = None
    if settings.plan is not None:
        path = Path(settings.plan)
        if settings.planner is not None and not path.exists():
            write_plan(path, settings.planner, pack, task, assistants, settings.seed)
        planned = plan_text(path)
        read_plan(planned, settings.plan, task, assistants)
    data = parse_yaml(pack.text, settings.pack)
    data |= {_TASK: task_source, _PLAN: planned}
    return TEMPLATES.read(yaml.safe_dump(data, allow_unicode=True, sort_keys=False, width=1_000_000), settings.pack)


def prompts_of_pack(pack: PromptPack, settings: FusionSettings) -> JudgePrompts:
    """Return the prompts in a pack with task and plan.

    Raises:
        ConfigurationError: As for `open_pack`.
    """
    recorded = _read_task_and_plan(pack.text)
    task = read_task(recorded[_TASK], settings.task)
    assistants = named_assistants(settings.assistant, task.against)
    plan = None if recorded[_PLAN] is None else read_plan(recorded[_PLAN], settings.plan or "plan", task, assistants)
    return JudgePrompts(pack, settings.mode, task, plan, assistants)


def _read_task_and_plan(text: str) -> Mapping[str, Any]:
    data = parse_yaml(text, "prompt pack")
    if not isinstance(data, dict) or not isinstance(data.get(_TASK), str):
        raise ConfigurationError("the recorded prompt pack holds no task; restore the run's manifest from a copy")
    return {_TASK: data[_TASK], _PLAN: data.get(_PLAN)}
