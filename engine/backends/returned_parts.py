"""Opaque parts of an answer that a provider wants back, unchanged, with the results of the tools it called.

Some providers sign what a model thought before it called tools, and refuse a request, or answer worse, where the
signed parts are missing. The engine's messages do not hold them, nor does the journal: they are kept here, for as long
as the conversation goes on in this process. A resumed conversation has none. What never belongs here: what they mean.
"""

from __future__ import annotations

from typing import Any

from ..messages import Completion, Message, Request
from ..tools import ToolCall


class ReturnedParts:
    """The parts of the answers of all conversations that are under way."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[tuple[str, str, int], tuple[str, tuple[ToolCall, ...], list[Any]]]] = {}

    def keep(self, request: Request, completion: Completion, parts: list[Any] | None) -> None:
        """Keep the parts of an answer, which will be the next message of its view. Nothing is kept of an answer without
        calls, nor of a request that belongs to no conversation: nobody would say when it ends.
        """
        place = request.affinity or request.conversation
        if parts and completion.calls and place:
            said = (completion.text, tuple(completion.calls), parts)
            self._kept.setdefault(place, {})[request.branch, request.role, len(request.messages)] = said

    def of(self, request: Request, index: int) -> list[Any] | None:
        """The parts of the answer that stands at ``index`` in a request's messages; None if it is not as it was."""
        message: Message = request.messages[index]
        kept = self._kept.get(request.affinity or request.conversation, {}).get((request.branch, request.role, index))
        if kept is None or kept[0] != message.content or kept[1] != message.calls:
            return None
        return kept[2]

    def forget(self, conversation: str) -> None:
        """A conversation has ended."""
        self._kept.pop(conversation, None)
