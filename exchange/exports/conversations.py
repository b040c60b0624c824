"""Input of all exports: the cells of a run or sweep, their figures, and their conversations one by one.

A cell is one compared model in one run. Its figures come from the run's report. Its criteria are the scores that
viewers list, with means over conversations.

Conversations are replayed in a thread with its own event loop, so that writers that run in an event loop can iterate
over them. Only one batch is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from anyio.from_thread import start_blocking_portal

from viva.engine.conversation_replay import Entry, Exchange
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.messages import Message
from viva.engine.run_folder import RunFolder
from viva.engine.tools import Toolbox, ToolCall
from viva.orchestration.launch import recorded_settings
from viva.orchestration.transcripts import Transcripts
from viva.reports.studies.cells import find_cells, refuse_adaptive
from viva.reports.tables import Row, record_rows
from viva.scenarios.contract import (
    SCORE,
    Ranges,
    Role,
    SupportsClusters,
    TurnScores,
    compared_role,
    grade_reader,
    judge_role,
    score_ranges,
    turn_scores,
)
from viva.scenarios.default_aggregate import measure_interval
from viva.scenarios.models import label_of_key
from viva.scenarios.registry import AnyScenario
from viva.scenarios.rendering import (
    SETS,
    RecordedConversation,
    RenderedConversation,
    ResultSummary,
    render_plain,
    set_function,
)
from viva.scenarios.study_cells import RunReading, StudyCell, read_results
from viva.scoring.aggregates import failure_reason
from viva.scoring.clustered_means import ClusteredMean, clustered_mean
from viva.scoring.intervals import Estimate

CONFIDENCE = 0.95  # level of the intervals in reports
# Parts of a candidate's report that are no scores: they count usage and failures.
_NOT_SCORES = frozenset(
    ["usage", "irregular", "failures", "failure_reasons", "discarded_questions", "stopped", "ends", "stop_reasons"]
)
_FIGURE = ("measure", "value", "se", "low", "high", "n")
PERCENT = (0.0, 100.0)


@dataclass(slots=True)
class Criterion:
    """A score over a cell's conversations, on a scale of 0–100 or the scenario's own scale.

    `mean` carries the standard error over tasks; it is None if no conversation has this score. `unscored` counts the
    finished conversations without it. `interval` is the 95% interval, or None if it cannot be computed.
    """

    name: str
    mean: ClusteredMean | None
    unscored: int
    interval: Estimate | None


@dataclass(slots=True)
class ExportCell:
    """A compared model in a run.

    `tasks` are the ids of tasks that have ended. `figures` are the rows of the run's report about this model, by
    measure; `criteria` are the scores of its conversations. `planned`, `ended` and `failed` count conversations;
    `ended` includes failed ones. `began` and `finished` are the Unix times of the first and last answer; None without
    an answer. `ranges` holds the known ends of the criteria's scales.
    """

    name: str
    run: RunFolder
    scenario: AnyScenario
    settings: Any
    label: str
    model: str
    dataset: str
    seed: int
    compared: str
    judge: str | None
    state: str
    planned: int
    stopped_at: int | None
    ended: int = 0
    failed: int = 0
    tasks: list[str] = field(default_factory=list)
    figures: dict[str, Row] = field(default_factory=dict)
    criteria: dict[str, Criterion] = field(default_factory=dict)
    usage: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    began: float | None = None
    finished: float | None = None
    ranges: Ranges = field(default_factory=dict)

    @property
    def manifest(self) -> dict[str, Any]:
        return self.run.manifest

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles of this run, in the order used by reports."""
        roles: tuple[Role, ...] = self.scenario.roles_of(self.settings)
        return roles

    def model_of(self, role: str) -> str | None:
        """Return the name of the model that plays a role in this cell, or None."""
        if role == self.compared:
            return self.model
        model = self.manifest["models"].get(role)
        return model if isinstance(model, str) else None

    @property
    def judge_model(self) -> str | None:
        """Name of the judge model, or None."""
        return None if self.judge is None else self.model_of(self.judge)

    @property
    def uncertain_figures(self) -> dict[str, Row]:
        """Figures of the report that have an interval or a count, by measure."""
        return {
            name: row
            for name, row in self.figures.items()
            if row["value"] is not None and (row["n"] is not None or row["low"] is not None)
        }

    def scores_of(self, summary: ResultSummary) -> dict[str, float | None]:
        """Return a conversation's scores for all criteria of the cell; None marks a missing score."""
        scores = summary_scores(summary)
        return {name: scores.get(name) for name in self.criteria}


def summary_scores(summary: ResultSummary) -> dict[str, float | None]:
    """Return the scores in a conversation's summary: `score`, and its aspects by name."""
    scores: dict[str, float | None] = {} if summary.score is None and summary.aspects else {SCORE: summary.score}
    return scores | summary.aspects


