"""Conversations that nobody has held yet: as many calls and as long prompts as arithmetic says at most, and guesses.

The figures are a plan's defaults, for where there is neither a pilot nor an earlier run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Literal

from viva.scenarios.forecast import Use

from .talks import Step, Talk

_TALKS = 40
SHORTEST, LONGEST = 0.2, 1.0  # of an answer's token limit
FIRST_TOKEN = 0.5  # seconds until an answer begins
TOKENS_PER_SECOND = 50.0
SPREAD = 0.3  # standard deviation of the logarithm of a call's seconds
WORDS = (
    f"guessed: conversations end anywhere between a first call of each role and their last round; prompts and answers "
    f"have {SHORTEST:.0%} to {LONGEST:.0%} of the tokens that they may have; a call takes {FIRST_TOKEN:g} s and a "
    f"second for each {TOKENS_PER_SECOND:g} tokens of its answer"
)
Guess = Literal["least", "middle", "most"]


def guessed_talks(uses: Mapping[str, Use], guess: Guess = "middle", seed: int = 0) -> list[Talk]:
    """Return talks of which ``uses`` say what each role takes at most.

    ``least`` and ``most`` are the ends of what is guessed: one call of each role with the shortest texts, and all calls
    with the longest. The ``middle`` lies anywhere between.
    """
    draw = random.Random(seed)
    return [_talk(uses, draw, guess) for _ in range(_TALKS)]


def _talk(uses: Mapping[str, Use], draw: random.Random, guess: Guess) -> Talk:
    part = {"least": 0.0, "middle": draw.random(), "most": 1.0}[guess]
    turns: list[tuple[float, str]] = []
    for role, use in uses.items():
        whole = math.floor(use.calls + draw.random())  # a half call is one in every other conversation
        calls = min(whole, 1 + round(part * (whole - 1))) if whole else 0
        turns += [((number + 0.5) / calls, role) for number in range(calls)]
    steps = []
    for place, (_, role) in enumerate(sorted(turns)):
        use = uses[role]
        share = {"least": SHORTEST, "middle": draw.uniform(SHORTEST, LONGEST), "most": LONGEST}[guess]
        answer = share * use.completion / use.calls
        seconds = (FIRST_TOKEN + answer / TOKENS_PER_SECOND) * math.exp(draw.gauss(0.0, SPREAD))
        steps.append(Step(role, place - 1, seconds, share * use.prompt / use.calls, answer))
    return Talk(tuple(steps or [Step(None, -1, 0.0)]))
