"""Affinity of conversations to contexts: a conversation returns to the context whose host cache holds its KV."""

from __future__ import annotations

from collections import OrderedDict

_MAX_CONVERSATIONS = 50_000


class Affinity:
    """The conversations of one backend and their contexts.

    ``assigned`` counts the conversations of each context; all backends that share the contexts share this list.
    """

    def __init__(self, assigned: list[int]) -> None:
        self._assigned = assigned
        self._contexts: OrderedDict[str, int] = OrderedDict()

    def assign(self, conversation: str) -> tuple[int, bool]:
        """The context of a conversation, and whether the conversation is ongoing.

        A new conversation goes to the context with the fewest. A request without one ("") counts until it is answered:
        the caller must then ``release`` its context.
        """
        if (context := self._contexts.get(conversation)) is not None:
            self._contexts.move_to_end(conversation)
            return context, True
        context = min(range(len(self._assigned)), key=self._assigned.__getitem__)
        self._assigned[context] += 1
        if not conversation:
            return context, True
        self._contexts[conversation] = context
        if len(self._contexts) > _MAX_CONVERSATIONS:
            self.release(self._contexts.popitem(last=False)[1])
        return context, False

    def release(self, context: int) -> None:
        """Count one conversation less at this context."""
        self._assigned[context] -= 1

    def end(self, conversation: str) -> None:
        """Remove an ended conversation; an unknown one is ignored."""
        if (context := self._contexts.pop(conversation, None)) is not None:
            self.release(context)

    def clear(self) -> None:
        """Remove all conversations of this backend."""
        for context in self._contexts.values():
            self.release(context)
        self._contexts.clear()
