"""The one module that touches llama.cpp: models, vocabularies and contexts as small typed objects.

Everything above works with token ids, numpy arrays and bytes. A context holds one KV stream per lane; lanes are
sequence ids 0 … n−1, and a batch must name them in ascending order, for llama.cpp splits it into passes otherwise.

What never belongs here: scheduling, sampling, prompts. Nothing here is safe to call from two threads at once, except
tokenising, which reads the vocabulary only.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
from llama_cpp._ggml import libggml

from ...errors import ConfigurationError, Unavailable
from .gguf_file import diagnosis, inspect_head

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]

_KV_TYPES = {"f16": 1, "q8_0": 8, "f32": 0}
_QUIET = lib.llama_log_callback(lambda level, text, data: None)
_SILENT = False


class NativeModel:
    """Weights and vocabulary. ``pieces`` holds each token's bytes, so that text is made without a call per token."""

    def __init__(self, path: Path, *, gpu_layers: int = 0) -> None:
        """:raises ConfigurationError: not a GGUF file, truncated, or of an architecture llama.cpp does not know."""
        _start_library()
        inspect_head(path)
        params = lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        # llama.cpp's AMX kernels, as GCC compiles them, end the process (ggml-org/llama.cpp, issue 20824): where the
        # build has them, weights stay in the plain buffers, which they do not read.
        params.use_extra_bufts = not libggml.ggml_cpu_has_amx_int8()
        handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            raise ConfigurationError(f"{path}: llama.cpp cannot load this model: {diagnosis(path)}")
        self.path = path
        self._handle = handle
        self._vocab = lib.llama_model_get_vocab(handle)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.train_context: int = lib.llama_model_n_ctx_train(handle)
        self.n_layers: int = lib.llama_model_n_layer(handle)
        self.n_embd: int = lib.llama_model_n_embd(handle)
        self.n_heads: int = max(1, lib.llama_model_n_head(handle))
        self.n_kv_heads: int = max(1, lib.llama_model_n_head_kv(handle))
        self.size: int = lib.llama_model_size(handle)
        self.kinds = _weight_kinds(path)
        self.bos: int = lib.llama_vocab_bos(self._vocab)
        self.eos: int = lib.llama_vocab_eos(self._vocab)
        self.adds_bos: bool = lib.llama_vocab_get_add_bos(self._vocab)
        self.pieces: list[bytes] = [self._piece(token) for token in range(self.n_vocab)]
        self._spaced = b"".join(self.pieces[token] for token in self._tokenize("x", special=False)) == b" x"
        self.ends = np.array([lib.llama_vocab_is_eog(self._vocab, token) for token in range(self.n_vocab)])
        self.controls = np.array([lib.llama_vocab_is_control(self._vocab, token) for token in range(self.n_vocab)])

    def tokenize(self, text: str, *, special: bool) -> Tokens:
        """Token ids of a piece of text, spelling just that. ``special``: control tokens written in it count as such."""
        if self._spaced:
            # This vocabulary puts a space before every text. Behind a line break, which joins with nothing, there is
            # none; the break's own tokens are cut off again.
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
        """A value of the GGUF's metadata as text."""
        buffer = ctypes.create_string_buffer(1 << 18)
        length = lib.llama_model_meta_val_str(self._handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    def control_text(self, token: int) -> str:
        """A control token as it is written in templates; empty if there is no such token."""
        return (lib.llama_vocab_get_text(self._vocab, token) or b"").decode() if token >= 0 else ""

    def kv_bytes_per_token(self, kv_type: str) -> int:
        """About how many bytes of KV one token takes."""
        width = {"f16": 2.0, "q8_0": 1.0625, "f32": 4.0}[kv_type]
        return int(2 * self.n_layers * (self.n_embd // self.n_heads) * self.n_kv_heads * width)

    def close(self) -> None:
        """Free the weights."""
        if self._handle:
            lib.llama_model_free(self._handle)
            self._handle = None

    def _piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if length >= 0:
                return buffer.raw[:length]
            size = -length


class NativeContext:
    """``lanes`` sequences of up to ``context`` tokens each over one model.

    ``decode`` takes parallel arrays of equal length (token, position, lane, wanted) and returns the logits of the
    wanted rows, a view that the next call overwrites.
    """

    def __init__(
        self,
        model: NativeModel,
        *,
        lanes: int,
        context: int,
        batch: int,
        threads: int,
        kv_type: str = "f16",
        flash_attention: str = "auto",
    ) -> None:
        """:raises ConfigurationError: llama.cpp could not make it, most often for want of memory."""
        params = lib.llama_context_default_params()
        params.n_ctx = context * lanes
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = lanes
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        params.no_perf = True
        params.type_k = params.type_v = _KV_TYPES[kv_type]
        params.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[flash_attention]
        self._handle = lib.llama_init_from_model(model._handle, params)
        if not self._handle:
            size = model.kv_bytes_per_token(kv_type) * context * lanes / 1e9
            raise ConfigurationError(
                f"{model.path}: no context of {lanes} lanes x {context} tokens could be made (about {size:.1f} GB "
                "of KV); try fewer ?lanes=, a smaller ?ctx= or ?kv_type=q8_0"
            )
        self.model, self.lanes, self.batch = model, lanes, batch
        self.context: int = lib.llama_n_ctx_seq(self._handle)
        self._memory = lib.llama_get_memory(self._handle)
        self._rows_at, self._rows = 0, np.empty((0, 0), dtype=np.float32)
        self._make_batch(batch)

    def decode(self, tokens: Any, positions: Any, lanes: Any, wanted: Any) -> Logits | None:
        """Compute one batch; rows wanted come back in order, None if none was.

        :raises Unavailable: llama.cpp refused the batch; the lanes' KV beyond their last good position is undefined.
        """
        count = len(tokens)
        self._token[:count] = tokens
        self._pos[:count] = positions
        self._lane[:count] = lanes
        self._wanted[:count] = wanted
        self._batch.n_tokens = count
        rows = int(sum(wanted))
        status = lib.llama_decode(self._handle, self._batch)
        if status != 0:
            raise Unavailable(f"llama_decode failed with status {status} on {count} tokens", model=self.model.path.name)
        if rows == 0:
            lib.llama_synchronize(self._handle)
            return None
        return self._logits()[:rows]

    def forget(self, lane: int, start: int = 0) -> None:
        """Drop a lane's KV from position ``start`` on."""
        lib.llama_memory_seq_rm(self._memory, lane, start, -1)

    def saved_size(self, lane: int) -> int:
        """How many bytes ``save`` would take now."""
        size: int = lib.llama_state_seq_get_size(self._handle, lane)
        return size

    def save(self, lane: int, memory: npt.NDArray[np.uint8]) -> None:
        """Write a lane's whole KV into host memory that has room for it, or more."""
        size = self.saved_size(lane)
        pointer = memory.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = lib.llama_state_seq_get_data(self._handle, pointer, memory.nbytes, lane)
        if written != size:
            raise Unavailable(f"llama.cpp saved {written} of {size} bytes of KV", model=self.model.path.name)

    def restore(self, lane: int, state: npt.NDArray[np.uint8]) -> None:
        """Give a lane the KV that ``save`` returned, in place of its own."""
        self.forget(lane)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if lib.llama_state_seq_set_data(self._handle, pointer, state.nbytes, lane) == 0:
            raise Unavailable("llama.cpp did not take back KV that it had saved", model=self.model.path.name)

    def close(self) -> None:
        """Free the KV and buffers."""
        if self._handle:
            self._batch.seq_id = self._original
            lib.llama_batch_free(self._batch)
            lib.llama_free(self._handle)
            self._handle = None

    def _logits(self) -> Logits:
        """A row for each of a batch, those beyond the wanted ones not to be read. Made only when llama.cpp's buffer has
        moved: behind a step, with caches cold, making it takes as long as sampling.
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
        self._wanted = as_array(self._batch.logits, shape=(size,))
        as_array(self._batch.n_seq_id, shape=(size,))[:] = 1
        # llama.cpp wants a pointer per token; all of them point into one buffer of ours, so that filling a batch is
        # one array assignment. Its own allocations stay where its batch_free looks for them.
        self._lane = np.zeros(size, dtype=np.int32)
        self._pointers = (ctypes.POINTER(ctypes.c_int32) * (size + 1))()
        base = self._lane.ctypes.data
        for row in range(size):
            self._pointers[row] = ctypes.cast(base + 4 * row, ctypes.POINTER(ctypes.c_int32))
        kind = ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
        self._original = ctypes.cast(self._batch.seq_id, kind)  # a cast: the field itself would change with the struct
        self._batch.seq_id = ctypes.cast(self._pointers, kind)


def _start_library() -> None:
    global _SILENT
    if not _SILENT:
        lib.llama_log_set(_QUIET, ctypes.c_void_p(0))
        lib.llama_backend_init()
        _SILENT = True


class _GgufOptions(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _declare_gguf(library: Any) -> Any:
    """llama_cpp binds llama.cpp only; these few functions are of the library below it."""
    for name, result, *arguments in (
        ("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _GgufOptions),
        ("gguf_get_n_tensors", ctypes.c_int64, ctypes.c_void_p),
        ("gguf_get_tensor_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64),
        ("ggml_type_name", ctypes.c_char_p, ctypes.c_int),
        ("gguf_free", None, ctypes.c_void_p),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _weight_kinds(path: Path) -> frozenset[str]:
    """The kinds of weights in a file by their GGUF names, in capitals; llama.cpp has found the file good before."""
    gguf = _declare_gguf(libggml)
    handle = gguf.gguf_init_from_file(os.fsencode(path), _GgufOptions(True, None))
    if not handle:
        return frozenset({"UNKNOWN"})
    kinds = {gguf.gguf_get_tensor_type(handle, index) for index in range(gguf.gguf_get_n_tensors(handle))}
    gguf.gguf_free(handle)
    return frozenset(gguf.ggml_type_name(kind).decode().upper() for kind in kinds)
