"""The candidate: answers the benchmark question, then the interview's questions, as one chat.

What never belongs here: whether an answer is right.
"""

from __future__ import annotations

from viva.agents.agent import PackAgent
from viva.engine.messages import Completion, Pieces, View


class Candidate(PackAgent):
    """The model under examination."""

    __slots__ = ()

    async def solve(self, question: str, choices: str, view: View | None = None) -> Completion:
        """Its answer to the benchmark question, asked in the pack's words, or in those of ``view`` where it is given.
        ``choices`` is empty where the question has none.

        The interview goes on from the pack's words either way; ``recall`` says what stands there as its answer.
        """
        if choices:
            put = self.pack.render("candidate.question", question=question, choices=choices)
        else:
            put = self.pack.render("candidate.free_question", question=question)
        self.view.append("user", put)
        return await self.conversation.generate(
            self.role, self.view if view is None else view, self.sampling, hint=self.hint
        )

    def recall(self, answer: str, pieces: Pieces | None = None) -> None:
        """Put down what it is to remember of its answer to the benchmark question."""
        self.view.append("assistant", answer, pieces)
