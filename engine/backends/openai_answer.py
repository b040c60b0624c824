"""Parse chat completions of OpenAI-compatible endpoints, whole and streamed.

Text is passed on as it arrives; tool calls are assembled from their pieces and come with the completion only.
"""

from __future__ import annotations

from typing import Any

from ..messages import Completion, Pieces
from ..tools import number_calls
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
from .sse import CallPieces, JsonRecordStream, RecordAssembly, parse_index

_FORMS = ("delta", "message", "text")  # fields of a choice that hold the message


def read_completion(answer: Any, redact: Redactor, *, tools: bool = False, token_ids: bool = False) -> Completion:
    """Read a chat completion; raise one of `FORMAT_ERRORS` if it has another form.

    `tools` means that tools were offered, `token_ids` that the ids of the answer's tokens were requested.
    """
    choice = _find_choice(answer["choices"])
    message = choice["message"]
    text = read_text(message.get("content"))
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):  # the old form, before parallel calls
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
    return (
        choices[0] if len(choices) == 1 else next((choice for choice in choices if not choice.get("index")), choices[0])
    )


def _parse_token_pieces(data: Any) -> Pieces | None:
    """Return the tokens of an answer if the endpoint sends them (vLLM does, with `return_token_ids`)."""
    if not isinstance(data, list) or not all(isinstance(item, int) and 0 <= item < 2**31 for item in data):
        return None
    return [(True, data)] if data else None


class CompletionAssembly(RecordAssembly):
    """A chat completion assembled from chunks."""

    def __init__(self, records: JsonRecordStream) -> None:
        self._records = records
        self._ours, self._others = _ChoiceStream(), dict[int, _ChoiceStream]()
        self._counts: Any = None
        self._complete_record: dict[str, Any] | None = None

    @property
    def has_call(self) -> bool:  # type: ignore[override]
        """Return True if a call has begun or the answer came whole."""
        return self._complete_record is not None or self._ours.calls.has_begun

    @property
    def is_whole(self) -> bool:
        """Return True if the finish reason or the end of the stream has arrived."""
        return self._complete_record is not None or self._ours.finish is not None or self._records.done

    def take(self, record: dict[str, Any]) -> str:
        """Add a chunk, or an answer that was sent whole although a stream was requested."""
        choices = record.get("choices") or ()
        if self._records.is_whole and not (choices and "delta" in choices[0]):
            self._complete_record, self.has_ended = record, True
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

    def remaining_text(self) -> str:
        """Return the text of the only choice if the endpoint does not count choices from 0."""
        if self._ours.has_come or len(self._others) != 1:
            return ""
        [self._ours] = self._others.values()
        return "".join(self._ours.pieces)

    def answer(self) -> Any:
        """Return the completion; raise ValueError if there is none."""
        if self._complete_record is not None:
            return self._complete_record
        if not self._ours.has_come or (self._ours.finish is None and not self._ours.has_content):
            raise ValueError("it contains no answer")
        return {"choices": [self._ours.choice()], "usage": self._counts}


class _ChoiceStream:
    """A choice assembled from chunks."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.thoughts: list[str] = []
        self.tokens: list[Any] = []
        self.logprobs: list[Any] = []
        self.calls = CallPieces()
        self.finish: Any = None
        self.has_come = self.refused = False
        self.nontext_field = ""  # name of a field with audio or images
        self._measured = self._size = 0  # number of pieces counted so far, and of their characters

    @property
    def has_content(self) -> bool:
        """Return True if any part of an answer has arrived."""
        return bool(self.pieces or self.thoughts or self.refused or self.nontext_field or self.calls.has_begun)

    def take(self, choice: dict[str, Any]) -> str:
        """Add a choice of a chunk; return the text that it adds."""
        self.finish = choice.get("finish_reason") or self.finish
        if choice.get("token_ids"):
            self.tokens += choice["token_ids"]
        if choice.get("logprobs"):
            self.logprobs.append(choice["logprobs"])
        delta = choice.get("delta")
        if not delta:
            self.has_come = self.has_come or any(name in choice for name in _FORMS)
            delta = self._message_delta(choice)
            if not delta:
                return ""
        self.has_come = True
        content = delta.get("content")
        if len(delta) == 1 and type(content) is str:  # the usual case
            if content:
                self.pieces.append(content)
            return content
        thought = read_thoughts(delta)
        if thought:
            self.thoughts.append(thought)
        self.refused = self.refused or is_refusal(delta)
        self.nontext_field = self.nontext_field or find_nontext_field(delta)
        parts = delta.get("tool_calls")
        if parts:
            self.calls.add(parts)
        elif delta.get("function_call"):  # the old form, before parallel calls
            self.calls.add([{"index": 0, "function": delta["function_call"]}])
        piece = read_text(content)
        if piece:
            self.pieces.append(piece)
        return piece

    def choice(self) -> dict[str, Any]:
        """Return the choice in the form of a whole answer."""
        calls = self.calls.whole()
        if not all(call.name for call in calls or ()):
            raise ValueError("it contains a call without a name")
        message = {
            "content": "".join(self.pieces),
            "reasoning_content": "".join(self.thoughts),
            "refusal": self.refused,
            "tool_calls": [call.to_openai() for call in calls or ()],
        }
        if self.nontext_field:
            message[self.nontext_field] = True
        return {
            "message": message,
            "finish_reason": self.finish,
            "logprobs": self.logprobs,
            "token_ids": self.tokens,
        }

    def _message_delta(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """Return what a choice without a delta adds.

        Some endpoints send the whole message in one chunk, some send the message so far in each chunk, and some repeat
        the message at the end.
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
