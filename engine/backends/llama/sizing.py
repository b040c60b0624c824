"""Choose lanes, context length, number of contexts and cache size by the model and the available memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...errors import ConfigurationError
from .library import lib, memory_available, weight_types
from .model_files import Adapter
from .native import NativeContext, NativeModel
from .placement import DEVICE_MARGIN, OutOfDeviceMemory, PlacementOptions
from .scheduler import UNCONSTRAINED, BatchShape, shape_for_weights

_DEFAULT_LANES = 16
_DEFAULT_CONTEXT = 4096
_MIN_LANES = 4
_MAX_DEVICE_LANES = 128  # more than this compute hardly faster; their memory is of more use to idle KV
_MIN_LANES_PER_CONTEXT = 16  # with fewer, parallel contexts gain no more than small batches cost
_MIN_CONTEXT = 512
_BATCH = 512


@dataclass(slots=True, frozen=True)
class EngineConfig:
    """Configuration of a model.

    A value of 0 for lanes, context or contexts, a negative `kv_cache` (in bytes), or a `strict` of None means "choose";
    `shape` and `slots` (sequences that store idle KV on a device) are always chosen. Lanes, slots, threads and cache
    are totals over all contexts. A `flash_attention` of `auto` is llama.cpp's choice; `attention` makes a better one.
    """

    lanes: int = 0
    context: int = 0
    contexts: int = 0
    threads: int = 1
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    ubatch: int = 0
    kv_type: str = "f16"
    flash_attention: str = "auto"
    kv_cache: int = -1
    strict: bool | None = None
    forced: bool = True
    adapters: tuple[Adapter, ...] = ()
    batch: int = _BATCH
    shape: BatchShape = UNCONSTRAINED
    slots: int = 0

    @property
    def per_context(self) -> EngineConfig:
        """Configuration of one context: its share of the totals."""
        return replace(
            self,
            contexts=1,
            lanes=self.lanes // self.contexts,
            slots=self.slots // self.contexts,
            threads=self.threads // self.contexts,
            kv_cache=self.kv_cache // self.contexts,
        )

    def describe(self, model: NativeModel) -> str:
        """Return the chosen configuration in one line."""
        sequences = self.lanes + self.slots
        kv = model.kv_bytes(self.kv_type, sequences * self.context, sequences)
        slots = f" and {self.slots} slots for idle KV" if self.slots else ""
        beside = f" in {self.contexts} contexts side by side" if self.contexts > 1 else ""
        same = "identical output at any concurrency" if self.strict else "not strict"
        if model.placement.layers:
            same = "output may depend on concurrent calls"
        if model.recurrent:
            same += " (a recurrent state)"
        beyond = f"; ctx exceeds the {model.train_context:,} tokens of its training" * self._beyond(model)
        adapted = f" with {len(self.adapters)} LoRA adapter{'s' * (len(self.adapters) > 1)}" if self.adapters else ""
        return (
            f"{model.placement}: {model.size / 1e6:,.0f} MB{adapted}, {self.lanes} lanes x {self.context:,} tokens"
            f"{slots}{beside} ({kv / 1e6:,.0f} MB of KV), {self.kv_cache / 1e6:,.0f} MB of host cache, "
            f"{self.threads} threads, {same}{beyond}"
        )

    def _beyond(self, model: NativeModel) -> bool:
        return 0 < model.train_context < self.context


def choose_config(model: NativeModel, requested: EngineConfig) -> EngineConfig:
    """Choose all settings that were left open.

    Raises:
        ConfigurationError: The options contradict each other or need too much memory; the message says what would fit.
    """
    on_device = model.placement.layers > 0
    if requested.strict is None or model.recurrent:  # recurrent states cannot drop dummy tokens
        requested = replace(requested, strict=not (on_device or model.recurrent))
    free = memory_available()
    context = requested.context or default_context(model.train_context)
    per_lane = max(1, model.kv_bytes(requested.kv_type, int(context), 1))
    kinds = model.weight_types.union(*(weight_types(adapter.path) for adapter in requested.adapters))
    shape = shape_for_weights(kinds) if requested.strict and not on_device else UNCONSTRAINED
    if requested.lanes and not shape.fits(requested.lanes):
        raise ConfigurationError(
            f"{model.path}: lanes={requested.lanes}: with weights of {', '.join(sorted(kinds))} output is identical "
            f"at any concurrency only with one lane, or a multiple of {shape.multiple} from {shape.minimum} on; "
            f"use lanes={shape.padded_rows(requested.lanes)}, or strict=off"
        )
    # Half of the free memory for the lanes, a quarter for the host cache; the rest is for other processes.
    room = free // 2
    slots = 0
    if on_device:
        fitting = _device_sequences(model, requested.kv_type, int(context), room)
        lanes = requested.lanes or max(_MIN_LANES, min(fitting // 2, _MAX_DEVICE_LANES) // _MIN_LANES * _MIN_LANES)
        # Half of what is left is for other models, which may be loaded later.
        slots = 0 if model.recurrent or not requested.kv_cache else max(0, fitting - lanes) // 2
    else:
        limit = _DEFAULT_LANES * (1 if requested.threads % 2 else 2)
        usual = max(_MIN_LANES, min(limit, room // per_lane))
        usual -= usual % _DEFAULT_LANES if usual > _DEFAULT_LANES else usual % shape.multiple
        lanes = requested.lanes or max(shape.minimum, usual)
    share = model.placement.kv_share
    for room, part, location, kind in (
        (free, 1 - share, "", ConfigurationError),
        (model.placement.free_memory() if share else 0, share, " on the devices", OutOfDeviceMemory),
    ):
        if per_lane * lanes * part > room:
            per_token = max(1, model.kv_bytes(requested.kv_type, 1, 0)) * part
            fits = max(0, int((room - model.kv_bytes(requested.kv_type, 0, int(lanes)) * part) / (per_token * lanes)))
            advice = f"?ctx={fits // 256 * 256}" if fits >= _MIN_CONTEXT else "fewer ?lanes= or ?kv_type=q8_0"
            raise kind(
                f"{model.path}: {lanes} lanes x {context:,} tokens need {per_lane * lanes * part / 1e9:.1f} GB of KV"
                f"{location}, {room / 1e9:.1f} GB are free; {advice} would fit"
            )
    if share and not model.placement.holds_tensor(model.kv_tensor_bytes(requested.kv_type, int(lanes * context))):
        raise OutOfDeviceMemory(
            f"{model.path}: the KV of {lanes} lanes x {context:,} tokens has tensors that are too large for a device; "
            "use fewer ?lanes= or a smaller ?ctx="
        )
    contexts = requested.contexts or (1 if on_device else _contexts(int(lanes), requested, shape))
    if lanes % contexts or requested.threads % contexts or not shape.fits(lanes // contexts):
        raise ConfigurationError(
            f"{model.path}: contexts={contexts}: {lanes} lanes and {requested.threads} threads cannot be split into "
            f"that many equal parts{'' if shape == UNCONSTRAINED else ' with identical output at any concurrency'}; "
            f"use contexts={_contexts(int(lanes), requested, shape)}"
        )
    cache = requested.kv_cache if requested.kv_cache >= 0 else free // 4
    return replace(
        requested,
        lanes=int(lanes),
        context=int(context),
        contexts=contexts,
        slots=slots // contexts * contexts,
        kv_cache=int(cache),
        shape=shape,
    )


def new_context(model: NativeModel, config: EngineConfig) -> NativeContext:
    """Create a context; all settings must be chosen. Raise ConfigurationError if memory is insufficient."""
    return NativeContext(
        model,
        lanes=config.lanes,
        context=config.context,
        batch=config.batch,
        ubatch=config.ubatch,
        threads=config.threads,
        kv_type=config.kv_type,
        flash_attention=config.flash_attention,
        canonical=bool(config.strict),
        adapters=config.adapters,
        slots=config.slots,
    )


def default_context(train_context: int) -> int:
    """Return the tokens of a lane if the user does not say; a `train_context` of 0 is unknown."""
    return min(_DEFAULT_CONTEXT, train_context or _DEFAULT_CONTEXT)


def _device_sequences(model: NativeModel, kv_type: str, context: int, room: int) -> int:
    """Return the sequences whose KV fits on the devices and in `room` bytes of the host, as far as each holds it."""
    placement, per_lane = model.placement, max(1, model.kv_bytes(kv_type, context, 1))
    limits = [int(lib.llama_max_parallel_sequences())]
    if share := placement.kv_share:
        limits.append(int(placement.free_memory() * (1 - DEVICE_MARGIN) / (per_lane * share)))
    if share < 1:
        limits.append(int(room / (per_lane * (1 - share))))
    count = max(_MIN_LANES, min(limits))
    while share and count > _MIN_LANES and not placement.holds_tensor(model.kv_tensor_bytes(kv_type, count * context)):
        count = max(_MIN_LANES, count // 2)
    return count


def _contexts(lanes: int, requested: EngineConfig, shape: BatchShape) -> int:
    """Return the number of contexts, chosen if it was left open.

    Threads that compute one batch together wait for each other some hundred times per batch. Separate contexts do not
    wait for each other, and one computes while another's answers are processed. On a GPU one context uses the whole
    device.
    """
    return max(
        count
        for count in range(1, requested.threads + 1)
        if requested.threads % count == 0
        and lanes % count == 0
        and (count == 1 or (lanes // count >= _MIN_LANES_PER_CONTEXT and shape.fits(lanes // count)))
    )
