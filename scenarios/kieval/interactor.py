"""The interactor: knows the item, its correct answer and what the candidate said; asks the next question.

What never belongs here: verdicts. The interactor never sees one, which is why it may be asked while one is made.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from viva.agents.agent import PackAgent
from viva.agents.prompts import PromptPack
from viva.engine.conversation import Conversation
from viva.engine.messages import Sampling


class Interactor(PackAgent):
    """The examiner's voice."""

    __slots__ = ()

    def __init__(
        self, conversation: Conversation, role: str, pack: PromptPack, sampling: Sampling, hint: Any, *, free: bool
    ) -> None:
        """``free``: the benchmark question has no choices."""
        system = "free_system" if free and f"{role}.free_system" in pack else "system"
        super().__init__(conversation, role, pack, sampling, hint, system)

    def open(self, question: str, choices: str, answer: str, reply: str) -> Coroutine[Any, Any, str | None]:
        """The first question, given the item and the candidate's answer to it; None if it asks nothing. ``choices`` is
        empty where the item has none.
        """
        shown = {"question": question, "answer": answer, "reply": reply}
        if choices:
            return self._question(self.pack.render("interactor.opening", choices=choices, **shown))
        return self._question(self.pack.render("interactor.free_opening", **shown))

    def follow_up(self, reply: str) -> Coroutine[Any, Any, str | None]:
        """The next question, given the candidate's reply to the last one; None if it asks nothing."""
        return self._question(self.pack.render("interactor.reply", reply=reply))

    async def _question(self, prompt: str) -> str | None:
        """What it asks, asked for once more where it says nothing."""
        self.view.append("user", prompt)
        completion = await self.conversation.generate(self.role, self.view, self.sampling, hint=self.hint)
        if not completion.text.strip():
            again = self.pack.render("interactor.again") if "interactor.again" in self.pack else ""
            anew = self.view.without_last()
            anew.append("user", f"{prompt}\n\n{again}" if again else prompt)
            completion = await self.conversation.generate(self.role, anew, self.sampling, hint=self.hint)
            if not completion.text.strip():
                return None
        self.view.append("assistant", completion.text, completion.pieces)
        return completion.text
