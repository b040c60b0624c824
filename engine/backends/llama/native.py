"""The one module that computes with llama.cpp: models, vocabularies and contexts as small typed objects.

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
from .gguf_check import diagnosis, inspect_head
from .gguf_header import start_library, weight_kinds
from .kv.sliding_window import spread

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
State = npt.NDArray[np.uint8]

_KV_TYPES = {"f16": 1, "q8_0": 8, "f32": 0}
_KV_WIDTHS = {"f16": 2.0, "q8_0": 1.0625, "f32": 4.0}  # bytes of a number
_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # only recurrent parts and sliding windows


class NativeModel:
    """Weights and vocabulary. ``pieces`` holds each token's bytes, so that text is made without a call per token."""

    def __init__(self, path: Path, *, gpu_layers: int = 0) -> None:
        """:raises ConfigurationError: not a GGUF file, truncated, of an architecture unknown to llama.cpp, or no model
        that writes text.
        """
        start_library()
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
        if problem := self._writes_no_text():
            self.close()
            raise ConfigurationError(f"{path}: {problem}; take a model that writes text token by token")
        self.recurrent: bool = lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle)
        self._vocab = lib.llama_model_get_vocab(handle)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.train_context: int = lib.llama_model_n_ctx_train(handle)
        self.n_heads: int = max(1, lib.llama_model_n_head(handle))
        self.size: int = lib.llama_model_size(handle)
        self.kinds = weight_kinds(path)
        self.bos: int = lib.llama_vocab_bos(self._vocab)
        self.eos: int = lib.llama_vocab_eos(self._vocab)
        self.adds_bos: bool = lib.llama_vocab_get_add_bos(self._vocab)
        self.pieces: list[bytes] = [self._piece(token) for token in range(self.n_vocab)]
        self.spaces = b"".join(self.pieces[token] for token in self._tokenize("x", special=False)) == b" x"
        self.ends = np.array([lib.llama_vocab_is_eog(self._vocab, token) for token in range(self.n_vocab)])
        self.controls = np.array([lib.llama_vocab_is_control(self._vocab, token) for token in range(self.n_vocab)])
        try:
            self._per_token, self._per_lane = self._tried()
        except BaseException:
            self.close()
            raise

    def tokenize(self, text: str, *, special: bool) -> Tokens:
        """Token ids of a piece of text, spelling just that. ``special``: control tokens written in it count as such."""
        if self.spaces:
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

    def kv_bytes(self, kv_type: str, tokens: int, lanes: int) -> int:
        """About how many bytes so many tokens take in so many lanes, recurrent states included."""
        return int(self._per_token * _KV_WIDTHS[kv_type] / _KV_WIDTHS["f16"] * tokens + self._per_lane * lanes)

    def close(self) -> None:
        """Free the weights."""
        if self._handle:
            lib.llama_model_free(self._handle)
            self._handle = None

    def _writes_no_text(self) -> str | None:
        """Why this model does not continue texts; None if it does. llama.cpp ends the process for some that do not."""
        if lib.llama_model_has_encoder(self._handle) or not lib.llama_model_has_decoder(self._handle):
            return "an encoder-decoder or encoder model, which this engine cannot run"
        if lib.llama_model_is_diffusion(self._handle):
            return "a diffusion model, which does not write token by token"
        architecture = self.metadata("general.architecture")
        if self.metadata(f"{architecture}.pooling_type") not in (None, "0"):
            return "an embedding or reranking model (it has a pooling type)"
        if self.metadata(f"{architecture}.attention.causal") == "false":
            return "an embedding model (its attention is not causal)"
        return None

    def _tried(self) -> tuple[int, int]:
        """Compute two tokens: the bytes of state that each one takes in f16, and those that a lane takes at any length.

        :raises ConfigurationError: what comes out cannot be the work of a whole model.
        """
        context = NativeContext(self, lanes=1, context=256, batch=1, threads=os.cpu_count() or 1, canonical=False)
        try:
            sizes, rows = [], []
            spelt = [int(token) for token in self._tokenize("xe", special=False)] or [0]
            for position, token in enumerate((spelt[0], spelt[-1])):
                logits = context.decode([token], [position], [0], [1])
                assert logits is not None
                rows.append(logits[0].copy())
                sizes.append(context.saved_size(0))
        finally:
            context.close()
        if not np.isfinite(rows).all():
            raise ConfigurationError(f"{self.path}: its logits are no numbers (NaN or infinite): damaged weights")
        if rows[-1].min() == rows[-1].max():
            raise ConfigurationError(f"{self.path}: all tokens are equally likely to it: empty weights (zeros)")
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
        canonical: bool = True,
    ) -> None:
        """``canonical``: KV that is put back lies where it was computed, so that sums run in the same order.

        :raises ConfigurationError: llama.cpp could not make it, most often for want of memory.
        """
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
            raise ConfigurationError(
                f"{model.path}: no context of {lanes} lanes x {context} tokens could be made, most often for want of "
                "memory; try fewer ?lanes=, a smaller ?ctx= or ?kv_type=q8_0"
            )
        self.model, self.lanes, self.batch, self._canonical = model, lanes, batch, canonical
        self.context: int = lib.llama_n_ctx_seq(self._handle)
        self._name = model.path.name
        self._batch: Any = None
        self._memory = lib.llama_get_memory(self._handle)
        if not self._memory:
            self.close()
            raise ConfigurationError(f"{model.path}: llama.cpp keeps no KV for this architecture: it writes no text")
        self._rows_at, self._rows = 0, np.empty((0, 0), dtype=np.float32)
        self._make_batch(batch)
        # llama.cpp asks between operations whether to give up. A callback in Python would take the interpreter's lock
        # each time; strlen of a text of ours says the same: no (0) while it is empty, yes once it is not.
        self._stop = ctypes.create_string_buffer(2)
        asked = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)
        lib.llama_set_abort_callback(self._handle, asked, ctypes.cast(self._stop, ctypes.c_void_p))

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
            raise Unavailable(f"llama_decode failed with status {status} on {count} tokens", model=self._name)
        if rows == 0:
            lib.llama_synchronize(self._handle)
            return None
        return self._logits()[:rows]

    def forget(self, lane: int, start: int = 0) -> None:
        """Drop a lane's KV from position ``start`` on. A recurrent state goes as a whole, or not at all.

        :raises Unavailable: llama.cpp refused; nothing was dropped.
        """
        if not lib.llama_memory_seq_rm(self._memory, lane, start, -1):
            raise Unavailable(f"llama.cpp does not take back a lane's tokens from {start} on", model=self._name)

    def wipe(self, lane: int) -> None:
        """Drop a lane's KV and overwrite its memory, after numbers that are none: without flash attention they would
        reach all that is computed in the lane from then on, for cells out of use are multiplied by zero too.
        """
        others = [other for other in range(self.lanes) if lib.llama_memory_seq_pos_max(self._memory, other) >= 0]
        states = {other: self._saved(other, 0) for other in others if other != lane}
        lib.llama_memory_clear(self._memory, True)
        for other, state in states.items():
            self.restore(other, state)

    def mark(self, lane: int) -> State | None:
        """What ``rewind`` needs besides the length to bring a lane back to what it holds now; None: nothing."""
        if not self.model.recurrent:
            return None
        return self._saved(lane, _PARTIAL)

    def rewind(self, lane: int, length: int, mark: State | None) -> None:
        """Bring a lane back to the ``length`` that it had when ``mark`` was made.

        :raises Unavailable: llama.cpp refused.
        """
        if mark is not None:
            self._put(lane, mark, _PARTIAL)
        self.forget(lane, length)

    def saved_size(self, lane: int) -> int:
        """How many bytes ``save`` would take now."""
        size: int = lib.llama_state_seq_get_size(self._handle, lane)
        return size

    def save(self, lane: int, memory: State) -> None:
        """Write a lane's whole KV into host memory that has room for it, or more."""
        self._save(lane, memory, self.saved_size(lane), 0)

    def restore(self, lane: int, state: State) -> None:
        """Give a lane the KV that ``save`` returned, in place of its own.

        :raises Unavailable: llama.cpp refused, or (``canonical``) keeps it in a form unknown here.
        """
        self.forget(lane)
        self._put(lane, state, 0)
        if self._canonical and not self.model.recurrent and lib.llama_memory_seq_pos_min(self._memory, lane) > 0:
            # Of a sliding window only the part in sight was saved; it lies at the first cells now.
            try:
                self._put(lane, spread(self._saved(lane, _PARTIAL)), _PARTIAL)
            except ValueError as error:
                raise Unavailable(
                    f"this llama.cpp keeps sliding windows in a form unknown here ({error}); say strict=off",
                    model=self._name,
                ) from None

    def _saved(self, lane: int, flags: int) -> State:
        size = lib.llama_state_seq_get_size_ext(self._handle, lane, flags)
        memory = np.empty(size, dtype=np.uint8)
        self._save(lane, memory, size, flags)
        return memory

    def _save(self, lane: int, memory: State, size: int, flags: int) -> None:
        pointer = memory.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = lib.llama_state_seq_get_data_ext(self._handle, pointer, memory.nbytes, lane, flags)
        if written != size:
            raise Unavailable(f"llama.cpp saved {written} of {size} bytes of KV", model=self._name)

    def _put(self, lane: int, state: State, flags: int) -> None:
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if lib.llama_state_seq_set_data_ext(self._handle, pointer, state.nbytes, lane, flags) == 0:
            raise Unavailable("llama.cpp did not take back KV that it had saved", model=self._name)

    def interrupt(self) -> None:
        """Have the call under way, and all that follow, fail at their next operation. Any thread may say so."""
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


