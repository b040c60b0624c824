"""Reading the answer of a chat endpoint that sent it whole. ``sse`` reads streams, ``openai_echo`` echoed prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from ..errors import Rejected, Unavailable
from ..likelihood import likeliest, logprob_of
from ..messages import Completion, Pieces
from ..tools import ToolCall, argument_text, numbered
from .endpoint_json import decoded
from .openai_message import PartWithoutText, finish_of, other_than_text, refuses, text_of, thoughts_of
from .openai_usage import usage_of
from .secrets import Redactor

_NO_KEY = Redactor(None)


def parse_completion(
    data: bytes, label: str, redact: Redactor = _NO_KEY, *, tools: bool = False, token_ids: bool = False
) -> Completion:
    """Read a whole (not streamed) answer. ``tools``: some were offered; ``token_ids``: its tokens were asked for. The
    usage is 0 where it is unknown.

    :raises Rejected: a part of the content is of a type that is no text.
    :raises Unavailable: it is not the answer of a chat endpoint; a proxy's page or half a body may pass, so retried.
    :raises AnswerTooLarge: it holds more values than an answer may.
    """
    try:
        answer = decoded(data, label)
        choices = answer["choices"]
        choice = choices[0] if len(choices) == 1 else next((one for one in choices if not one.get("index")), choices[0])
        message = choice["message"]
        text = text_of(message.get("content"))
        usage = usage_of(answer.get("usage"), redact)
        calls = message.get("tool_calls")
        if not calls and message.get("function_call"):  # as calls were sent before there could be several
            calls = [{"function": message["function_call"]}]
        if not text and not calls and (other := other_than_text(message)):
            raise PartWithoutText(other)
        completion = Completion(
            text,
            finish_of(choice.get("finish_reason"), tools, not text and not calls and refuses(message), redact.answer),
            usage.prompt,
            usage.completion,
            logprobs=logprobs_of([choice.get("logprobs")]),
            pieces=generated_pieces(choice.get("token_ids")) if token_ids else None,
            calls=numbered(map(call_of, calls)) if calls else None,
            thoughts=thoughts_of(message),
            usage_note=usage.note,
            cached_tokens=usage.cached,
        )
    except PartWithoutText as part:
        raise Rejected(redact.cut(str(part), 200), model=label) from None
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = f"({redact.cut(str(error), 200)}): {redact.quote(data, 200)}"
        raise Unavailable(f"the answer is not a chat completion {shown}", model=label) from None
    return without_key(completion, redact)


def without_key(completion: Completion, redact: Redactor) -> Completion:
    """The same answer, with the key taken out of whatever the endpoint could write it into."""
    if not redact.key:
        return completion
    clean = redact.answer
    completion.text, completion.finish = clean(completion.text), clean(completion.finish)
    if completion.thoughts:
        completion.thoughts = clean(completion.thoughts)
    if completion.calls:
        completion.calls = [ToolCall(clean(one.id), clean(one.name), clean(one.arguments)) for one in completion.calls]
    if completion.logprobs:
        # A key that is spread over tokens cannot be cut out of them: none are kept.
        tokens = "".join(entry[0] for entry in completion.logprobs)
        others = [token for entry in completion.logprobs for token in entry[2]]
        if clean(tokens) != tokens or any(clean(token) != token for token in others):
            completion.logprobs = None
    return completion


def call_of(entry: Any) -> tuple[str, str, str]:
    """Id, name and arguments of a call; some endpoints send an object for arguments instead of text."""
    function = entry["function"]
    name = function["name"]
    if not isinstance(name, str):
        raise TypeError(f"a call's name is {type(name).__name__}, not text")
    return str(entry.get("id") or ""), name, argument_text(function.get("arguments"))


def generated_pieces(data: Any) -> Pieces | None:
    """The tokens of an answer, where the endpoint gives them (vLLM does, asked by ``return_token_ids``)."""
    if not isinstance(data, list) or not all(isinstance(one, int) and 0 <= one < 2**31 for one in data):
        return None
    return [(True, data)] if data else None


def logprobs_of(told: Sequence[Any]) -> list[list[Any]] | None:
    """The log-probabilities of an answer, from the fields ``logprobs`` of its choice or of the choice's chunks; None
    where there are none, or of a form that nobody knows: the answer is one without them.
    """
    try:
        return [
            [
                str(entry["token"]),
                logprob_of(entry["logprob"]),
                likeliest((str(top["token"]), logprob_of(top["logprob"])) for top in entry.get("top_logprobs") or ()),
            ]
            for one in told
            if one
            for entry in one.get("content") or ()
        ] or None
    except (KeyError, TypeError, AttributeError):
        return None