def open_cells(folder: Path) -> list[ExportCell]:
    """Return the cells of a run or sweep with at least one ended conversation. No model is called.

    Raises:
        ConfigurationError: There is no such cell, the folder is neither a run nor a sweep, or the run is adaptive.
    """
    runs: dict[Path, list[StudyCell]] = {}
    study_cells = find_cells([folder])
    refuse_adaptive(study_cells)
    for study_cell in study_cells:
        if study_cell.run is not None and study_cell.run.begun:
            runs.setdefault(study_cell.run.path, []).append(study_cell)
    cells = [cell for study_cells in runs.values() for cell in _cells_of_run(study_cells) if cell.ended]
    if not cells:
        raise ConfigurationError(f"{folder}: no conversation has ended here, so there is nothing to export")
    return cells


def _cells_of_run(study_cells: Sequence[StudyCell]) -> Iterator[ExportCell]:
    run = study_cells[0].run
    assert run is not None
    scenario, settings = recorded_settings(run)
    readings = [RunReading(study_cell) for study_cell in study_cells]
    read_results(scenario, readings, scenario.scoring())
    roles = scenario.roles_of(settings)
    compared, judge = compared_role(roles).name, judge_role(roles)
    for reading in readings:
        cell, result = reading.cell, reading.result or {}
        tasks, criteria = _criteria(run, scenario, settings, cell)
        scored = {name: value for name, value in result.items() if name not in _NOT_SCORES}
        yield ExportCell(
            cell.name,
            run,
            scenario,
            settings,
            cell.candidate,
            cell.model,
            cell.dataset,
            cell.seed,
            compared,
            None if judge is None or judge.many else judge.name,
            reading.state,
            cell.planned or 0,
            cell.stopped_at,
            reading.ended,
            reading.failed,
            tasks,
            {row["measure"]: {name: row[name] for name in _FIGURE} for row in record_rows({}, "", scored)},
            criteria,
            reading.usage,
            *_run_times(run),
            score_ranges(scenario, settings),
        )


def _criteria(
    run: RunFolder, scenario: AnyScenario, settings: Any, cell: StudyCell
) -> tuple[list[str], dict[str, Criterion]]:
    """Return the distinct tasks of a cell's ended conversations, and the criteria over those of the benchmark."""
    summary_of, ranges = scenario.summary_of(settings), score_ranges(scenario, settings)
    set_of, labels = set_function(scenario, run.manifest), cell.labels
    values: dict[str, tuple[list[float], list[str]]] = {}
    tasks: dict[str, None] = {}
    finished = 0
    with History(run.journal) as history:
        for ended in history.ended():
            if cell.stopped_at is not None and ended.number >= cell.stopped_at:
                break
            if label_of_key(ended.key, labels) != cell.candidate:
                continue
            task = task_of(ended.key, cell.candidate)[0]
            tasks[task] = None
            if set_of is not None and not ended.failed and set_of(ended.result) != SETS[0]:
                continue  # the benchmark's scores and those of a second set have no common mean
            finished += not ended.failed
            summary = {} if ended.failed else summary_scores(summary_of(ended.result))
            cluster = ""
            if isinstance(scenario, SupportsClusters) and not ended.failed:
                cluster = scenario.cluster_of(ended.result)
            for name, value in summary.items():
                scores, clusters = values.setdefault(name, ([], []))
                if value is not None:
                    scores.append(value)
                    clusters.append(f"cluster {cluster}" if cluster else task)
    criteria = {}
    for name, (scores, clusters) in values.items():
        mean = clustered_mean(scores, clusters)
        ends = None if mean is None else measure_interval(mean, scores, ranges.get(name))
        criteria[name] = Criterion(name, mean, finished - len(scores), ends)
    return list(tasks), criteria


def task_of(key: str, label: str) -> tuple[str, int]:
    """Return (task, repeat) from the key of a conversation with the compared model `label`; repeats count from 1."""
    task = key.removeprefix(f"{label}/")
    name, mark, number = task.rpartition("#")
    return (name, int(number)) if mark and number.isdecimal() else (task, 1)


def _run_times(run: RunFolder) -> tuple[float | None, float | None]:
    """Return the times of the first answer of the first conversation and the last answer of the last one."""
    with History(run.journal) as history:
        first = last = None
        for number in history.numbers():
            first = number if first is None else first
            last = number
        began = history.calls(first) if first is not None else []
        ended = history.calls(last) if last is not None else []
    return (began[0].at if began else None), (ended[-1].at if ended else None)


_BATCH = 64  # conversations in a batch


