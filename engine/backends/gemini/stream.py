"""A streamed answer of the Gemini API (server-sent events), put together. One that ends before its end is an error.

Each event is an answer of its own with the parts that have come since the last one; the last has a reason for the end.
Text is handed on as it comes; thoughts and calls come with the answer only. What never belongs here: what an answer
means (``answer``), retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...clock import Clock
from ...errors import Rejected, Unavailable
from ..endpoint import Body, Endpoint
from ..event_stream import RecordStream
from ..openai_message import PartWithoutText
from ..openai_usage import joined_counts
from .answer import ReadAnswer, blocked, candidate_of, read_answer

_LOGPROBS = ("chosenCandidates", "topCandidates")


async def read_stream(
    body: Body, on_text: Callable[[str], None], label: str, clock: Clock, endpoint: Endpoint, *, tools: bool
) -> ReadAnswer:
    """Read to the end, handing on each piece of text, without the key. ``first_token`` is the clock's time of the first
    piece of text, or of a call.

    :raises BackendError: an error that the stream reports, by its status.
    :raises Rejected: a part is of a kind that is no text.
    :raises Unavailable: the stream broke off, or held something that is no answer.
    :raises AnswerTooLarge: it is longer than an answer may be.
    """
    redact = endpoint.redact
    assembly = _Assembly()
    first: float | None = None
    out = redact.stream(on_text)
    stream = RecordStream(body, endpoint, label)
    while (record := await stream.next()) is not None:
        try:
            piece = assembly.take(record)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise stream.malformed("what is no answer") from None
        if first is None and assembly.has_begun:
            first = clock.now()
        if piece:
            out.feed(piece)
    out.finish()
    if not assembly.ended:
        raise stream.broken_off()
    try:
        found = read_answer(assembly.answer, redact, tools=tools)
    except PartWithoutText as part:
        raise Rejected(redact.cut(str(part), 200), model=label) from None
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
            self.answer["usageMetadata"] = joined_counts(self.answer.get("usageMetadata"), record["usageMetadata"])
        if blocked(record):
            self.answer["promptFeedback"] = record["promptFeedback"]
            self.ended = True
        candidates = record.get("candidates") or ()
        if not candidates:
            return ""
        candidate = candidate_of(candidates)
        if candidate.get("index"):  # was not asked for
            return ""
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
