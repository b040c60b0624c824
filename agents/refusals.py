"""Whether a text refuses: by the phrases with which models say no, in a few languages.

What never belongs here: an endpoint's own word for a refusal (``Completion.finish``), and asking a model about it.
"""

from __future__ import annotations

import re

# A refusal stands at the beginning of an answer.
_PHRASES = (
    r"I(?:'| a)?m (?:really |very |so )?(?:sorry|unable|afraid)",
    r"I (?:can(?:no|')t|cannot|can not|won'?t|must decline|am not able to|will not)",
    r"(?:as an?|I am an?|I'm an?) (?:AI|language model|assistant)\b.{0,80}\b(?:can(?:no|')t|cannot|unable|not able)",
    r"es tut mir leid|ich kann (?:das |dabei |dir |Ihnen )?(?:leider )?nicht",
    r"je (?:suis désolé|ne peux pas)|lo siento|no puedo",
)
_REFUSALS = re.compile(rf"\b(?:{'|'.join(_PHRASES)})|抱歉|无法(?:回答|提供)|죄송|申し訳", re.IGNORECASE)
_LOOKED_AT = 300  # characters


def refuses(text: str) -> bool:
    """Whether the text begins by refusing."""
    return _REFUSALS.search(text[:_LOOKED_AT].replace("’", "'")) is not None
