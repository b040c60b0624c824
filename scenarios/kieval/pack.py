"""The prompt pack of the interview: which templates it must have, which it may have, and loading it checked.

What never belongs here: the wording (``agents/packs``).
"""

from __future__ import annotations

from viva.agents.evaluator import check_first_verdicts
from viva.agents.prompts import PromptPack, is_shipped, load_pack, read_pack

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


def interview_pack(source: str, recorded: str | None = None) -> PromptPack:
    """A pack by the name of a shipped one or by a file's path.

    ``recorded``: its text in the manifest of the run that goes on. A shipped pack is taken from there, for versions
    differ in their words; a file of the user's is read as it is now, and the run compares the two.

    :raises ConfigurationError: it is not there, lacks a template, or has one that is wrong; the message names it.
    """
    if recorded is not None and is_shipped(source):
        pack = read_pack(recorded, source, SIGNATURE, OPTIONAL)
    else:
        pack = load_pack(source, SIGNATURE, OPTIONAL)
    check_first_verdicts(pack)
    return pack
