"""Probing one model with one item: the calls, and the record of what they showed.

What never belongs here: wording (``questions``), totals (``report``), waiting and recording (the engine does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from viva.agents.answers import read_choice
from viva.data.items import Item, shown_item
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.errors import MalformedOutput
from viva.engine.likelihood import Reading
from viva.engine.messages import Sampling
from viva.scoring.accuracy import choose_letter, choose_normalised, choose_raw
from viva.scoring.contamination import Signals

from .persona import Probed
from .questions import Questions
from .settings import Method
from .shots import Shots

ROLE = "candidate"


@dataclass(slots=True)
class ProbeTask:
    """One item; ``second`` says that it comes from the set that the first is held against."""

    item: Item
    second: bool = False

    @property
    def id(self) -> str:
        """The item's, so that probes and interviews join by item; one of the second set stands behind ``against/``."""
        return f"against/{self.item.id}" if self.second else self.item.id

    def to_record(self) -> dict[str, Any]:
        """The item's record, with a mark where it is of the second set."""
        return self.item.to_record() | ({"second": True} if self.second else {})

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> ProbeTask:
        """The task of a record."""
        fields = dict(record)
        second = bool(fields.pop("second", False))
        return cls(Item(**fields), second)


@dataclass(slots=True)
class Probe:
    """What all conversations of a probe run share. ``shots`` None stands for questions without examples;
    ``members_are_second`` says which set counts as seen in training (of two; simulated models go by it).
    """

    methods: Sequence[Method]
    questions: Questions
    shots: Shots | None
    sampling: Sampling
    members_are_second: bool = False

    async def hold(self, conversation: Conversation, task: ProbeTask) -> dict[str, Any]:
        """All methods on one item, one after the other; the second set is only read for its loss."""
        item = task.item
        conversation.tell(lambda: [("benchmark", shown_item(item))])
        record: dict[str, Any] = {"candidate": conversation.label, "item": item.id, "second": task.second}
        if (cluster := item.cluster()) != "":
            record["cluster"] = cluster
        shots = self.shots.of(item) if self.shots is not None and not task.second else []
        try:
            for method in ["loss"] if task.second else self.methods:
                match method:
                    case "letter":
                        record["letter"] = await self._by_letter(conversation, item, shots)
                    case "text":
                        record["text"] = await self._by_text(conversation, item, shots)
                    case "generate":
                        record["generate"] = await self._generated(conversation, item, shots)
                    case _:
                        unseen = task.second != self.members_are_second
                        record["signals"] = await self._signals(conversation, item, unseen)
        except ConversationStopped as stop:  # by a budget of its own: what was asked before it counts
            record["stopped"] = stop.by
        record["usage"] = {role: used.to_record() for role, used in conversation.usage.items()}
        return record | ({"irregular": conversation.irregular} if conversation.irregular else {})

    async def _by_letter(self, conversation: Conversation, item: Item, shots: Sequence[Item]) -> dict[str, Any]:
        likelihoods = await conversation.read(ROLE, self.questions.by_letter(item, shots))
        sums = [likelihood.total for likelihood in likelihoods]
        with _sound(item):
            choice = choose_letter(sums)
        return {"choice": choice, "right": choice == item.answer, "logprobs": sums}

    async def _by_text(self, conversation: Conversation, item: Item, shots: Sequence[Item]) -> dict[str, Any]:
        likelihoods = await conversation.read(ROLE, self.questions.by_text(item, shots))
        sums = [likelihood.total for likelihood in likelihoods]
        with _sound(item):
            raw = choose_raw(sums)
            normalised = choose_normalised(sums, [len(choice.strip()) for choice in item.choices])
        return {
            "choice": raw,
            "right": raw == item.answer,
            "normalised": normalised,
            "normalised_right": normalised == item.answer,
            "logprobs": sums,
        }

    async def _generated(self, conversation: Conversation, item: Item, shots: Sequence[Item]) -> dict[str, Any]:
        view = self.questions.talk(item, shots)
        completion = await conversation.generate(ROLE, view, self.sampling, hint=Probed(item))
        # What follows a blank line is, of a model that only continues text, the next question.
        choice = read_choice(completion.text.strip().partition("\n\n")[0], item.choices)
        return {"choice": choice, "right": choice == item.answer}

    async def _signals(self, conversation: Conversation, item: Item, unseen: bool) -> dict[str, Any]:
        text = self.questions.whole(item)
        [likelihood] = await conversation.read(ROLE, Reading("", (text,), moments=True, hint=Probed(item, unseen)))
        with _sound(item):
            signals = Signals.from_logprobs(text, likelihood.logprobs, likelihood.means, likelihood.deviations)
        return asdict(signals)


@contextmanager
def _sound(item: Item) -> Iterator[None]:
    """What a formula refuses is a fault of the model that gave the figures."""
    try:
        yield
    except ValueError as error:
        raise MalformedOutput(f"item {item.id}: its log-probabilities cannot be right: {error}") from None
