"""Models in memory: their weights, the contexts that compute with them, and the number of users.

A file's weights are loaded once per process; backends with identical options also share lanes and KV.
"""

from __future__ import annotations

import logging
from pathlib import Path

from .chat.chat_format import ChatFormat
from .grammar.grammar import Grammar
from .grammar.token_masks import TokenMasks
from .inference_loop import InferenceLoop
from .lanes import Lanes
from .native import NativeContext, NativeModel
from .scheduler import Scheduler
from .sizing import EngineConfig, choose_config
from .tools.tool_support import ToolSupport

EngineKey = tuple[Path, EngineConfig, str | None]  # the file, the requested options, the template

_ENGINES: dict[EngineKey, LlamaEngine] = {}
_WEIGHTS: dict[tuple[Path, int], tuple[NativeModel, int]] = {}


def acquire_engine(key: EngineKey) -> LlamaEngine:
    """The engine for these options, loaded on first use; the choice is logged.

    :raises ConfigurationError: it cannot be loaded.
    """
    engine = _ENGINES.get(key)
    if engine is None:
        engine = _ENGINES[key] = LlamaEngine(*key)
        logging.getLogger("viva").info("%s: %s", engine.model.path.name, engine.config.describe(engine.model))
    engine.users += 1
    return engine


def release_engine(key: EngineKey) -> None:
    """End one use of an engine; after the last one it is closed."""
    engine = _ENGINES[key]
    engine.users -= 1
    if engine.users == 0:
        del _ENGINES[key]
        engine.close()


class ContextWorker:
    """One context with its lanes, its host cache and its inference thread."""

    def __init__(self, model: NativeModel, config: EngineConfig) -> None:
        """:raises ConfigurationError: there is not enough memory."""
        self.context = NativeContext(
            model,
            lanes=config.lanes,
            context=config.context,
            batch=config.batch,
            threads=config.threads,
            kv_type=config.kv_type,
            flash_attention=config.flash_attention,
            canonical=config.strict,
        )
        scheduler = Scheduler(config.lanes, batch=self.context.batch, strict=config.strict, shape=config.shape)
        self.lanes = Lanes(self.context, scheduler, config.kv_cache)
        self.loop = InferenceLoop(self.lanes)

    def statistics(self) -> dict[str, float]:
        """Requests, tokens, steps, cached KV, and seconds by kind of work."""
        lanes = self.lanes
        return {
            **lanes.scheduler.statistics(),
            **lanes.store.statistics(),
            **lanes.counts,
            **{f"{name}_s": seconds for name, seconds in lanes.timings.items()},
            "idle_s": self.loop.idle_seconds,
        }

    def close(self) -> bool:
        """Stop the thread and free the KV. Returns whether the thread stopped; otherwise the KV stays allocated."""
        stopped = self.loop.close()
        if stopped:
            self.context.close()
        return stopped


class LlamaEngine:
    """One loaded model with its contexts. Use ``acquire_engine`` and ``release_engine``.

    The contexts in ``workers`` compute side by side, each with its share of lanes and threads.
    ``assigned_conversations`` counts the conversations of each (``affinity``).
    """

    def __init__(self, path: Path, requested: EngineConfig, template: str | None) -> None:
        """:raises ConfigurationError: the file cannot be loaded, or there is not enough memory for these options."""
        self.model = _acquire_weights(path, requested.gpu_layers)
        self.workers: list[ContextWorker] = []
        try:
            self.config = choose_config(self.model, requested)
            self.chat = ChatFormat(self.model, template)
            self.masks = TokenMasks(self.model.pieces, self.model.ends, self.model.controls)
            for _ in range(self.config.contexts):
                self.workers.append(ContextWorker(self.model, self.config.per_context))
        except BaseException:
            self.close()
            raise
        self.grammars: dict[bytes, Grammar] = {}
        self.users = 0
        self.assigned_conversations = [0] * self.config.contexts
        self._tools: ToolSupport | None = None

    @property
    def tools(self) -> ToolSupport:
        """What conversations with tools need; created on first use."""
        if self._tools is None:
            self._tools = ToolSupport(self.model, self.chat, self.masks)
        return self._tools

    def close(self) -> None:
        """Stop the threads, free KV and weights, except what a hanging thread still uses."""
        stopped = [worker.close() for worker in self.workers]
        _release_weights(self.model, free=all(stopped))


def _acquire_weights(path: Path, gpu_layers: int) -> NativeModel:
    model, users = _WEIGHTS.get((path, gpu_layers)) or (NativeModel(path, gpu_layers=gpu_layers), 0)
    _WEIGHTS[path, gpu_layers] = (model, users + 1)
    return model


def _release_weights(model: NativeModel, *, free: bool) -> None:
    for key, (held, users) in list(_WEIGHTS.items()):
        if held is model:
            _WEIGHTS[key] = (model, users - 1)
            if users == 1 or not free:  # weights in use by a hanging thread are not shared any more
                del _WEIGHTS[key]
            if users == 1 and free:
                model.close()
