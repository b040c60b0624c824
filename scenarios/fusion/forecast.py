"""What a run takes at most: prompts rendered from the very examples and pack, answers as long as their limit allows.

What never belongs here: prices, and what is to be expected rather than the most.
"""

from __future__ import annotations

from collections.abc import Iterable

from viva.agents.assistants.example import Advice
from viva.agents.assistants.judged import GRADE_TOKENS, OtherJudge

from ..forecast import Use, tokens_in
from .examples_file import JudgedExample
from .judge import ROLE
from .settings import FusionSettings
from .words import Words


def judging_use(settings: FusionSettings, words: Words, examples: Iterable[JudgedExample]) -> dict[str, Use]:
    """What each role takes for all examples of one judge; repairs are not foreseen."""
    system = tokens_in(words.system())
    total: dict[str, Use] = {ROLE: Use()}
    gaps = [Advice(one.name, one.high) for one in words.assistants]
    for example in examples:
        prompt = system + tokens_in(words.question(example, gaps))
        total[ROLE] += Use(1, prompt, settings.judge_tokens) * settings.predictions
        texts = tokens_in("\n\n".join(example.texts.values()))
        for one in words.assistants:
            if one.model is not None:
                answer = GRADE_TOKENS if isinstance(one, OtherJudge) else 0
                total[one.role] = total.get(one.role, Use()) + Use(1, texts, answer)
    return total
