"""``hf:FOLDER`` or ``hf:owner/name``: a model of transformers in this process, for those that have no GGUF.

Options: ``device`` (a GPU where there is one), ``dtype`` (auto, float32, bfloat16, float16), ``batch`` (requests
computed at once), ``ctx`` (tokens of prompt and answer), ``threads``, ``template`` (plain, chatml or a file),
``revision`` (of a name on the hub). What never belongs here: how a batch is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ...clock import Clock
from ...errors import BackendError, ConfigurationError
from ...likelihood import Reading
from ...messages import Completion, Request, Sampling
from ...stopping import RunStopping, queued
from ..base import Backend, ModelSpec
from ..llama.chat.thought_markers import opened_marker, prepend_marker
from ..llama.outputs.sampler import SamplerSettings
from .answer import Answer
from .batches import BatchLoop
from .likelihoods import ReadTexts
from .loading import DTYPES, LoadedModel, LoadOptions, acquire, release
from .prompts import chat_text, longest_answer, template_of, texts_to_read, tokens_of


class HfBackend(Backend):
    """See the module. The model is loaded when the backend is entered."""

    continues_text = True

    def __init__(self, clock: Clock, options: LoadOptions, template: str | None = None) -> None:
        self._clock, self._options, self._template = clock, options, template
        self._open: tuple[LoadedModel, BatchLoop] | None = None

    async def __aenter__(self) -> Backend:
        self._open = acquire(self._options)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._open is not None:
            self._open = None
            release(self._options)

    async def generate(self, request: Request) -> Completion:
        """As the base says. A schema is not enforced: the prompt's own words must do.

        :raises ConfigurationError: the request offers tools.
        """
        model, loop = self._loaded
        if request.tools is not None:
            raise ConfigurationError(f"{self.label}: models of kind hf take no tools; use llama: or an endpoint")
        if request.prompt is None:
            text = chat_text(model, request.messages, self._template, self.label)
            prompt, opened = tokens_of(model, text, opened=False), opened_marker(text)
        else:
            prompt, opened = tokens_of(model, request.prompt, opened=True), ""
        sampling = request.sampling
        answer = Answer(
            prompt or [model.pad],
            _settings(request.seed, sampling),
            longest_answer(model, prompt, sampling.max_tokens, self.label),
            model.decoded,
            sampling.stop,
        )
        began = self._clock.now()
        first = await self._computed(loop, answer, prepend_marker(request.on_text, opened))
        return Completion(
            opened + answer.text,
            answer.finish,
            len(prompt),
            len(answer.tokens),
            self._clock.now() - began,
            None if first is None else first - began,
            logprobs=answer.logprobs,
            pieces=[(True, answer.tokens)] if answer.tokens else None,
        )

    async def read(self, reading: Reading) -> Completion:
        """As ``Backend.read``; all continuations of a reading are computed together.

        :raises Rejected: a text is empty. :raises ContextTooLong: one does not fit.
        """
        model, loop = self._loaded
        texts = texts_to_read(model, reading, self.label)
        work = ReadTexts(texts, reading.moments)
        began = self._clock.now()
        await self._computed(loop, work, None)
        count = sum(len(tokens) for tokens, _ in texts)
        return Completion("", "stop", count, 0, self._clock.now() - began, likelihoods=work.results)

    def statistics(self) -> dict[str, Any]:
        if self._open is None:
            return {}
        loop = self._open[1]
        return {"batches": loop.batches, "requests": loop.computed, "device": self._open[0].device}

    @property
    def _loaded(self) -> tuple[LoadedModel, BatchLoop]:
        if self._open is None:
            raise ConfigurationError(f"{self.label}: the backend is used outside its `async with`")
        return self._open

    async def _computed(
        self, loop: BatchLoop, work: Answer | ReadTexts, on_text: Callable[[str], None] | None
    ) -> float | None:
        """Have a request computed, handing text on in this task. The clock's time of its first piece."""
        running = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        first: float | None = None

        def told(piece: str | None = None) -> None:
            with suppress(RuntimeError):  # the event loop has ended, and nobody waits
                running.call_soon_threadsafe(pieces.put_nowait, piece)

        work.on_done = told
        if isinstance(work, Answer) and on_text is not None:
            work.on_text = told
        try:
            with queued(partial(loop.withdraw, work)), self._clock.external():
                loop.submit(work)
                while (piece := await pieces.get()) is not None:
                    first = self._clock.now() if first is None else first
                    if on_text is not None:
                        on_text(piece)
        except BaseException:
            loop.cancel(work)
            raise
        if isinstance(work.error, RunStopping):
            raise work.error
        if isinstance(work.error, BackendError):
            said = str(work.error).removeprefix(f"{work.error.model}: ")
            raise type(work.error)(said, model=self.label)
        return first


def _settings(seed: int, sampling: Sampling) -> SamplerSettings:
    return SamplerSettings(
        seed,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.repeat_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        sampling.logprobs,
    )


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """``hf:FOLDER?options`` or ``hf:owner/name?options``; loaded when the backend is entered.

    :raises ConfigurationError: an option is wrong.
    """
    if not spec.where:
        raise ConfigurationError(
            f"model '{spec.text}': name a folder (hf:my-model) or a model of the hub (hf:owner/name)"
        )
    options = LoadOptions(
        spec.where,
        device=spec.take("device", "") or "",
        dtype=spec.one_of("dtype", DTYPES, "auto"),
        revision=spec.take("revision", "") or "",
        context=spec.whole("ctx") or 0,
        batch=spec.whole("batch", high=4096) or 8,
        threads=spec.whole("threads", high=512) or 0,
    )
    return HfBackend(clock, options, template_of(spec.take("template")))
