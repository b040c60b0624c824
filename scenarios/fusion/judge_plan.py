"""Plans that tell a judge how to use its assistants: a YAML file, written by a person or by a planning model."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import anyio
import yaml
from pydantic import BaseModel, Field

from viva.agents.assistants.assistant import Assistant, describe_assistants
from viva.agents.forms import form_schema, read_form
from viva.agents.prompts import PromptPack
from viva.engine import seeds
from viva.engine.backends.registry import build
from viva.engine.backends.simulated import SimulatedBackend, SimulatedReply
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError, MalformedOutput
from viva.engine.files import write_atomically
from viva.engine.messages import Request, Sampling, View, request_digest
from viva.engine.permissions import bound_permissions, permissions
from viva.engine.yaml_file import parse_with_lines, read_text

from ..yaml_models import YamlModel, validate_yaml
from .task_files import Name, TaskFile

_MAX_TOKENS = 2048


class Plan(YamlModel):
    """A plan: `text` is what the judge reads, `use` names the assistants of each criterion.

    A criterion without assistants is judged without them.
    """

    text: str = Field(min_length=1)
    use: dict[Name, list[str]] = Field(default_factory=dict)


def plan_text(path: Path) -> str:
    """Return the text of a plan's file; raise `ConfigurationError` if it cannot be read."""
    try:
        return read_text(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"plan: {error}; write it, or have a model write it with --planner") from None


def read_plan(text: str, name: str, task: TaskFile, assistants: Sequence[Assistant]) -> Plan:
    """Parse a plan; `name` names the file in errors.

    Raises:
        ConfigurationError: It is no plan, or names an unknown criterion or assistant; the message has file, line
            and field.
    """
    value, line = parse_with_lines(text, name)
    plan = validate_yaml(Plan, value, name, line)
    names = [assistant.name for assistant in assistants]
    for criterion, used in plan.use.items():
        if criterion not in task.criteria:
            raise ConfigurationError(
                f"{name}:{line(['use', criterion])}: use.{criterion}: the task '{task.name}' has no such criterion; "
                f"it has {', '.join(task.criteria)}"
            )
        for position, assistant in enumerate(used):
            if assistant not in names:
                has = ", ".join(names) or "none"
                raise ConfigurationError(
                    f"{name}:{line(['use', criterion, position])}: use.{criterion}.{position}: the run has no "
                    f"assistant '{assistant}'; it has {has}; add it with --assistant, or remove it from the plan"
                )
    return plan


class _PlanSteps(BaseModel):
    criterion: str = Field(description="Name of a criterion.")
    assistants: list[str] = Field(description="Names of the assistants that serve it; none where none does.")


class _WrittenPlan(BaseModel):
    """The form of a planning model's answer."""

    plan: str = Field(min_length=1, description="The plan, as instructions to the judge.")
    use: list[_PlanSteps]


@dataclass(frozen=True, slots=True)
class _PlannerHint:
    """The knowledge of a simulated planner: all assistants serve every criterion."""

    criteria: list[str]
    assistants: list[str]

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        steps = [_PlanSteps(criterion=name, assistants=self.assistants) for name in self.criteria]
        text = "Read everything first. Then set the assistants' numbers against your own impression, by criterion."
        return _WrittenPlan(plan=text, use=steps).model_dump_json(), None


def write_plan(
    path: Path, model: str, pack: PromptPack, task: TaskFile, assistants: Sequence[Assistant], seed: int
) -> None:
    """Have a model write the plan into a file, once.

    Raises:
        ConfigurationError: Neither answer of the model is a plan for this task and these assistants.
        BackendError: The model could not answer.
    """
    permissions().check_writing(f"plan {path}")
    view = View()
    view.append("system", pack.render("planner.system"))
    question = pack.render(
        "planner.question",
        about=task.about.strip(),
        criteria=task.describe_criteria(),
        assistants=describe_assistants(assistants),
    )
    view.append("user", question)
    hint = _PlannerHint(list(task.criteria), [assistant.name for assistant in assistants])
    answer = _ask_planner(model, view, pack, task, assistants, seed, hint)
    data = {
        "text": answer.plan.strip() + "\n",
        "use": {step.criterion: step.assistants for step in answer.use if step.assistants},
    }
    text = yaml.dump(data, Dumper=_BlockDumper, allow_unicode=True, sort_keys=False, width=100)
    write_atomically(path, text.encode())


class _BlockDumper(yaml.SafeDumper):
    """A YAML dumper that writes multi-line texts as blocks, so that people can read and edit them."""


def _represent_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockDumper.add_representer(str, _represent_block)


def _ask_planner(
    model: str,
    view: View,
    pack: PromptPack,
    task: TaskFile,
    assistants: Sequence[Assistant],
    seed: int,
    hint: _PlannerHint,
) -> _WrittenPlan:
    sampling = Sampling(max_tokens=_MAX_TOKENS, schema=form_schema(_WrittenPlan))
    problems: list[str] = []

    async def ask() -> _WrittenPlan | None:
        async with build(model, RealClock()) as backend:
            for attempt in range(2):
                call_seed = seeds.derive(seed, "plan", attempt)
                digest = request_digest(view, sampling, call_seed, None)
                request = Request(view.messages, sampling, call_seed, digest, "plan", "planner", attempt, hint)
                completion = await backend.generate(request)
                try:
                    return _fit_plan(read_form(_WrittenPlan, completion.text), task, assistants)
                except MalformedOutput as error:
                    problems.append(str(error))
                    view.append("assistant", completion.text)
                    view.append("user", pack.render("judge.again", problem=str(error)))
        return None

    current_permissions = permissions()

    def run() -> _WrittenPlan | None:
        with bound_permissions(current_permissions):
            return anyio.run(ask)

    # In its own thread, because the caller may be in an event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="viva-plan") as thread:
        plan = thread.submit(run).result()
    if plan is None:
        raise ConfigurationError(
            f"planner '{model}': wrote no valid plan in two attempts: {problems[-1]}; write the plan yourself"
        )
    return plan


def _fit_plan(plan: _WrittenPlan, task: TaskFile, assistants: Sequence[Assistant]) -> _WrittenPlan:
    """Check a plan against the task; raise `MalformedOutput` for an unknown criterion or assistant."""
    names = {assistant.name for assistant in assistants}
    for step in plan.use:
        if step.criterion not in task.criteria:
            raise MalformedOutput(f"there is no criterion '{step.criterion}'")
        unknown = [assistant for assistant in step.assistants if assistant not in names]
        if unknown:
            raise MalformedOutput(f"there is no assistant '{unknown[0]}'")
    steps = [step.model_copy(update={"assistants": list(dict.fromkeys(step.assistants))}) for step in plan.use]
    return plan.model_copy(update={"use": steps})
