"""Flash attention on the CPU, on or off: measured once for a model on this machine.

llama.cpp's flash attention iterates over KV token by token if fewer than 64 tokens of a lane are computed. Which way is
faster depends on the processor, the heads, the length of the texts and the number of lanes: each has been up to 1.4
times as fast as the other. The choice changes bytes of the output. So it is made once and kept in the user's cache, and
a run's manifest records it for the resumed run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError, Unavailable
from ...files import user_cache
from .library import GgufHeader, build_info, processor
from .model_files import all_parts
from .native import NativeContext, NativeModel
from .sizing import EngineConfig, choose_config, default_context, new_context

_WAYS = ("on", "off")
_SHORT_CONTEXT = 1024  # tokens; up to this lane length, flash attention is hardly ever the slower way
_MAX_SCORE_BYTES = 512 << 20  # without flash attention all scores of a batch are held at once
_LANES = 4  # lanes measured; more lanes change the ratio little
_PAGE = 256  # llama.cpp computes this many tokens of KV together
_MAX_DEPTH = 2048  # tokens in a lane
_TURN = 64  # decoded tokens of a turn
_PIECES, _PIECE = 2, 16  # pieces of a prompt in a turn, and their tokens; long prompts take equally long both ways
_SECONDS, _MAX_ROUNDS = 0.3, 10  # measured for at least so long, and at most so often
_AGREEMENT = 0.05  # the two best times of a way differ by at most this share, unless another program is at work
_NEEDED_GAIN = 0.15  # share of the time that `off` must save, because it is slower after few tokens
_MAX_RECORD = 1 << 16  # bytes

_recorded: dict[str, str] = {}  # choices that resumed runs brought, by the model's name
_chosen: dict[str, str] = {}  # choices of this process, by the case's key


def recorded_attention(name: str) -> str:
    """Return the choice that a resumed run recorded for a model's name, `auto` if none did."""
    return _recorded.get(name, "auto")


def choose_attention(model: NativeModel, config: EngineConfig) -> EngineConfig:
    """Return the configuration with flash attention chosen, if that was left open and can be measured."""
    case = _Case.read(model.path, config)
    if model.placement.layers or case is None:
        return config
    return replace(config, flash_attention=case.choice(partial(_measure, model, config)))


def attention_record(name: str, path: Path, requested: EngineConfig, recorded: str | None) -> str | None:
    """Return the choice for a model that a run will use, measured now if need be; None if nothing is to be chosen.

    A `recorded` choice is kept, for this process.

    Raises:
        ConfigurationError: The model cannot be loaded.
    """
    if requested.flash_attention == "auto" and recorded in _WAYS:
        _recorded[name] = recorded
        return recorded
    case = _Case.read(path, requested)
    if case is None or requested.placement.chosen_devices():
        return None

    def load_and_measure() -> dict[str, float]:
        with closing(NativeModel(path)) as model:
            return _measure(model, choose_config(model, requested))

    return case.choice(load_and_measure)


@dataclass(slots=True, frozen=True)
class _Case:
    """A model, its lanes and this machine, as far as they determine the faster way; independent of free memory."""

    tensors: str  # hash of names, sizes and types
    context: int
    kv_type: str
    threads: int
    processor: str
    build: str

    @classmethod
    def read(cls, path: Path, config: EngineConfig) -> _Case | None:
        """Return the case of a model; None if there is nothing to choose, or no room for the scores."""
        if config.flash_attention != "auto" or config.kv_type == "q8_0":  # V must not be quantised with `off`
            return None
        status = path.stat()
        tensors, heads, train_context = _read_header(path, status.st_size, status.st_mtime_ns)
        context = config.context or default_context(train_context)
        if context <= _SHORT_CONTEXT or 4 * heads * config.batch * context > _MAX_SCORE_BYTES:
            return None
        return cls(tensors, context, config.kv_type, config.threads, processor(), build_info())

    def choice(self, measure: Callable[[], dict[str, float]]) -> str:
        """Return the faster way, from the cache or by `measure`, which returns the seconds of each way."""
        key = hashlib.blake2b(json.dumps(asdict(self)).encode(), digest_size=20).hexdigest()
        if key not in _chosen:
            with _record(key) as record:
                chosen = record.get("flash_attention")
                if chosen not in _WAYS:
                    seconds = _in_thread(measure)
                    faster = not seconds or seconds["off"] > seconds["on"] * (1 - _NEEDED_GAIN)
                    chosen = "on" if faster else "off"
                    record |= {**asdict(self), "flash_attention": chosen, "seconds": seconds}
            _chosen[key] = chosen
        return _chosen[key]


