"""Endpoints under `/v1`: chat and plain completions, whole or streamed, and the list of models.

Each choice is an ordinary backend request, so requests of all clients and all runs are batched together. When a client
disconnects its handler is cancelled, which cancels its requests and frees their lanes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from viva.engine.cancellation import gather
from viva.engine.errors import Unavailable
from viva.engine.messages import Completion
from viva.engine.thoughts import AnswerStream, has_marks, separate_thoughts

from ..bodies import convert_body, parse_body, read_body
from ..problems import problem_of
from .requests import ChatForm, Choice, CompletionRequest, TextForm, chat_parts, chat_request, text_request
from .served_models import ServedModel, ServedModels

_DATA, _END = b"data: ", b"\n\n"
DONE_LINE = b"data: [DONE]\n\n"
_FINISHES = ("stop", "length", "tool_calls", "content_filter")


class AnswerWriter:
    """Writes the answer to one request, as a chat completion (`chat`) or a plain completion.

    To keep the cost per token low, a text chunk is assembled from parts that all chunks of a choice share.
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

    def answer(self, completions: Sequence[Completion], prompts: Sequence[int], *, logprobs: bool) -> bytes:
        """Return the answer with all of its choices; `prompts` as in `usage`."""
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
        """Return the first chunk of a choice; plain completions have none."""
        return self._delta(index, {"role": "assistant", "content": ""}) if self._chat else b""

    def text(self, index: int, piece: str) -> bytes:
        if index not in self._around:
            delta: dict[str, Any] = {"delta": {"content": "%"}} if self._chat else {"text": "%"}
            choice = {"index": index} | delta | {"logprobs": None, "finish_reason": None}
            before, after = orjson.dumps(self._chunk_head | {"choices": [choice]}).split(b'"%"')
            self._around[index] = (_DATA + before, after + _END)
        before, after = self._around[index]
        return before + orjson.dumps(piece) + after

    def closing(self, index: int, completion: Completion, *, logprobs: bool) -> bytes:
        """Return the last chunks of a choice: reasoning, calls, log-probabilities, and the finish reason."""
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
        """Return the last chunk of a stream, which reports usage."""
        return _DATA + orjson.dumps(self._chunk_head | {"choices": [], "usage": usage(completions, prompts)}) + _END

    def _delta(self, index: int, delta: dict[str, Any]) -> bytes:
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _chunk(self, choices: list[dict[str, Any]]) -> bytes:
        return _DATA + orjson.dumps(self._chunk_head | {"choices": choices}) + _END


def usage(completions: Sequence[Completion], prompts: Sequence[int]) -> dict[str, int]:
    """Return usage in OpenAI's format. `prompts`: tokens of each choice's prompt, 0 if an earlier choice has it."""
    prompted, completed = sum(prompts), sum(completion.completion_tokens for completion in completions)
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
        _token(text, logprob) | {"top_logprobs": [_token(alternative, value) for alternative, value in top.items()]}
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


class OpenAIEndpoints:
    """The handlers. `most_tokens`: maximum tokens of an answer if the client sets no limit."""

    def __init__(self, models: ServedModels, most_tokens: int) -> None:
        self._models, self._most_tokens = models, most_tokens

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.text),
            web.get("/v1/models", self.model_list, allow_head=False),
            web.get("/v1/models/{model:.+}", self.model_record, allow_head=False),
        ]

    async def model_list(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [_record(model) for model in self._models]})

    async def model_record(self, request: web.Request) -> web.Response:
        return _json(_record(self._models.get(request.match_info["model"])))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        parts = await convert_body(request, lambda data: chat_parts(parse_body(data, ChatForm, 400), self._most_tokens))
        return await self._answer(request, chat_request(parts, self._models.get(parts.form.model)), chat=True)

    async def text(self, request: web.Request) -> web.StreamResponse:
        form = await read_body(request, TextForm, status=400)
        return await self._answer(request, text_request(form, self._models.get(form.model)), chat=False)

    async def _answer(self, request: web.Request, question: CompletionRequest, *, chat: bool) -> web.StreamResponse:
        writer = AnswerWriter(question.model.name, question.model.fingerprint, chat=chat)
        if question.stream:
            return await _Stream(question, writer, chat=chat).run(request)
        completions = await gather(
            [partial(_generate, question, choice, chat=chat) for choice in question.choices], abandon=True
        )
        body = writer.answer(completions, _prompt_tokens(question, completions), logprobs=question.logprobs)
        return web.Response(body=body, content_type="application/json")


