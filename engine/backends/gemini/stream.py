"""A streamed answer of the Gemini API (server-sent events), put together. One that ends before its end is an error.

Each event is an answer of its own with the parts that have come since the last one; the last has a reason for the end.
Text is handed on as it comes; thoughts and calls come with the answer only. What never belongs here: what an answer
means (``answer``), retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ...clock import Clock
from ...errors import Unavailable
from ..endpoint import Body, Endpoint
from ..endpoint_json import decoded
from ..event_stream import EventStream
from .answer import ReadAnswer, blocked, read_answer
from .errors import status_in_stream

_LOGPROBS = ("chosenCandidates", "topCandidates")


async def read_stream(
    body: Body, on_text: Callable[[str], None], label: str, clock: Clock, endpoint: Endpoint, *, tools: bool
) -> ReadAnswer:
    """Read to the end, handing on each piece of text, without the key. ``first_token`` is the clock's time of the first
    piece of text, or of a call.

    :raises BackendError: an error that the stream reports, by its status.
    :raises Unavailable: the stream broke off, or held something that is no answer.
    :raises AnswerTooLarge: it is longer than an answer may be.
    """
    redact = endpoint.redact
    assembly = _Assembly()
    first: float | None = None
    out = redact.stream(on_text)
    events = EventStream(body, named=True)
    while (event := await events.next()) is not None:
        try:
            record = decoded(event.data, label)
            problem = record.get("error")
            piece = "" if problem else assembly.take(record)
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError):
            shown = redact.quote(event.data, 200)
            raise Unavailable(f"the stream holds what is no answer: {shown}", model=label) from None
        if problem:
            raise endpoint.error(label, status_in_stream(problem), event.data)
        if first is None and assembly.has_begun:
            first = clock.now()
        if piece:
            out.feed(piece)
    out.finish()
    if not assembly.ended:
        raise Unavailable("the stream broke off before its end", model=label)
    try:
        found = read_answer(assembly.answer, redact, tools=tools)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = redact.cut(str(error), 200)
        raise Unavailable(f"the stream is not that of an answer ({shown})", model=label) from None
    found.completion.first_token = first
    return found


class _Assembly:
    """An answer as far as its events have come."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        self.ended = False
        self.has_begun = False  # something besides thoughts has come
        self._parts: list[dict[str, Any]] = []

    def take(self, record: dict[str, Any]) -> str:
        """Take an event; the text that it adds to the answer.

        :raises KeyError, TypeError, AttributeError: it is no answer.
        """
        if record.get("usageMetadata"):
            self.answer["usageMetadata"] = record["usageMetadata"]  # counts up to here
        if blocked(record):
            self.answer["promptFeedback"] = record["promptFeedback"]
            self.ended = True
        candidates = record.get("candidates") or ()
        if not candidates:
            return ""
        candidate = candidates[0]
        whole = self.answer.setdefault("candidates", [{"content": {"parts": self._parts}}])[0]
        parts = (candidate.get("content") or {}).get("parts") or []
        self._parts += parts
        text = "".join(part.get("text") or "" for part in parts if not part.get("thought"))
        self.has_begun = self.has_begun or bool(text) or any("functionCall" in part for part in parts)
        for name in _LOGPROBS:
            more = (candidate.get("logprobsResult") or {}).get(name)
            if more:
                whole.setdefault("logprobsResult", {}).setdefault(name, []).extend(more)
        if candidate.get("finishReason"):
            whole["finishReason"] = candidate["finishReason"]
            self.ended = True
        return text
