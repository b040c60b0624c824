"""The only module that computes with llama.cpp: models, vocabularies and contexts.

Callers work with token ids, numpy arrays and bytes. A context holds one KV stream per lane; lanes are sequence ids 0 …
n−1. A batch must name them in ascending order, because otherwise llama.cpp splits the batch. Apart from tokenising,
which only reads the vocabulary, nothing here may be called from several threads at once. Saved KV of a sliding window
is restored to the cells in which it was computed.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ConfigurationError, Unavailable
from .library import LOG_ERRORS, check_header, explain_load_failure, lib, libggml, start_library, weight_types
from .model_files import Adapter
from .placement import CPU, LayerPlacement, OutOfDeviceMemory


def nondeterminism_reason(path: Path) -> str | None:
    """Return why this model's answers depend on the rest of a batch even in strict mode, without loading weights.

    None if they do not, or if the file is no readable model.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return _nondeterminism_reason(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _nondeterminism_reason(path: Path, size: int, changed: int) -> str | None:
    start_library()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    handle = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        return None
    try:
        if lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle):
            return "a recurrent state cannot drop dummy tokens, so batches have no fixed shape"
        return None
    finally:
        lib.llama_model_free(handle)


StateBytes = npt.NDArray[np.uint8]

_CELL = np.dtype([("position", "<i4"), ("sequences", "<u4"), ("sequence", "<i4")])


def with_all_cells(state: StateBytes, *, window: int = 0) -> StateBytes:
    """Return a saved state with a cell for every position from 0 on, or raise `ValueError`.

    Added cells are zeros. If the state has a second part, for the layers with a sliding window, that part gets at most
    `window` more cells.
    """
    return _SavedCells(state).filled(window)


class _SavedCells:
    def __init__(self, state: StateBytes) -> None:
        self._state = state
        self._at = 0
        self._parts: list[StateBytes] = []

    def filled(self, window: int) -> StateBytes:
        self._copy(8)  # llama.cpp's magic number, and the sequence id
        limit = 1 << 31
        while self._at < len(self._state):
            for _ in range(self._number()):
                self._stream(limit)
            limit = window
        return np.concatenate(self._parts)

    def _stream(self, limit: int) -> None:
        start = len(self._parts)
        number = self._number()
        if not number:
            return
        cells = self._take(number * _CELL.itemsize).view(_CELL)
        first = int(cells["position"][0])
        if (cells["sequences"] != 1).any() or (cells["position"] != np.arange(first, first + number)).any():
            raise ValueError("the cells of the state are not in the order of positions")
        missing = min(first, limit)
        self._parts[start] = np.array([number + missing], dtype="<u4").view(np.uint8)
        added = np.empty(missing, dtype=_CELL)
        added["position"] = np.arange(first - missing, first)
        added["sequences"], added["sequence"] = 1, cells["sequence"][0]
        self._parts += [added.view(np.uint8), cells.view(np.uint8)]
        transposed, layers = self._number(), self._number()
        for _ in range(layers):
            self._rows(number, missing)
        if self._left_is_empty():  # some architectures store keys only
            return
        for _ in range(layers):
            if transposed:
                self._columns(number, missing)
            else:
                self._rows(number, missing)

    def _rows(self, stored: int, missing: int) -> None:
        """Copy one row per cell."""
        self._copy(4)
        size = int(self._copy(8).view("<u8")[0])
        self._parts.append(np.zeros(missing * size, dtype=np.uint8))
        self._copy(stored * size)

    def _columns(self, stored: int, missing: int) -> None:
        """Copy one row per value of a cell, with a column for each cell."""
        self._copy(4)
        size, numbers = self._number(), self._number()
        wide = np.zeros((numbers, (missing + stored) * size), dtype=np.uint8)
        wide[:, missing * size :] = self._take(numbers * stored * size).reshape(numbers, -1)
        self._parts.append(wide.reshape(-1))

    def _left_is_empty(self) -> bool:
        """Return True if only streams without cells follow."""
        return not self._state[self._at : self._at + 12].any()

    def _number(self) -> int:
        return int(self._copy(4).view("<u4")[0])

    def _copy(self, size: int) -> StateBytes:
        part = self._take(size)
        self._parts.append(part)
        return part

    def _take(self, size: int) -> StateBytes:
        part = self._state[self._at : self._at + size]
        if len(part) < size:
            raise ValueError("the state is truncated")
        self._at += size
        return part


