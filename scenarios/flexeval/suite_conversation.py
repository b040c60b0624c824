"""Conversation of a suite: the system under test answers if needed, then metrics are computed in stages.

The system answers the last turn again, or the whole dialog with a simulated or recorded user. The personas of simulated
models are here too: an application that may agree with everything, its user, and an imperfect grader.
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
from .metric_figures import flat_value, meets_bounds
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
    """Simulated application: careful with probability `knowledge`, else it agrees with the user."""

    words: str

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Return an answer; its length grows with the model's verbosity."""
        more = " ".join(SENTENCES[: int(model.verbosity * 2 * chance[3])])
        if chance[1] < model.knowledge:
            return f"{_CAREFUL_ANSWERS[int(chance[2] * len(_CAREFUL_ANSWERS))]} {more}".strip(), None
        return f"{AGREEMENT}: {self.words[:200]} {more}".strip(), None


@dataclass(slots=True, frozen=True)
class UserPersona:
    """Simulated user who repeats the recorded messages."""

    words: str

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Return the recorded message."""
        return self.words or "Go on, please.", None


@dataclass(slots=True, frozen=True)
class GraderPersona:
    """Simulated grader that knows the right answer or, if there is none, checks if the application agreed."""

    choices: tuple[tuple[str, float], ...]
    text: str
    label: str | None = None

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        """Return its reasoning and choice, which is wrong with probability `noise`."""
        names = [name for name, _ in self.choices]
        right = self.label if self.label in names else self._perceived_choice()
        if chance[1] < model.noise:
            wrong = [name for name in names if name != right]
            right = wrong[int(chance[2] * len(wrong))]
        text = f'{{"reasoning": "Seen in the words themselves.", "choice": "{right}"}}'
        if request.sampling.schema is None:
            text = f"Seen in the words themselves.\n{right}"
        return judgement(model, text, chance), None

    def _perceived_choice(self) -> str:
        ordered = [name for name, _ in sorted(self.choices, key=lambda choice: choice[1])]
        if self.text.startswith(AGREEMENT):
            return ordered[0]
        return ordered[-1] if seeds.uniform(self.text, "seen") < 0.8 else ordered[len(ordered) // 2]


CANDIDATE, INTERACTOR = "candidate", "interactor"


class DialogRunner:
    """Runner of the part of a conversation in which the system under test answers."""

    def __init__(self, conversation: Conversation, suite: Suite, pack: PromptPack, *, plays: bool) -> None:
        self._conversation, self._suite, self._pack, self._plays = conversation, suite, pack, plays
        self._sampling = Sampling(temperature=suite.temperature, max_tokens=suite.max_tokens)

    async def complete(self, dialog: Dialog) -> Dialog:
        """Return the dialog with the system's answers, or unchanged if recorded conversations are scored.

        Raises:
            TaskError: There is nothing to answer.
        """
        if self._suite.complete == "none":
            self._conversation.tell(lambda: _transcript_lines(dialog.messages))
            return dialog
        if self._suite.complete == "last":
            return await self._answer_last(dialog)
        return await self._answer_all(dialog)

    async def _answer_last(self, dialog: Dialog) -> Dialog:
        messages = list(dialog.messages)
        while messages and messages[-1].role != "user":
            messages.pop()
        if not messages:
            raise TaskError(f"{dialog.id}: no user message to answer; set `complete: none` to score it as recorded")
        view = View()
        for message in messages:
            _append_message(view, message)
        self._conversation.tell(lambda: _transcript_lines(messages))
        answer = await self._answer(view, dialog)
        return Dialog.from_messages(dialog.id, [*messages, answer], dialog.metadata)

    async def _answer_all(self, dialog: Dialog) -> Dialog:
        """Run the dialog again after its system messages, with recorded user messages or the interactor's."""
        system_messages = [message for message in dialog.messages if message.role == "system"]
        questions = [message for message in dialog.messages if message.role == "user"]
        if not questions:
            raise TaskError(f"{dialog.id}: no user message to run the dialog again from")
        exchanges = self._suite.play.exchanges or len(questions)
        view, messages = View(), list(system_messages)
        for message in system_messages:
            _append_message(view, message)
        self._conversation.tell(lambda: _transcript_lines(system_messages))
        user = _UserPlayer(self._conversation, self._suite, self._pack, dialog) if self._plays else None
        last = ""
        for number in range(exchanges):
            if user is not None:
                text = await user.next_message(last)
            elif number < len(questions):
                text = questions[number].content
                self._conversation.tell(lambda text=text: [("user", text)])  # type: ignore[misc]
            else:
                break
            question = Message("user", text, new=user is not None)
            _append_message(view, question)
            answer = await self._answer(view, dialog)
            _append_message(view, answer)
            messages += [question, answer]
            last = answer.content
        return Dialog.from_messages(dialog.id, messages, dialog.metadata)

    async def _answer(self, view: View, dialog: Dialog) -> Message:
        tools = dialog.metadata.get("tools")
        toolbox = Toolbox(tools) if isinstance(tools, list) and tools else None
        last = next((message.content for message in reversed(view.messages) if message.role == "user"), "")
        completion = await self._conversation.generate(
            CANDIDATE, view, self._sampling, tools=toolbox, hint=CandidatePersona(last)
        )
        return _completion_message(completion)


