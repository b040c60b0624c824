"""Conversations that nobody has held yet: as many calls and as long prompts as arithmetic says, and guessed answers.

The figures are a plan's defaults, for where there is neither a pilot nor an earlier run. What never belongs here:
anything that was measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from viva.scenarios.forecast import Use

from .talks import Step, Talk

_TALKS = 40
SHORTEST, LONGEST = 0.2, 1.0  # of an answer's token limit
FIRST_TOKEN = 0.5  # seconds until an answer begins
TOKENS_PER_SECOND = 50.0
SPREAD = 0.3  # standard deviation of the logarithm of a call's seconds
WORDS = (
    f"guessed: every conversation goes to its end; answers have {SHORTEST:.0%} to {LONGEST:.0%} of the tokens that "
    f"they may have; a call takes {FIRST_TOKEN:g} s and a second for each {TOKENS_PER_SECOND:g} tokens of its answer"
)


def guessed_talks(uses: Mapping[str, Use], seed: int = 0) -> list[Talk]:
    """Talks in which each role is called as often as ``uses`` say of it, in turn."""
    draw = random.Random(seed)
    return [_talk(uses, draw) for _ in range(_TALKS)]


def _talk(uses: Mapping[str, Use], draw: random.Random) -> Talk:
    turns: list[tuple[float, str]] = []
    for role, use in uses.items():
        calls = math.floor(use.calls + draw.random())  # a half call is one in every other conversation
        turns += [((number + 0.5) / calls, role) for number in range(calls)]
    steps = []
    for place, (_, role) in enumerate(sorted(turns)):
        use = uses[role]
        answer = use.completion / use.calls * draw.uniform(SHORTEST, LONGEST)
        seconds = (FIRST_TOKEN + answer / TOKENS_PER_SECOND) * math.exp(draw.gauss(0.0, SPREAD))
        steps.append(Step(role, place - 1, seconds, use.prompt / use.calls, answer))
    return Talk(tuple(steps or [Step(None, -1, 0.0)]))
