"""A cell's conversations as exports need them, read in batches: what each role was sent and said, scores, failures.

Conversations are held again against the record in a thread with an event loop of its own, so that writers with loops of
theirs can draw on them. Only one batch is in memory. What never belongs here: file formats.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyio.from_thread import start_blocking_portal

from viva.engine.history import History
from viva.engine.messages import Message
from viva.engine.rerun import Entry, Exchange
from viva.engine.tools import Toolbox
from viva.orchestration.transcripts import Transcripts
from viva.scenarios.models import label_of
from viva.scenarios.rated import TurnScores
from viva.scenarios.shown import RecordedConversation, ResultSummary, ShownConversation, shown_plainly
from viva.scoring.failures import reason_of

from .cells import PERCENT, ExportCell, summary_scores, task_of

_BATCH = 64  # conversations that are held again at a time


@dataclass(slots=True)
class Dialog:
    """What the compared model was sent and said in one go: its messages, the answer last. ``thoughts`` are those
    before the last answer; ``tools`` what it was offered.
    """

    messages: list[Message]
    tools: Toolbox | None = None
    thoughts: str = ""


@dataclass(slots=True)
class Conversation:
    """One ended conversation.

    ``item`` is its task's record, ``entries`` everything said, in order; ``dialogs`` are the compared model's (none
    where it was only read, or where what it was sent is not known any more: ``problem`` says why). ``scores`` are those
    of the whole, ``turns`` those of its rounds; ``explanations`` are the judges' words, by criterion. ``right``:
    whether the first answer was right where the system knows that, else whether the score is the highest there is.
    ``end`` says in a few words how it ended, ``error`` why it failed.
    """

    number: int
    key: str
    task: str
    repeat: int
    item: Any
    entries: Sequence[Entry]
    dialogs: list[Dialog]
    scores: dict[str, float | None]
    turns: list[TurnScores] = field(default_factory=list)
    explanations: dict[str, str] = field(default_factory=dict)
    right: bool | None = None
    end: str = ""
    error: str | None = None
    problem: str | None = None
    result: Any = None

    @property
    def exchanges(self) -> list[Exchange]:
        """The answered calls, in order."""
        return [one for one in self.entries if isinstance(one, Exchange) and one.completion is not None]

    @property
    def question(self) -> str:
        """What the compared model was asked first, or read; else the task's own text."""
        for dialog in self.dialogs:
            for message in dialog.messages:
                if message.role == "user":
                    return message.content
        for one in self.exchanges:
            if one.reading is not None:
                return one.reading.shared + one.reading.context
        return str(self.item.get("question", self.task)) if isinstance(self.item, dict) else self.task

    @property
    def answer(self) -> str:
        """The compared model's last words; empty where it said none."""
        for dialog in reversed(self.dialogs):
            return dialog.messages[-1].content
        return ""

    @property
    def reference(self) -> str:
        """The right answer, where the task's record has one."""
        item = self.item if isinstance(self.item, dict) else {}
        answer, choices = item.get("answer"), item.get("choices")
        if isinstance(answer, int) and isinstance(choices, list) and 0 <= answer < len(choices):
            return str(choices[answer])
        told = (item.get(name) for name in ("reference", "answer", "target"))
        return next((one for one in told if isinstance(one, str) and one), "")

    @property
    def choices(self) -> list[str] | None:
        """The choices of a multiple-choice task; None where there are none."""
        found = self.item.get("choices") if isinstance(self.item, dict) else None
        return [str(one) for one in found] if isinstance(found, list) and found else None

    def explained(self, criterion: str) -> str | None:
        """The judges' words on a criterion; of one that no judge names, on all criteria. None where there are none."""
        if criterion in self.explanations or not self.explanations:
            return self.explanations.get(criterion)
        return "\n".join(f"{name}, {line}" for name, told in self.explanations.items() for line in told.split("\n"))

    def usage(self) -> dict[str, tuple[int, int, int]]:
        """By role: calls, prompt tokens, completion tokens."""
        used: dict[str, tuple[int, int, int]] = {}
        for one in self.exchanges:
            assert one.completion is not None
            calls, prompt, said = used.get(one.role, (0, 0, 0))
            used[one.role] = (calls + 1, prompt + one.completion.prompt_tokens, said + one.completion.completion_tokens)
        return used

    def latency(self, role: str) -> float:
        """Seconds that this role's calls took together."""
        return sum(one.completion.latency for one in self.exchanges if one.role == role and one.completion is not None)


def conversations(cell: ExportCell) -> Generator[Conversation, None, None]:
    """The ended conversations of a cell in the order of the run, those that failed too; damaged ones are left out.

    Closing the iterator closes the journal.

    :raises JournalError: the journal is damaged as a whole.
    """
    with start_blocking_portal() as portal:
        reader = portal.call(_Reader, cell)
        try:
            while batch := portal.call(reader.batch):
                yield from batch
        finally:
            portal.call(reader.close)


