"""Prompts of probes: an item in each method's template, and the knowledge of simulated models.

The texts are in `prompts/probe.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from viva.agents.prompts import PackTemplates, PromptPack
from viva.data.items import Item, choice_letter
from viva.engine.backends.simulated import SimulatedBackend, SimulatedReading
from viva.engine.errors import ConfigurationError
from viva.engine.likelihood import Reading
from viva.engine.messages import View

from ..choice_questions import (
    FREE_TEMPLATES,
    ITEM_PLACEHOLDERS,
    QUESTION_TEMPLATES,
    answer_fields,
    free_question_view,
    item_fields,
    question_view,
)
from ..simulated_knowledge import ItemHint, knows, recites


@dataclass(slots=True, frozen=True)
class ProbeHint(ItemHint):
    """The item; `unseen` is True if it belongs to the set that no model has seen in training."""

    unseen: bool = False

    def simulated_reading(self, model: SimulatedBackend, reading: Reading) -> SimulatedReading:
        """Return the option that the model prefers, and whether it has memorized the text."""
        right = self.item.answer if len(reading.continuations) > 1 else None
        return SimulatedReading(right, knows(model, self.item), not self.unseen and recites(model, self.item))


_NEEDED = {
    "letter.header": frozenset[str](),
    "letter.subject_header": frozenset({"subject"}),
    "letter.question": ITEM_PLACEHOLDERS,
    "text.question": ITEM_PLACEHOLDERS,
    "text.completion": frozenset({"question"}),
    "loss.text": ITEM_PLACEHOLDERS | {"letter", "answer"},
    **QUESTION_TEMPLATES,
    "generate.answer": frozenset({"letter", "answer"}),
}
_FREE_TEMPLATE = "loss.free_text"  # for questions without choices
_SHARD_TEMPLATE = "order.text"  # an item as it is published in the benchmark's file; that of its loss if it is missing
# What methods ask that an earlier version did not have: packs made for it lack these templates.
_OPTIONAL = {
    _FREE_TEMPLATE: frozenset({"question", "answer"}),
    _SHARD_TEMPLATE: ITEM_PLACEHOLDERS | {"letter", "answer"},
    **FREE_TEMPLATES,
    "text.unconditional": frozenset[str](),
    "guess.system": frozenset[str](),
    "guess.question": ITEM_PLACEHOLDERS | {"letter", "answer", "masked"},
    "samples.system": frozenset[str](),
    "samples.question": ITEM_PLACEHOLDERS,
}
TEMPLATES = PackTemplates(_NEEDED, _OPTIONAL)
MASK = "[MASK]"
_BETWEEN = "\n\n"


class Questions:
    """A renderer of items; with `completions`, the dataset's items are beginnings of texts, not questions."""

    def __init__(self, pack: PromptPack, *, completions: bool = False) -> None:
        self._pack = pack
        self._text = "text.completion" if completions else "text.question"

    def by_letter(self, item: Item, shots: Sequence[Item]) -> Reading:
        if item.subject:
            header = self._pack.render("letter.subject_header", subject=item.subject.replace("_", " "))
        else:
            header = self._pack.render("letter.header")
        examples = [self._with_answer("letter.question", shot, choice_letter(shot.answer)) for shot in shots]
        context = self._pack.render("letter.question", **item_fields(item))
        letters = tuple(" " + choice_letter(index) for index in range(len(item.choices)))
        return Reading(context, letters, _join([header, *examples]), hint=ProbeHint(item))

    def by_text(self, item: Item, shots: Sequence[Item]) -> Reading:
        examples = [self._with_answer(self._text, shot, shot.choices[shot.answer]) for shot in shots]
        options = tuple(" " + choice.strip() for choice in item.choices)
        return Reading(
            self._pack.render(self._text, **item_fields(item)), options, _join(examples), hint=ProbeHint(item)
        )

    def by_text_unconditional(self, item: Item) -> Reading:
        """Return the options' texts without the question, nor a hint of it."""
        return Reading(self._pack.render("text.unconditional"), tuple(" " + choice.strip() for choice in item.choices))

    def item_text(self, item: Item) -> str:
        """Return the item as a text with its answer, as it may have been learned.

        Raises:
            ConfigurationError: The item has no choices, and the pack no template for it.
        """
        if item.free:
            if _FREE_TEMPLATE not in self._pack:
                needed = "which questions without choices need; write one, as in the shipped pack probe"
                raise ConfigurationError(f"prompt pack '{self._pack.name}' has no template {_FREE_TEMPLATE}, {needed}")
            return self._pack.render(_FREE_TEMPLATE, question=item.question.strip(), answer=item.reference.strip())
        return self._pack.render("loss.text", **item_fields(item), **answer_fields(item))

    def question_view(self, item: Item, shots: Sequence[Item]) -> View:
        """Return the item as a question in a conversation, with the examples as earlier turns."""
        return (free_question_view if item.free else question_view)(self._pack, item, shots)

    def shard_text(self, items: Sequence[Item]) -> str:
        """Return items as a text with their answers, divided by blank lines."""
        return _BETWEEN.join(map(self._published_text, items))

    def masked_view(self, item: Item, masked: int) -> View:
        """Return a conversation that asks for one choice, which is masked; the key is named."""
        choices = [MASK if index == masked else choice for index, choice in enumerate(item.choices)]
        fields = item_fields(replace(item, choices=choices)) | answer_fields(item)
        return self._question("guess", fields | {"masked": choice_letter(masked)})

    def free_view(self, item: Item) -> View:
        """Return a conversation that asks for an answer of some length."""
        return self._question("samples", item_fields(item))

    def check_templates(self, methods: Iterable[str]) -> None:
        """Raise ConfigurationError if the pack lacks templates that only some methods need."""
        for method in methods:
            prefix = "text.unconditional" if method == "unconditional" else f"{method}."
            missing = [name for name in _OPTIONAL if name.startswith(prefix) and name not in self._pack]
            if missing and method in ("unconditional", "free", "guess", "samples"):
                raise ConfigurationError(
                    f"prompt pack '{self._pack.name}' has no template {' or '.join(missing)}, which method {method} "
                    "needs; write it, as in the shipped pack probe, or leave the method out"
                )

    def _question(self, method: str, fields: Mapping[str, str]) -> View:
        view = View()
        view.append("system", self._pack.render(f"{method}.system"))
        view.append("user", self._pack.render(f"{method}.question", **fields))
        return view

    def _published_text(self, item: Item) -> str:
        if item.free or _SHARD_TEMPLATE not in self._pack:
            return self.item_text(item)
        return self._pack.render(_SHARD_TEMPLATE, **item_fields(item), **answer_fields(item))

    def _with_answer(self, template: str, item: Item, answer: str) -> str:
        return f"{self._pack.render(template, **item_fields(item))} {answer.strip()}"


def _join(parts: list[str]) -> str:
    return "".join(part + _BETWEEN for part in parts)