@dataclass(slots=True)
class Dialog:
    """A continuous dialog of the compared model: its messages, with its answer last.

    `thoughts` is the reasoning before the last answer; `tools` are the tools that it was offered.
    """

    messages: list[Message]
    tools: Toolbox | None = None
    thoughts: str = ""


@dataclass(slots=True)
class Conversation:
    """An ended conversation.

    `item` is the record of its task; `entries` is the full transcript. `dialogs` are those of the compared model; there
    are none if it only rated texts, or if its prompts cannot be reconstructed (`problem` says why). `scores` are those
    of the whole conversation, `turns` those of its rounds; `explanations` holds the judges' comments by criterion.
    `right` says if the first answer was correct; if the scenario does not know, it says if the score is the maximum.
    `of_set` is the set of a finished one's item (`SETS`) if the run has a second set. `end` says briefly how the
    conversation ended, `error` why it failed.
    """

    number: int
    key: str
    task: str
    repeat: int
    item: Any
    entries: Sequence[Entry]
    dialogs: list[Dialog]
    scores: dict[str, float | None]
    of_set: str | None = None
    turns: list[TurnScores] = field(default_factory=list)
    explanations: dict[str, str] = field(default_factory=dict)
    right: bool | None = None
    end: str = ""
    error: str | None = None
    problem: str | None = None
    result: Any = None

    @property
    def exchanges(self) -> list[Exchange]:
        return [entry for entry in self.entries if isinstance(entry, Exchange) and entry.completion is not None]

    @property
    def question(self) -> str:
        """First question to the compared model, or the text that it rated; else the text of the task."""
        for dialog in self.dialogs:
            for message in dialog.messages:
                if message.role == "user":
                    return message.content
        for exchange in self.exchanges:
            if exchange.reading is not None:
                return exchange.reading.shared + exchange.reading.context
        return str(self.item.get("question", self.task)) if isinstance(self.item, dict) else self.task

    @property
    def answer(self) -> str:
        """Last answer of the compared model, or an empty string."""
        for dialog in reversed(self.dialogs):
            return dialog.messages[-1].content
        return ""

    @property
    def reference(self) -> str:
        """Reference answer in the task's record, or an empty string."""
        item = self.item if isinstance(self.item, dict) else {}
        answer, choices = item.get("answer"), item.get("choices")
        if isinstance(answer, int) and isinstance(choices, list) and 0 <= answer < len(choices):
            return str(choices[answer])
        candidates = (item.get(name) for name in ("reference", "answer", "target"))
        return next((text for text in candidates if isinstance(text, str) and text), "")

    @property
    def choices(self) -> list[str] | None:
        """Choices of a multiple-choice task, or None."""
        choices = self.item.get("choices") if isinstance(self.item, dict) else None
        return [str(choice) for choice in choices] if isinstance(choices, list) and choices else None

    def explained(self, criterion: str) -> str | None:
        """Return the judges' comments on a criterion; if no judge names this criterion, on all criteria."""
        if criterion in self.explanations or not self.explanations:
            return self.explanations.get(criterion)
        return "\n".join(f"{name}, {line}" for name, text in self.explanations.items() for line in text.split("\n"))

    def usage(self) -> dict[str, tuple[int, int, int]]:
        """Return calls, prompt tokens and completion tokens by role."""
        usage: dict[str, tuple[int, int, int]] = {}
        for exchange in self.exchanges:
            answer = exchange.completion
            assert answer is not None
            calls, prompt, completion = usage.get(exchange.role, (0, 0, 0))
            usage[exchange.role] = calls + 1, prompt + answer.prompt_tokens, completion + answer.completion_tokens
        return usage

    def latency(self, role: str) -> float:
        """Return the seconds that all answers of a role took together."""
        answers = [exchange.completion for exchange in self.exchanges if exchange.role == role]
        return sum(answer.latency for answer in answers if answer is not None)


def read_conversations(cell: ExportCell) -> Generator[Conversation, None, None]:
    """Yield a cell's ended conversations in run order, including failed ones; skip damaged records.

    Closing the iterator closes the journal.

    Raises:
        JournalError: The journal as a whole is damaged.
    """
    with start_blocking_portal() as portal:
        reader = portal.call(_CellReader, cell)
        try:
            while batch := portal.call(reader.batch):
                yield from batch
        finally:
            portal.call(reader.close)


