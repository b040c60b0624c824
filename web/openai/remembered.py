"""Conversations that clients name (OpenAI's ``prompt_cache_key``): their KV, and the tokens of their replies.

A reply that comes back in the next request is text. In a named conversation it is known by which tokens the model said
it, as it is within a run, so that the next answer is the one that a run would get. Without a name nothing is
remembered, and an answer depends on its request alone.
What never belongs here: the requests themselves.
"""

from __future__ import annotations

from collections import OrderedDict

from viva.engine.backends.base import Backend
from viva.engine.messages import Completion, Message, Pieces, View

_MOST_CONVERSATIONS = 1_000
_MOST_REPLIES = 200  # of one conversation


class Remembered:
    """The named conversations of one model; of many the latest used are kept."""

    def __init__(self, model: str, backend: Backend) -> None:
        self._model, self._backend = model, backend
        self._replies: OrderedDict[str, OrderedDict[bytes, Pieces]] = OrderedDict()

    def affinity(self, name: str) -> str:
        """What the backend knows the conversation by."""
        return f"served {self._model} {name}"

    def view(self, name: str | None, messages: list[Message]) -> View:
        """The messages as a view, with the tokens of the replies that are remembered."""
        replies = {} if name is None else self._touched(name)
        view = View()
        for one in messages:
            pieces = None
            if one.role == "assistant" and replies:
                ahead = view.branch()
                ahead.append(one.role, one.content, calls=one.calls)
                pieces = replies.get(ahead.digest)
            view.append(one.role, one.content, pieces, calls=one.calls, call_id=one.call_id, name=one.name)
        return view

    def add(self, name: str, view: View, completion: Completion) -> None:
        """Remember a reply to these messages."""
        if completion.pieces is None:
            return
        ahead = view.branch()
        ahead.append("assistant", completion.text, calls=completion.calls or ())
        replies = self._touched(name)
        replies[ahead.digest] = completion.pieces
        if len(replies) > _MOST_REPLIES:
            replies.popitem(last=False)

    def _touched(self, name: str) -> OrderedDict[bytes, Pieces]:
        replies = self._replies.setdefault(name, OrderedDict())
        self._replies.move_to_end(name)
        if len(self._replies) > _MOST_CONVERSATIONS:
            oldest, _ = self._replies.popitem(last=False)
            self._backend.ended(self.affinity(oldest))
        return replies
