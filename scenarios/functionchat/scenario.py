"""FunctionChat-Bench as a registered scenario: from settings to conversations, and from a run's records to its report.

Keys are LABEL/ITEM, from the second repeat on LABEL/ITEM#REPEAT, so that the first is the same run with and without
repeats. What never belongs here: turns and talks (``talk``, ``users``), formulas, output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from viva.agents.judge import RULING_SCHEMA
from viva.engine.backends.base import Backend
from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Sampling, View
from viva.engine.runner import Plan
from viva.engine.tools import Toolbox

from ..candidates import candidate_labels, prices, replayed
from ..scenario import Aggregate
from .report import TurnAggregate
from .rubric import Words
from .settings import FunctionChatSettings
from .source import Toolboxes, Turns, open_turns
from .talk import CANDIDATE, JUDGE, TurnProtocol, TurnTask, view_of
from .tasks import Tasks
from .transcripts import transcript
from .turns import Turn
from .userreport import UserAggregate
from .users import INTERACTOR, UserProtocol, UserTask

Payload = Callable[[str, Any, int], TurnTask | UserTask]  # of a candidate's label, an item and the repeat


class PreparedFunctionChat:
    """Settings checked, data read through once, prompt pack and rubrics compiled."""

    def __init__(self, settings: FunctionChatSettings) -> None:
        s = self.settings = settings
        self.labels = candidate_labels(s.candidate)
        self.words: Words
        self.data: Turns | Tasks
        self.notes: list[str] = []
        self.protocol: TurnProtocol | UserProtocol
        self._payload: Payload
        answering = Sampling(temperature=s.temperature, max_tokens=s.candidate_tokens)
        if s.mode == "turns":
            self.data = turns = open_turns(s.data, s.subset, limit=s.n, seed=s.seed, skip_bad=s.skip_bad_items)
            self.words = Words(s, s.spoken(turns.language))
            self.notes = turns.notes
            self._payload = _turn_tasks(self.words.system)
            schema = None if self.words.free else RULING_SCHEMA
            judging = Sampling(temperature=s.judge_temperature, max_tokens=s.judge_tokens, schema=schema)
            self.protocol = TurnProtocol(self.words, answering, judging)
        else:
            self.data = Tasks(s.data, limit=s.n, seed=s.seed)
            self.words = Words(s, s.spoken(""))
            self._payload = UserTask
            played = [task.id for task in self.data if task.goal is not None]
            if played and s.interactor is None:
                raise ConfigurationError(f"interactor: task {played[0]} needs a model that plays its user; name one")
            asking = Sampling(temperature=s.interactor_temperature, max_tokens=s.interactor_tokens)
            self.protocol = UserProtocol(self.words, answering, asking, s.exchanges, s.steps)
        self.total = len(self.data) * len(self.labels) * s.repeats
        self.models = list(dict.fromkeys(model for model in (*s.candidate, s.judge, s.interactor) if model is not None))

    def manifest(self) -> dict[str, Any]:
        s, pack = self.settings, self.words.pack
        others = {JUDGE: s.judge} if s.mode == "turns" else {INTERACTOR: s.interactor}
        return {
            "models": {CANDIDATE: self.labels, **others},
            "prices": {model: prices(model) for model in self.models},
            "pack": {"name": pack.name, "version": pack.version, "digest": pack.digest},
            "dataset": self.data.to_record(),
            "system": self.words.system,
            "prompts": pack.text,
        }

    def plans(self, backends: dict[str, Backend]) -> Iterator[Plan]:
        # Item by item, all candidates on each: a run that is stopped half-way has still compared like with like.
        s = self.settings
        number = 0
        others = {role: backends[model] for role, model in ((JUDGE, s.judge), (INTERACTOR, s.interactor)) if model}
        for item in self.data:
            record = item.to_record()
            for label, model in self.labels.items():
                roles = {CANDIDATE: backends[model], **others}
                for repeat in range(1, s.repeats + 1):
                    key = f"{label}/{item.id}" + (f"#{repeat}" if repeat > 1 else "")
                    yield Plan(number, key, roles, self._payload(label, item, repeat), record)
                    number += 1

    async def converse(self, conversation: Conversation, payload: Any) -> dict[str, Any]:
        record = await self.protocol.hold(conversation, payload)
        return record | ({"irregular": conversation.irregular} if conversation.irregular else {})


class FunctionChat:
    """The scenario object that the entry point names."""

    name = "functionchat"
    summary = "Tool-use dialogs, graded exactly where that decides and judged elsewhere (FunctionChat-Bench)."
    settings = FunctionChatSettings

    def prepare(self, settings: FunctionChatSettings) -> PreparedFunctionChat:
        return PreparedFunctionChat(settings)

    def forked(self, settings: FunctionChatSettings, run: str, changes: dict[str, Any]) -> FunctionChatSettings:
        if settings.mode == "user":
            raise ConfigurationError("a talk with a played user has no judge to exchange: start a new run")
        foreign = sorted(changes.keys() - {"evaluator", "concurrency"})
        if foreign:
            raise ConfigurationError(f"a fork keeps the answers and may not change {', '.join(foreign)}")
        renamed = {"judge" if name == "evaluator" else name: value for name, value in changes.items()}
        candidates = [replayed(run, label, model) for label, model in candidate_labels(settings.candidate).items()]
        return settings.model_copy(update={**renamed, "candidate": candidates})

    def aggregate(self, manifest: dict[str, Any], options: dict[str, Any]) -> Aggregate:
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise ConfigurationError(f"functionchat has no {' or '.join(given)} to choose")
        return UserAggregate(manifest) if manifest["settings"]["mode"] == "user" else TurnAggregate(manifest)

    def transcript(self, item: Any, calls: list[Any]) -> list[tuple[str, str]]:
        return transcript(item, calls)


def _turn_tasks(system: str) -> Payload:
    boxes = Toolboxes()
    last: tuple[Turn, Toolbox, View] | None = None  # of a turn come all candidates and repeats before the next

    def payload(label: str, turn: Turn, repeat: int) -> TurnTask:
        nonlocal last
        if last is None or last[0] is not turn:
            last = (turn, boxes.of(turn.tools), view_of("" if turn.has_system else system, turn.messages))
        return TurnTask(label, *last, repeat)

    return payload


SCENARIO = FunctionChat()
