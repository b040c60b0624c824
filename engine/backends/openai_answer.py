"""Reading the chat completions of OpenAI-compatible endpoints, whole and streamed.

Text is passed on as it comes; tool calls are assembled from their pieces and come with the completion only.
"""

from __future__ import annotations

from typing import Any

import orjson

from ..messages import Completion, Pieces
from ..tools import ToolCall, argument_text, number_calls
from .endpoint_answer import (
    PartWithoutText,
    find_nontext_field,
    is_refusal,
    is_thought,
    merge_counts,
    normalise_finish,
    parse_call,
    parse_logprobs,
    parse_usage,
    read_text,
    read_thoughts,
    redact_completion,
)
from .redaction import Redactor
from .sse import JsonRecordStream, RecordAssembly

_FORMS = ("delta", "message", "text")  # fields of a choice that hold what was said
_LONGEST_TRIED = 1 << 14  # characters of arguments that are read to see whether a call is whole


def read_completion(answer: Any, redact: Redactor, *, tools: bool = False, token_ids: bool = False) -> Completion:
    """Read the record of a chat completion; raise ``FORMAT_ERRORS`` if it is none.

    Args:
        tools: Some were offered.
        token_ids: The ids of its tokens were asked for.
    """
    choice = _find_choice(answer["choices"])
    message = choice["message"]
    text = read_text(message.get("content"))
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):  # as calls were sent before there could be several
        calls = [{"function": message["function_call"]}]
    if not text and not calls and (other := find_nontext_field(message)):
        raise PartWithoutText(other)
    silent_refusal = not text and not calls and is_refusal(message)
    logprobs = choice.get("logprobs")
    completion = parse_usage(answer.get("usage"), redact).completion_with(
        text,
        normalise_finish(choice.get("finish_reason"), tools, silent_refusal, redact.answer),
        logprobs=parse_logprobs(logprobs if isinstance(logprobs, list) else [logprobs]),
        pieces=_parse_token_pieces(choice.get("token_ids")) if token_ids else None,
        calls=number_calls(map(parse_call, calls)) if calls else None,
        thoughts=read_thoughts(message),
    )
    return redact_completion(completion, redact)


def _find_choice(choices: Any) -> Any:
    return choices[0] if len(choices) == 1 else next((one for one in choices if not one.get("index")), choices[0])


def _parse_token_pieces(data: Any) -> Pieces | None:
    """Return the tokens of an answer, where the endpoint gives them (vLLM does, asked by ``return_token_ids``)."""
    if not isinstance(data, list) or not all(isinstance(one, int) and 0 <= one < 2**31 for one in data):
        return None
    return [(True, data)] if data else None


class CompletionAssembly(RecordAssembly):
    """A chat completion as far as its chunks have come."""

    def __init__(self, records: JsonRecordStream) -> None:
        self._records = records
        self._ours, self._others = _ChoiceStream(), dict[int, _ChoiceStream]()
        self._counts: Any = None
        self._whole: dict[str, Any] | None = None

    @property
    def has_call(self) -> bool:  # type: ignore[override]
        """Return True if a call has begun, or the answer came whole."""
        return self._whole is not None or self._ours.calls.has_begun

    @property
    def is_whole(self) -> bool:
        """Return True if the reason for the end of the answer has come, or the end of the stream."""
        return self._whole is not None or self._ours.finish is not None or self._records.done

    def take(self, record: dict[str, Any]) -> str:
        """Take a chunk, or an answer that was sent whole though a stream was asked for."""
        choices = record.get("choices") or ()
        if self._records.is_whole and not (choices and "delta" in choices[0]):
            self._whole, self.has_ended = record, True
            return read_text(_find_choice(record["choices"])["message"].get("content"))
        counts = record.get("usage") or (record.get("x_groq") or {}).get("usage")
        piece = ""
        for choice in choices:
            counts = counts or choice.get("usage")
            index = parse_index(choice)
            if index:
                self._others.setdefault(index, _ChoiceStream()).take(choice)
            else:
                piece += self._ours.take(choice)
        if counts:
            self._counts = merge_counts(self._counts, counts)
        return piece

    def rest(self) -> str:
        """Return the text of the only choice, of an endpoint that counts from another number than 0."""
        if self._ours.has_come or len(self._others) != 1:
            return ""
        [self._ours] = self._others.values()
        return "".join(self._ours.pieces)

    def answer(self) -> Any:
        """Return the completion; raise ValueError if there is none."""
        if self._whole is not None:
            return self._whole
        if not self._ours.has_come or (self._ours.finish is None and not self._ours.has_said):
            raise ValueError("it holds no answer")
        return {"choices": [self._ours.choice()], "usage": self._counts}


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
        """Take a choice of a chunk; return the text that it adds."""
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

    def choice(self) -> dict[str, Any]:
        """Return the choice of a whole answer."""
        calls = self.calls.whole()
        if not all(call.name for call in calls or ()):
            raise ValueError("it holds a call without a name")
        message = {
            "content": "".join(self.pieces),
            "reasoning_content": "".join(self.thoughts),
            "refusal": self.refused,
            "tool_calls": [call.to_openai() for call in calls or ()],
        }
        if self.other:
            message[self.other] = True
        return {
            "message": message,
            "finish_reason": self.finish,
            "logprobs": self.logprobs,
            "token_ids": self.tokens,
        }

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
    """Return the index of a choice or of a call's piece, None if none is given; raise TypeError if it is no number."""
    index = part.get("index")
    if index is None or type(index) is int:
        return index
    if isinstance(index, str) and (not index.strip() or (index.strip().isascii() and index.strip().isdigit())):
        return int(index) if index.strip() else None
    if isinstance(index, float) and index.is_integer():
        return int(index)
    raise TypeError(f"an index is {index!r}, not a number")
