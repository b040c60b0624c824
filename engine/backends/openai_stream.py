"""A streamed chat completion of an OpenAI-compatible endpoint. A stream that breaks off is an error as a whole.

Text is passed on as it comes; tool calls are assembled from their pieces and come with the completion only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ..clock import Clock
from ..errors import Rejected, Unavailable
from ..messages import Completion
from ..tools import ToolCall, argument_text, number_calls
from .endpoint import AnswerBody, Endpoint
from .endpoint_answer import (
    GenerationFailed,
    PartWithoutText,
    find_nontext_field,
    is_refusal,
    is_thought,
    merge_counts,
    normalise_finish,
    parse_completion,
    parse_logprobs,
    parse_token_pieces,
    parse_usage,
    read_text,
    read_thoughts,
    redact_completion,
)
from .sse import JsonRecordStream

_FORMS = ("delta", "message", "text")  # fields of a choice that hold what was said
_LONGEST_TRIED = 1 << 14  # characters of arguments that are read to see whether a call is whole


async def read_stream(
    body: AnswerBody,
    on_text: Callable[[str], None],
    label: str,
    clock: Clock,
    endpoint: Endpoint,
    *,
    tools: bool = False,
    token_ids: bool = False,
) -> Completion:
    """Read to the end, handing on each piece of text, without the key. ``first_token`` is the clock's time of the first
    piece. ``tools``: some were offered; ``token_ids``: its tokens were asked for. Thoughts are put together and come
    with the completion only, as calls do. Choices that were not asked for are left out.

    :raises BackendError: an error that the stream reports, by its status.
    :raises Rejected: a part of the content is of a type that is no text.
    :raises Unavailable: the stream broke off, or held something that is not a chunk of a completion.
    :raises AnswerTooLarge: it is longer than an answer may be.
    """
    redact = endpoint.redact
    ours, others = _ChoiceStream(), dict[int, _ChoiceStream]()
    counts: Any = None
    first: float | None = None
    out = redact.stream(on_text)
    stream = JsonRecordStream(body, endpoint, label)
    while (chunk := await stream.next()) is not None:
        piece = ""
        try:
            choices = chunk.get("choices") or ()
            if stream.is_whole and not (choices and "delta" in choices[0]):
                completion = parse_completion(stream.data, label, redact, tools=tools, token_ids=token_ids)
                completion.first_token = clock.now()
                if completion.text:
                    on_text(completion.text)
                return completion
            given = chunk.get("usage") or (chunk.get("x_groq") or {}).get("usage")
            for choice in choices:
                given = given or choice.get("usage")
                index = parse_index(choice)
                if index:
                    others.setdefault(index, _ChoiceStream()).take(choice)
                else:
                    piece += ours.take(choice)
            if given:
                counts = merge_counts(counts, given)
        except PartWithoutText as part:
            raise Rejected(redact.cut(str(part), 200), model=label) from None
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise stream.malformed("something that is not a chunk") from None
        if piece:
            if first is None:
                first = clock.now()
            out.feed(piece)
        elif first is None and ours.calls.has_begun:
            first = clock.now()
    if not ours.has_come and len(others) == 1:  # an endpoint that counts from another number
        [ours] = others.values()
        out.feed("".join(ours.pieces))
        first = clock.now()
    out.finish()
    if ours.finish is None and not stream.done:
        raise stream.broken_off()
    if not ours.has_come or (ours.finish is None and not ours.has_said):
        raise stream.malformed("no answer")
    called = ours.calls.whole()
    if called is not None and not all(call.name for call in called):
        raise Unavailable("the stream holds a call without a name", model=label)
    text, usage = "".join(ours.pieces), parse_usage(counts, redact)
    try:
        if ours.other and not text and not called:
            raise PartWithoutText(ours.other)
        finish = normalise_finish(ours.finish, tools, ours.refused and not text and not called, redact.answer)
    except PartWithoutText as part:
        raise Rejected(str(part), model=label) from None
    except GenerationFailed as given_up:
        raise Unavailable(str(given_up), model=label) from None
    completion = Completion(
        text,
        finish,
        usage.prompt,
        usage.completion,
        first_token=first,
        logprobs=parse_logprobs(ours.logprobs),
        pieces=parse_token_pieces(ours.tokens) if token_ids else None,
        calls=called,
        thoughts="".join(ours.thoughts),
        usage_note=usage.note,
        cached_tokens=usage.cached,
    )
    return redact_completion(completion, redact)


class _ChoiceStream:
    """One choice as far as its chunks have come."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.thoughts: list[str] = []
        self.tokens: list[Any] = []
        self.logprobs: list[Any] = []
        self.calls = CallPieces()
        self.finish: Any = None
        self.has_come = self.refused = False
        self.other = ""  # what there is that is no text
        self._measured = self._size = 0  # pieces whose characters are counted

    @property
    def has_said(self) -> bool:
        """Whether there is something of an answer."""
        return bool(self.pieces or self.thoughts or self.refused or self.other or self.calls.has_begun)

    def take(self, choice: dict[str, Any]) -> str:
        """Take a choice of a chunk; the text that it adds.

        :raises KeyError, TypeError, AttributeError: it is none.
        """
        self.finish = choice.get("finish_reason") or self.finish
        if choice.get("token_ids"):
            self.tokens += choice["token_ids"]
        if choice.get("logprobs"):
            self.logprobs.append(choice["logprobs"])
        delta = choice.get("delta")
        if not delta:
            self.has_come = self.has_come or any(name in choice for name in _FORMS)
            delta = self._rest_of(choice)
            if not delta:
                return ""
        self.has_come = True
        content = delta.get("content")
        if len(delta) == 1 and type(content) is str:  # nearly always
            if content:
                self.pieces.append(content)
            return content
        thought = read_thoughts(delta)
        if thought:
            self.thoughts.append(thought)
        self.refused = self.refused or is_refusal(delta)
        self.other = self.other or find_nontext_field(delta)
        parts = delta.get("tool_calls")
        if parts:
            self.calls.add(parts)
        elif delta.get("function_call"):  # as calls were sent before there could be several
            self.calls.add([{"index": 0, "function": delta["function_call"]}])
        piece = read_text(content)
        if piece:
            self.pieces.append(piece)
        return piece

    def _rest_of(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """Return what a choice without a delta adds. Some endpoints send a message in one chunk, or what there is of it
        in each; others repeat all of it at the end.
        """
        message = choice.get("message")
        if not message:
            return {"content": choice["text"]} if choice.get("text") else None
        rest = dict(message)
        if self.pieces:
            self._size += sum(map(len, self.pieces[self._measured :]))
            self._measured = len(self.pieces)
            text = read_text(message.get("content"))
            repeats = len(text) >= self._size and text.startswith("".join(self.pieces))
            rest["content"] = text[self._size :] if repeats else text
        if self.thoughts:
            rest = {name: value for name, value in rest.items() if not is_thought(name)}
        if self.calls.has_begun:
            rest |= {"tool_calls": None, "function_call": None}
        return rest


class _CallPiece:
    """One call as far as its pieces have come. ``place``: where it stands among the others."""

    __slots__ = ("arguments", "id", "name", "place")

    def __init__(self, place: int) -> None:
        self.place, self.id, self.name = place, "", ""
        self.arguments: list[str] = []

    def goes_on(self, id_: str, name: str, arguments: str, *, is_next: bool) -> bool:
        """Whether a piece that may be of this call is: a call has one name, and an id of its own where ids are given.

        ``is_next``: no other piece of the same chunk is of this call.
        """
        if not name or not self.name:
            return True
        if id_ and self.id:
            return id_ == self.id and (name == self.name or not self._is_whole())
        return is_next and name == self.name and not (arguments and self._is_whole())

    def add(self, id_: str, name: str, arguments: str) -> None:
        """Add a piece. The first id and name that come count: some endpoints repeat them, or all of the call at its
        end, or begin it with an empty object in the place of its arguments.
        """
        self.id, self.name = self.id or id_, self.name or name
        if not arguments:
            return
        if arguments.lstrip().startswith("{") and self._is_whole():
            known = "".join(self.arguments)
            if arguments == known:
                return
            if not known.strip("{} "):
                self.arguments.clear()
        self.arguments.append(arguments)

    def _is_whole(self) -> bool:
        if not self.arguments or not self.arguments[-1].rstrip().endswith("}"):
            return False
        if len(self.arguments) > _LONGEST_TRIED or sum(map(len, self.arguments)) > _LONGEST_TRIED:
            return False
        try:
            orjson.loads("".join(self.arguments))
        except orjson.JSONDecodeError:
            return False
        return True


class CallPieces:
    """The calls of a stream, in the order of their indices.

    Endpoints number calls, or repeat their ids, or both, or count every call as the first: a piece belongs to the call
    of its id, else to the latest of its index, else to the latest of all; but with a name and another id, or a name
    where nothing else says whose it is, it begins a call.
    """

    def __init__(self) -> None:
        self._calls: list[_CallPiece] = []
        self._latest: dict[int, _CallPiece] = {}  # by index
        self._by_id: dict[str, _CallPiece] = {}
        self._next = 0  # the place of a call without an index

    @property
    def has_begun(self) -> bool:
        """Whether there is a call."""
        return bool(self._calls)

    def add(self, parts: list[dict[str, Any]]) -> None:
        """Take the pieces of a chunk.

        :raises KeyError, TypeError, AttributeError: they are no pieces of calls.
        """
        earlier: set[_CallPiece] = set()  # of the same chunk, which holds one piece of a call
        for part in parts:
            function = part.get("function") or {}
            id_, name = str(part.get("id") or ""), str(function.get("name") or "")
            arguments = argument_text(function.get("arguments"))
            call = self._call(parse_index(part), id_, name, arguments, earlier)
            call.add(id_, name, arguments)
            earlier.add(call)
            if id_:
                self._by_id.setdefault(id_, call)

    def _call(self, index: int | None, id_: str, name: str, arguments: str, earlier: set[_CallPiece]) -> _CallPiece:
        """The call that a piece belongs to, which may begin with it."""
        known = self._by_id.get(id_) if id_ else None
        call: _CallPiece | None
        if index is not None and index in self._latest:
            call = known if known is not None and known.place == index else self._latest[index]
        elif index is None:
            call = known or (self._calls[-1] if self._calls else None)
        else:
            call = None if name else known
        if call is not None and call.goes_on(id_, name, arguments, is_next=call not in earlier):
            return call
        call = _CallPiece(self._next if index is None else index)
        self._next = max(self._next, call.place + 1)
        self._calls.append(call)
        self._latest[call.place] = call
        return call

    def whole(self) -> list[ToolCall] | None:
        """The calls, None if there was none."""
        if not self._calls:
            return None
        ordered = sorted(self._calls, key=lambda call: call.place)
        return number_calls((call.id, call.name, "".join(call.arguments)) for call in ordered)


def parse_index(part: dict[str, Any]) -> int | None:
    """The index of a choice or of a call's piece, None where none is given.

    :raises TypeError: it is no number.
    """
    index = part.get("index")
    if index is None or type(index) is int:
        return index
    if isinstance(index, str) and (not index.strip() or (index.strip().isascii() and index.strip().isdigit())):
        return int(index) if index.strip() else None
    if isinstance(index, float) and index.is_integer():
        return int(index)
    raise TypeError(f"an index is {index!r}, not a number")