class _Stream:
    """A streamed answer. Texts that arrive while the client's socket is full are later sent as one."""

    def __init__(self, question: CompletionRequest, writer: AnswerWriter, *, chat: bool) -> None:
        self._question, self._writer, self._chat = question, writer, chat
        self._waiting: list[bytes] = []
        self._news = asyncio.Event()

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Write the answer. Headers are sent with the first text, so that an earlier error has its own status."""
        asks = [partial(self._choice, choice) for choice in self._question.choices]
        answers = asyncio.create_task(gather(asks, abandon=True))
        answers.add_done_callback(lambda _: self._news.set())
        response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        try:
            while not answers.done() or self._waiting:
                await self._news.wait()
                self._news.clear()
                if self._waiting:
                    data = b"".join(self._waiting)
                    self._waiting.clear()
                    if not response.prepared:
                        await response.prepare(request)
                    await response.write(data)
                elif answers.done() and not response.prepared:
                    answers.result()  # raises the error: an answer without one would have sent its first chunk
            await response.write(self._ending(answers))
            await response.write_eof()
        finally:
            answers.cancel()
            await asyncio.wait([answers])
        return response

    def _ending(self, answers: asyncio.Task[list[Completion]]) -> bytes:
        error = answers.exception()
        if isinstance(error, Exception):
            return b"data: " + orjson.dumps(problem_of(error).as_openai()) + b"\n\n"
        completions, question = answers.result(), self._question
        usage_of_stream = (
            self._writer.usage(completions, _prompt_tokens(question, completions)) if question.usage_in_stream else b""
        )
        return usage_of_stream + DONE_LINE

    async def _choice(self, choice: Choice) -> Completion:
        index, writer = choice.index, self._writer
        pieces: list[str] = []

        def say(piece: str) -> None:
            if not pieces:
                self._send(writer.opening(index))
            pieces.append(piece)
            self._send(writer.text(index, piece))

        def restart() -> None:
            if pieces:
                raise Unavailable("the answer failed after its first part was sent", model=self._question.model.name)

        choice.request.on_text = AnswerStream(say).feed if self._chat else say
        choice.request.on_restart = restart
        completion = await _generate(self._question, choice, chat=self._chat)
        # The end may have been held back as a possible start of a stop sequence, and some backends do not stream.
        begun = "".join(pieces)
        if not pieces or (len(completion.text) > len(begun) and completion.text.startswith(begun)):
            say(completion.text[len(begun) :])
        self._send(writer.closing(index, completion, logprobs=self._question.logprobs))
        return completion

    def _send(self, data: bytes) -> None:
        if data:
            self._waiting.append(data)
            self._news.set()


async def _generate(question: CompletionRequest, choice: Choice, *, chat: bool) -> Completion:
    if choice.index:
        async with question.beginning:
            await asyncio.sleep(0)
    completion = await question.model.backend.generate(choice.request)
    if chat and has_marks(completion.text) and not question.model.backend.replays:
        separate_thoughts(completion)
    if choice.conversation is not None and choice.view is not None and choice.index == 0:
        question.model.remembered.add(choice.conversation, choice.view, completion)
    return completion


def _prompt_tokens(question: CompletionRequest, completions: Sequence[Completion]) -> list[int]:
    """Return the prompt tokens of each choice; 0 if an earlier choice has the same prompt."""
    identities: set[str | None] = set()
    counts = []
    for choice, completion in zip(question.choices, completions, strict=True):
        counts.append(0 if choice.request.prompt in identities else completion.prompt_tokens)
        identities.add(choice.request.prompt)
    return counts


def _record(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.opened_at, "owned_by": "viva"}


def _json(content: object) -> web.Response:
    return web.Response(body=orjson.dumps(content), content_type="application/json")
