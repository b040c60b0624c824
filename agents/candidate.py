"""The candidate: answers the benchmark question, then the interview's questions, as one chat.

What never belongs here: whether an answer is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from viva.engine.detectors import Detector

from .agent import Agent


class Candidate(Agent):
    """The model under examination."""

    role = "candidate"
    __slots__ = ()

    async def solve(self, question: str, choices: str) -> str:
        """Its answer to the benchmark question."""
        prompt = self.pack.render("candidate.question", question=question, choices=choices)
        return (await self.ask(prompt)).text

    async def reply(self, question: str, watch: Sequence[Callable[[], Detector]] = ()) -> str:
        """Its reply to the interactor's question."""
        return (await self.ask(question, watch)).text