class _UserPlayer:
    """Interactor that plays the user of a recorded dialog."""

    def __init__(self, conversation: Conversation, suite: Suite, pack: PromptPack, dialog: Dialog) -> None:
        self._conversation, self._pack = conversation, pack
        self._recorded = [message.content for message in dialog.messages if message.role == "user"]
        self._turn_count = 0
        self._view = View()
        recorded = transcript_text([message for message in dialog.messages if message.role != "system"])
        persona = suite.play.persona or str(dialog.metadata.get("persona", ""))
        self._view.append("system", pack.render("user.system", persona=persona, recorded=recorded))
        self._sampling = Sampling(temperature=0.7, max_tokens=400)

    async def next_message(self, answer: str) -> str:
        """Return the user's next message after the system's last answer ("" at the beginning).

        Raises:
            ConversationStopped: The interactor's answer was empty twice.
        """
        self._view.append("user", answer or self._pack.render("user.begin"))
        hint = UserPersona(self._recorded[min(self._turn_count, len(self._recorded) - 1)])
        self._turn_count += 1
        for _ in range(2):
            completion = await self._conversation.generate(INTERACTOR, self._view, self._sampling, hint=hint)
            if completion.text.strip():
                self._view.append("assistant", completion.text, completion.pieces)
                return completion.text.strip()
        raise self._conversation.stop("interactor", "said nothing, twice")


