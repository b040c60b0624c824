"""The prompt pack of the interview: which templates it must have, which it may have.

What never belongs here: the wording (``packs``).
"""

from __future__ import annotations

from viva.agents.prompts import PackTemplates

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
# What a pack may say: how the first answer was, the verdict the evaluator starts from, and that a question is missing.
_OPTIONAL = {
    f"{role}.{name}": frozenset[str]()
    for role, names in {"evaluator": ("right", "wrong", "first_right", "first_wrong"), "interactor": ("again",)}.items()
    for name in names
}
TEMPLATES = PackTemplates(_NEEDED, _OPTIONAL, check_first_verdicts)
