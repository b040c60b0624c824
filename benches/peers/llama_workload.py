"""The interviews that every llama.cpp peer is given: the same prompts, token for token, and replies of fixed length.

Shape (three rounds unless told otherwise): system prompts of 200 (interactor), 40 (candidate) and 600 (evaluator)
words, a question of 80; replies of exactly 32, 48 and 96 tokens, greedy, with end of text ignored; each role keeps what
it said itself, and is told canned words of the right length as the others' words, for a random model's words would be
read as other tokens. A word is one token of the random models, and 1.04 of SmolLM2.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from viva.engine.messages import Completion, View

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "models"))
from tiny_gguf import WORDS

ROUNDS = 3
SYSTEM = {"interactor": 200, "candidate": 40, "evaluator": 600}
REPLY = {"interactor": 32, "candidate": 48, "evaluator": 96}
QUESTION = 80
# Asks (conversation, role) with a view for so many tokens.
Complete = Callable[[str, str, View, int], Awaitable[Completion]]


def words(count: int, *seed: object) -> str:
    """Text of ``count`` words, the same for the same seed."""
    rng = random.Random(repr(seed))
    return "".join(f" {rng.choice(WORDS)}" for _ in range(count))


def generated(count: int, rounds: int) -> int:
    """Tokens that are generated in ``count`` conversations."""
    return count * rounds * sum(REPLY.values())


async def interview(number: int, complete: Complete, ended: Callable[[str], None] | None, rounds: int) -> None:
    """One conversation."""
    views = {role: View() for role in SYSTEM}
    question = words(QUESTION, number, "question")
    for role, length in SYSTEM.items():
        views[role].append("system", words(length, role))
    views["interactor"].append("user", question)
    for turn in range(rounds):
        replies = {role: words(length, number, turn, role) for role, length in REPLY.items()}
        opening = question if turn == 0 else ""
        await _speak(number, "interactor", views, complete)
        views["candidate"].append("user", opening + replies["interactor"])
        await _speak(number, "candidate", views, complete)
        views["interactor"].append("user", replies["candidate"])
        views["evaluator"].append("user", opening + replies["interactor"] + replies["candidate"])
        await _speak(number, "evaluator", views, complete)
    if ended is not None:
        ended(f"talk-{number}")


async def _speak(number: int, role: str, views: dict[str, View], complete: Complete) -> None:
    view = views[role]
    completion = await complete(f"talk-{number}", role, view, REPLY[role])
    view.append("assistant", completion.text, completion.pieces)


async def interviews(
    count: int, complete: Complete, ended: Callable[[str], None] | None = None, rounds: int = ROUNDS
) -> None:
    """All conversations at once; who wants to know is told of each that has ended."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(interview(number, complete, ended, rounds))


class Fewest:
    """Counts the fewest prompt tokens that sharing prefixes allows: those that no earlier prompt or reply had.

    ``prompt_depth`` and ``reply_depth`` are how many tokens stand before such a one, and before a generated one, on
    the average: what attention costs goes by them.
    """

    def __init__(self) -> None:
        self.tokens = self.generated = 0
        self._depths = self._reply_depths = 0
        self._known: set[tuple[int, int]] = set()

    def prompt(self, tokens: list[int]) -> None:
        """Note a prompt."""
        new = self._add(tokens)
        self.tokens += len(new)
        self._depths += sum(new)

    def reply(self, prompt: list[int], tokens: list[int]) -> None:
        """Note what was generated behind a prompt; its last token is computed by whoever goes on from it."""
        self._add(prompt + tokens[:-1])
        self.generated += len(tokens)
        self._reply_depths += sum(range(len(prompt), len(prompt) + len(tokens)))

    @property
    def prompt_depth(self) -> float:
        """See the class."""
        return self._depths / max(1, self.tokens)

    @property
    def reply_depth(self) -> float:
        """See the class."""
        return self._reply_depths / max(1, self.generated)

    def _add(self, tokens: list[int]) -> list[int]:
        """The places that are new."""
        new: list[int] = []
        chain = 0
        for position, token in enumerate(tokens):
            chain = hash((chain, token))
            if (position, chain) not in self._known:
                self._known.add((position, chain))
                new.append(position)
        return new
