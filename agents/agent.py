"""What the three roles share: a view of their own, and the model call that continues it.

What never belongs here: anything that only one role does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from viva.engine.conversation import Conversation
from viva.engine.detectors import Detector
from viva.engine.messages import Completion, Sampling, View

from .prompts import PromptPack


class Agent:
    """One role in one conversation. Subclasses name their ``role`` and say how they see the talk."""

    role = ""
    __slots__ = ("conversation", "hint", "pack", "sampling", "view")

    def __init__(self, conversation: Conversation, pack: PromptPack, sampling: Sampling, hint: Any = None) -> None:
        self.conversation, self.pack, self.sampling, self.hint = conversation, pack, sampling, hint
        self.view = View()
        self.view.append("system", pack.render(f"{self.role}.system"))

    async def ask(self, content: str, watch: Sequence[Callable[[], Detector]] = ()) -> Completion:
        """Append ``content`` to the view, have the model answer, and append its answer."""
        self.view.append("user", content)
        completion = await self.conversation.generate(self.role, self.view, self.sampling, hint=self.hint, watch=watch)
        self.view.append("assistant", completion.text, completion.pieces)
        return completion
