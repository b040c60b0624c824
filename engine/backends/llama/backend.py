"""A local model as a `Backend`, with continuous batching over all conversations: `llama:model.gguf`.

A model is named by its file or by its store (`model_files`); a model of the hub is downloaded when it is first entered.

Options: `ctx` (tokens of a lane), `lanes` (requests computed at once), `threads`, `contexts` (computed side by side,
each with its share of lanes and threads), `gpu_layers` and others (`placement`), `kv_type` (f16, q8_0, f32),
`flash_attn` (auto, on, off), `template` (plain, chatml or a file), `kv_cache` (MB of host memory for idle KV), `strict`
(on, off: identical output at any concurrency; default: on, but off on a GPU), `forced` (off: decode forced tokens one
by one, for comparison); `top_k`, `top_p`, `min_p` and `repeat_penalty` for requests that do not set them; `revision`
(of a model of the hub); `lora` (adapters, FILE or FILE,SCALE, comma-separated).

A file's weights are loaded once per process, whatever the adapters; backends with identical options also share lanes
and KV.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import numpy as np
import orjson

from ...clock import Clock
from ...errors import ConfigurationError, ContextTooLong, Rejected
from ...likelihood import Reading
from ...messages import Completion, Message, Request, Sampling
from ...thoughts import split_thoughts
from ...tools import ToolCall
from ..base import Backend, ModelSpec, PromptSize
from .attention import attention_record, choose_attention, recorded_attention
from .chat_template import ChatFormat
from .generation import ContinuationReading, Generation
from .grammar import Grammar, TokenMasks
from .kv_reuse import Affinity, PromptSplit, PromptWriter, continues_from_answer, split_prompt
from .lanes import InferenceLoop, Lanes, PendingRequest, ThreadAnswer
from .library import build_info, processor
from .model_files import all_parts, check_name, locate, parse_adapters
from .native import NativeModel, Segment
from .placement import CPU, OutOfDeviceMemory, PlacementOptions, parse_placement
from .sampler import SamplerSettings
from .scheduler import Scheduler
from .sizing import EngineConfig, choose_config, default_context, new_context
from .tokenizer import prepend_marker
from .tool_prompts import TextOutsideCalls, ToolSupport

EngineKey = tuple[Path, EngineConfig, str | None]  # file, requested options, template

_ENGINES: dict[EngineKey, LlamaEngine] = {}
_WEIGHTS: dict[tuple[Path, PlacementOptions], tuple[NativeModel, int]] = {}


_NO_TEMPLATE = (
    "%s: no chat template: a base model? Messages are written below headings such as `### User:`, and an answer ends "
    "at the next heading; ?template= names another format"
)


def acquire_engine(key: EngineKey) -> LlamaEngine:
    """Return the engine for these options, loaded and logged on first use, or raise `ConfigurationError`."""
    engine = _ENGINES.get(key)
    if engine is None:
        engine = _ENGINES[key] = LlamaEngine(*key)
        level = logging.WARNING if engine.model.placement.devices else logging.INFO  # a GPU is always named
        logging.getLogger("viva").log(level, "%s: %s", engine.model.path.name, engine.config.describe(engine.model))
    engine.users += 1
    return engine


def release_engine(key: EngineKey) -> None:
    """Release one use of an engine; the last one closes it."""
    engine = _ENGINES[key]
    engine.users -= 1
    if engine.users == 0:
        del _ENGINES[key]
        engine.close()


class ContextWorker:
    """A context with its lanes, host cache and inference thread."""

    def __init__(self, model: NativeModel, config: EngineConfig) -> None:
        """Create the context, or raise ConfigurationError if memory is insufficient."""
        self.context = new_context(model, config)
        scheduler = Scheduler(
            config.lanes,
            batch=self.context.batch,
            strict=bool(config.strict),
            shape=config.shape,
            fills_gaps=model.placement.layers > 0 and not model.recurrent,
        )
        self.lanes = Lanes(self.context, scheduler, config.kv_cache)
        self.loop = InferenceLoop(self.lanes)

    def statistics(self) -> dict[str, float]:
        """Return requests, tokens, steps, cached KV, and seconds by kind of work."""
        lanes = self.lanes
        return {
            **lanes.scheduler.statistics(),
            **lanes.store.statistics(),
            **lanes.counts,
            **{f"{name}_s": seconds for name, seconds in lanes.timings.items()},
            "idle_s": self.loop.idle_seconds,
        }

    def close(self) -> bool:
        """Stop the thread and free the KV. Return False, leaving the KV allocated, if the thread hangs."""
        stopped = self.loop.close()
        if stopped:
            self.lanes.sampling_threads.close()
            self.context.close()
        return stopped


class LlamaEngine:
    """A loaded model with its contexts. Use `acquire_engine` and `release_engine`.

    The contexts in `workers` compute side by side, each with its share of lanes and threads. `assigned_conversations`
    counts the conversations of each (`affinity`).
    """

    def __init__(self, path: Path, requested: EngineConfig, template: str | None) -> None:
        """Load the model, or raise ConfigurationError if that fails or memory is insufficient."""
        self.model = _acquire_weights(path, requested)
        self.workers: list[ContextWorker] = []
        try:
            for adapter in requested.adapters:
                self.model.adapter(adapter.path)
            self.config = choose_attention(self.model, choose_config(self.model, requested))
            self.chat = ChatFormat(self.model, template)
            self.masks = TokenMasks(self.model.pieces, self.model.ends, self.model.controls)
            self._start_workers(fewer_lanes=not requested.lanes)
        except BaseException:
            self.close()
            raise
        self.grammars: dict[bytes, Grammar] = {}
        self.users = 0
        self.has_warned = False  # True once the user was warned of a missing template
        self.assigned_conversations = [0] * self.config.contexts
        self._tools: ToolSupport | None = None

    def _start_workers(self, *, fewer_lanes: bool) -> None:
        """Create the contexts; if a device's memory is too small, without slots, then with `fewer_lanes`."""
        while not self.workers:
            try:
                for _ in range(self.config.contexts):
                    self.workers.append(ContextWorker(self.model, self.config.per_context))
            except OutOfDeviceMemory:
                lanes = self.config.lanes if self.config.slots else self.config.lanes // 2
                if lanes < self.config.contexts or (not fewer_lanes and not self.config.slots):
                    raise
                for worker in self.workers:
                    worker.close()
                self.workers.clear()
                self.config = replace(self.config, lanes=lanes, slots=0)

    @property
    def tools(self) -> ToolSupport:
        """Return the support for tools, created on first use."""
        if self._tools is None:
            self._tools = ToolSupport(self.model, self.chat, self.masks)
        return self._tools

    def close(self) -> None:
        """Stop the threads; free KV and weights, except what a hanging thread still uses."""
        stopped = [worker.close() for worker in self.workers]
        _release_weights(self.model, free=all(stopped))


