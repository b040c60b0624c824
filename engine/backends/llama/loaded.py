"""A model in memory: weights, the contexts at work on them, and who uses it.

A file's weights are loaded once per process; who asks for the same options of computing shares lanes and KV too.
What never belongs here: requests (``backend``), and how anything is computed.
"""

from __future__ import annotations

import logging
from pathlib import Path

from .chat import ChatFormat
from .grammar import Grammar
from .lanes import Lanes
from .loop import InferenceLoop
from .masks import TokenMasks
from .native import NativeContext, NativeModel
from .scheduler import Scheduler
from .sizing import Plan, plan
from .tooluse import ToolUse

Key = tuple[Path, Plan, str | None]  # the file, what was asked for, the template

_ENGINES: dict[Key, LlamaEngine] = {}
_WEIGHTS: dict[tuple[Path, int], tuple[NativeModel, int]] = {}


def borrow(key: Key) -> LlamaEngine:
    """The engine for a key; where nobody uses it yet it is loaded, which is logged.

    :raises ConfigurationError: it cannot be loaded.
    """
    engine = _ENGINES.get(key)
    if engine is None:
        engine = _ENGINES[key] = LlamaEngine(*key)
        logging.getLogger("viva").info("%s: %s", engine.model.path.name, engine.plan.describe(engine.model))
    engine.users += 1
    return engine


def give_back(key: Key) -> None:
    """One user less; the last one's engine is closed."""
    engine = _ENGINES[key]
    engine.users -= 1
    if engine.users == 0:
        del _ENGINES[key]
        engine.close()


class Worker:
    """One context at work: its lanes, its store, its thread."""

    def __init__(self, model: NativeModel, chosen: Plan) -> None:
        """:raises ConfigurationError: there is no memory for it."""
        self.context = NativeContext(
            model,
            lanes=chosen.lanes,
            context=chosen.context,
            batch=chosen.batch,
            threads=chosen.threads,
            kv_type=chosen.kv_type,
            flash_attention=chosen.flash_attention,
            canonical=chosen.strict,
        )
        scheduler = Scheduler(chosen.lanes, batch=chosen.batch, strict=chosen.strict, shape=chosen.shape)
        self.lanes = Lanes(self.context, scheduler, chosen.kv_cache)
        self.loop = InferenceLoop(self.lanes)

    def statistics(self) -> dict[str, float]:
        """Requests, tokens, steps, KV kept, and seconds by kind of work."""
        lanes = self.lanes
        return {
            **lanes.scheduler.statistics(),
            **lanes.store.statistics(),
            **lanes.counts,
            **{f"{name}_s": seconds for name, seconds in lanes.timings.items()},
            "idle_s": self.loop.idle,
        }

    def close(self) -> bool:
        """Stop the thread, free the KV. Whether the thread did stop; else the KV stays."""
        stopped = self.loop.close()
        if stopped:
            self.context.close()
        return stopped


class LlamaEngine:
    """One loaded model and who works on it; ``borrow`` it, and ``give_back`` what was borrowed.

    The plan's contexts work side by side, each with its share of lanes and threads; ``seated`` counts who is at home
    where (``seats``). ``workers`` has them in order.
    """

    def __init__(self, path: Path, wanted: Plan, template: str | None) -> None:
        """:raises ConfigurationError: the file cannot be loaded, or there is no memory for what is wanted."""
        self.model = _weights(path, wanted.gpu_layers)
        self.workers: list[Worker] = []
        try:
            self.plan = plan(self.model, wanted)
            self.chat = ChatFormat(self.model, template)
            self.masks = TokenMasks(self.model.pieces, self.model.ends, self.model.controls)
            for _ in range(self.plan.contexts):
                self.workers.append(Worker(self.model, self.plan.share))
        except BaseException:
            self.close()
            raise
        self.grammars: dict[bytes, Grammar] = {}
        self.users = 0
        self.seated = [0] * self.plan.contexts
        self._tools: ToolUse | None = None

    @property
    def tools(self) -> ToolUse:
        """What talks with tools need; made when the first one comes."""
        if self._tools is None:
            self._tools = ToolUse(self.model, self.chat, self.masks)
        return self._tools

    def close(self) -> None:
        """Stop the threads, free KV and weights, but not what a thread that hangs still uses."""
        stopped = [worker.close() for worker in self.workers]
        _put_back(self.model, free=all(stopped))


def _weights(path: Path, gpu_layers: int) -> NativeModel:
    model, users = _WEIGHTS.get((path, gpu_layers)) or (NativeModel(path, gpu_layers=gpu_layers), 0)
    _WEIGHTS[path, gpu_layers] = (model, users + 1)
    return model


def _put_back(model: NativeModel, *, free: bool) -> None:
    for key, (held, users) in list(_WEIGHTS.items()):
        if held is model:
            _WEIGHTS[key] = (model, users - 1)
            if users == 1 or not free:  # weights that a hanging thread uses are nobody else's any more
                del _WEIGHTS[key]
            if users == 1 and free:
                model.close()
