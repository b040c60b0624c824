"""Rephrasing of one item: the writer's version, checks of its form, and another model's blind answer to it.

Prompts are in `prompts/rephrase.yaml`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from viva.agents.agent import PackAgent
from viva.agents.prompts import PackTemplates, PromptPack
from viva.data.items import Item, cluster_name, format_item, strip_letters
from viva.engine.backends.simulated import SimulatedBackend, SimulatedReply
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.messages import Request, Sampling

from ..choice_questions import (
    ITEM_PLACEHOLDERS,
    QUESTION_TEMPLATES,
    answer_fields,
    ask_choice,
    item_fields,
    question_view,
)
from ..run_aggregate import conversation_costs
from ..simulated_knowledge import ItemHint, judgement

WRITER, CHECKER = "writer", "checker"
TEMPLATES = PackTemplates({
    "writer.system": frozenset[str](),
    "writer.question": ITEM_PLACEHOLDERS | {"letter", "answer"},
    "writer.free_question": frozenset({"question", "answer"}),
    **QUESTION_TEMPLATES,
})  # fmt: skip
_DIGITS = re.compile(r"\d+")


class RephrasedQuestion(BaseModel):
    """The question in other words."""  # sent to models: a change invalidates recorded calls

    model_config = ConfigDict(extra="ignore")

    question: str


class RephrasedChoices(RephrasedQuestion):
    """The question and its choices in other words."""  # sent to models

    choices: list[str]


def rephrasing_fault(item: Item, rephrased: Item) -> str:
    """Return why a rephrased item is not the same question in other words, by its form; "" if no reason is known."""
    texts = [rephrased.question, *rephrased.choices]
    if len(rephrased.choices) != len(item.choices):
        return "another number of choices"
    if any(map(_has_controls, texts)):
        return "control characters"
    if not all(map(_normalize, texts)):
        return "an empty text"
    if len(set(map(_normalize, rephrased.choices))) < len(rephrased.choices):
        return "equal choices"
    if _normalize(rephrased.question) == _normalize(item.question):
        return "the question is unchanged"
    pairs = ((item.question, rephrased.question), (item.right_text, rephrased.right_text))
    if any(_numbers(text) != _numbers(other) for text, other in pairs):
        return "a number is changed"
    return ""


def _has_controls(text: str) -> bool:
    return any(unicodedata.category(letter) in ("Cc", "Cs") and letter not in "\t\n\r" for letter in text)


def _normalize(text: str) -> str:
    """Return the text without differences of case and white space, and without invisible characters."""
    visible = "".join(letter for letter in text.casefold() if unicodedata.category(letter) != "Cf")
    return " ".join(visible.split())


def _numbers(text: str) -> Counter[str]:
    return Counter(_DIGITS.findall(text))


@dataclass(slots=True, frozen=True)
class WriterHint:
    """The item. A simulated writer puts words before its texts; as often as its noise, it leaves the question alone."""

    item: Item

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        question = self.item.question if chance[1] < model.noise else f"Here is what to answer: {self.item.question}"
        choices = [f"namely {choice}" if " " in choice.strip() else choice for choice in self.item.choices]
        return judgement(model, json.dumps({"question": question, "choices": choices}), chance), None


@dataclass(slots=True)
class Rephrasing:
    """The conversations of a run: one per item and writer."""

    pack: PromptPack
    writer: Sampling
    checker: Sampling

    async def run(self, conversation: Conversation, item: Item) -> dict[str, Any]:
        """Rephrase an item and return its record.

        The rephrased item is kept unless there is a `reason`; `checked` is True if the checker has answered it.
        """
        conversation.tell(lambda: [("benchmark", format_item(item))])
        record: dict[str, Any] = {"writer": conversation.label, "item": item.id, "rephrased": None, "checked": False}
        try:
            record["reason"] = await self._rephrase(conversation, item, record)
        except ConversationStopped as stop:
            record["reason"] = f"stopped: {stop.by}"
        return record | {"kept": record["reason"] == ""} | conversation_costs(conversation)

    async def _rephrase(self, conversation: Conversation, item: Item, record: dict[str, Any]) -> str:
        writer = PackAgent(conversation, WRITER, self.pack, self.writer, WriterHint(item))
        form = RephrasedQuestion if item.free else RephrasedChoices
        answer = await writer.ask_for(form, writer_prompt(self.pack, item), format_item(item))
        if answer is None:
            return "no readable answer"
        rephrased = rephrased_item(item, answer)
        record["rephrased"] = rephrased.to_record()
        fault = rephrasing_fault(item, rephrased)
        if fault or item.free:
            return fault
        view = question_view(self.pack, rephrased)
        check = await ask_choice(conversation, CHECKER, view, rephrased, self.checker, ItemHint(rephrased))
        record["checked"] = True
        if check["choice"] is None:
            return "the checker takes no choice"
        return "" if check["right"] else "the checker takes another choice"


def writer_prompt(pack: PromptPack, item: Item) -> str:
    """Return the request to rephrase an item."""
    if item.free:
        return pack.render("writer.free_question", question=item.question.strip(), answer=item.reference.strip())
    return pack.render("writer.question", **item_fields(item), **answer_fields(item))


def rephrased_item(item: Item, answer: RephrasedQuestion) -> Item:
    """Return the item of a writer's answer, in the original's cluster."""
    choices = [choice.strip() for choice in answer.choices] if isinstance(answer, RephrasedChoices) else []
    return replace(
        item,
        id=f"{item.id}-rephrased",
        question=answer.question.strip(),
        choices=strip_letters(choices) or choices,
        passage=item.passage or cluster_name(item.id),
    )
