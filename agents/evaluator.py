"""The evaluator: sees each exchange with party markers, keeps its own verdicts, and says whether to go on.

A verdict that cannot be read is asked for once more; a second failure leaves the round unscored.
What never belongs here: what a verdict is worth (``scoring``) and what happens after a stop (the protocol).
"""

from __future__ import annotations

from dataclasses import dataclass

from viva.engine.errors import MalformedOutput

from .agent import Agent
from .verdicts import Verdict, prefilled, read_verdict


@dataclass(slots=True)
class Assessment:
    """One round's outcome: a verdict, or None with the ``problem`` that left it unscored.

    ``failures`` counts texts that could not be read (0, 1 or 2).
    """

    verdict: Verdict | None
    failures: int = 0
    problem: str | None = None


class Evaluator(Agent):
    """The judge."""

    role = "evaluator"
    __slots__ = ()

    def begin(self, question: str, choices: str, answer: str, reply: str, *, right: bool) -> None:
        """Show it the benchmark question and answer, and the one verdict it starts from (no model call)."""
        opening = self.pack.render("evaluator.opening", question=question, choices=choices, answer=answer, reply=reply)
        told = self.pack.render("evaluator.right" if right else "evaluator.wrong")
        self.view.append("user", f"{opening}\n\n{told}")
        self.view.append("assistant", prefilled(4 if right else 1))

    async def assess(self, question: str, reply: str) -> Assessment:
        """Its verdict on one exchange."""
        self.view.append("user", self.pack.render("evaluator.exchange", question=question, reply=reply))
        # What a simulated judge may know of this round; a real one reads the exchange.
        hint = None if self.hint is None else {**self.hint, "reply": reply}
        completion = await self.conversation.generate(self.role, self.view, self.sampling, hint=hint)
        try:
            verdict = read_verdict(completion.text, truncated=completion.finish == "length")
        except MalformedOutput as error:
            first = str(error)
        else:
            self.view.append("assistant", completion.text, completion.pieces)
            return Assessment(verdict)
        # The repair is a side branch: the talk that later verdicts see holds the mended verdict only.
        branch = self.view.branch()
        branch.append("assistant", completion.text, completion.pieces)
        branch.append("user", self.pack.render("evaluator.repair", problem=first))
        mended = await self.conversation.generate(self.role, branch, self.sampling, hint=hint)
        self.view.append("assistant", mended.text, mended.pieces)
        try:
            return Assessment(read_verdict(mended.text, truncated=mended.finish == "length"), 1)
        except MalformedOutput as error:
            return Assessment(None, 2, str(error))