class _Reader:
    """Reads one cell; all of its methods are called in the portal's thread."""

    def __init__(self, cell: ExportCell) -> None:
        self._cell = cell
        self._transcripts = Transcripts(cell.run)
        self._history = History(cell.run.journal)
        self._numbers = iter(self._history.numbers())
        self._labels = list(cell.manifest["models"][cell.compared])
        self._summary_of = cell.which.summary_of(cell.settings)
        self._turns_of = cell.which.turn_scores(cell.settings)
        self._grading = cell.which.grading(cell.settings)

    def close(self) -> None:
        self._history.close()

    async def batch(self) -> list[Conversation]:
        """The next conversations; none are left where it is empty."""
        found: list[Conversation] = []
        for number in self._numbers:
            if self._cell.stopped_at is not None and number >= self._cell.stopped_at:
                break
            one = await self._conversation(number)
            if one is not None:
                found.append(one)
                if len(found) == _BATCH:
                    break
        return found

    async def _conversation(self, number: int) -> Conversation | None:
        end, cell = self._history.end(number), self._cell
        if end is None or end.item is None or label_of(end.key, self._labels) != cell.label:
            return None
        rerun = await self._transcripts.rerun(self._history, number)
        task, repeat = task_of(end.key, cell.label)
        dialogs = dialogs_of(rerun.lines, cell.compared)
        one = Conversation(number, end.key, task, repeat, end.item, rerun.lines, dialogs, {}, problem=rerun.problem)
        recorded = RecordedConversation(rerun.lines, rerun.unanswered, end.item)
        if end.failed:
            recorded.error, one.error = end.result, reason_of(end.result)
            one.scores = dict.fromkeys(cell.criteria)
        else:
            recorded.result = one.result = end.result
            self._add_scores(one, self._summary_of(end.result))
        one.explanations = explanations(self._shown(recorded))
        return one

    def _add_scores(self, one: Conversation, summary: ResultSummary) -> None:
        one.end, one.scores = summary.end, self._cell.scores_of(summary)
        one.turns = [turn for turn in self._turns_of(one.result) if turn.turn is not None]
        if self._grading is not None:
            task = self._cell.which.task(one.item)
            for graded in self._grading.answers(one.key, self._cell.label, task, one.result):
                if "right" in graded.known:
                    one.right = bool(graded.known["right"])
        if one.right is None:
            name, score = next(iter(summary_scores(summary).items()), ("", None))
            one.right = None if score is None else score >= self._cell.ranges.get(name, PERCENT)[1]

    def _shown(self, recorded: RecordedConversation) -> ShownConversation:
        try:
            shown: ShownConversation = self._cell.which.shown(recorded)
        except Exception:  # of a system that shows its results otherwise today
            shown = shown_plainly(recorded, self._cell.roles)
        return shown


def dialogs_of(entries: Sequence[Entry], role: str) -> list[Dialog]:
    """The dialogs of one role: a call that begins with all that an earlier one was sent and said goes on with it."""
    found: list[Dialog] = []
    for one in entries:
        if not isinstance(one, Exchange) or one.role != role or one.completion is None or one.messages is None:
            continue
        said = one.completion
        messages = [*one.messages, Message("assistant", said.text, calls=tuple(said.calls or ()))]
        earlier = next((at for at, dialog in enumerate(found) if _continues(messages, dialog.messages)), None)
        dialog = Dialog(messages, one.tools, said.thoughts)
        if earlier is None:
            found.append(dialog)
        else:
            found[earlier] = dialog
    return found


def _continues(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    """Whether messages begin with the earlier ones. The last answer may have been shortened before it was sent back."""
    known = len(earlier) - 1
    if len(messages) <= len(earlier) or any(map(_differ, messages[:known], earlier[:known])):
        return False
    return messages[known].role == "assistant"


def _differ(one: Message, other: Message) -> bool:
    return (one.role, one.content, one.calls) != (other.role, other.content, other.calls)


def explanations(shown: ShownConversation) -> dict[str, str]:
    """The judges' words by criterion: of each mark with a comment its round, value and comment, a line each."""
    lines: dict[str, list[str]] = {}
    for turn in shown.turns:
        where = "" if turn.round is None else f"round {turn.round}: "
        for mark in turn.marks:
            if mark.comment:
                lines.setdefault(mark.name, []).append(f"{where}{mark.value}: {mark.comment}".replace(": : ", ": "))
    for mark in shown.marks:
        if mark.comment:
            lines.setdefault(mark.name, []).append(f"{mark.value}: {mark.comment}")
    return {name: "\n".join(several) for name, several in lines.items()}
