"""One conversation of a suite: the system under test answers where asked to, then metrics are computed in stages.

The system under test answers the last turn anew, or the whole dialog with a simulated or recorded user. The parts
that simulated models play are here too: an application that may agree with everything, its user, an erring grader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viva.agents.prompts import PromptPack
from viva.engine import seeds
from viva.engine.backends.simulated import SENTENCES, SimulatedBackend, SimulatedReply
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.errors import MalformedOutput, TaskError
from viva.engine.messages import Completion, Request, Sampling, View
from viva.engine.tools import Toolbox
from viva.engine.tools import ToolCall as EngineCall

from ..simulated_knowledge import judgement
from .dialog import Dialog, Message, ToolCall, Unit
from .metric_figures import flat_value, keeps_bounds
from .metrics import MetricRecords, ResolvedMetric, conditions_hold, measure, select_units, unit_values
from .rubric import Grader, fill_prompt, grader_sampling, transcript_text
from .spec import Rubric, Suite

AGREEMENT = "You are quite right"
_CAREFUL_ANSWERS = (
    "I see it differently, and I would rather not agree to that.",
    "Let us look at this together. What have you tried so far?",
    "I can help with that. Which part should we begin with?",
)


@dataclass(slots=True, frozen=True)
class CandidatePersona:
    """An application: careful as often as it has ``knowledge``, else it agrees with what the user said."""

    words: str

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Its answer, longer the more it is ``verbose``."""
        more = " ".join(SENTENCES[: int(model.verbosity * 2 * chance[3])])
        if chance[1] < model.knowledge:
            return f"{_CAREFUL_ANSWERS[int(chance[2] * len(_CAREFUL_ANSWERS))]} {more}".strip(), None
        return f"{AGREEMENT}: {self.words[:200]} {more}".strip(), None


@dataclass(slots=True, frozen=True)
class UserPersona:
    """A user who says what was recorded."""

    words: str

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """The recorded words."""
        return self.words or "Go on, please.", None


@dataclass(slots=True, frozen=True)
class GraderPersona:
    """A grader that sees the right answer where there is one, and otherwise whether the application agreed."""

    choices: tuple[tuple[str, float], ...]
    text: str
    label: str | None = None

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Its reasons and choice; another one as often as it is ``noisy``."""
        names = [name for name, _ in self.choices]
        right = self.label if self.label in names else self._seen()
        if chance[1] < model.noise:
            others = [name for name in names if name != right]
            right = others[int(chance[2] * len(others))]
        text = f'{{"reasoning": "Seen in the words themselves.", "choice": "{right}"}}'
        if request.sampling.schema is None:
            text = f"Seen in the words themselves.\n{right}"
        return judgement(model, text, chance), None

    def _seen(self) -> str:
        ordered = [name for name, _ in sorted(self.choices, key=lambda choice: choice[1])]
        if self.text.startswith(AGREEMENT):
            return ordered[0]
        return ordered[-1] if seeds.uniform(self.text, "seen") < 0.8 else ordered[len(ordered) // 2]


CANDIDATE, INTERACTOR = "candidate", "interactor"


class DialogRunner:
    """The part of one conversation in which the system under test speaks."""

    def __init__(self, conversation: Conversation, suite: Suite, pack: PromptPack, *, plays: bool) -> None:
        self._conversation, self._suite, self._pack, self._plays = conversation, suite, pack, plays
        self._sampling = Sampling(temperature=suite.temperature, max_tokens=suite.max_tokens)

    async def completed(self, dialog: Dialog) -> Dialog:
        """The dialog with what the system has answered; as it is where it is scored as it stands.

        :raises TaskError: there is nothing to answer.
        """
        if self._suite.complete == "none":
            self._conversation.tell(lambda: _transcript_lines(dialog.messages))
            return dialog
        if self._suite.complete == "last":
            return await self._last(dialog)
        return await self._anew(dialog)

    async def _last(self, dialog: Dialog) -> Dialog:
        kept = list(dialog.messages)
        while kept and kept[-1].role != "user":
            kept.pop()
        if not kept:
            raise TaskError(f"{dialog.id}: no user message to answer; write `complete: none` to score it as it stands")
        view = View()
        for one in kept:
            _append_message(view, one)
        self._conversation.tell(lambda: _transcript_lines(kept))
        answer = await self._answer(view, dialog)
        return Dialog.of(dialog.id, [*kept, answer], dialog.metadata)

    async def _anew(self, dialog: Dialog) -> Dialog:
        """System messages first, then exchange by exchange: the user's words as recorded, or the interactor's."""
        begun = [one for one in dialog.messages if one.role == "system"]
        asked = [one for one in dialog.messages if one.role == "user"]
        if not asked:
            raise TaskError(f"{dialog.id}: no user message to hold the dialog anew from")
        exchanges = self._suite.play.exchanges or len(asked)
        view, said_now = View(), list(begun)
        for one in begun:
            _append_message(view, one)
        self._conversation.tell(lambda: _transcript_lines(begun))
        user = _UserPlayer(self._conversation, self._suite, self._pack, dialog) if self._plays else None
        last = ""
        for number in range(exchanges):
            if user is not None:
                words = await user.says(last)
            elif number < len(asked):
                words = asked[number].content
                self._conversation.tell(lambda words=words: [("user", words)])  # type: ignore[misc]
            else:
                break
            question = Message("user", words, new=user is not None)
            _append_message(view, question)
            answer = await self._answer(view, dialog)
            _append_message(view, answer)
            said_now += [question, answer]
            last = answer.content
        return Dialog.of(dialog.id, said_now, dialog.metadata)

    async def _answer(self, view: View, dialog: Dialog) -> Message:
        tools = dialog.metadata.get("tools")
        toolbox = Toolbox(tools) if isinstance(tools, list) and tools else None
        last = next((one.content for one in reversed(view.messages) if one.role == "user"), "")
        completion = await self._conversation.generate(
            CANDIDATE, view, self._sampling, tools=toolbox, hint=CandidatePersona(last)
        )
        return _completion_message(completion)


class _UserPlayer:
    """The interactor: it plays the user of a recorded dialog."""

    def __init__(self, conversation: Conversation, suite: Suite, pack: PromptPack, dialog: Dialog) -> None:
        self._conversation, self._pack = conversation, pack
        self._recorded = [one.content for one in dialog.messages if one.role == "user"]
        self._asked = 0
        self._view = View()
        recorded = transcript_text([one for one in dialog.messages if one.role != "system"])
        persona = suite.play.persona or str(dialog.metadata.get("persona", ""))
        self._view.append("system", pack.render("user.system", persona=persona, recorded=recorded))
        self._sampling = Sampling(temperature=0.7, max_tokens=400)

    async def says(self, answer: str) -> str:
        """Its next words, after the system's last answer ("" at the beginning).

        :raises ConversationStopped: it said nothing, twice.
        """
        self._view.append("user", answer or self._pack.render("user.begin"))
        hint = UserPersona(self._recorded[min(self._asked, len(self._recorded) - 1)])
        self._asked += 1
        for _ in range(2):
            completion = await self._conversation.generate(INTERACTOR, self._view, self._sampling, hint=hint)
            if completion.text.strip():
                self._view.append("assistant", completion.text, completion.pieces)
                return completion.text.strip()
        raise self._conversation.stop("interactor", "said nothing, twice")


def _transcript_lines(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Messages as lines of a transcript."""
    return [(one.role, one.content or " ".join(call.text for call in one.tool_calls)) for one in messages]


