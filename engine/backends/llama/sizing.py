"""Choosing lanes, context and cache from the model and the memory at hand, where the user did not.

What never belongs here: llama.cpp itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import ConfigurationError
from .batch_shape import ANY, Shape, shape_for
from .native import NativeModel

_DEFAULT_LANES = 16
_DEFAULT_CONTEXT = 4096
_LEAST_LANES = 4
_LEAST_SHARE = 16  # lanes; contexts with fewer of them lose by small batches what they gain side by side
_LEAST_CONTEXT = 512
_BATCH = 512
_SCORES = 512 << 20  # bytes; more attention scores than these are not held at once
_SHORT = 1024  # tokens; in lanes of no more than these llama.cpp's flash attention is the faster way


@dataclass(slots=True, frozen=True)
class Plan:
    """How a model is run; 0 lanes, context or contexts and a negative cache mean "choose".

    Lanes, threads and cache are those of all contexts together. Always chosen: ``shape``.
    """

    lanes: int = 0
    context: int = 0
    contexts: int = 0
    threads: int = 1
    gpu_layers: int = 0
    kv_type: str = "f16"
    flash_attention: str = "auto"
    kv_cache: int = -1
    strict: bool = True
    forced: bool = True
    batch: int = _BATCH
    shape: Shape = ANY

    @property
    def share(self) -> Plan:
        """The part of one context."""
        return replace(
            self,
            contexts=1,
            lanes=self.lanes // self.contexts,
            threads=self.threads // self.contexts,
            kv_cache=self.kv_cache // self.contexts,
        )

    def describe(self, model: NativeModel) -> str:
        """What was chosen, for the user."""
        kv = model.kv_bytes(self.kv_type, self.lanes * self.context, self.lanes)
        beside = f" in {self.contexts} contexts side by side" if self.contexts > 1 else ""
        same = "byte-identical in any company" if self.strict else "not strict"
        if model.recurrent:
            same += " (a recurrent state)"
        beyond = f"; ctx is beyond the {model.train_context:,} tokens of its training" * self._beyond(model)
        return (
            f"{model.size / 1e6:,.0f} MB, {self.lanes} lanes x {self.context:,} tokens{beside} "
            f"({kv / 1e6:,.0f} MB of KV), {self.kv_cache / 1e6:,.0f} MB for idle KV, {self.threads} threads, "
            f"{same}{beyond}"
        )

    def _beyond(self, model: NativeModel) -> bool:
        return 0 < model.train_context < self.context


def plan(model: NativeModel, wanted: Plan) -> Plan:
    """Fill in what was left open.

    :raises ConfigurationError: even the smallest choice would not fit into memory; says what would.
    """
    if model.recurrent:  # a state that takes nothing back has no room for the rows that fill up a call
        wanted = replace(wanted, strict=False)
    free = memory_available()
    context = wanted.context or min(_DEFAULT_CONTEXT, model.train_context or _DEFAULT_CONTEXT)
    per_lane = max(1, model.kv_bytes(wanted.kv_type, int(context), 1))
    shape = shape_for(model.kinds) if wanted.strict and not wanted.gpu_layers else ANY
    if wanted.lanes and not shape.fits(wanted.lanes):
        kinds = ", ".join(sorted(model.kinds))
        raise ConfigurationError(
            f"{model.path}: lanes={wanted.lanes}: with weights of {kinds} results are the same in any company where "
            f"the lanes are a multiple of {shape.unit}, {shape.least} or more, or where there is one; "
            f"take lanes={shape.rows(wanted.lanes)}, or say strict=off"
        )
    # Half of what is free for the lanes, a quarter for idle roles; the rest is for everybody else on the machine.
    room = free // 2
    if wanted.gpu_layers:
        lanes = wanted.lanes or _DEFAULT_LANES * 4
    else:
        most = _DEFAULT_LANES * (1 if wanted.threads % 2 else 2)
        usual = max(_LEAST_LANES, min(most, room // per_lane))
        usual -= usual % _DEFAULT_LANES if usual > _DEFAULT_LANES else usual % shape.unit
        lanes = wanted.lanes or max(shape.least, usual)
    if not wanted.gpu_layers and per_lane * lanes > free:
        per_token = max(1, model.kv_bytes(wanted.kv_type, 1, 0))
        fits = max(0, (free - model.kv_bytes(wanted.kv_type, 0, int(lanes))) // int(per_token * lanes))
        advice = f"?ctx={fits // 256 * 256}" if fits >= _LEAST_CONTEXT else "fewer ?lanes= or ?kv_type=q8_0"
        raise ConfigurationError(
            f"{model.path}: {lanes} lanes x {context:,} tokens need {per_lane * lanes / 1e9:.1f} GB of KV, "
            f"{free / 1e9:.1f} GB are free; {advice} would fit"
        )
    contexts = wanted.contexts or _contexts(int(lanes), wanted, shape)
    if lanes % contexts or wanted.threads % contexts or not shape.fits(lanes // contexts):
        raise ConfigurationError(
            f"{model.path}: contexts={contexts}: {lanes} lanes and {wanted.threads} threads do not go into as many "
            f"equal parts{'' if shape == ANY else ' that keep results the same in any company'}; take contexts="
            f"{_contexts(int(lanes), wanted, shape)}"
        )
    cache = wanted.kv_cache if wanted.kv_cache >= 0 else free // 4
    return replace(
        wanted,
        lanes=int(lanes),
        context=int(context),
        contexts=contexts,
        kv_cache=int(cache),
        shape=shape,
        flash_attention=_attention(model, wanted, context),
    )


def _contexts(lanes: int, wanted: Plan, shape: Shape) -> int:
    """How many contexts compute side by side where that was left open.

    Threads that compute one batch together wait for each other some hundred times a batch; contexts of their own do
    not, and one goes on while another's answers are put away. On a GPU one context fills the device.
    """
    if wanted.gpu_layers:
        return 1
    return max(
        count
        for count in range(1, wanted.threads + 1)
        if wanted.threads % count == 0
        and lanes % count == 0
        and (count == 1 or (lanes // count >= _LEAST_SHARE and shape.fits(lanes // count)))
    )


def _attention(model: NativeModel, wanted: Plan, context: int) -> str:
    """Whether to use flash attention where that was left open.

    On the CPU llama.cpp's goes token by token through the KV wherever fewer than 64 tokens of a lane are computed.
    Turns and forced tokens behind many hundreds of tokens are up to three times as fast without it, decoding on most
    processors faster too (on some slower: docs/models.md); decoding behind few tokens is slower by a fifth or more,
    long prompts by up to a third. So the length of the lanes decides. Memory at hand does not, for the same options
    must give the same bytes the next time. Without it all scores of a call are held at once, and V must be plain.
    """
    choosing = wanted.flash_attention == "auto" and not wanted.gpu_layers and wanted.kv_type != "q8_0"
    if not choosing or context <= _SHORT or 4 * model.n_heads * wanted.batch * context > _SCORES:
        return wanted.flash_attention
    return "off"


def memory_available() -> int:
    """Bytes that could be taken now without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 8 << 30
