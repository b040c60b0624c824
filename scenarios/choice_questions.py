"""Multiple-choice questions asked in words: the messages of a question, and the choice that an answer takes.

Their templates are `generate.system`, `generate.question` and, for solved examples, `generate.answer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viva.agents.choices import read_choice
from viva.agents.prompts import PromptPack
from viva.data.items import Item, choice_letter
from viva.engine.conversation import Conversation
from viva.engine.messages import Sampling, View

ITEM_PLACEHOLDERS = frozenset({"question", "choices"})
QUESTION_TEMPLATES = {"generate.system": frozenset[str](), "generate.question": ITEM_PLACEHOLDERS}


def item_fields(item: Item) -> dict[str, str]:
    """Return the values of an item's placeholders in templates."""
    return {"question": item.question.strip(), "choices": item.labelled_choices()}


def answer_fields(item: Item) -> dict[str, str]:
    """Return the values of the placeholders of an item's right choice."""
    return {"letter": choice_letter(item.answer), "answer": item.choices[item.answer]}


def question_view(pack: PromptPack, item: Item, shots: Sequence[Item] = ()) -> View:
    """Return the item as a question in a conversation, with the examples as earlier turns."""
    view = View()
    view.append("system", pack.render("generate.system"))
    for shot in shots:
        view.append("user", pack.render("generate.question", **item_fields(shot)))
        view.append("assistant", pack.render("generate.answer", **answer_fields(shot)))
    view.append("user", pack.render("generate.question", **item_fields(item)))
    return view


async def ask_choice(
    conversation: Conversation, role: str, view: View, item: Item, sampling: Sampling, hint: Any = None
) -> dict[str, Any]:
    """Ask for an answer in words; return the index of the choice that it takes (None: no choice), and if it is right.

    Only the first paragraph counts: for a model that only continues text, a blank line precedes the next question.
    """
    completion = await conversation.generate(role, view, sampling, hint=hint)
    choice = read_choice(completion.text.strip().partition("\n\n")[0], item.choices)
    return {"choice": choice, "right": choice == item.answer}
