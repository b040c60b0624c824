"""``llama:model.gguf``: a local model behind the engine's face, with continuous batching over all conversations.

Options: ``ctx`` (tokens a lane holds), ``lanes`` (requests computed at once), ``threads``, ``contexts`` (that share
lanes and threads and compute side by side), ``gpu_layers`` (-1: all),
``kv_type`` (f16, q8_0, f32), ``flash_attn`` (auto, on, off), ``template`` (plain, chatml or a file), ``kv_cache`` (MB
of host memory for KV of idle roles), ``strict`` (on, off: byte-identical answers in any company, on by default),
``forced`` (off: compute what a grammar forces token by token, for comparison); ``top_k``, ``top_p``, ``min_p`` and
``repeat_penalty`` where a request does not say.

What never belongs here: llama.cpp itself, and what is loaded (``loaded``).
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ...clock import Clock
from ...errors import ConfigurationError, Rejected
from ...likelihood import Reading
from ...messages import Completion, Message, Request, Sampling
from ...thoughts import split_thoughts
from ..base import Backend, ModelSpec
from .ask import Ask
from .chat import Segment
from .generation import Generation
from .grammar import Grammar
from .loaded import LlamaEngine, Worker, borrow, give_back
from .reading import ContinuationReading
from .sampler import Choice
from .seats import Seats
from .sizing import Plan
from .thinking import opened_first
from .tooluse import Listener
from .turns import Writer, divided, goes_on

_REMEMBERED_GRAMMARS = 32
_MOST_THREADS = 512  # what ggml takes


class LlamaBackend(Backend):
    """See the module."""

    def __init__(
        self, clock: Clock, path: Path, wanted: Plan, template: str | None, usual: Sampling | None = None
    ) -> None:
        """``usual`` holds the settings that count where a request leaves them at their defaults."""
        self._clock = clock
        self._usual = usual or Sampling()
        self._key = (path, wanted, template)
        self._engine: LlamaEngine | None = None
        self._seats = Seats([])

    async def __aenter__(self) -> Backend:
        self._engine = borrow(self._key)
        self._seats = Seats(self._engine.seated)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._engine is not None:
            self._seats.clear()
            self._engine = None
            give_back(self._key)

    async def generate(self, request: Request) -> Completion:
        engine = self.engine
        sampling = request.sampling
        use = None if request.tools is None else engine.tools
        if use is not None or any(message.calls or message.role == "tool" for message in request.messages):
            write: Writer = partial(engine.tools.segments, tools=request.tools)
            opened = engine.tools.opened(request.messages, request.tools)
        else:
            write = partial(engine.chat.segments, constrained=sampling.schema is not None)
            opened = "" if sampling.schema is not None else engine.chat.opened(request.messages)
        turns = divided(write, request.messages)
        segments = turns.runs
        generation = Generation(
            engine.model,
            engine.masks if use is None else use.masks,
            self._choice(request.seed, sampling),
            sampling.max_tokens,
            tuple(stop.encode() for stop in sampling.stop),
            self._grammar(request),
            engine.plan.forced,
            engine.chat.plain_tokens,
            spelling=engine.chat.spelling if use is None else use.spelling,
            message_end=-1 if sampling.schema is not None else engine.chat.message_end,
        )
        on_text = opened_first(request.on_text, opened)
        common = use is not None or (request.messages and request.messages[0].role == "system")
        shared = (1,) if common and len(segments) > 1 and turns.kept != 1 else ()
        talk = request.affinity or request.conversation

        def on_from_answer() -> bool:
            said, calls = opened + generation.text(), None
            if use is not None:
                said, calls = use.read(said)
            if not generation.pieces or split_thoughts(said)[1] != said:  # its tokens will not be known
                return False
            answer = Message("assistant", said, generation.pieces, tuple(calls or ()))
            return goes_on(write, request.messages, segments, answer)

        began = self._clock.now()
        ask = Ask(
            segments,
            _unheard,
            generation,
            talk=talk,
            shared=shared,
            kept=turns.kept,
            continued=turns.continued,
            goes_on=on_from_answer,
        )
        if use is None:
            first = await self._answered(ask, on_text)
            text, calls = opened + generation.text(), None
        else:
            listener = None if on_text is None else Listener(on_text, use)
            first = await self._answered(ask, listener)
            if listener is not None:
                listener.end()
            text, calls = use.read(opened + generation.text())
        return Completion(
            text,
            generation.finish or "stop",
            ask.prompt_tokens,
            len(generation.tokens),
            self._clock.now() - began,
            None if first is None else first - began,
            logprobs=generation.logprobs,
            pieces=generation.pieces or None,
            expected=generation.expected or None,
            calls=calls,
        )

    async def read(self, reading: Reading) -> Completion:
        """As the base says. Context and continuations are tokenised each on their own. Where the model has no opening
        token and nothing stands before a continuation, its first token cannot be judged and is left out.
        """
        chat = self.engine.chat
        runs = [np.concatenate([chat.opening, chat.plain_tokens(reading.shared)]), chat.plain_tokens(reading.context)]
        if not reading.shared:
            runs = [np.concatenate(runs)]
        continuations = [chat.plain_tokens(text) for text in reading.continuations]
        segments = [Segment(run) for run in runs if len(run)]
        if not segments and len(continuations) == 1:
            segments, continuations = [Segment(continuations[0][:1])], [continuations[0][1:]]
        if not segments or not continuations or not all(len(tokens) for tokens in continuations):
            raise Rejected("nothing to read: an empty text, or several without a beginning", model=self.label)
        began = self._clock.now()
        ask = Ask(
            segments,
            _unheard,
            reading=ContinuationReading(continuations, reading.moments),
            shared=(1,) if reading.shared and len(segments) > 1 else (),
        )
        await self._answered(ask)
        prompt = sum(map(len, [*runs, *continuations]))
        assert ask.reading is not None
        return Completion("", "stop", prompt, 0, self._clock.now() - began, likelihoods=ask.reading.results)

    def ended(self, affinity: str) -> None:
        self._seats.end(affinity)
        if self._engine is not None:
            for worker in self._engine.workers:
                worker.loop.end(affinity)

    def tokens(self, text: str) -> list[int]:
        """The token ids of plain text."""
        return [int(token) for token in self.engine.chat.plain_tokens(text)]

    @property
    def engine(self) -> LlamaEngine:
        """The loaded model.

        :raises ConfigurationError: the backend is used outside its ``async with``.
        """
        if self._engine is None:
            raise ConfigurationError(f"{self.label}: the backend is used outside its `async with`")
        return self._engine

    def statistics(self) -> dict[str, Any]:
        if self._engine is None:
            return {}
        told: Counter[str] = Counter(contexts=len(self._engine.workers))
        for worker in self._engine.workers:
            told.update(worker.statistics())
        return {name: round(value, 3) for name, value in told.items()}

    async def _answered(self, ask: Ask, on_text: Callable[[str], None] | None = None) -> float | None:
        """Wait for an answer; pieces of text go to the listener in this task. When the first one came."""
        seats = self._seats
        seat, ask.begun = seats.take(ask.talk)
        try:
            return await self._heard(self.engine.workers[seat], ask, on_text)
        finally:
            if not ask.talk:
                seats.leave(seat)

    async def _heard(self, worker: Worker, ask: Ask, on_text: Callable[[str], None] | None) -> float | None:
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()

        def told(_: Ask) -> None:
            loop.call_soon_threadsafe(_resolve, finished)

        ask.done = told
        pieces: asyncio.Queue[bytes | None] | None = None
        first: float | None = None
        if on_text is not None and ask.generation is not None:
            queue = pieces = asyncio.Queue()

            def said(data: bytes) -> None:
                loop.call_soon_threadsafe(queue.put_nowait, data)

            def told_and_ended(_: Ask) -> None:
                loop.call_soon_threadsafe(_resolve_and_end, finished, queue)

            ask.generation.on_bytes, ask.done = said, told_and_ended
        worker.loop.submit(ask)
        try:
            with self._clock.external():
                if pieces is not None and on_text is not None:
                    while (data := await pieces.get()) is not None:
                        first = first if first is not None else self._clock.now()
                        on_text(data.decode("utf-8", "replace"))
                await finished
        except BaseException:
            worker.loop.cancel(ask)
            raise
        if ask.error is not None:
            raise ask.error
        return first

    def _choice(self, seed: int, sampling: Sampling) -> Choice:
        usual = self._usual
        return Choice(
            seed,
            sampling.temperature,
            sampling.top_p if sampling.top_p != 1.0 else usual.top_p,
            sampling.top_k or usual.top_k,
            sampling.min_p or usual.min_p,
            sampling.repeat_penalty if sampling.repeat_penalty != 1.0 else usual.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
            sampling.logprobs,
            sampling.expected,
        )

    def _grammar(self, request: Request) -> Grammar | None:
        schema, tools = request.sampling.schema, request.tools
        if tools is not None:
            if schema is not None:
                raise ConfigurationError(f"{self.label}: local models take no JSON schema and tools in one request")
            return self.engine.tools.grammar(tools)
        if schema is None:
            return None
        grammars = self.engine.grammars
        # Properties are written in the schema's order, so that order is part of what makes a grammar the same.
        key = orjson.dumps(schema)
        grammar = grammars.get(key)
        if grammar is None:
            grammar = grammars[key] = Grammar(schema)
            if len(grammars) > _REMEMBERED_GRAMMARS:
                del grammars[next(iter(grammars))]
        return grammar


def _unheard(ask: Ask) -> None:
    raise AssertionError("a request was submitted without anybody to tell")


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _resolve_and_end(future: asyncio.Future[None], queue: asyncio.Queue[bytes | None]) -> None:
    queue.put_nowait(None)
    _resolve(future)


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """``llama:FILE?options``; the file is opened when the backend is entered.

    :raises ConfigurationError: the file is missing or an option is wrong.
    """
    path = Path(spec.where).expanduser()
    if not path.is_file():
        raise ConfigurationError(f"model '{spec.text}': no file {path}")
    words: dict[str, tuple[str, ...]] = {"kv_type": ("f16", "q8_0", "f32"), "flash_attn": ("auto", "on", "off")}
    words |= {"strict": ("on", "off"), "forced": ("on", "off")}
    chosen = {}
    for name, allowed in words.items():
        chosen[name] = spec.take(name, allowed[0]) or allowed[0]
        if chosen[name] not in allowed:
            raise ConfigurationError(f"model '{spec.text}': {name}={chosen[name]}: expected {' or '.join(allowed)}")
    cache = spec.whole("kv_cache", low=0)
    wanted = Plan(
        lanes=spec.whole("lanes") or 0,
        context=spec.whole("ctx") or 0,
        contexts=spec.whole("contexts") or 0,
        threads=spec.whole("threads", high=_MOST_THREADS) or (os.cpu_count() or 1),
        gpu_layers=int(spec.number("gpu_layers", 0, -1)),
        kv_type=chosen["kv_type"],
        flash_attention=chosen["flash_attn"],
        kv_cache=-1 if cache is None else cache * 1_000_000,
        strict=chosen["strict"] == "on",
        forced=chosen["forced"] == "on",
    )
    usual = Sampling(
        top_p=spec.number("top_p", 1.0, 0.0, 1.0),
        top_k=spec.whole("top_k", low=0) or 0,
        min_p=spec.number("min_p", 0.0, 0.0, 1.0),
        repeat_penalty=spec.number("repeat_penalty", 1.0, 0.01, 100.0),
    )
    return LlamaBackend(clock, path.resolve(), wanted, spec.take("template"), usual)