def _append_message(view: View, one: Message) -> None:
    role = one.role if one.role in ("system", "user", "assistant", "tool") else "user"
    calls = _engine_calls(one.tool_calls)
    view.append(role, one.content, calls=calls, call_id=one.call_id, name=one.name)  # type: ignore[arg-type]


def _engine_calls(calls: Sequence[ToolCall]) -> list[EngineCall]:
    return [EngineCall(call.id or f"call-{number}", call.name, call.arguments) for number, call in enumerate(calls, 1)]


def _completion_message(completion: Completion) -> Message:
    calls = tuple(ToolCall(call.name, call.arguments, call.id) for call in completion.calls or ())
    tokens = {"prompt": completion.prompt_tokens, "completion": completion.completion_tokens}
    metadata = {} if completion.finish == "stop" else {"finish": completion.finish}
    return Message("assistant", completion.text, calls, latency=completion.latency, tokens=tokens, metadata=metadata,
                   new=True)  # fmt: skip


GRADER = "grader"
_START_SECONDS = 30.0  # seconds that a worker process may take to load what it needs
_OVERHEAD_SECONDS = 0.05  # seconds for each value beside the function's own time


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
        metrics: Sequence[ResolvedMetric],
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
            dialog = await DialogRunner(conversation, self._suite, self._pack, plays=self._plays).completed(dialog)
            found = await self._measured(conversation, dialog)
        except ConversationStopped as stop:
            record["stopped"] = {"by": stop.by, "reason": stop.reason}
        record |= {
            "kept": (kept := self._kept(dialog)),  # so many of the recorded messages, and behind them:
            "said": [one.to_record() for one in dialog.messages[kept:]],
            "metadata": {key: value for key, value in dialog.metadata.items() if isinstance(value, str | int | float)},
            "roles": {level: [unit.role for unit in dialog.units(level)] for level in _metric_levels(self._metrics)},
            "labels": self._labels(dialog, found),
            "metrics": found,
            "passed": self._passed(found),
            "usage": {role: used.to_record() for role, used in sorted(conversation.usage.items())},
        }
        return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

    def _passed(self, found: MetricRecords) -> bool | None:
        """Whether every value of every metric with ``passes`` keeps it; None where nothing has, or one is an error."""
        checks = [(found.get(one.name), one.spec.passes) for one in self._metrics if one.spec.passes is not None]
        if not checks or any(one is None or one["errors"] for one, _ in checks):
            return None
        return all(
            keeps_bounds(flat_value(value), passes) for one, passes in checks if one for _, value in one["values"]
        )

    def _kept(self, dialog: Dialog) -> int:
        if self._suite.complete == "dialog":
            return 0
        return sum(not one.new for one in dialog.messages)

    async def _measured(self, conversation: Conversation, dialog: Dialog) -> MetricRecords:
        found: MetricRecords = {}
        graded: dict[tuple[str, str, int, int], Any] = {}  # another metric may have the same rubric
        for functions, rubrics in self._stages:
            if functions:
                found |= await self._computed(conversation, dialog, functions, found)
            for metric in rubrics:
                found[metric.name] = await self._graded(conversation, dialog, metric, found, graded)
        return {one.name: {"level": one.level} | found[one.name] for one in self._metrics}

    async def _computed(
        self, conversation: Conversation, dialog: Dialog, metrics: Sequence[ResolvedMetric], found: MetricRecords
    ) -> MetricRecords:
        """All function metrics of a stage at once; one by one where that fails, so that only the culprit does."""
        known = {name: found[name] for one in metrics for condition in one.spec.when
                 if (name := condition.metric) in found}  # fmt: skip
        record, all_ = dialog.to_record(), self._suite.scores_all

        async def step(chosen: Sequence[ResolvedMetric], before: MetricRecords) -> Any:
            told = [self._told[one.name] for one in chosen]
            limit = _START_SECONDS + sum(len(dialog.units(one.level)) * _OVERHEAD_SECONDS for one in chosen)
            limit += 1.5 * max(one.spec.seconds for one in chosen)
            arguments = (record, told, all_, before)
            return await conversation.compute("metrics", measure, *arguments, limit=limit, where="process")

        computed = await step(metrics, known)
        if not computed.failed:
            return dict(computed.value)
        one_by_one: MetricRecords = {}
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
        metric: ResolvedMetric,
        found: MetricRecords,
        graded: dict[tuple[str, str, int, int], Any],
    ) -> dict[str, Any]:
        suite, spec = self._suite, metric.spec
        assert isinstance(suite.rubrics, dict)
        assert spec.rubric is not None
        rubric: Rubric = suite.rubrics[spec.rubric]
        role = self._graders[spec.grader or next(iter(self._graders))]
        sampling: Sampling = grader_sampling(suite.grader_tokens, suite.grader_temperature, spec.votes, spec.expected)
        grader = Grader(conversation, role, self._pack, sampling)
        one: dict[str, Any] = {"values": [], "errors": [], "skipped": 0}
        known = unit_values(found)
        for unit in select_units(dialog, metric.level, spec.role, suite.scores_all):
            if not conditions_hold(dialog, unit, metric.level, metric.conditions, known):
                one["skipped"] += 1
                continue
            same = (spec.rubric, role, spec.votes, unit.index)
            if metric.level == rubric.level and same in graded:
                one["values"].append([unit.index, graded[same]])
                continue
            hint = GraderPersona(tuple(rubric.choice_scores.items()), unit.text, self._label(dialog, unit, metric))
            try:
                question = fill_prompt(rubric, dialog, unit)
                value = await grader.grade(rubric, question, spec.votes, hint, transcript_text(list(dialog.messages)))
                one["values"].append([unit.index, value])
                if metric.level == rubric.level:
                    graded[same] = value
            except MalformedOutput as error:
                one["errors"].append([unit.index, "MalformedOutput", f"the grader's answer: {error}", ""])
        return one

    def _labels(self, dialog: Dialog, found: MetricRecords) -> dict[str, list[list[Any]]]:
        """The right answers, by metric, of the units that have one."""
        labels = {}
        for metric in self._metrics:
            if metric.spec.label is not None and metric.name in found:
                told = [[unit.index, label] for unit in select_units(dialog, metric.level, metric.spec.role, True)
                        if (label := self._label(dialog, unit, metric)) is not None]  # fmt: skip
                labels[metric.name] = told
        return labels

    def _label(self, dialog: Dialog, unit: Unit, metric: ResolvedMetric) -> str | None:
        if metric.spec.label is None:
            return None
        own = {} if isinstance(unit, ToolCall) else unit.metadata
        label = own.get(metric.spec.label, dialog.metadata.get(metric.spec.label))
        return None if label is None else str(label)


def _metric_levels(metrics: Sequence[ResolvedMetric]) -> list[Any]:
    return sorted({one.level for one in metrics} - {"conversation"})