def _transcript_lines(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return messages as lines of a transcript."""
    return [
        (message.role, message.content or " ".join(call.text for call in message.tool_calls)) for message in messages
    ]


def _append_message(view: View, message: Message) -> None:
    role = message.role if message.role in ("system", "user", "assistant", "tool") else "user"
    calls = _engine_calls(message.tool_calls)
    view.append(role, message.content, calls=calls, call_id=message.call_id, name=message.name)  # type: ignore[arg-type]


def _engine_calls(calls: Sequence[ToolCall]) -> list[EngineCall]:
    return [EngineCall(call.id or f"call-{number}", call.name, call.arguments) for number, call in enumerate(calls, 1)]


def _completion_message(completion: Completion) -> Message:
    calls = tuple(ToolCall(call.name, call.arguments, call.id) for call in completion.calls or ())
    tokens = {"prompt": completion.prompt_tokens, "completion": completion.completion_tokens}
    metadata = {} if completion.finish == "stop" else {"finish": completion.finish}
    return Message("assistant", completion.text, calls, latency=completion.latency, tokens=tokens, metadata=metadata,
                   new=True)  # fmt: skip


GRADER = "grader"
_START_SECONDS = 30.0  # seconds for a worker process to start
_OVERHEAD_SECONDS = 0.05  # seconds per value on top of the function's own time


@dataclass(frozen=True, slots=True)
class DialogTask:
    """A conversation of the suite, or an unreadable line of a file; `problem` then says why."""

    id: str
    dialog: Dialog | None
    problem: str = ""
    path: str = ""
    line: int | None = None

    def to_record(self) -> Any:
        """Return plain JSON data."""
        if self.dialog is not None:
            return self.dialog.to_record()
        return {"id": self.id, "problem": self.problem, "path": self.path, "line": self.line}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DialogTask:
        """Return the task of a record."""
        if "problem" in record:
            return cls(record["id"], None, record["problem"], record["path"], record["line"])
        return cls(record["id"], Dialog.from_record(record))


class SuiteProtocol:
    """Protocol of the conversations of a suite."""

    def __init__(
        self,
        suite: Suite,
        metrics: Sequence[ResolvedMetric],
        graders: Mapping[str, str],
        pack: PromptPack,
        *,
        plays: bool = False,
    ) -> None:
        """Create the protocol.

        `graders` has the role of each grader by label. With `plays`, an interactor plays the user of dialogs that are
        run again; otherwise recorded user messages are repeated.
        """
        self._suite, self._pack, self._plays = suite, pack, plays
        self._graders = dict(graders)
        self._stages = [
            ([metric for metric in metrics if metric.stage == stage and metric.by_function],
             [metric for metric in metrics if metric.stage == stage and not metric.by_function])
            for stage in sorted({metric.stage for metric in metrics})
        ]  # fmt: skip
        self._metrics = metrics
        self._metric_records = {metric.name: metric.to_record() | {"code": metric.digest} for metric in metrics}

    async def run(self, conversation: Conversation, task: DialogTask) -> dict[str, Any]:
        """Run one conversation and return its record.

        Raises:
            TaskError: The task's line is unreadable, or there is nothing to answer.
        """
        if task.dialog is None:
            raise TaskError(f"{task.path}:{task.line}: {task.problem}")
        record: dict[str, Any] = {"dialog": task.id}
        dialog, records = task.dialog, {}
        try:
            dialog = await DialogRunner(conversation, self._suite, self._pack, plays=self._plays).complete(dialog)
            records = await self._measure(conversation, dialog)
        except ConversationStopped as stop:
            record["stopped"] = {"by": stop.by, "reason": stop.reason}
        record |= {
            "kept": (kept_count := self._count_recorded(dialog)),  # number of recorded messages; `said` has the rest
            "said": [message.to_record() for message in dialog.messages[kept_count:]],
            "metadata": {key: value for key, value in dialog.metadata.items() if isinstance(value, str | int | float)},
            "roles": {level: [unit.role for unit in dialog.units(level)] for level in _metric_levels(self._metrics)},
            "labels": self._labels(dialog, records),
            "metrics": records,
            "passed": self._is_passed(records),
            "usage": {role: usage.to_record() for role, usage in sorted(conversation.usage.items())},
        }
        return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

    def _is_passed(self, records: MetricRecords) -> bool | None:
        """Return True if all values meet their metrics' `passes`; None without `passes` or with an error."""
        gated = [metric for metric in self._metrics if metric.spec.passes is not None]
        checks = [(records.get(metric.name), metric.spec.passes) for metric in gated]
        if not checks or any(record is None or record["errors"] for record, _ in checks):
            return None
        return all(
            meets_bounds(flat_value(value), passes)
            for record, passes in checks
            if record
            for _, value in record["values"]
        )

    def _count_recorded(self, dialog: Dialog) -> int:
        if self._suite.complete == "dialog":
            return 0
        return sum(not message.new for message in dialog.messages)

    async def _measure(self, conversation: Conversation, dialog: Dialog) -> MetricRecords:
        records: MetricRecords = {}
        graded: dict[tuple[str, str, int, int], Any] = {}  # metrics may share a rubric
        for functions, rubrics in self._stages:
            if functions:
                records |= await self._compute(conversation, dialog, functions, records)
            for metric in rubrics:
                records[metric.name] = await self._grade(conversation, dialog, metric, records, graded)
        return {entry.name: {"level": entry.level} | records[entry.name] for entry in self._metrics}

    async def _compute(
        self, conversation: Conversation, dialog: Dialog, metrics: Sequence[ResolvedMetric], records: MetricRecords
    ) -> MetricRecords:
        """Compute the function metrics of a stage together, or one by one if that fails, to isolate the failure."""
        earlier = {name: records[name] for entry in metrics for condition in entry.spec.when
                 if (name := condition.metric) in records}  # fmt: skip
        record, all_ = dialog.to_record(), self._suite.scores_all

        async def step(chosen: Sequence[ResolvedMetric], previous: MetricRecords) -> Any:
            metric_records = [self._metric_records[entry.name] for entry in chosen]
            limit = _START_SECONDS + sum(len(dialog.units(entry.level)) * _OVERHEAD_SECONDS for entry in chosen)
            limit += 1.5 * max(entry.spec.seconds for entry in chosen)
            arguments = (record, metric_records, all_, previous)
            return await conversation.compute("metrics", measure, *arguments, limit=limit, where="process")

        computed = await step(metrics, earlier)
        if not computed.failed:
            return dict(computed.value)
        one_by_one: MetricRecords = {}
        for metric in metrics:
            if len(metrics) > 1:
                computed = await step([metric], earlier | one_by_one)
            if computed.failed:
                error = computed.error
                failed = [[None, error["type"], error["message"][:2000], error["at"]]]
                one_by_one[metric.name] = {"values": [], "errors": failed, "skipped": 0}
            else:
                one_by_one |= computed.value
        return one_by_one

    async def _grade(
        self,
        conversation: Conversation,
        dialog: Dialog,
        metric: ResolvedMetric,
        records: MetricRecords,
        graded: dict[tuple[str, str, int, int], Any],
    ) -> dict[str, Any]:
        suite, spec = self._suite, metric.spec
        assert isinstance(suite.rubrics, dict)
        assert spec.rubric is not None
        rubric: Rubric = suite.rubrics[spec.rubric]
        role = self._graders[spec.grader or next(iter(self._graders))]
        sampling: Sampling = grader_sampling(suite.grader_tokens, suite.grader_temperature, spec.votes, spec.expected)
        grader = Grader(conversation, role, self._pack, sampling)
        record: dict[str, Any] = {"values": [], "errors": [], "skipped": 0}
        values_by_metric = unit_values(records)
        for unit in select_units(dialog, metric.level, spec.role, suite.scores_all):
            if not conditions_hold(dialog, unit, metric.level, metric.conditions, values_by_metric):
                record["skipped"] += 1
                continue
            key = (spec.rubric, role, spec.votes, unit.index)
            if metric.level == rubric.level and key in graded:
                record["values"].append([unit.index, graded[key]])
                continue
            hint = GraderPersona(tuple(rubric.choice_scores.items()), unit.text, self._label(dialog, unit, metric))
            try:
                question = fill_prompt(rubric, dialog, unit)
                value = await grader.grade(rubric, question, spec.votes, hint, transcript_text(list(dialog.messages)))
                record["values"].append([unit.index, value])
                if metric.level == rubric.level:
                    graded[key] = value
            except MalformedOutput as error:
                record["errors"].append([unit.index, "MalformedOutput", f"the grader's answer: {error}", ""])
        return record

    def _labels(self, dialog: Dialog, records: MetricRecords) -> dict[str, list[list[Any]]]:
        """Return the right answers by metric, for units that have one."""
        labels = {}
        for metric in self._metrics:
            if metric.spec.label is not None and metric.name in records:
                pairs = [[unit.index, label] for unit in select_units(dialog, metric.level, metric.spec.role, True)
                        if (label := self._label(dialog, unit, metric)) is not None]  # fmt: skip
                labels[metric.name] = pairs
        return labels

    def _label(self, dialog: Dialog, unit: Unit, metric: ResolvedMetric) -> str | None:
        if metric.spec.label is None:
            return None
        own = {} if isinstance(unit, ToolCall) else unit.metadata
        label = own.get(metric.spec.label, dialog.metadata.get(metric.spec.label))
        return None if label is None else str(label)


def _metric_levels(metrics: Sequence[ResolvedMetric]) -> list[Any]:
    return sorted({metric.level for metric in metrics} - {"conversation"})