def _acquire_weights(path: Path, requested: EngineConfig) -> NativeModel:
    key = (path.resolve(), requested.placement)  # a store may know the same file under several names
    if key not in _WEIGHTS:
        _WEIGHTS[key] = (_load_weights(path, requested), 0)
    model, users = _WEIGHTS[key]
    _WEIGHTS[key] = (model, users + 1)
    return model


def _load_weights(path: Path, requested: EngineConfig) -> NativeModel:
    """Load a model with as many layers on devices as requested, or as many as fit."""
    placement = requested.placement.choose(all_parts(path), requested.context or default_context(0))
    while True:
        try:
            return NativeModel(path, placement=placement)
        except OutOfDeviceMemory:
            if requested.placement.layers is not None:
                raise
            layers = placement.layers * 3 // 4  # the estimate was too high
            placement = replace(placement, layers=layers) if layers else CPU


def _release_weights(model: NativeModel, *, free: bool) -> None:
    for key, (stored, users) in list(_WEIGHTS.items()):
        if stored is model:
            _WEIGHTS[key] = (model, users - 1)
            if users == 1 or not free:  # weights that a hanging thread uses are not shared any more
                del _WEIGHTS[key]
            if users == 1 and free:
                model.close()


T = TypeVar("T")

_MAX_GRAMMARS = 32
# Characters written and tokenised in one iteration of the event loop; the rest is prepared in a thread. A tool call
# counts as `_CALL` characters. The square of the number of messages counts, because templates render a conversation
# once for each of its answers.
_LONG, _CALL, _MESSAGES_SQUARED = 30_000, 200, 8
_LONG_SCHEMA = 2_000  # bytes; longer schemas are compiled in a thread
_MAX_THREADS = 512  # ggml's limit


