"""The prompt pack of the interview: which templates it must have, which it may have, and loading it checked.

What never belongs here: the wording (``agents/packs``).
"""

from __future__ import annotations

from viva.agents.evaluator import check_first_verdicts
from viva.agents.prompts import PromptPack, load_pack, read_pack

_ITEM = frozenset({"question", "choices", "answer", "reply"})
SIGNATURE = {
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
OPTIONAL = {
    f"{role}.{name}": frozenset[str]()
    for role, names in {"evaluator": ("right", "wrong", "first_right", "first_wrong"), "interactor": ("again",)}.items()
    for name in names
}


def interview_pack(source: str, text: str | None = None) -> PromptPack:
    """A pack by the name of a shipped one or by a file's path; or from ``text``, as a manifest keeps it.

    :raises ConfigurationError: it is not there, lacks a template, or has one that is wrong; the message names it.
    """
    pack = load_pack(source, SIGNATURE, OPTIONAL) if text is None else read_pack(text, source, SIGNATURE, OPTIONAL)
    check_first_verdicts(pack)
    return pack
