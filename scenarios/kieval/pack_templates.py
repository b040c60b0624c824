"""Templates of prompt packs for interviews, and the placeholders of each.

The texts are in `prompts/kieval.yaml`, one part per role. Questions without choices have their own templates.
"""

from __future__ import annotations

from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine.errors import ConfigurationError

from .evaluator import check_first_verdicts

_ITEM = frozenset({"question", "choices", "answer", "reply"})
_NEEDED = {
    "candidate.system": frozenset[str](),
    "candidate.question": frozenset({"question", "choices"}),
    "interactor.system": frozenset[str](),
    "interactor.opening": _ITEM,
    "interactor.reply": frozenset({"reply"}),
    "evaluator.system": frozenset[str](),
    "evaluator.opening": _ITEM,
    "evaluator.exchange": frozenset({"question", "reply"}),
    "evaluator.repair": frozenset({"problem"}),
}
# Optional texts: a remark on the first answer, the initial verdict, and reminders that a question is
# missing, or that a text asks nothing.
_FIRST_ANSWERS = ("right", "wrong", "unread")
_OPTIONAL = {
    f"{role}.{name}": frozenset[str]()
    for role, names in {
        "evaluator": (*_FIRST_ANSWERS, *(f"first_{kind}" for kind in _FIRST_ANSWERS)),
        "interactor": ("again", "not_asked"),
    }.items()
    for name in names
}
# Questions without choices have their own templates: there is no letter to name, and no initial verdict. A pack may
# also have another system prompt of the interactor for them.
_FREE = {
    "candidate.free_question": frozenset({"question"}),
    "interactor.free_opening": frozenset({"question", "answer", "reply"}),
    "evaluator.free_opening": frozenset({"question", "answer", "reply"}),
}
_OPTIONAL |= _FREE | {"interactor.free_system": frozenset[str]()}
# Solved examples and the item in one message, for the first answer `published`.
_OPTIONAL |= {"shots.question": frozenset({"question", "choices"}), "shots.answer": frozenset({"letter", "answer"})}


def check_free_templates(pack: PromptPack) -> None:
    """Check that a pack can be used for questions without choices.

    Raises:
        ConfigurationError: It lacks a template; the message names it.
    """
    for name in _FREE:
        if name not in pack:
            raise ConfigurationError(
                f"prompt pack '{pack.name}' has no template {name}, which questions without choices need; write one, "
                "or put `base: kieval` into the file to use those of the shipped pack"
            )


TEMPLATES = PackTemplates(_NEEDED, _OPTIONAL, check_first_verdicts)
