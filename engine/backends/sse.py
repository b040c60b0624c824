"""Reading a streamed chat completion (server-sent events). A stream that ends before its end is an error, whole.

Text is handed on as it comes; calls are put together from their pieces and come with the completion only.

What never belongs here: retries; anything about requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ..clock import Clock
from ..errors import Unavailable
from ..messages import Completion
from ..tools import ToolCall, argument_text, numbered
from .endpoint import Body
from .endpoint_json import decoded
from .openai_answer import generated_pieces, without_key
from .openai_message import finish_of, refuses, text_of, thoughts_of
from .openai_usage import ReportedUsage, usage_of
from .secrets import Redactor
from .stream_lines import Lines


async def read_stream(
    body: Body,
    on_text: Callable[[str], None] | None,
    label: str,
    clock: Clock,
    redact: Redactor,
    *,
    tools: bool = False,
    token_ids: bool = False,
) -> Completion:
    """Read to the end, handing on each piece of text, without the key. ``first_token`` is the clock's time of the first
    piece. ``tools``: some were offered; ``token_ids``: its tokens were asked for. Thoughts are put together and come
    with the completion only, as calls do.

    :raises Unavailable: the stream broke off, or held something that is not a chunk of a completion.
    :raises AnswerTooLarge: it is longer than an answer may be.
    """
    pieces: list[str] = []
    thoughts: list[str] = []
    refused = False
    finish: Any = None
    usage = ReportedUsage(0, 0)
    first: float | None = None
    calls = CallPieces()
    tokens: list[Any] = []
    ended = False
    out = redact.stream(on_text) if on_text is not None else None
    lines = Lines(body)
    while (raw := await lines.next()) is not None:
        line = raw.strip()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            ended = True
            break
        try:
            chunk = decoded(data, label)
            problem = chunk.get("error")
            if chunk.get("usage"):
                usage = usage_of(chunk["usage"], redact)
            choices = chunk.get("choices") or ()
            delta = (choices[0].get("delta") or {}) if choices else {}
            piece = text_of(delta.get("content"))
            thought = thoughts_of(delta)
            if thought:
                thoughts.append(thought)
            refused = refused or refuses(delta)
            parts = delta.get("tool_calls")
            if parts:
                calls.add(parts)
            finish = (choices[0].get("finish_reason") if choices else None) or finish
            if token_ids and choices:
                tokens += choices[0].get("token_ids") or ()
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError):
            shown = redact.quote(data, 200)
            raise Unavailable(f"the stream holds something that is not a chunk: {shown}", model=label) from None
        if problem:
            shown = redact.cut(problem, 200) if isinstance(problem, str) else redact.quote(data, 200)
            raise Unavailable(f"the stream reported an error: {shown}", model=label)
        if first is None and (piece or parts):
            first = clock.now()
        if piece:
            pieces.append(piece)
            if out is not None:
                out.feed(piece)
    if out is not None:
        out.finish()
    if not ended and finish is None:
        raise Unavailable("the stream broke off before its end", model=label)
    called = calls.whole()
    if called is not None and not all(call.name for call in called):
        raise Unavailable("the stream holds a call without a name", model=label)
    text = "".join(pieces)
    completion = Completion(
        text,
        finish_of(finish, tools, refused and not text and not called, redact.answer),
        usage.prompt,
        usage.completion,
        first_token=first,
        pieces=generated_pieces(tokens),
        calls=called,
        thoughts="".join(thoughts),
        usage_note=usage.note,
        cached_tokens=usage.cached,
    )
    return without_key(completion, redact)


class CallPieces:
    """The calls of a stream, in the order of their indices; the first id and name that come for one count."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[list[str], list[str], list[str]]] = {}
        self._last = -1  # the highest index

    def add(self, parts: list[dict[str, Any]]) -> None:
        """Take the pieces of a chunk.

        :raises KeyError, TypeError, AttributeError: they are no pieces of calls.
        """
        for part in parts:
            id_, function = part.get("id"), part.get("function") or {}
            index = part.get("index")
            if index is None:  # some endpoints send each call whole and do not number them
                index = self._last if self._last >= 0 and not id_ and not function.get("name") else self._last + 1
            elif type(index) is not int:
                raise TypeError(f"a call's index is {index!r}, not a number")
            self._last = max(self._last, index)
            ids, names, arguments = self._parts.setdefault(index, ([], [], []))
            for value, texts in ((id_, ids), (function.get("name"), names)):
                if value:
                    texts.append(str(value))
            arguments.append(argument_text(function.get("arguments")))

    def whole(self) -> list[ToolCall] | None:
        """The calls, None if there was none."""
        if not self._parts:
            return None
        ordered = [self._parts[index] for index in sorted(self._parts)]
        return numbered(("".join(ids[:1]), "".join(names[:1]), "".join(texts)) for ids, names, texts in ordered)
