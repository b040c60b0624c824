"""Reading what an application answered: whole, or as a stream of events that each hold a piece of the reply.

Trouble that may pass (a page of HTML, half a body, half a stream) is ``Unavailable`` and tried again; a path at which
nothing stands is ``Rejected``, for the next answer has the same form. What never belongs here: sending requests.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import Any

import orjson

from ...clock import Clock
from ...errors import BackendError, Rejected, Unavailable
from ...messages import Completion
from ...tools import numbered
from ..endpoint import Body
from ..endpoint_json import Halves, decoded
from ..event_stream import EventStream, is_keep_alive
from ..openai_answer import call_of, without_key
from ..openai_message import text_of
from ..openai_usage import joined_counts, usage_of
from ..secrets import Redactor
from ..sse import CallPieces
from .answer_path import AnswerPath, MissingInAnswer, described
from .mapping import Application

_LONGEST_QUOTE = 200
_USUAL_END = b"[DONE]"


class AnswerReader:
    """Reads the answers of one application. ``label`` names it in errors; ``redact`` knows its keys."""

    def __init__(self, application: Application, label: str, redact: Redactor, clock: Clock) -> None:
        self._stream, self._done = application.stream, application.done
        self._answer = _path(application.answer)
        self._calls, self._tokens = _path(application.tool_calls), _path(application.tokens)
        self._label, self._redact, self._clock = label, redact, clock

    async def read(self, body: Body, on_text: Callable[[str], None] | None) -> Completion:
        """The reply. Pieces of a stream go to ``on_text`` as they come. ``first_token``: the clock's time at the first.

        :raises Unavailable: the answer is HTML, is not JSON, or broke off.
        :raises Rejected: nothing stands at the path of the answer, or no text.
        :raises AnswerTooLarge: it is longer than an answer may be.
        """
        completion = await self._read_stream(body, on_text) if self._stream != "none" else await self._read_whole(body)
        return without_key(completion, self._redact)

    async def identifier(self, body: Body, path: str) -> str:
        """The identifier of a session in the answer to the request that opens it.

        :raises BackendError: as ``read``.
        """
        try:
            found = AnswerPath(path).find(self._json(await body.whole()))
        except MissingInAnswer as missing:
            raise self._rejected(str(missing)) from None
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            raise self._rejected(f"no identifier stands at '{path}': it {described(found)}")
        text = str(found)
        if not text.isascii() or not text.isprintable():
            raise self._rejected(f"the identifier at '{path}' is not printable ASCII: {text!r}")
        return text

    async def _read_whole(self, body: Body) -> Completion:
        data = await body.whole()
        if self._answer is None:
            self._refuse_html(data, "text")
            return Completion(data.decode("utf-8", "replace"))
        value = self._json(data)
        calls = self._optional(self._calls, value)
        try:
            text = self._text(self._answer.find(value))
        except MissingInAnswer as missing:
            if not calls:
                raise self._rejected(f"{missing}; mend answer in the mapping") from None
            text = ""
        usage = usage_of(self._optional(self._tokens, value), self._redact)
        try:
            called = numbered(map(call_of, calls)) if calls else None
        except (KeyError, TypeError, AttributeError) as error:
            raise self._no_calls(error) from None
        return Completion(
            text,
            "stop",
            usage.prompt,
            usage.completion,
            calls=called,
            usage_note=usage.note,
            cached_tokens=usage.cached,
        )

    async def _read_stream(self, body: Body, on_text: Callable[[str], None] | None) -> Completion:
        pieces: list[str] = []
        calls, counts = CallPieces(), None
        out = self._redact.stream(on_text) if on_text is not None else None
        first: float | None = None
        missing: MissingInAnswer | None = None
        found = ended = False
        halves, characters = Halves(), getincrementaldecoder("utf-8")("replace")  # events may end within a character
        events = EventStream(body, named=self._stream == "sse", records=self._answer is not None)
        while not ended and (event := await events.next()) is not None:
            name, data = event
            if self._ends(name, data):
                ended = True
                break
            if name == "error":
                raise self._reported(data)
            if self._answer is None:
                piece, found = characters.decode(data), True
            elif is_keep_alive(data):
                continue
            else:
                value = self._json(data, "an event of the stream", halves)
                parts = self._optional(self._calls, value)
                try:
                    piece, found = self._text(self._answer.find(value)), True
                except MissingInAnswer as error:
                    if isinstance(value, dict) and value.get("error"):
                        raise self._reported(data) from None
                    piece, missing = "", error
                try:
                    calls.add(parts or [])
                except (KeyError, TypeError, AttributeError) as error:
                    raise self._no_calls(error) from None
                counts = joined_counts(counts, self._optional(self._tokens, value))
                ended = isinstance(self._done, dict) and isinstance(value, dict) and _holds(value, self._done)
            if piece:
                first = self._clock.now() if first is None else first
                pieces.append(piece)
                if out is not None:
                    out.feed(piece)
        if out is not None:
            out.finish()
        called = calls.whole()
        if self._done is not None and not ended:
            self._refuse_html(events.other, "a stream")
            raise Unavailable(f"the stream broke off before its end ({self._done!r} did not come)", model=self._label)
        if not found and not called:
            raise self._nothing_said(events, missing)
        text, usage = "".join(pieces), usage_of(counts, self._redact)
        return Completion(
            text,
            "stop",
            usage.prompt,
            usage.completion,
            first_token=first,
            calls=called,
            usage_note=usage.note,
            cached_tokens=usage.cached,
        )

    def _ends(self, name: str, data: bytes) -> bool:
        if isinstance(self._done, str):
            return self._done in (name, data.decode("utf-8", "replace").strip())
        return self._stream == "sse" and data.strip() == _USUAL_END

    def _text(self, found: Any) -> str:
        try:
            return text_of(found)
        except TypeError:
            assert self._answer is not None
            what = f"what stands at '{self._answer.text}' {described(found)}, not text; mend answer in the mapping"
            raise self._rejected(what) from None

    def _json(self, data: bytes, what: str = "the answer", halves: Halves | None = None) -> Any:
        if not data.strip():
            raise Unavailable(f"{what} is empty; expected JSON", model=self._label)
        try:
            return decoded(data, self._label, halves)
        except orjson.JSONDecodeError as error:
            self._refuse_html(data, "JSON")
            shown = self._redact.quote(data, _LONGEST_QUOTE)
            raise Unavailable(f"{what} is not JSON ({error}): {shown}", model=self._label) from None

    def _refuse_html(self, data: bytes, expected: str) -> None:
        head = data[:1000].lstrip().lower()
        if head.startswith((b"<!doctype html", b"<html")) or (expected != "text" and head.startswith(b"<")):
            shown = self._redact.quote(data, _LONGEST_QUOTE)
            raise Unavailable(f"the answer is a page of HTML, not {expected}: {shown}", model=self._label)

    def _nothing_said(self, events: EventStream, missing: MissingInAnswer | None) -> BackendError:
        if missing is not None:
            return self._rejected(f"no event of the stream holds the answer: {missing}; mend answer in the mapping")
        self._refuse_html(events.other, "a stream")
        shown = self._redact.quote(events.other, _LONGEST_QUOTE)
        return Unavailable(f"the stream holds no event{f': {shown}' if shown else ''}", model=self._label)

    def _reported(self, data: bytes) -> BackendError:
        shown = self._redact.quote(data, _LONGEST_QUOTE)
        return Unavailable(f"the stream reported an error: {shown}", model=self._label)

    def _rejected(self, message: str) -> Rejected:
        return Rejected(self._redact.cut(message, 1000), model=self._label)

    def _no_calls(self, error: Exception) -> Rejected:
        assert self._calls is not None
        return self._rejected(f"what stands at '{self._calls.text}' is no list of calls in OpenAI's form: {error}")

    @staticmethod
    def _optional(path: AnswerPath | None, value: Any) -> Any:
        try:
            return None if path is None else path.find(value)
        except MissingInAnswer:
            return None


def _path(text: str | None) -> AnswerPath | None:
    return None if text is None else AnswerPath(text)


def _holds(value: dict[str, Any], members: dict[str, Any]) -> bool:
    return all(name in value and value[name] == member for name, member in members.items())
