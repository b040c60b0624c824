"""The interactor: knows the item, its correct answer and what the candidate said; asks the next question.

What never belongs here: verdicts. The interactor never sees one, which is why it may be asked while one is made.
"""

from __future__ import annotations

from .agent import Agent


class Interactor(Agent):
    """The examiner's voice."""

    role = "interactor"
    __slots__ = ()

    async def open(self, question: str, choices: str, answer: str, reply: str) -> str:
        """The first question, given the item and the candidate's answer to it."""
        prompt = self.pack.render("interactor.opening", question=question, choices=choices, answer=answer, reply=reply)
        return (await self.ask(prompt)).text

    async def follow_up(self, reply: str) -> str:
        """The next question, given the candidate's reply to the last one."""
        return (await self.ask(self.pack.render("interactor.reply", reply=reply))).text