class _CellReader:
    """Reader of one cell; all of its methods run in the portal's thread."""

    def __init__(self, cell: ExportCell) -> None:
        self._cell = cell
        self._transcripts = Transcripts(cell.run)
        self._history = History(cell.run.journal)
        self._numbers = iter(self._history.numbers())
        self._labels = list(cell.manifest["models"][cell.compared])
        self._summary_of = cell.scenario.summary_of(cell.settings)
        self._set_of = set_function(cell.scenario, cell.manifest)
        self._turns_of = turn_scores(cell.scenario, cell.settings)
        self._grading = grade_reader(cell.scenario, cell.settings)

    def close(self) -> None:
        self._history.close()

    async def batch(self) -> list[Conversation]:
        """Return the next batch of conversations; an empty list means the end."""
        conversations: list[Conversation] = []
        for number in self._numbers:
            if self._cell.stopped_at is not None and number >= self._cell.stopped_at:
                break
            conversation = await self._conversation(number)
            if conversation is not None:
                conversations.append(conversation)
                if len(conversations) == _BATCH:
                    break
        return conversations

    async def _conversation(self, number: int) -> Conversation | None:
        end, cell = self._history.end(number), self._cell
        if end is None or end.item is None or label_of_key(end.key, self._labels) != cell.label:
            return None
        replay = await self._transcripts.replay(self._history, number)
        task, repeat = task_of(end.key, cell.label)
        dialogs = dialogs_of(replay.lines, cell.compared)
        conversation = Conversation(
            number, end.key, task, repeat, end.item, replay.lines, dialogs, {}, problem=replay.problem
        )
        recorded = RecordedConversation(replay.lines, replay.unanswered, end.item)
        if end.failed:
            recorded.error, conversation.error = end.result, failure_reason(end.result)
            conversation.scores = dict.fromkeys(cell.criteria)
        else:
            recorded.result = conversation.result = end.result
            conversation.of_set = None if self._set_of is None else self._set_of(end.result)
            self._add_scores(conversation, self._summary_of(end.result))
        conversation.explanations = explanations(self._render(recorded))
        return conversation

    def _add_scores(self, conversation: Conversation, summary: ResultSummary) -> None:
        conversation.end, conversation.scores = summary.end, self._cell.scores_of(summary)
        conversation.turns = [turn for turn in self._turns_of(conversation.result) if turn.turn is not None]
        if self._grading is not None:
            task = self._cell.scenario.task(conversation.item)
            for graded in self._grading.answers(conversation.key, self._cell.label, task, conversation.result):
                if "right" in graded.known:
                    conversation.right = bool(graded.known["right"])
        if conversation.right is None:
            name, score = next(iter(summary_scores(summary).items()), ("", None))
            conversation.right = None if score is None else score >= self._cell.ranges.get(name, PERCENT)[1]

    def _render(self, recorded: RecordedConversation) -> RenderedConversation:
        try:
            rendered: RenderedConversation = self._cell.scenario.render_conversation(recorded)
        except Exception:  # the installed scenario cannot render results of the recorded version
            rendered = render_plain(recorded, self._cell.roles)
        return rendered


def dialogs_of(entries: Sequence[Entry], role: str) -> list[Dialog]:
    """Return the dialogs of one role. A call whose prompt starts with an earlier dialog continues that dialog."""
    dialogs: list[Dialog] = []
    for entry in entries:
        if not isinstance(entry, Exchange) or entry.role != role or entry.completion is None or entry.messages is None:
            continue
        completion = entry.completion
        messages = [*entry.messages, Message("assistant", completion.text, calls=tuple(completion.calls or ()))]
        earlier = next((index for index, dialog in enumerate(dialogs) if _continues(messages, dialog.messages)), None)
        dialog = Dialog(messages, entry.tools, completion.thoughts)
        if earlier is None:
            dialogs.append(dialog)
        else:
            dialogs[earlier] = dialog
    return dialogs


def read_arguments(call: ToolCall) -> Any:
    """Return the arguments of a call, or the model's raw text if it is not JSON."""
    try:
        return orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        return call.arguments


def _continues(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    """Return True if messages start with the earlier ones; the last answer may have been sent back shortened."""
    prefix = len(earlier) - 1
    pairs = zip(messages[:prefix], earlier[:prefix], strict=False)
    if len(messages) <= len(earlier) or any(
        (new.role, new.content, new.calls) != (old.role, old.content, old.calls) for new, old in pairs
    ):
        return False
    return messages[prefix].role == "assistant"


def explanations(rendered: RenderedConversation) -> dict[str, str]:
    """Return the judges' comments by criterion: each line has the round, value and comment of one score."""
    lines: dict[str, list[str]] = {}
    for turn in rendered.turns:
        prefix = "" if turn.round is None else f"round {turn.round}: "
        for mark in turn.marks:
            if mark.comment:
                lines.setdefault(mark.name, []).append(f"{prefix}{mark.value}: {mark.comment}".replace(": : ", ": "))
    for mark in rendered.marks:
        if mark.comment:
            lines.setdefault(mark.name, []).append(f"{mark.value}: {mark.comment}")
    return {name: "\n".join(texts) for name, texts in lines.items()}