def _in_thread(measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Measure in a thread, with which OpenMP's threads end (see `native`); Ctrl-C does not wait for it."""
    results: list[dict[str, float] | BaseException] = []

    def work() -> None:
        try:
            results.append(measure())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=work, name="viva-attention", daemon=True)
    thread.start()
    thread.join()
    [result] = results
    if isinstance(result, BaseException):
        raise result
    return result


@lru_cache(maxsize=64)
def _read_header(path: Path, size: int, changed: int) -> tuple[str, int, int]:
    """Return a hash of a model's tensors, the number of heads, and the context length of its training."""
    digest, heads, train_context = hashlib.blake2b(digest_size=20), 0, 0
    for part in all_parts(path):
        with GgufHeader(part) as header:
            for tensor in header.tensors():
                digest.update(repr(tensor).encode())
            architecture = header.text("general.architecture")
            heads = heads or header.number(f"{architecture}.attention.head_count")
            train_context = train_context or header.number(f"{architecture}.context_length")
    return digest.hexdigest(), max(1, heads), train_context


@contextmanager
def _record(key: str) -> Iterator[dict[str, Any]]:
    """Yield a record of the user's cache, locked for other processes; it is written if it has changed."""
    with ExitStack() as stack:
        file = None
        with suppress(OSError, RuntimeError):  # without a cache each process measures
            folder = user_cache("attention")
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = stack.enter_context((folder / f"{key}.json").open("a+b"))
            fcntl.flock(file, fcntl.LOCK_EX)
        record: Any = {}
        if file is not None:
            with suppress(OSError, ValueError, RecursionError):
                file.seek(0)
                record = json.loads(file.read(_MAX_RECORD))
        record = record if isinstance(record, dict) else {}
        before = dict(record)
        yield record
        if file is not None and record != before:
            with suppress(OSError):
                file.seek(0)
                file.truncate()
                file.write(json.dumps(record, indent=1).encode())


def _measure(model: NativeModel, config: EngineConfig) -> dict[str, float]:
    """Return the seconds of a turn without and with flash attention; empty if they cannot be measured.

    A turn is prompts of a lane and decoded tokens of all lanes, after a part of the lane's length.
    """
    if model.recurrent:  # its state cannot be made up
        return {}
    own = config.per_context
    lanes = max(1, min(_LANES, own.lanes // 2))  # both ways have their lanes at the same time
    seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
    with ExitStack() as stack:
        try:
            contexts = {}
            for way in _WAYS:
                contexts[way] = new_context(model, replace(own, lanes=lanes, flash_attention=way))
                stack.callback(contexts[way].close)
            depth = min(_MAX_DEPTH, own.context // 8 // _PAGE * _PAGE) + _PAGE // 2
            for context in contexts.values():
                for lane in range(lanes):
                    context.fill(lane, depth)
            began = time.perf_counter()
            while time.perf_counter() - began < _SECONDS or not all(map(_is_settled, seconds.values())):
                for way, context in contexts.items():
                    seconds[way].append(_turn_seconds(context, depth))
        except (ConfigurationError, Unavailable, ValueError):  # no memory, or a state of an unknown form
            return {}
    return {way: min(times) for way, times in seconds.items()}


def _is_settled(times: list[float]) -> bool:
    best = sorted(times)[:2]
    return len(times) >= _MAX_ROUNDS or (len(best) == 2 and best[1] <= best[0] * (1 + _AGREEMENT))


def _turn_seconds(context: NativeContext, depth: int) -> float:
    """Return the seconds of a turn: pieces of its prompt, and _TURN tokens by the time of one step of all lanes."""
    piece = _decode_seconds(context, depth, lanes=1, rows=_PIECE)
    step = _decode_seconds(context, depth, lanes=context.lanes, rows=1)
    return _PIECES * piece + step * _TURN / context.lanes


def _decode_seconds(context: NativeContext, depth: int, *, lanes: int, rows: int) -> float:
    """Return the seconds of one batch with as many rows in each of the first lanes."""
    count = lanes * rows
    names = [lane for lane in range(lanes) for _ in range(rows)]
    positions = [depth + row for _ in range(lanes) for row in range(rows)]
    began = time.perf_counter()
    context.decode([0] * count, positions, names, [0] * count)
    seconds = time.perf_counter() - began
    for lane in range(lanes):
        context.forget(lane, depth)
    return seconds
