"""A streamed message of the Messages API (server-sent events), put together. One that ends before its end is an error.

Text is handed on as it comes; thoughts and calls come with the message only. What never belongs here: what a message
means (``answer``), retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...clock import Clock
from ...errors import Rejected, Unavailable
from ..endpoint import Body, Endpoint
from ..event_stream import RecordStream
from ..openai_message import PartWithoutText, is_thought
from ..openai_usage import joined_counts
from .answer import ReadMessage, read_message

# What a piece adds to which field of its block.
_PIECES = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
}


async def read_stream(
    body: Body, on_text: Callable[[str], None], label: str, clock: Clock, endpoint: Endpoint, *, tools: bool
) -> ReadMessage:
    """Read to the end, handing on each piece of text, without the key. ``first_token`` is the clock's time of the first
    piece of text, or of a call.

    :raises BackendError: an error that the stream reports, by its type.
    :raises Rejected: a block is of a type that is no text.
    :raises Unavailable: the stream broke off, or held something that is no event of a message.
    :raises AnswerTooLarge: it is longer than an answer may be.
    """
    redact = endpoint.redact
    assembly = _Assembly()
    first: float | None = None
    out = redact.stream(on_text)
    stream = RecordStream(body, endpoint, label)
    while not assembly.has_ended and (record := await stream.next()) is not None:
        try:
            piece = assembly.take(record)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise stream.malformed("what is no event of a message") from None
        if first is None and assembly.has_begun:
            first = clock.now()
        if piece:
            out.feed(piece)
    out.finish()
    if not assembly.is_whole:
        raise stream.broken_off()
    try:
        found = read_message(assembly.message(), redact, tools=tools)
    except PartWithoutText as block:
        raise Rejected(redact.cut(str(block), 200), model=label) from None
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = redact.cut(str(error), 200)
        raise Unavailable(f"the stream is not that of a message ({shown})", model=label) from None
    found.completion.first_token = first
    return found


class _Assembly:
    """A message as far as its events have come."""

    def __init__(self) -> None:
        self.has_ended = False
        self.has_begun = False  # something besides thoughts has come
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}

    @property
    def is_whole(self) -> bool:
        """Whether all has come: gateways may leave out the event that ends a message, behind the reason for its end."""
        return bool(self._message) and (self.has_ended or self._message.get("stop_reason") is not None)

    def take(self, record: dict[str, Any]) -> str:
        """Take an event; the text that it adds to the answer. Types of events that are not known are left out, as the
        API's versioning asks.

        :raises KeyError, TypeError, AttributeError: it is no event of a message.
        """
        kind = record["type"]
        if kind == "content_block_delta":
            return self._delta(record["index"], record["delta"])
        if kind == "content_block_start":
            return self._start(record["index"], record["content_block"])
        if kind == "message":  # sent whole, though a stream was asked for
            content = record["content"]
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            self._message, self.has_ended = dict(record), True
            return "".join([self._start(index, block) for index, block in enumerate(content)])
        if kind == "message_start":
            self._message = dict(record["message"])
        elif kind == "message_delta":
            self._message |= record["delta"]
            self._message["usage"] = joined_counts(self._message.get("usage"), record.get("usage"))
        elif kind == "message_stop":
            self.has_ended = True
        return ""

    def _start(self, index: int, block: dict[str, Any]) -> str:
        self._blocks[index] = dict(block)
        kind, text = block["type"], block.get("text")
        self.has_begun = self.has_begun or kind == "tool_use" or bool(text)
        return text if isinstance(text, str) and not is_thought(kind) else ""

    def _delta(self, index: int, delta: dict[str, Any]) -> str:
        kind = delta["type"]
        block = self._blocks[index]
        if kind == "input_json_delta":
            self._pieces.setdefault((index, "input"), []).append(delta["partial_json"])
        elif kind in _PIECES or isinstance(delta.get("text"), str):
            field, name = _PIECES.get(kind, ("text", "text"))
            piece: str = delta[name]
            self._pieces.setdefault((index, field), [block.get(field) or ""]).append(piece)
            if field == "text" and not is_thought(block["type"]):
                self.has_begun = True
                return piece
        return ""

    def message(self) -> dict[str, Any]:
        """The whole message, as it would have been sent."""
        for (index, field), pieces in self._pieces.items():
            whole = "".join(pieces)
            if field == "input":
                self._blocks[index][field] = whole or self._blocks[index].get(field) or "{}"
            else:
                self._blocks[index][field] = whole
        return self._message | {"content": [self._blocks[index] for index in sorted(self._blocks)]}