def token_attributes(model: NativeModel) -> npt.NDArray[np.int32]:
    """Each token's kind as llama.cpp sees it: a sum of the ``LLAMA_TOKEN_ATTR`` bits of ``llama_cpp``."""
    kinds = (lib.llama_vocab_get_attr(model._vocab, token) for token in range(model.n_vocab))
    return np.fromiter(kinds, dtype=np.int32, count=model.n_vocab)


def tokenize_behind_mark(model: NativeModel, text: str) -> Tokens:
    """Plain text as llama.cpp tokenises it behind a control token: some vocabularies put a space before it there."""
    return model._tokenize(text, special=False)


def tokenize_behind_text(model: NativeModel, text: str) -> Tokens:
    """Plain text that goes on from other text, so without a space before it, spelling just that."""
    tokens = model._tokenize(text, special=False)
    if not model.spaces:
        return tokens
    spelt = text.encode("utf-8", "replace")
    for opening in ("\n", "\x01", "."):  # one that joins with nothing: its own tokens are cut off again
        head, both = model._tokenize(opening, special=False), model._tokenize(opening + text, special=False)
        tail = both[len(head) :]
        if np.array_equal(both[: len(head)], head) and b"".join(model.pieces[token] for token in tail) == spelt:
            return tail
    return model.tokenize(text, special=False)
