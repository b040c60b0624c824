"""Agent: one role in one conversation, with its own view of it, and the model call that continues it."""

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
    """One role in one conversation. ``view`` holds what its model has been told and has said so far.

    ``hint`` is what a simulated model may know; real models never see it.
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
        """``system``: its system prompt; no such message if empty. ``sampling``: the run's options of this role
        if None, by default temperature 0 and 512 tokens.
        """
        self.conversation, self.role, self.hint = conversation, role, hint
        self.sampling = sampling or conversation.sampling.get(role) or Sampling()
        self.view = View()
        if system:
            self.view.append("system", system)

    async def ask(self, content: str, watch: Sequence[Callable[[], Detector]] = ()) -> Completion:
        """Append ``content`` to the view, have the model answer, and append its answer.

        :raises ConversationStopped, BackendError, LimitReached: as ``Conversation.generate``.
        """
        self.view.append("user", content)
        completion = await self.conversation.generate(self.role, self.view, self.sampling, hint=self.hint, watch=watch)
        self.view.append("assistant", completion.text, completion.pieces)
        return completion

    async def ask_for(self, form: type[M], content: str, judged: str = "") -> M | None:
        """As ``ask``, for an answer in the form of a pydantic model, which the backend is held to where it can be.
        ``judged`` is the text by others that it is asked about: what it quotes of that is no answer.

        An answer that cannot be read is asked for once more; None after a second failure: that is *unscored*, not a
        low score.
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
            # What was computed behind the request to repair it stands elsewhere in the main view.
            self.view.append("assistant", completion.text, completion.pieces if view is self.view else None)
            return answer
        return None


def repair_view(view: View, answer: Completion, request: str) -> View:
    """Return a branch of a view in which an answer that cannot be read is asked for once more."""
    branch = view.branch()
    branch.append("assistant", answer.text, answer.pieces)
    branch.append("user", request)
    return branch


class PackAgent(Agent):
    """An agent whose words come from a prompt pack; its system prompt is the pack's template ``ROLE.system``, or
    another of the role's templates.
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
