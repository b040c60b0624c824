"""Conversations that are cancelled while their run goes on: their calls end at once, and they are recorded as failed.

What never belongs here: the end of a whole run (``stopping``), and conversations that end at their next call and return
what they have (``Conversation.stop``).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import anyio

from .errors import ConversationCancelled


class Cancelling:
    """Which conversations of one run are cancelled, by key. One that has not begun yet fails when its turn comes."""

    __slots__ = ("_reasons", "_under_way")

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._under_way: dict[str, _Guard] = {}

    def guard(self, key: str) -> _Guard:
        """Return a context manager around one conversation.

        :raises ConversationCancelled: on entering or leaving: it was cancelled, before or meanwhile.
        """
        return _Guard(self, key)

    async def cancel(self, keys: Iterable[str], reason: str) -> list[str]:
        """Cancel these conversations and wait until none of their calls is under way; the keys of those that were. The
        caller is not one of them.
        """
        wanted = dict.fromkeys(keys, reason)
        self._reasons = wanted | self._reasons
        there = {key: self._under_way[key] for key in wanted if key in self._under_way}
        ends = [guard.cancel() for guard in there.values()]
        for ended in ends:
            await ended.wait()
        return list(there)


class _Guard:
    """Around one conversation. The event that tells its end is made only if somebody waits for it: thousands of these
    stand in memory at once.
    """

    __slots__ = ("_cancelling", "_ended", "_key", "_scope")

    def __init__(self, cancelling: Cancelling, key: str) -> None:
        self._cancelling, self._key = cancelling, key
        self._ended: anyio.Event | None = None

    def __enter__(self) -> None:
        if self._key in self._cancelling._reasons:
            raise ConversationCancelled(self._cancelling._reasons[self._key])
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        self._cancelling._under_way[self._key] = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            caught = self._scope.__exit__(kind, error, traceback)
        finally:
            del self._cancelling._under_way[self._key]
            if self._ended is not None:
                self._ended.set()
        if self._scope.cancelled_caught:
            raise ConversationCancelled(self._cancelling._reasons[self._key]) from None
        return caught

    def cancel(self) -> anyio.Event:
        """Cancel the conversation, and return the event that is set when it has ended."""
        self._ended = self._ended or anyio.Event()
        self._scope.cancel()
        return self._ended
