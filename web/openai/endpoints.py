"""The endpoints under ``/v1``: chat and plain completions, whole or streamed, and the list of models.

Each choice is a request to the backend like any other, so the requests of all clients and of all runs are batched
together. When a client goes away its handler is cancelled, which cancels its requests and frees their lanes.
What never belongs here: the form of requests (``forms``, ``asking``) and of answers (``answers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from viva.engine.errors import Unavailable
from viva.engine.gathering import gathered
from viva.engine.messages import Completion
from viva.engine.thoughts import AnswerStream, has_marks, separate_thoughts

from ..server.bodies import made_of_body, parsed, read_body
from ..server.problems import problem_of
from .answers import DONE, Writer
from .asking import Choice, Question, chat_parts, chat_question, text_question
from .forms import ChatForm, TextForm
from .served import ServedModel, ServedModels


class Endpoints:
    """The handlers. ``most_tokens``: of an answer to a client that sets no bound."""

    def __init__(self, models: ServedModels, most_tokens: int) -> None:
        self._models, self._most_tokens = models, most_tokens

    def routes(self) -> list[web.RouteDef]:
        """What is served."""
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.text),
            web.get("/v1/models", self.all, allow_head=False),
            web.get("/v1/models/{model:.+}", self.one, allow_head=False),
        ]

    async def all(self, request: web.Request) -> web.Response:
        """The models."""
        return _json({"object": "list", "data": [_record(model) for model in self._models]})

    async def one(self, request: web.Request) -> web.Response:
        """One model."""
        return _json(_record(self._models.get(request.match_info["model"])))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """A chat completion."""
        parts = await made_of_body(request, lambda data: chat_parts(parsed(data, ChatForm, 400), self._most_tokens))
        return await self._answer(request, chat_question(parts, self._models.get(parts.form.model)), chat=True)

    async def text(self, request: web.Request) -> web.StreamResponse:
        """Plain completions."""
        form = await read_body(request, TextForm, status=400)
        return await self._answer(request, text_question(form, self._models.get(form.model)), chat=False)

    async def _answer(self, request: web.Request, question: Question, *, chat: bool) -> web.StreamResponse:
        writer = Writer(question.model.name, question.model.fingerprint, chat=chat)
        if question.stream:
            return await _Stream(question, writer, chat=chat).run(request)
        completions = await gathered(
            [partial(_generated, question, choice, chat=chat) for choice in question.choices], abandon=True
        )
        body = writer.whole(completions, _prompts(question, completions), logprobs=question.logprobs)
        return web.Response(body=body, content_type="application/json")


class _Stream:
    """One streamed answer. Text that comes while the client's socket is full is sent together, when there is room."""

    def __init__(self, question: Question, writer: Writer, *, chat: bool) -> None:
        self._question, self._writer, self._chat = question, writer, chat
        self._waiting: list[bytes] = []
        self._news = asyncio.Event()

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Answer. Headers are sent with the first text, so that an error before it has a status of its own.

        :raises VivaError: nothing was streamed yet, and the model could not answer.
        """
        asks = [partial(self._choice, choice) for choice in self._question.choices]
        answers = asyncio.create_task(gathered(asks, abandon=True))
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
                    answers.result()  # raises: an answer without an error has at least its end to send
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
        told = self._writer.usage(completions, _prompts(question, completions)) if question.usage_in_stream else b""
        return told + DONE

    async def _choice(self, choice: Choice) -> Completion:
        index, writer = choice.index, self._writer
        said: list[str] = []

        def say(piece: str) -> None:
            if not said:
                self._send(writer.opening(index))
            said.append(piece)
            self._send(writer.text(index, piece))

        def restart() -> None:
            if said:
                raise Unavailable("the answer broke off after its beginning was sent", model=self._question.model.name)

        choice.request.on_text = AnswerStream(say).feed if self._chat else say
        choice.request.on_restart = restart
        completion = await _generated(self._question, choice, chat=self._chat)
        # The end may have been held back as the possible beginning of a mark, and not every backend streams.
        begun = "".join(said)
        if not said or (len(completion.text) > len(begun) and completion.text.startswith(begun)):
            say(completion.text[len(begun) :])
        self._send(writer.closing(index, completion, logprobs=self._question.logprobs))
        return completion

    def _send(self, data: bytes) -> None:
        if data:
            self._waiting.append(data)
            self._news.set()


async def _generated(question: Question, choice: Choice, *, chat: bool) -> Completion:
    if choice.index:
        async with question.beginning:
            await asyncio.sleep(0)
    completion = await question.model.backend.generate(choice.request)
    if chat and has_marks(completion.text) and not question.model.backend.replays:
        separate_thoughts(completion)
    if choice.conversation is not None and choice.view is not None and choice.index == 0:
        question.model.remembered.add(choice.conversation, choice.view, completion)
    return completion


def _prompts(question: Question, completions: Sequence[Completion]) -> list[int]:
    """The tokens of each choice's prompt; 0 for one that an earlier choice has, too."""
    told: set[str | None] = set()
    counts = []
    for choice, completion in zip(question.choices, completions, strict=True):
        counts.append(0 if choice.request.prompt in told else completion.prompt_tokens)
        told.add(choice.request.prompt)
    return counts


def _record(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.opened_at, "owned_by": "viva"}


def _json(content: object) -> web.Response:
    return web.Response(body=orjson.dumps(content), content_type="application/json")
