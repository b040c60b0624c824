"""From the engine's completions to answers in OpenAI's form, whole or as the chunks of a stream.

What never belongs here: asking models, HTTP.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import orjson

from viva.engine.messages import Completion

_DATA, _END = b"data: ", b"\n\n"
DONE = b"data: [DONE]\n\n"
_FINISHES = ("stop", "length", "tool_calls", "content_filter")


class Writer:
    """Writes the answer to one question. ``chat``: as a chat completion, else as a plain one.

    A chunk of text is put together from parts that are the same for all chunks of a choice: this is the work that each
    token costs.
    """

    def __init__(self, model: str, fingerprint: str, *, chat: bool) -> None:
        self._chat = chat
        kind = "chat.completion" if chat else "text_completion"
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._chunk_head = self._head | ({"object": "chat.completion.chunk"} if chat else {})
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def whole(self, completions: Sequence[Completion], prompts: Sequence[int], *, logprobs: bool) -> bytes:
        """The answer with all of its choices. ``prompts``: of each choice's prompt the tokens that count in usage."""
        choices = []
        for index, completion in enumerate(completions):
            choice: dict[str, Any] = {"index": index}
            if self._chat:
                choice["message"] = _message(completion)
                choice["logprobs"] = _chat_logprobs(completion) if logprobs else None
            else:
                choice["text"] = completion.text
                choice["logprobs"] = _text_logprobs(completion) if logprobs else None
            choices.append(choice | {"finish_reason": _finish(completion)})
        return orjson.dumps(self._head | {"choices": choices, "usage": usage(completions, prompts)})

    def opening(self, index: int) -> bytes:
        """The chunk that begins a choice; plain completions have none."""
        return self._delta(index, {"role": "assistant", "content": ""}) if self._chat else b""

    def text(self, index: int, piece: str) -> bytes:
        """The chunk of a piece of text."""
        if index not in self._around:
            delta: dict[str, Any] = {"delta": {"content": "%"}} if self._chat else {"text": "%"}
            choice = {"index": index} | delta | {"logprobs": None, "finish_reason": None}
            before, after = orjson.dumps(self._chunk_head | {"choices": [choice]}).split(b'"%"')
            self._around[index] = (_DATA + before, after + _END)
        before, after = self._around[index]
        return before + orjson.dumps(piece) + after

    def closing(self, index: int, completion: Completion, *, logprobs: bool) -> bytes:
        """The chunks that end a choice: thoughts, calls, log-probabilities of all tokens, and why it ended."""
        chunks = []
        if self._chat and completion.thoughts:
            chunks.append(self._delta(index, {"reasoning_content": completion.thoughts}))
        if self._chat and completion.calls:
            calls = [{"index": number} | call.to_openai() for number, call in enumerate(completion.calls)]
            chunks.append(self._delta(index, {"tool_calls": calls}))
        empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        choice: dict[str, Any] = {"index": index, **empty, "logprobs": None}
        if logprobs:
            choice["logprobs"] = _chat_logprobs(completion) if self._chat else _text_logprobs(completion)
        choice["finish_reason"] = _finish(completion)
        chunks.append(self._chunk([choice]))
        return b"".join(chunks)

    def usage(self, completions: Sequence[Completion], prompts: Sequence[int]) -> bytes:
        """The last chunk of a stream that tells usage."""
        return _DATA + orjson.dumps(self._chunk_head | {"choices": [], "usage": usage(completions, prompts)}) + _END

    def _delta(self, index: int, delta: dict[str, Any]) -> bytes:
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _chunk(self, choices: list[dict[str, Any]]) -> bytes:
        return _DATA + orjson.dumps(self._chunk_head | {"choices": choices}) + _END


def usage(completions: Sequence[Completion], prompts: Sequence[int]) -> dict[str, int]:
    """Tokens in OpenAI's form; a prompt that several choices share counts once."""
    prompted, completed = sum(prompts), sum(one.completion_tokens for one in completions)
    return {"prompt_tokens": prompted, "completion_tokens": completed, "total_tokens": prompted + completed}


def _message(completion: Completion) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": completion.text, "refusal": None}
    if completion.calls:
        message["content"] = completion.text or None
        message["tool_calls"] = [call.to_openai() for call in completion.calls]
    if completion.thoughts:
        message["reasoning_content"] = completion.thoughts
    return message


def _finish(completion: Completion) -> str:
    if completion.calls and completion.finish == "stop":
        return "tool_calls"
    return completion.finish if completion.finish in _FINISHES else "stop"


def _chat_logprobs(completion: Completion) -> dict[str, Any]:
    rows = [
        _token(text, logprob) | {"top_logprobs": [_token(other, value) for other, value in top.items()]}
        for text, logprob, top in completion.logprobs or ()
    ]
    return {"content": rows, "refusal": None}


def _text_logprobs(completion: Completion) -> dict[str, Any]:
    rows = completion.logprobs or []
    offsets, offset = [], 0
    for text, _, _ in rows:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": [text for text, _, _ in rows],
        "token_logprobs": [logprob for _, logprob, _ in rows],
        "top_logprobs": [top for _, _, top in rows],
        "text_offset": offsets,
    }


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "surrogatepass"))}
