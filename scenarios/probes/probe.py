"""Probing one model with one item: the calls, and the record of what they showed.

What never belongs here: wording (``questions``), totals (``report``), waiting and recording (the engine does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from viva.agents.answers import read_choice
from viva.data.items import Item
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.errors import MalformedOutput
from viva.engine.likelihood import Reading
from viva.engine.messages import Sampling
from viva.scoring.accuracy import choose_letter, choose_normalised, choose_raw
from viva.scoring.contamination import Signals

from .questions import Questions
from .settings import Method
from .shots import Shots

ROLE = "candidate"


@dataclass(slots=True)
class Task:
    """One item for one candidate; ``second`` says that it comes from the set that the first is held against."""

    candidate: str
    item: Item
    second: bool = False


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

    async def carry_out(self, conversation: Conversation, task: Task) -> dict[str, Any]:
        """All methods on one item, one after the other; the second set is only read for its loss."""
        item = task.item
        record: dict[str, Any] = {"candidate": task.candidate, "item": item.id, "second": task.second}
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
        return record

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
        completion = await conversation.generate(ROLE, view, self.sampling, hint=item.to_record() | {"static": True})
        # What follows a blank line is, of a model that only continues text, the next question.
        choice = read_choice(completion.text.strip().partition("\n\n")[0], item.choices)
        return {"choice": choice, "right": choice == item.answer}

    async def _signals(self, conversation: Conversation, item: Item, unseen: bool) -> dict[str, Any]:
        text = self.questions.whole(item)
        hint = item.to_record() | {"unseen": unseen}
        [likelihood] = await conversation.read(ROLE, Reading("", (text,), moments=True, hint=hint))
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
