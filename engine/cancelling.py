"""Conversations that are cancelled while their run goes on: their calls end at once, and they are recorded as failed.

What never belongs here: the end of a whole run (``stopping``), and conversations that end at their next call and return
what they have (``Conversation.stop``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import anyio

from .errors import ConversationCancelled


class Cancelling:
    """Which conversations of one run are cancelled, by key. One that has not begun yet fails when its turn comes."""

    __slots__ = ("_reasons", "_under_way")

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._under_way: dict[str, tuple[anyio.CancelScope, anyio.Event]] = {}

    @contextmanager
    def guard(self, key: str) -> Iterator[None]:
        """Around one conversation.

        :raises ConversationCancelled: it was cancelled, before or meanwhile.
        """
        if key in self._reasons:
            raise ConversationCancelled(self._reasons[key])
        ended = anyio.Event()
        try:
            with anyio.CancelScope() as scope:
                self._under_way[key] = scope, ended
                yield
        finally:
            del self._under_way[key]
            ended.set()
        if scope.cancelled_caught:
            raise ConversationCancelled(self._reasons[key])

    async def cancel(self, keys: Iterable[str], reason: str) -> list[str]:
        """Cancel these conversations and wait until none of their calls is under way; the keys of those that were. The
        caller is not one of them.
        """
        wanted = dict.fromkeys(keys, reason)
        self._reasons = wanted | self._reasons
        there = {key: self._under_way[key] for key in wanted if key in self._under_way}
        for scope, _ in there.values():
            scope.cancel()
        for _, ended in there.values():
            await ended.wait()
        return list(there)