_HUGE_PAGE = 2 << 20  # bytes
_MIN_HUGE_REGION = 32 << 20  # bytes; less memory is covered by the processor's table of small pages
_MAX_HUGE_SECONDS = 1.0  # CPU time: on a fragmented machine the kernel moves other pages first
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25

Regions = list[tuple[int, int]]


def private_memory() -> Regions:
    """Return the address ranges of this process's private memory, ascending; none on systems without /proc."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    fields = [line.split(maxsplit=5) for line in lines]
    ranges = [field[0].split("-") for field in fields if field[1] == "rw-p" and field[4] == "0"]
    return [(int(start, 16), int(end, 16)) for start, end in ranges]


def added_regions(before: Regions, after: Regions) -> Regions:
    """Return the parts of `after` that are not in `before`; both are ascending. Neighbours may have been merged."""
    added = []
    for begin, end in after:
        for known_begin, known_end in before:
            if known_begin < end and begin < known_end:
                if begin < known_begin:
                    added.append((begin, known_begin))
                begin = max(begin, min(known_end, end))
        if begin < end:
            added.append((begin, end))
    return added


def use_huge_pages(regions: Regions) -> None:
    """Move large regions to huge pages as far as the kernel allows; their contents stay.

    Without flash attention V is stored by columns, each as long as a lane, so that one step reads a few bytes of very
    many pages. With pages of 4 KB, decoding in lanes of 4096 tokens took up to 1.7 times as long.
    """
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is None:
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    began = time.thread_time()
    for begin, end in regions:
        begin, end = -(-begin // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
        if end - begin < _MIN_HUGE_REGION:
            continue
        advise(begin, end - begin, _MADV_HUGEPAGE)
        for start in range(begin, end, _MIN_HUGE_REGION):
            if time.thread_time() - began < _MAX_HUGE_SECONDS:  # the kernel does the rest in the background
                advise(start, min(_MIN_HUGE_REGION, end - start), _MADV_COLLAPSE)


Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
SavedState = npt.NDArray[np.uint8]

_KV_TYPES = {"f16": 1, "q8_0": 8, "f32": 0}
_KV_WIDTHS = {"f16": 2.0, "q8_0": 1.0625, "f32": 4.0}  # bytes per number
_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # only recurrent parts and sliding windows


class NativeModel:
    """Weights and vocabulary. `pieces` holds each token's bytes, so that decoding text needs no call per token."""

    def __init__(self, path: Path, *, placement: LayerPlacement = CPU) -> None:
        """Load a model, with its layers as `placement` says.

        Raises:
            ConfigurationError: The file is not GGUF, truncated, of an unknown architecture, or not a text generation
                model.
        """
        start_library()
        check_header(path)
        params = lib.llama_model_default_params()
        kept = placement.configure(params)  # arrays that `params` points to
        # llama.cpp's AMX kernels, as compiled by GCC, crash the process (ggml-org/llama.cpp, issue 20824). If the build
        # has them, weights stay in plain buffers, which these kernels do not read.
        params.use_extra_bufts = not libggml.ggml_cpu_has_amx_int8()
        handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        del kept
        if not handle and placement.layers:
            raise OutOfDeviceMemory(f"{path}: llama.cpp cannot put {placement} of this model")
        if not handle:
            raise ConfigurationError(f"{path}: llama.cpp cannot load this model: {explain_load_failure(path)}")
        self.path, self.placement = path, placement
        self._handle = handle
        self._adapters: dict[Path, Any] = {}
        if problem := self._unsupported_reason():
            self.close()
            raise ConfigurationError(f"{path}: {problem}; use a text generation model")
        self.recurrent: bool = lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle)
        self._vocab = lib.llama_model_get_vocab(handle)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.train_context: int = lib.llama_model_n_ctx_train(handle)
        self.n_heads: int = max(1, lib.llama_model_n_head(handle))
        self.size: int = lib.llama_model_size(handle)
        self.weight_types = weight_types(path)
        self.bos: int = lib.llama_vocab_bos(self._vocab)
        self.eos: int = lib.llama_vocab_eos(self._vocab)
        self.adds_bos: bool = lib.llama_vocab_get_add_bos(self._vocab)
        self.pieces: list[bytes] = [self._piece(token) for token in range(self.n_vocab)]
        self.adds_space = b"".join(self.pieces[token] for token in self._tokenize("x", special=False)) == b" x"
        self.ends = np.array([lib.llama_vocab_is_eog(self._vocab, token) for token in range(self.n_vocab)])
        self.controls = np.array([lib.llama_vocab_is_control(self._vocab, token) for token in range(self.n_vocab)])
        try:
            self._per_token, self._per_lane = self._measure_state_sizes()
        except BaseException:
            self.close()
            raise

    def tokenize(self, text: str, *, special: bool) -> Tokens:
        """Return token ids that spell exactly this text. If `special`, control tokens written in it are parsed."""
        if self.adds_space:
            # This vocabulary puts a space before every text, but not after a line break, which never merges. So a line
            # break is put before the text, and its own tokens are removed.
            return self._tokenize("\n" + text, special=special)[len(self._tokenize("\n", special=False)) :]
        return self._tokenize(text, special=special)

    def _tokenize(self, text: str, *, special: bool) -> Tokens:
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * capacity)()
            count = lib.llama_tokenize(self._vocab, data, len(data), buffer, capacity, False, special)
            if count >= 0:
                return np.array(buffer[:count], dtype=np.int32)
            capacity = -count

    def metadata(self, key: str) -> str | None:
        """Return a value of the GGUF's metadata as text."""
        buffer = ctypes.create_string_buffer(1 << 18)
        length = lib.llama_model_meta_val_str(self._handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    def control_text(self, token: int) -> str:
        """Return a token's text as chat templates write it; "" for a negative id."""
        return (lib.llama_vocab_get_text(self._vocab, token) or b"").decode() if token >= 0 else ""

    def kv_bytes(self, kv_type: str, tokens: int, lanes: int) -> int:
        """Estimate the bytes of KV for `tokens` tokens and of recurrent states for `lanes` lanes."""
        return int(self._per_token * _KV_WIDTHS[kv_type] / _KV_WIDTHS["f16"] * tokens + self._per_lane * lanes)

    def kv_tensor_bytes(self, kv_type: str, tokens: int) -> int:
        """Estimate the bytes of one layer's keys, or values, for `tokens` tokens: they are one tensor for all lanes."""
        return self.kv_bytes(kv_type, tokens, 0) // (2 * max(1, int(lib.llama_model_n_layer(self._handle))))

    def adapter(self, path: Path) -> Any:
        """Return a LoRA adapter for these weights, loaded on first use and freed with the weights. It is shared.

        Raises:
            ConfigurationError: The file is no LoRA adapter, or one for another model.
        """
        if path not in self._adapters:
            check_header(path)
            LOG_ERRORS.clear()
            handle = lib.llama_adapter_lora_init(self._handle, os.fsencode(path))
            if not handle:
                reason = LOG_ERRORS[-1].rpartition("lora adapter: ")[2] if LOG_ERRORS else "unknown"
                raise ConfigurationError(
                    f"{path}: llama.cpp cannot use this LoRA adapter with {self.path.name}: {reason}; name an adapter "
                    "that was trained on this model and converted to GGUF"
                )
            if lib.llama_adapter_get_alora_n_invocation_tokens(handle):
                raise ConfigurationError(f"{path}: an activated LoRA (aLoRA), which this engine cannot run")
            self._adapters[path] = handle
        return self._adapters[path]

    def close(self) -> None:
        """Free the weights."""
        if self._handle:
            lib.llama_model_free(self._handle)
            self._handle = None

    def _unsupported_reason(self) -> str | None:
        """Return why this is no text generation model, or None. llama.cpp aborts the process for some of these."""
        if lib.llama_model_has_encoder(self._handle) or not lib.llama_model_has_decoder(self._handle):
            return "an encoder-decoder or encoder model, which this engine cannot run"
        if lib.llama_model_is_diffusion(self._handle):
            return "a diffusion model, which does not generate token by token"
        architecture = self.metadata("general.architecture")
        if self.metadata(f"{architecture}.pooling_type") not in (None, "0"):
            return "an embedding or reranking model (it has a pooling type)"
        if self.metadata(f"{architecture}.attention.causal") == "false":
            return "an embedding model (its attention is not causal)"
        return None

    def _measure_state_sizes(self) -> tuple[int, int]:
        """Compute two tokens and measure the bytes of state per token (f16) and per lane.

        Raises:
            ConfigurationError: An intact model cannot produce these logits.
        """
        # By one thread, because OpenMP keeps threads that it makes here: with more of them than processors, those of
        # an inference thread sleep at llama.cpp's barriers instead of waiting, and steps take twice as long.
        context = NativeContext(self, lanes=1, context=256, batch=1, threads=1, canonical=False)
        try:
            sizes, rows = [], []
            spelling = [int(token) for token in self._tokenize("xe", special=False)] or [0]
            for position, token in enumerate((spelling[0], spelling[-1])):
                logits = context.decode([token], [position], [0], [1])
                assert logits is not None
                rows.append(logits[0].copy())
                sizes.append(context.saved_size(0))
        finally:
            context.close()
        if not np.isfinite(rows).all():
            raise ConfigurationError(f"{self.path}: its logits are not finite (NaN or infinite): damaged weights")
        if rows[-1].min() == rows[-1].max():
            raise ConfigurationError(f"{self.path}: all its logits are equal: empty weights (zeros)")
        return sizes[1] - sizes[0], max(0, 2 * sizes[0] - sizes[1])

    def _piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if length >= 0:
                return buffer.raw[:length]
            size = -length


class NativeContext:
    """Sequences of one model in `lanes` lanes of up to `context` tokens each.

    `decode` takes parallel arrays of equal length (token, position, lane, logits requested) and returns the requested
    rows of logits, a view that the next call overwrites.
    """

    def __init__(
        self,
        model: NativeModel,
        *,
        lanes: int,
        context: int,
        batch: int,
        threads: int,
        ubatch: int = 0,
        kv_type: str = "f16",
        flash_attention: str = "auto",
        canonical: bool = True,
        adapters: Sequence[Adapter] = (),
        slots: int = 0,
    ) -> None:
        """Create the context. With `canonical`, restored KV returns to its original cells; so sums keep their order.

        `slots` more sequences, with the ids after the lanes, only store KV (`copy`).

        Raises:
            ConfigurationError: llama.cpp could not create the context, usually for lack of memory.
        """
        handles = [model.adapter(adapter.path) for adapter in adapters]  # before the context, which plans for them
        params = lib.llama_context_default_params()
        params.n_ctx = context * (lanes + slots)
        params.n_batch, params.n_ubatch = batch, ubatch or batch
        params.n_seq_max = lanes + slots
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        params.offload_kqv = model.placement.kv_offload
        params.no_perf = True
        params.type_k = params.type_v = _KV_TYPES[kv_type]
        params.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[flash_attention]
        before = private_memory() if flash_attention == "off" else None
        self._handle = lib.llama_init_from_model(model._handle, params)
        if not self._handle:
            kind = OutOfDeviceMemory if model.placement.kv_share else ConfigurationError
            raise kind(
                f"{model.path}: no context of {lanes + slots} lanes x {context} tokens could be created, usually for "
                "lack of memory; try fewer ?lanes=, a smaller ?ctx= or ?kv_type=q8_0"
            )
        if before is not None:
            use_huge_pages(added_regions(before, private_memory()))
        scales = (ctypes.c_float * len(adapters))(*(adapter.scale for adapter in adapters))
        pointers = (lib.llama_adapter_lora_p_ctypes * len(handles))(*handles)
        if handles and lib.llama_set_adapters_lora(self._handle, pointers, len(handles), scales):
            self.close()
            raise ConfigurationError(f"{model.path}: llama.cpp could not apply the LoRA adapters")
        # llama.cpp caps batches at the requested context size, and aborts the process on a larger one.
        batch = min(batch, lib.llama_n_batch(self._handle))
        self.model, self.lanes, self.slots, self.batch, self._canonical = model, lanes, slots, batch, canonical
        self.threads = threads
        self._copied: int | None = None  # the target of a copy that llama.cpp makes with the next batch
        self.context: int = lib.llama_n_ctx_seq(self._handle)
        self._name = model.path.name
        self._batch: Any = None
        self._memory = lib.llama_get_memory(self._handle)
        if not self._memory:
            self.close()
            raise ConfigurationError(
                f"{model.path}: llama.cpp has no KV cache for this architecture: not a text generation model"
            )
        self._rows_at, self._rows = 0, np.empty((0, 0), dtype=np.float32)
        self._make_batch(batch)
        # llama.cpp calls back between operations to ask whether to abort. A Python callback would take the GIL each
        # time. `strlen` of a buffer serves instead: it returns 0 (continue) until the buffer has content.
        self._stop = ctypes.create_string_buffer(2)
        callback = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)
        lib.llama_set_abort_callback(self._handle, callback, ctypes.cast(self._stop, ctypes.c_void_p))

    def decode(self, tokens: Any, positions: Any, lanes: Any, logit_rows: Any) -> Logits | None:
        """Compute one batch; return the requested rows of logits in order, None if none were requested.

        Raises:
            Unavailable: llama.cpp refused the batch; the lanes' KV beyond their last valid position is undefined.
        """
        count = len(tokens)
        self._token[:count] = tokens
        self._pos[:count] = positions
        self._lane[:count] = lanes
        self._logit_rows[:count] = logit_rows
        self._batch.n_tokens = count
        rows = int(sum(logit_rows))
        self._copied = None
        status = lib.llama_decode(self._handle, self._batch)
        if status != 0:
            raise Unavailable(f"llama_decode failed with status {status} on {count} tokens", model=self._name)
        if rows == 0:
            lib.llama_synchronize(self._handle)
            return None
        return self._logits()[:rows]

    def forget(self, lane: int, start: int = 0) -> None:
        """Drop a lane's KV from position `start` on, or raise `Unavailable`; a recurrent state is dropped entirely."""
        if not lib.llama_memory_seq_rm(self._memory, lane, start, -1):
            raise Unavailable(f"llama.cpp cannot remove a lane's tokens from position {start} on", model=self._name)

    def wipe(self, lane: int) -> None:
        """Drop a lane's KV and overwrite its memory after non-finite values.

        Without flash attention these values would spread to everything computed in the lane later, because unused cells
        are multiplied by zero too.
        """
        self._finish_copies()
        sequences = range(self.lanes + self.slots)
        others = [other for other in sequences if lib.llama_memory_seq_pos_max(self._memory, other) >= 0]
        states = {other: self._saved(other, 0) for other in others if other != lane}
        lib.llama_memory_clear(self._memory, True)
        for other, state in states.items():
            self.restore(other, state)

    def checkpoint(self, lane: int) -> SavedState | None:
        """Return what `rewind` needs besides the length to restore a lane's present state; None if nothing."""
        if not self.model.recurrent:
            return None
        return self._saved(lane, _PARTIAL)

    def rewind(self, lane: int, length: int, checkpoint: SavedState | None) -> None:
        """Return a lane to the `length` that it had at the checkpoint, or raise `Unavailable`."""
        if checkpoint is not None:
            self._put(lane, checkpoint, _PARTIAL)
        self.forget(lane, length)

    def copy(self, source: int, target: int) -> None:
        """Replace the KV of a lane or slot with that of another one; on a device, without the host's memory."""
        lib.llama_memory_seq_rm(self._memory, target, -1, -1)
        lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self._copied = target

    def _finish_copies(self) -> None:
        """Make llama.cpp copy now what it would copy with the next batch."""
        if self._copied is not None:
            target = self._copied
            start = lib.llama_memory_seq_pos_max(self._memory, target) + 1
            self.decode([0], [start], [target], [0])
            self.forget(target, start)

    def saved_size(self, lane: int) -> int:
        """Return how many bytes `save` would write now."""
        size: int = lib.llama_state_seq_get_size(self._handle, lane)
        return size

    def save(self, lane: int, memory: SavedState) -> None:
        """Write a lane's whole KV into host memory of at least `saved_size` bytes."""
        self._finish_copies()
        self._save(lane, memory, self.saved_size(lane), 0)

    def restore(self, lane: int, state: SavedState) -> None:
        """Replace a lane's KV with a state that `save` wrote.

        Raises:
            Unavailable: llama.cpp refused, or (`canonical`) its state format is unknown here.
        """
        self._finish_copies()
        self.forget(lane)
        self._put(lane, state, 0)
        if self._canonical and not self.model.recurrent and lib.llama_memory_seq_pos_min(self._memory, lane) > 0:
            # Only the visible part of a sliding window was saved, and that part was restored to the first cells.
            try:
                self._put(lane, with_all_cells(self._saved(lane, _PARTIAL)), _PARTIAL)
            except ValueError as error:
                raise Unavailable(
                    f"this llama.cpp saves sliding windows in an unknown format ({error}); use strict=off",
                    model=self._name,
                ) from None

    def _saved(self, lane: int, flags: int) -> SavedState:
        size = lib.llama_state_seq_get_size_ext(self._handle, lane, flags)
        memory = np.empty(size, dtype=np.uint8)
        self._save(lane, memory, size, flags)
        return memory

    def _save(self, lane: int, memory: SavedState, size: int, flags: int) -> None:
        pointer = memory.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = lib.llama_state_seq_get_data_ext(self._handle, pointer, memory.nbytes, lane, flags)
        if written != size:
            raise Unavailable(f"llama.cpp saved {written} of {size} bytes of KV", model=self._name)

    def _put(self, lane: int, state: SavedState, flags: int) -> None:
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if lib.llama_state_seq_set_data_ext(self._handle, pointer, state.nbytes, lane, flags) == 0:
            raise Unavailable("llama.cpp could not restore KV that it had saved", model=self._name)

    def fill(self, lane: int, length: int) -> None:
        """Give a lane KV of `length` tokens that nobody computed, to measure with.

        Raises:
            Unavailable: llama.cpp refused.
            ValueError: The format of the state is unknown.
        """
        self.forget(lane)
        self.decode([0], [length - 1], [lane], [0])
        state = with_all_cells(self._saved(lane, 0), window=lib.llama_model_n_swa(self.model._handle))
        self.forget(lane)
        self._put(lane, state, 0)

    def interrupt(self) -> None:
        """Make the current call, and all later ones, fail at their next operation. Thread-safe."""
        self._stop.value = b"x"

    def close(self) -> None:
        """Free the KV and buffers."""
        if self._handle:
            if self._batch is not None:
                self._batch.seq_id = self._original
                lib.llama_batch_free(self._batch)
            lib.llama_free(self._handle)
            self._handle = None

    def _logits(self) -> Logits:
        """Return a view of the logits, one row per batch row; rows that were not requested are undefined.

        The view is rebuilt only if llama.cpp's buffer has moved, because after a step, with cold caches, building it
        takes as long as sampling.
        """
        address = ctypes.addressof(lib.llama_get_logits(self._handle).contents)
        if address != self._rows_at:
            memory: Any = (ctypes.c_float * (self.batch * self.model.n_vocab)).from_address(address)
            self._rows, self._rows_at = np.frombuffer(memory, dtype=np.float32).reshape(self.batch, -1), address
        return self._rows

    def _make_batch(self, size: int) -> None:
        self._batch = lib.llama_batch_init(size, 0, 1)
        as_array = np.ctypeslib.as_array
        self._token = as_array(self._batch.token, shape=(size,))
        self._pos = as_array(self._batch.pos, shape=(size,))
        self._logit_rows = as_array(self._batch.logits, shape=(size,))
        as_array(self._batch.n_seq_id, shape=(size,))[:] = 1
        # llama.cpp wants a pointer per token. All point into one buffer of this object, so that filling a batch is one
        # array assignment. llama.cpp's own allocations stay where `llama_batch_free` looks for them.
        self._lane = np.zeros(size, dtype=np.int32)
        self._pointers = (ctypes.POINTER(ctypes.c_int32) * (size + 1))()
        base = self._lane.ctypes.data
        for row in range(size):
            self._pointers[row] = ctypes.cast(base + 4 * row, ctypes.POINTER(ctypes.c_int32))
        kind = ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
        self._original = ctypes.cast(self._batch.seq_id, kind)  # a cast: the field itself would change with the struct
        self._batch.seq_id = ctypes.cast(self._pointers, kind)


