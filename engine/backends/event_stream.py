"""The events of an answer that streams: server-sent events, or lines that each are one.

What never belongs here: what an event holds.
"""

from __future__ import annotations

from typing import NamedTuple

from .endpoint import Body
from .stream_lines import Lines

_MOST_OTHER = 1000  # bytes that are kept of what is no event


class StreamEvent(NamedTuple):
    """``name`` is empty where none was given."""

    name: str
    data: bytes


class EventStream:
    """The events of a body. ``named``: they are server-sent events; otherwise each line that is not blank is one.

    ``other`` is the beginning of what was no event, for errors.
    """

    def __init__(self, body: Body, *, named: bool) -> None:
        self._lines, self._named = Lines(body), named
        self.other = b""

    async def next(self) -> StreamEvent | None:
        """The next event, None at the end. What an event held before the stream ended is one too.

        :raises BackendError: the stream broke off.
        """
        name, data = "", list[bytes]()
        while (line := await self._lines.next()) is not None:
            if not self._named:
                if line.strip():
                    return StreamEvent("", line)
                continue
            if not line:
                if data:
                    return StreamEvent(name, b"\n".join(data))
                name = ""
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.strip().decode("utf-8", "replace")
            elif field and field not in (b"id", b"retry") and len(self.other) < _MOST_OTHER:
                self.other += line[:_MOST_OTHER] + b"\n"
        return StreamEvent(name, b"\n".join(data)) if data else None