class LlamaBackend(Backend):
    """A llama.cpp model, loaded when the backend is entered."""

    continues_text = True

    def __init__(
        self,
        clock: Clock,
        locate_file: Callable[[], Path],
        requested: EngineConfig,
        template: str | None,
        defaults: Sampling | None = None,
    ) -> None:
        """Store the settings.

        `locate_file` runs in a thread, because it may download the file. `defaults` apply to sampling settings that a
        request leaves at their defaults.
        """
        self._clock = clock
        self._defaults = defaults or Sampling()
        self._locate_file, self._requested, self._template = locate_file, requested, template
        self._key: EngineKey | None = None
        self._engine: LlamaEngine | None = None
        self._affinity = Affinity([])
        self._long_ones = anyio.CapacityLimiter(1)
        self._this_turn = 0

    async def __aenter__(self) -> Backend:
        with self._clock.external():
            path = await anyio.to_thread.run_sync(self._locate_file, abandon_on_cancel=True)
        self._key = (path, self._requested, self._template)
        self._engine = acquire_engine(self._key)
        self._affinity = Affinity(self._engine.assigned_conversations)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._engine is not None and self._key is not None:
            self._affinity.clear()
            self._engine = None
            release_engine(self._key)

    async def generate(self, request: Request) -> Completion:
        if request.prompt is not None:
            return await self._continue_text(request, request.prompt)
        long = self._is_long(request)
        prepared = await self._off_loop(partial(self._prepared, request)) if long else self._prepared(request)
        tool_support, write, opened, split, generation = prepared
        segments = split.segments
        on_text = prepend_marker(request.on_text, opened)
        common = tool_support is not None or (request.messages and request.messages[0].role == "system")
        shared_prefixes = (1,) if common and len(segments) > 1 and split.stable_segments != 1 else ()
        conversation = request.affinity or request.conversation

        def continues() -> bool:
            answer_text, calls = opened + generation.text(), None
            if tool_support is not None:
                answer_text, calls = tool_support.read(answer_text)
            if (
                not generation.pieces or split_thoughts(answer_text)[1] != answer_text
            ):  # the answer's tokens will be unknown later
                return False
            answer = Message("assistant", answer_text, generation.pieces, tuple(calls or ()))
            return continues_from_answer(write, request.messages, segments, answer)

        began = self._clock.now()
        pending = PendingRequest(
            segments,
            _no_callback,
            generation,
            conversation=conversation,
            shared_prefixes=shared_prefixes,
            stable_segments=split.stable_segments,
            may_continue=split.may_continue,
            continues_from_answer=continues,
        )
        if tool_support is None:
            first = await self._submit(pending, on_text)
            text, calls = opened + generation.text(), None
        else:
            listener = None if on_text is None else TextOutsideCalls(on_text, tool_support)
            first = await self._submit(pending, listener)
            if listener is not None:
                listener.end()
            text, calls = tool_support.read(opened + generation.text())
        return self._completion(pending, generation, began, first, text, calls)

    def _completion(
        self,
        pending: PendingRequest,
        generation: Generation,
        began: float,
        first: float | None,
        text: str,
        calls: list[ToolCall] | None = None,
    ) -> Completion:
        return Completion(
            text,
            generation.finish or "stop",
            pending.prompt_tokens,
            len(generation.tokens),
            self._clock.now() - began,
            None if first is None else first - began,
            logprobs=generation.logprobs,
            pieces=generation.pieces or None,
            expected=generation.expected or None,
            calls=calls,
        )

    def _prepared(self, request: Request) -> tuple[ToolSupport | None, PromptWriter, str, PromptSplit, Generation]:
        """Return a chat request's tool support, prompt writer, opening text, prompt segments and generation."""
        engine = self.engine
        if not (engine.chat.has_template or engine.has_warned):
            engine.has_warned = True
            logging.getLogger("viva").warning(_NO_TEMPLATE, engine.model.path.name)
        sampling = request.sampling
        tool_support = None if request.tools is None else engine.tools
        if tool_support is not None or any(message.calls or message.role == "tool" for message in request.messages):
            write: PromptWriter = partial(engine.tools.segments, tools=request.tools)
            opened = engine.tools.opened_marker(request.messages, request.tools)
            if opened and request.tools is not None and request.tools.required:
                raise ConfigurationError(
                    f"{self.label}: its chat template begins answers with thoughts, so no tool call can be required"
                )
        else:
            write = partial(engine.chat.segments, constrained=sampling.schema is not None)
            opened = "" if sampling.schema is not None else engine.chat.opened_marker(request.messages)
        split = split_prompt(write, request.messages)
        message_end_token = -1 if sampling.schema is not None else engine.chat.message_end_token
        generation = self._generation(request, tool_support, message_end_token)
        return tool_support, write, opened, split, generation

    def _generation(
        self, request: Request, tool_support: ToolSupport | None = None, message_end_token: int = -1
    ) -> Generation:
        engine, sampling = self.engine, request.sampling
        stops = sampling.stop
        if request.prompt is None and tool_support is None and sampling.schema is None:
            stops = (*stops, *engine.chat.stops)
        return Generation(
            engine.model,
            engine.masks if tool_support is None else tool_support.masks,
            SamplerSettings.from_sampling(request.seed, sampling, self._defaults),
            sampling.max_tokens,
            tuple(stop.encode() for stop in stops),
            self._grammar(request),
            engine.config.forced,
            engine.chat.plain_tokens if tool_support is None else tool_support.forced_tokens,
            token_bytes=engine.chat.token_bytes if tool_support is None else tool_support.token_bytes,
            message_end_token=message_end_token,
        )

    def _is_long(self, request: Request) -> bool:
        """Return True if writing and tokenising this request would block the event loop for too long.

        The requests of the same loop iteration count together.

        Raises:
            ContextTooLong: No lane can hold the request, even if all of its tokens are of maximum length.
        """
        calls = [call for message in request.messages for call in message.calls]
        characters = request.characters
        if request.tools is None:
            characters += sum(len(call.name) + len(call.arguments) for call in calls)
        if characters > _LONG:
            stored = self.engine.config.per_context.context  # tokens of a lane
            if characters > stored * self.engine.chat.longest_token:
                raise ContextTooLong(
                    f"the prompt has {characters:,} characters and leaves no room for an answer: a lane holds "
                    f"{stored:,} tokens; raise ?ctx=",
                    model=self.label,
                )
        if not self._this_turn:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._this_turn += characters + len(calls) * _CALL + len(request.messages) ** 2 * _MESSAGES_SQUARED
        return self._this_turn > _LONG or self._has_long_schema(request)

    def _begin_turn(self) -> None:
        self._this_turn = 0

    def _has_long_schema(self, request: Request) -> bool:
        """Return True if compiling the request's schema or tools would block the event loop for too long."""
        if request.tools is not None:
            if self.engine.tools.has_grammar(request.tools):
                return False
            data = orjson.dumps(request.tools.specs)
        elif request.sampling.schema is not None:
            data = orjson.dumps(request.sampling.schema)
            if data in self.engine.grammars:
                return False
        else:
            return False
        return len(data) > _LONG_SCHEMA or b'"$ref"' in data

    async def _off_loop(self, work: Callable[[], T]) -> T:
        """Run slow work in a thread, one request at a time."""
        with self._clock.external():
            return await anyio.to_thread.run_sync(work, limiter=self._long_ones)

    async def _continue_text(self, request: Request, prompt: str) -> Completion:
        """Continue a text after the BOS token. Control tokens spelled in it are plain text."""
        chat = self.engine.chat
        plain = partial(chat.plain_tokens, prompt)
        tokens = np.concatenate([chat.bos_tokens, await self._off_loop(plain) if self._is_long(request) else plain()])
        if not len(tokens):
            raise Rejected("nothing to continue: the text is empty, and the model has no BOS token", model=self.label)
        generation = self._generation(request)
        began = self._clock.now()
        # KV is not kept for the next text, because that may be tokenised differently at the boundary.
        pending = PendingRequest([Segment(tokens)], _no_callback, generation, may_continue=False)
        first = await self._submit(pending, request.on_text)
        return self._completion(pending, generation, began, first, generation.text())

    async def read(self, reading: Reading) -> Completion:
        """Return the likelihoods of continuations, tokenised separately from their context.

        If the model has no BOS token and nothing precedes a continuation, the continuation's first token has no
        log-probability and is left out.
        """
        chat = self.engine.chat
        prompt = [
            np.concatenate([chat.bos_tokens, chat.plain_tokens(reading.shared)]),
            chat.plain_tokens(reading.context),
        ]
        if not reading.shared:
            prompt = [np.concatenate(prompt)]
        continuations = [chat.plain_tokens(text) for text in reading.continuations]
        segments = [Segment(tokens) for tokens in prompt if len(tokens)]
        if not segments and len(continuations) == 1:
            segments, continuations = [Segment(continuations[0][:1])], [continuations[0][1:]]
        if not segments and continuations and all(len(tokens) for tokens in continuations):
            return await self._read_apart(reading)
        if not segments or not continuations or not all(len(tokens) for tokens in continuations):
            raise Rejected("nothing to score: a text is empty, or has one token and no context", model=self.label)
        began = self._clock.now()
        pending = PendingRequest(
            segments,
            _no_callback,
            reading=ContinuationReading(continuations, reading.moments),
            shared_prefixes=(1,) if reading.shared and len(segments) > 1 else (),
        )
        await self._submit(pending)
        prompt_tokens = sum(map(len, [*prompt, *continuations]))
        assert pending.reading is not None
        return Completion("", "stop", prompt_tokens, 0, self._clock.now() - began, likelihoods=pending.reading.results)

    async def _read_apart(self, reading: Reading) -> Completion:
        """Read texts that begin with nothing in common, not even a BOS token, one after the other."""
        began = self._clock.now()
        parts = [await self.read(replace(reading, continuations=(text,))) for text in reading.continuations]
        likelihoods = [likelihood for part in parts for likelihood in part.likelihoods or ()]
        tokens = sum(part.prompt_tokens for part in parts)
        return Completion("", "stop", tokens, 0, self._clock.now() - began, likelihoods=likelihoods)

    def prompt_size(self, messages: Sequence[Message]) -> PromptSize | None:
        try:
            segments = self.engine.chat.segments(messages)
        except Rejected:  # the first call says so, with the conversation's name
            return None
        tokens = sum(len(segment.tokens) for segment in segments)
        return PromptSize(tokens, self.engine.config.per_context.context, "raise ?ctx=")

    def ended(self, affinity: str) -> None:
        self._affinity.end(affinity)
        if self._engine is not None:
            for worker in self._engine.workers:
                worker.loop.end_conversation(affinity)

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of plain text."""
        return [int(token) for token in self.engine.chat.plain_tokens(text)]

    @property
    def engine(self) -> LlamaEngine:
        """Return the loaded model; raise `ConfigurationError` outside `async with`."""
        if self._engine is None:
            raise ConfigurationError(f"{self.label}: the backend is used outside its `async with`")
        return self._engine

    def statistics(self) -> dict[str, Any]:
        if self._engine is None:
            return {}
        total: Counter[str] = Counter(contexts=len(self._engine.workers))
        for worker in self._engine.workers:
            total.update(worker.statistics())
        return {name: round(value, 3) for name, value in total.items()}

    async def _submit(self, pending: PendingRequest, on_text: Callable[[str], None] | None = None) -> float | None:
        """Compute a request, passing text to `on_text` in this task; return the time of the first piece."""
        affinity = self._affinity
        context, pending.ongoing = affinity.assign(pending.conversation)
        try:
            return await self._wait_for_answer(self.engine.workers[context], pending, on_text)
        finally:
            if not pending.conversation:
                affinity.release(context)

    async def _wait_for_answer(
        self, worker: ContextWorker, pending: PendingRequest, on_text: Callable[[str], None] | None
    ) -> float | None:
        answer = ThreadAnswer(self._clock)
        pending.on_done = lambda _: answer.end()
        if on_text is not None and pending.generation is not None:
            pending.generation.on_bytes = lambda data: answer.put(data.decode("utf-8", "replace"))
        first = await answer.wait(worker.loop, pending, on_text)
        if pending.error is not None:
            raise pending.error
        return first

    def _grammar(self, request: Request) -> Grammar | None:
        schema, tools = request.sampling.schema, request.tools
        if tools is not None:
            if schema is not None:
                raise ConfigurationError(f"{self.label}: local models take no JSON schema and tools in one request")
            return self.engine.tools.grammar(tools)
        if schema is None:
            return None
        grammars = self.engine.grammars
        # Properties are written in the schema's order, so their order is part of the key.
        key = orjson.dumps(schema)
        grammar = grammars.get(key)
        if grammar is None:
            grammar = grammars[key] = Grammar(schema)
            if len(grammars) > _MAX_GRAMMARS:
                grammars.pop(next(iter(grammars)), None)
        return grammar


def _no_callback(pending: PendingRequest) -> None:
    raise AssertionError("a request was submitted without a callback")


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a model from `llama:FILE?options` or `llama:STORE/NAME?options`; it is opened when the backend is entered.

    Raises:
        ConfigurationError: The file is missing or an option is invalid.
    """
    revision = spec.take("revision") or ""
    try:
        check_name(spec.where, revision)
    except ConfigurationError as error:
        raise ConfigurationError(f"model '{spec.text}': {error}") from None
    requested = _parse_config(spec)
    if requested.flash_attention == "auto":
        requested = replace(requested, flash_attention=recorded_attention(spec.text))
    defaults = Sampling(
        top_p=spec.number("top_p", 1.0, 0.0, 1.0),
        top_k=spec.whole("top_k", low=0) or 0,
        min_p=spec.number("min_p", 0.0, 0.0, 1.0),
        repeat_penalty=spec.number("repeat_penalty", 1.0, 0.01, 100.0),
    )

    def locate_file() -> Path:
        return locate(spec.where, revision).path

    return LlamaBackend(clock, locate_file, requested, spec.take("template"), defaults)