CONTROL_TOKEN, USER_DEFINED_TOKEN = lib.LLAMA_TOKEN_ATTR_CONTROL, lib.LLAMA_TOKEN_ATTR_USER_DEFINED
UNKNOWN_TOKEN = lib.LLAMA_TOKEN_ATTR_UNKNOWN
STRIPS_LEFT, STRIPS_RIGHT = lib.LLAMA_TOKEN_ATTR_LSTRIP, lib.LLAMA_TOKEN_ATTR_RSTRIP


def token_attributes(model: NativeModel) -> npt.NDArray[np.int32]:
    """Return each token's attributes: a sum of the `LLAMA_TOKEN_ATTR` bits of `llama_cpp`."""
    attributes = (lib.llama_vocab_get_attr(model._vocab, token) for token in range(model.n_vocab))
    return np.fromiter(attributes, dtype=np.int32, count=model.n_vocab)


def tokenize_after_special(model: NativeModel, text: str) -> Tokens:
    """Tokenise plain text as llama.cpp does after a control token: in some vocabularies with a space before it."""
    return model._tokenize(text, special=False)


def tokenize_after_text(model: NativeModel, text: str) -> Tokens:
    """Tokenise plain text that continues other text: without a space before it, spelling exactly this text."""
    tokens = model._tokenize(text, special=False)
    if not model.adds_space:
        return tokens
    spelling = text.encode("utf-8", "replace")
    for opening in ("\n", "\x01", "."):  # the first that does not merge; its tokens are removed
        head, both = model._tokenize(opening, special=False), model._tokenize(opening + text, special=False)
        tail = both[len(head) :]
        if np.array_equal(both[: len(head)], head) and b"".join(model.pieces[token] for token in tail) == spelling:
            return tail
    return model.tokenize(text, special=False)


@dataclass(slots=True, frozen=True)
class Segment:
    """Token ids. If `decoded`, they were computed one by one during generation, else in one prefill."""

    tokens: Tokens
    decoded: bool = False

    def key(self) -> tuple[bool, bytes]:
        """Key for comparing segments."""
        return self.decoded, self.tokens.tobytes()
