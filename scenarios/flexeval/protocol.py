"""One conversation of a suite: the system under test answers where it is to, then all metrics are computed, in stages.

What never belongs here: how a function is called (``measuring``), how a rubric is graded (``rubric``), adding up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viva.agents.prompts import PromptPack
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.errors import MalformedOutput, TaskError
from viva.engine.messages import Sampling

from .figures import flat, keeps
from .graph import Measured
from .measuring import Found, holds, measure, units_of, values_of
from .persona import GraderPersona
from .rubric import Grader, filled, grading, said
from .spec import Rubric, Suite
from .talk import CANDIDATE, INTERACTOR, Talk
from .units import Dialog, ToolCall, Unit

GRADER = "grader"
_START = 30.0  # seconds that a worker process may take to load what it needs
_OVERHEAD = 0.05  # seconds for each value beside the function's own time


@dataclass(frozen=True, slots=True)
class DialogTask:
    """A conversation of the suite, or a line of a file that holds none: then ``problem`` says why."""

    id: str
    dialog: Dialog | None
    problem: str = ""
    path: str = ""
    line: int | None = None

    def to_record(self) -> Any:
        """Plain JSON data."""
        if self.dialog is not None:
            return self.dialog.to_record()
        return {"id": self.id, "problem": self.problem, "path": self.path, "line": self.line}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DialogTask:
        """The task of a record."""
        if "problem" in record:
            return cls(record["id"], None, record["problem"], record["path"], record["line"])
        return cls(record["id"], Dialog.from_record(record))


class SuiteProtocol:
    """Holds the conversations of one suite."""

    def __init__(
        self,
        suite: Suite,
        metrics: Sequence[Measured],
        graders: Mapping[str, str],
        pack: PromptPack,
        *,
        plays: bool = False,
    ) -> None:
        """``graders``: the role of each grader, by its label. ``plays``: an interactor is the user of dialogs that are
        held anew; else their recorded user turns are said again.
        """
        self._suite, self._pack, self._plays = suite, pack, plays
        self._graders = dict(graders)
        self._stages = [
            ([one for one in metrics if one.stage == stage and one.by_function],
             [one for one in metrics if one.stage == stage and not one.by_function])
            for stage in sorted({one.stage for one in metrics})
        ]  # fmt: skip
        self._metrics = metrics
        self._told = {one.name: one.to_record() | {"code": one.digest} for one in metrics}

    async def hold(self, conversation: Conversation, task: DialogTask) -> dict[str, Any]:
        """The record of one conversation.

        :raises TaskError: its line could not be read, or there is nothing in it to answer.
        """
        if task.dialog is None:
            raise TaskError(f"{task.path}:{task.line}: {task.problem}")
        record: dict[str, Any] = {"dialog": task.id}
        dialog, found = task.dialog, {}
        try:
            dialog = await Talk(conversation, self._suite, self._pack, plays=self._plays).completed(dialog)
            found = await self._measured(conversation, dialog)
        except ConversationStopped as stop:
            record["stopped"] = {"by": stop.by, "reason": stop.reason}
        record |= {
            "kept": (kept := self._kept(dialog)),  # so many of the recorded messages, and behind them:
            "said": [one.to_record() for one in dialog.messages[kept:]],
            "metadata": {key: value for key, value in dialog.metadata.items() if isinstance(value, str | int | float)},
            "roles": {level: [unit.role for unit in dialog.units(level)] for level in _levels(self._metrics)},
            "labels": self._labels(dialog, found),
            "metrics": found,
            "passed": self._passed(found),
            "usage": {role: used.to_record() for role, used in sorted(conversation.usage.items())},
        }
        return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

    def _passed(self, found: Found) -> bool | None:
        """Whether every value of every metric with ``passes`` keeps it; None where nothing has, or one is an error."""
        checks = [(found.get(one.name), one.spec.passes) for one in self._metrics if one.spec.passes is not None]
        if not checks or any(one is None or one["errors"] for one, _ in checks):
            return None
        return all(keeps(flat(value), passes) for one, passes in checks if one for _, value in one["values"])

    def _kept(self, dialog: Dialog) -> int:
        if self._suite.complete == "dialog":
            return 0
        return sum(not one.new for one in dialog.messages)

    async def _measured(self, conversation: Conversation, dialog: Dialog) -> Found:
        found: Found = {}
        graded: dict[tuple[str, str, int, int], Any] = {}  # another metric may have the same rubric
        for functions, rubrics in self._stages:
            if functions:
                found |= await self._computed(conversation, dialog, functions, found)
            for metric in rubrics:
                found[metric.name] = await self._graded(conversation, dialog, metric, found, graded)
        return {one.name: {"level": one.level} | found[one.name] for one in self._metrics}

    async def _computed(
        self, conversation: Conversation, dialog: Dialog, metrics: Sequence[Measured], found: Found
    ) -> Found:
        """All function metrics of a stage at once; one by one where that fails, so that only the culprit does."""
        known = {name: found[name] for one in metrics for condition in one.spec.when
                 if (name := condition.metric) in found}  # fmt: skip
        record, all_ = dialog.to_record(), self._suite.scores_all

        async def step(chosen: Sequence[Measured], before: Found) -> Any:
            told = [self._told[one.name] for one in chosen]
            limit = _START + sum(len(dialog.units(one.level)) * _OVERHEAD for one in chosen)
            limit += 1.5 * max(one.spec.seconds for one in chosen)
            arguments = (record, told, all_, before)
            return await conversation.compute("metrics", measure, *arguments, limit=limit, where="process")

        computed = await step(metrics, known)
        if not computed.failed:
            return dict(computed.value)
        one_by_one: Found = {}
        for metric in metrics:
            if len(metrics) > 1:
                computed = await step([metric], known | one_by_one)
            if computed.failed:
                error = computed.error
                failed = [[None, error["type"], error["message"][:2000], error["at"]]]
                one_by_one[metric.name] = {"values": [], "errors": failed, "skipped": 0}
            else:
                one_by_one |= computed.value
        return one_by_one

    async def _graded(
        self,
        conversation: Conversation,
        dialog: Dialog,
        metric: Measured,
        found: Found,
        graded: dict[tuple[str, str, int, int], Any],
    ) -> dict[str, Any]:
        suite, spec = self._suite, metric.spec
        assert isinstance(suite.rubrics, dict)
        assert spec.rubric is not None
        rubric: Rubric = suite.rubrics[spec.rubric]
        role = self._graders[spec.grader or next(iter(self._graders))]
        sampling: Sampling = grading(suite.grader_tokens, suite.grader_temperature, spec.votes, spec.expected)
        grader = Grader(conversation, role, self._pack, sampling)
        one: dict[str, Any] = {"values": [], "errors": [], "skipped": 0}
        known = values_of(found)
        for unit in units_of(dialog, metric.level, spec.role, suite.scores_all):
            if not holds(dialog, unit, metric.level, metric.conditions, known):
                one["skipped"] += 1
                continue
            same = (spec.rubric, role, spec.votes, unit.index)
            if metric.level == rubric.level and same in graded:
                one["values"].append([unit.index, graded[same]])
                continue
            hint = GraderPersona(tuple(rubric.choice_scores.items()), unit.text, self._label(dialog, unit, metric))
            try:
                question = filled(rubric, dialog, unit)
                value = await grader.grade(rubric, question, spec.votes, hint, said(list(dialog.messages)))
                one["values"].append([unit.index, value])
                if metric.level == rubric.level:
                    graded[same] = value
            except MalformedOutput as error:
                one["errors"].append([unit.index, "MalformedOutput", f"the grader's answer: {error}", ""])
        return one

    def _labels(self, dialog: Dialog, found: Found) -> dict[str, list[list[Any]]]:
        """The right answers, by metric, of the units that have one."""
        labels = {}
        for metric in self._metrics:
            if metric.spec.label is not None and metric.name in found:
                told = [[unit.index, label] for unit in units_of(dialog, metric.level, metric.spec.role, True)
                        if (label := self._label(dialog, unit, metric)) is not None]  # fmt: skip
                labels[metric.name] = told
        return labels

    def _label(self, dialog: Dialog, unit: Unit, metric: Measured) -> str | None:
        if metric.spec.label is None:
            return None
        own = {} if isinstance(unit, ToolCall) else unit.metadata
        label = own.get(metric.spec.label, dialog.metadata.get(metric.spec.label))
        return None if label is None else str(label)


def _levels(metrics: Sequence[Measured]) -> list[Any]:
    return sorted({one.level for one in metrics} - {"conversation"})


__all__ = ["CANDIDATE", "GRADER", "INTERACTOR", "DialogTask", "SuiteProtocol"]
