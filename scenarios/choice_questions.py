"""Questions asked in words: the messages of a question, and what an answer takes for right.

The templates of multiple-choice questions are `generate.system`, `generate.question` and, for solved examples,
`generate.answer`; those of questions without choices are `free.system` and `free.question`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viva.agents.choices import read_choice
from viva.agents.free_numbers import read_number
from viva.agents.free_words import read_words
from viva.agents.free_yes_no import read_yes_no
from viva.agents.prompts import PromptPack
from viva.agents.written_numbers import final_reference, reference_number
from viva.data.items import Item, choice_letter
from viva.engine.conversation import Conversation
from viva.engine.messages import Sampling, View
from viva.scoring.accuracy import normalize_answer, token_f1

ITEM_PLACEHOLDERS = frozenset({"question", "choices"})
QUESTION_TEMPLATES = {"generate.system": frozenset[str](), "generate.question": ITEM_PLACEHOLDERS}
FREE_TEMPLATES = {"free.system": frozenset[str](), "free.question": frozenset({"question"})}


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


def free_question_view(pack: PromptPack, item: Item, shots: Sequence[Item] = ()) -> View:
    """Return a question without choices in a conversation, with the examples and their references as earlier turns."""
    view = View()
    view.append("system", pack.render("free.system"))
    for shot in shots:
        view.append("user", pack.render("free.question", question=shot.question.strip()))
        view.append("assistant", shot.reference.strip())
    view.append("user", pack.render("free.question", question=item.question.strip()))
    return view


async def ask_free(
    conversation: Conversation, role: str, view: View, item: Item, sampling: Sampling, hint: Any = None
) -> dict[str, Any]:
    """Ask for a free answer; return what it claims (None: nothing, or two things), if that is right, and its F1."""
    completion = await conversation.generate(role, view, sampling, hint=hint)
    return grade_free_answer(completion.text, item, cut=completion.finish == "length")


def grade_free_answer(text: str, item: Item, *, cut: bool = False) -> dict[str, Any]:
    """Return a free answer as it is read, if it is right, and the F1 of its words with the reference's.

    The reference says what is read: a number, yes or no, or words. `kind` records it.
    """
    reference = final_reference(item.reference)
    right_number = reference_number(reference)
    if right_number is not None:
        number = read_number(text, item.question, cut=cut)
        right = number is not None and number.matches(right_number)
        answer = None if number is None else str(number)
        return {"kind": "number", "answer": answer, "right": right, "f1": float(right)}
    if normalize_answer(reference) in ("yes", "no"):
        kind, answer = "yes or no", read_yes_no(text, item.question, cut=cut)
    else:
        kind, answer = "words", read_words(text, item.question, cut=cut)
    right = answer is not None and normalize_answer(answer) == normalize_answer(reference)
    return {
        "kind": kind,
        "answer": answer,
        "right": right,
        "f1": 0.0 if answer is None else token_f1(answer, reference),
    }
