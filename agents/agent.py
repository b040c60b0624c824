"""An agent: a role in a conversation, with the messages that this role sees and the call to its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel

from viva.engine.conversation import Conversation
from viva.engine.detectors import Detector
from viva.engine.errors import MalformedOutput
from viva.engine.messages import Completion, Sampling, View

from .forms import form_schema, read_form
from .prompts import PromptPack

M = TypeVar("M", bound=BaseModel)
_REPAIR_REQUEST = "Your answer could not be read: {problem}. Answer with the JSON object alone."


class Agent:
    """A role in a conversation. `view` has all messages that its model was sent, and its answers so far.

    `hint` is what a simulated model may know; real models never see it.
    """

    __slots__ = ("conversation", "hint", "role", "sampling", "view")

    def __init__(
        self,
        conversation: Conversation,
        role: str,
        system: str = "",
        sampling: Sampling | None = None,
        hint: Any = None,
    ) -> None:
        """Create an agent.

        Args:
            conversation: Conversation, or a branch of one.
            role: The role that the agent plays.
            system: System prompt; if empty, none is sent.
            sampling: Sampling options. None: the run's options for this role; by default, temperature 0 and 512 tokens.
            hint: What a simulated model may know.
        """
        self.conversation, self.role, self.hint = conversation, role, hint
        self.sampling = sampling or conversation.sampling.get(role) or Sampling()
        self.view = View()
        if system:
            self.view.append("system", system)

    async def ask(self, content: str, watch: Sequence[Callable[[], Detector]] = ()) -> Completion:
        """Append `content` to the view, have the model answer, and append its answer.

        `watch` is as for `Conversation.generate`.

        Raises:
            ConversationStopped, BackendError, LimitReached: As for `Conversation.generate`.
        """
        self.view.append("user", content)
        completion = await self.conversation.generate(self.role, self.view, self.sampling, hint=self.hint, watch=watch)
        self.view.append("assistant", completion.text, completion.pieces)
        return completion

    async def ask_for(self, form: type[M], content: str, judged: str = "") -> M | None:
        """Ask like `ask`, for an answer in the form of a pydantic model; the backend enforces the form if it can.

        An unreadable answer is requested once more. After a second failure the result is None, which means *unscored*,
        not a low score.

        Args:
            form: The form of the answer.
            content: The message.
            judged: Text by others in the message; JSON quoted from it is no answer.
        """
        sampling = replace(self.sampling, schema=form_schema(form))
        self.view.append("user", content)
        view = self.view
        for attempt in (1, 2):
            completion = await self.conversation.generate(self.role, view, sampling, hint=self.hint)
            try:
                answer = read_form(form, completion.text, judged)
            except MalformedOutput as error:
                if attempt == 1:
                    view = repair_view(self.view, completion, _REPAIR_REQUEST.format(problem=error))
                continue
            # Tokens computed after the repair request are at another position in the main view.
            self.view.append("assistant", completion.text, completion.pieces if view is self.view else None)
            return answer
        return None


def repair_view(view: View, answer: Completion, request: str) -> View:
    """Return a branch of `view` that ends with the unreadable `answer` and the `request` to repeat it."""
    branch = view.branch()
    branch.append("assistant", answer.text, answer.pieces)
    branch.append("user", request)
    return branch


class PackAgent(Agent):
    """An agent with prompts from a prompt pack.

    The agent's system prompt is the pack's template `ROLE.system`, or another of the role's templates.
    """

    __slots__ = ("pack",)

    def __init__(
        self,
        conversation: Conversation,
        role: str,
        pack: PromptPack,
        sampling: Sampling,
        hint: Any = None,
        system: str = "system",
    ) -> None:
        super().__init__(conversation, role, pack.render(f"{role}.{system}"), sampling, hint)
        self.pack = pack
