"""Knowledge of simulated models about an item, and failures of simulated judges; shared by all scenarios."""

from __future__ import annotations

from dataclasses import dataclass

from viva.data.items import Item
from viva.engine import seeds
from viva.engine.backends.simulated import SimulatedBackend, SimulatedReply
from viva.engine.messages import Request

__all__ = ["QUESTIONS", "WRONG", "ItemHint", "judgement", "knows", "question", "recites", "static_answer"]

QUESTIONS = (
    "Suppose one condition in this problem were reversed: which part of your reasoning would no longer hold?",
    "Which mechanism links the facts you rely on, and how could one observe it?",
    "Name a case that looks similar but has another outcome, and say what makes the difference.",
    "Which assumption carries most of the weight here, and what would show that it is wrong?",
    "How would you explain the underlying principle to somebody who holds the opposite view?",
    "What quantity would you measure first to decide between the competing explanations?",
)


WRONG = "that it cannot be told"  # the wrong answer to questions without choices


def knows(model: SimulatedBackend, item: Item) -> bool:
    """Return True if the model understands the item's subject."""
    return seeds.uniform(model.label, item.id, "knows") < model.knowledge


def recites(model: SimulatedBackend, item: Item) -> bool:
    """Return True if the model has memorized the item."""
    return seeds.uniform(model.label, item.id, "recites") < model.memorisation


def static_answer(model: SimulatedBackend, item: Item, chance: list[float]) -> str:
    """Return the model's answer to the benchmark item: right if it knows or recites it, else a guess."""
    is_known = knows(model, item) or recites(model, item)
    if item.free:
        return f"The answer is: {item.reference}" if is_known else f"I would say {WRONG}."
    pick = item.answer if is_known else int(chance[3] * len(item.choices))
    return f"The answer is {chr(65 + pick)}. {item.choices[pick]}."


@dataclass(slots=True, frozen=True)
class ItemHint:
    """The item that a simulated model is asked."""

    item: Item

    def simulated(self, model: SimulatedBackend, request: Request, chance: list[float]) -> SimulatedReply:
        return static_answer(model, self.item, chance), None


def question(chance: list[float]) -> str:
    """Return a question that fits any subject."""
    return QUESTIONS[int(chance[1] * len(QUESTIONS))]


def judgement(model: SimulatedBackend, text: str, chance: list[float]) -> str:
    """Return the judge's text, or a malformed one; the first two malformed kinds can still be read."""
    if chance[13] >= model.malformed:
        return text
    way = chance[14]
    if way < 0.2:
        return f"Here is my verdict:\n```json\n{text}\n```"
    if way < 0.4:
        return text[:-1] + ",}"
    if way < 0.7:
        return text[: len(text) // 2]
    return "The candidate did rather well on the whole."
