"""The lines of an answer that streams, whatever they hold.

What never belongs here: what a line means (``sse``).
"""

from __future__ import annotations

from collections import deque

from .endpoint import BYTE_ORDER_MARK, Body


class Lines:
    """The lines of a body, however long, by any of the line ends that the format allows."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._ready: deque[bytes] = deque()
        self._begun: list[bytes] = []  # pieces of a line whose end has not come
        self._first = True
        self._after_return = False  # the last piece ended in "\r": a "\n" that follows belongs to it

    async def next(self) -> bytes | None:
        """The next line, None at the end."""
        while not self._ready:
            piece = await self._body.piece()
            if not piece:
                last, self._begun = b"".join(self._begun), []
                return last or None
            if self._first:
                self._begun.append(piece)
                whole = b"".join(self._begun)
                if len(whole) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(whole):
                    continue
                self._first, self._begun, piece = False, [], whole.removeprefix(BYTE_ORDER_MARK)
            if self._after_return:
                piece = piece.removeprefix(b"\n")
            self._after_return = piece.endswith(b"\r")
            *lines, rest = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            if lines:
                lines[0] = b"".join([*self._begun, lines[0]])
                self._begun = []
                self._ready.extend(lines)
            if rest:
                self._begun.append(rest)
        return self._ready.popleft()