def _parse_config(spec: ModelSpec) -> EngineConfig:
    spec.take("lora")
    try:
        adapters = parse_adapters(spec.text)
    except ConfigurationError as error:
        raise ConfigurationError(f"model '{spec.text}': {error}") from None
    cache = spec.whole("kv_cache", low=0)
    return EngineConfig(
        lanes=spec.whole("lanes") or 0,
        context=spec.whole("ctx") or 0,
        contexts=spec.whole("contexts") or 0,
        threads=spec.whole("threads", high=_MAX_THREADS) or (os.cpu_count() or 1),
        placement=parse_placement(spec),
        ubatch=spec.whole("ubatch") or 0,
        kv_type=spec.one_of("kv_type", ("f16", "q8_0", "f32"), "f16"),
        flash_attention=spec.one_of("flash_attn", ("auto", "on", "off"), "auto"),
        kv_cache=-1 if cache is None else cache * 1_000_000,
        strict={"": None, "on": True, "off": False}[spec.one_of("strict", ("on", "off"))],
        forced=spec.one_of("forced", ("on", "off"), "on") == "on",
        adapters=adapters,
    )


def flash_attention_record(text: str, recorded: str | None = None) -> str | None:
    """Return what `attention_record` returns for a model's full name.

    Raises:
        ConfigurationError: There is no such model, an option is invalid, or the model cannot be loaded.
    """
    spec = ModelSpec.parse(text)
    files = locate(spec.where, spec.take("revision") or "")
    return attention_record(text, files.path, _parse_config(spec), recorded)


def machine_record(text: str) -> dict[str, str]:
    """Return what the answers of a model depend on, besides its name and files: processor, build, threads and devices.

    Raises:
        ConfigurationError: A device that the name requests does not exist.
    """
    devices = parse_placement(ModelSpec.parse(text)).chosen_devices()
    return {
        "processor": processor(),
        "build": build_info(),
        "threads": str(os.cpu_count()),
        "devices": ", ".join(f"{device.name}: {device.description}" for device in devices),
    }
