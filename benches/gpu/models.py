"""Models of random weights in the shapes of real ones, written in seconds.

A pool of random weights is quantised by llama.cpp once for each type and repeated through all tensors of that type. The
pool has at least as many blocks as the vocabulary has tokens, and an odd number of them: no two tokens have the same
row, so that answers differ, and so do the experts that a mixture of experts chooses.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "models"))
from tiny_gguf import CHAT_TEMPLATE, vocabulary

from viva.engine.backends.llama.library import libggml

TYPES = gguf.GGMLQuantizationType
BLOCK = 256  # weights; the largest block of any type


@dataclass(frozen=True)
class Shape:
    """A model's sizes; ``feed_forward`` is that of one expert if there are ``experts``, of which ``used`` compute."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    feed_forward: int
    vocab: int
    experts: int = 0
    used: int = 0
    tied: bool = False  # the output's weights are those of the input


SHAPES = {
    "1b": Shape(16, 2048, 32, 8, 64, 8192, 128_256, tied=True),  # Llama 3.2 1B
    "8b": Shape(32, 4096, 32, 8, 128, 14_336, 128_256),  # Llama 3.1 8B
    "30b-moe": Shape(48, 2048, 32, 4, 128, 768, 151_936, experts=128, used=8),  # Qwen3 30B A3B
}
FORMATS = {"q4_k_m": TYPES.Q4_K, "q8_0": TYPES.Q8_0, "f16": TYPES.F16}


def small(shape: Shape, vocab: int = 4000) -> Shape:
    """Return a shape of the same kind that any CPU computes quickly."""
    sizes = {"layers": 3, "width": 512, "heads": 8, "kv_heads": 2, "head": 64, "feed_forward": 1024}
    return replace(shape, **sizes, vocab=vocab, experts=min(shape.experts, 8), used=min(shape.used, 2))


def write_model(path: Path, shape: Shape, kind: str) -> Path:
    """Write a model with weights of one of ``FORMATS``; return its path."""
    partial = path.with_suffix(".partial")  # a process that is killed leaves no half of a model
    writer = gguf.GGUFWriter(str(partial), "qwen3moe" if shape.experts else "llama")
    _add_metadata(writer, shape)
    tensors = list(_tensors(shape, kind))
    for name, sizes, type_ in tensors:
        writer.add_tensor_info(name, sizes, np.dtype(np.float32), _bytes(sizes, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    pools = {type_: _pool(shape, type_, rng) for type_ in {type_ for _, _, type_ in tensors} - {TYPES.F32}}
    for number, (name, sizes, type_) in enumerate(tensors):
        if type_ != TYPES.F32:
            pool, size = pools[type_], _bytes(sizes, type_)
            data = np.resize(np.roll(pool, -997 * number, axis=0), size)  # each tensor begins elsewhere
        elif name.endswith("norm.weight"):
            data = np.ones(sizes, dtype=np.float32)
        else:  # the choice of experts
            data = rng.standard_normal(sizes, dtype=np.float32) / np.float32(np.sqrt(shape.width))
        writer.write_tensor_data(data)
    writer.close()
    partial.rename(path)
    return path


def _add_metadata(writer: Any, shape: Shape) -> None:
    tokens, scores, types = vocabulary(shape.vocab)
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head)
    writer.add_vocab_size(len(tokens))
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.used)
        writer.add_expert_feed_forward_length(shape.feed_forward)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensors(shape: Shape, kind: str) -> Iterator[tuple[str, tuple[int, ...], TYPES]]:
    """Yield name, sizes (rows before columns) and type of each tensor.

    Of ``q4_k_m`` the output, and values and the second half of the feed-forward of every other layer, have six bits, as
    ``llama-quantize`` has it.
    """
    coarse = FORMATS[kind]
    fine = TYPES.Q6_K if coarse == TYPES.Q4_K else coarse
    width = shape.width
    yield "token_embd.weight", (shape.vocab, width), fine if shape.tied else coarse
    yield "output_norm.weight", (width,), TYPES.F32
    if not shape.tied:
        yield "output.weight", (shape.vocab, width), fine
    for layer in range(shape.layers):
        prefix, second = f"blk.{layer}.", fine if layer % 2 else coarse
        yield f"{prefix}attn_norm.weight", (width,), TYPES.F32
        yield f"{prefix}attn_q.weight", (shape.heads * shape.head, width), coarse
        yield f"{prefix}attn_k.weight", (shape.kv_heads * shape.head, width), coarse
        yield f"{prefix}attn_v.weight", (shape.kv_heads * shape.head, width), second
        yield f"{prefix}attn_output.weight", (width, shape.heads * shape.head), coarse
        yield f"{prefix}ffn_norm.weight", (width,), TYPES.F32
        if shape.experts:
            yield f"{prefix}attn_q_norm.weight", (shape.head,), TYPES.F32
            yield f"{prefix}attn_k_norm.weight", (shape.head,), TYPES.F32
            yield f"{prefix}ffn_gate_inp.weight", (shape.experts, width), TYPES.F32
        experts, suffix = ((shape.experts,), "_exps.weight") if shape.experts else ((), ".weight")
        yield f"{prefix}ffn_gate{suffix}", (*experts, shape.feed_forward, width), coarse
        yield f"{prefix}ffn_up{suffix}", (*experts, shape.feed_forward, width), coarse
        yield f"{prefix}ffn_down{suffix}", (*experts, width, shape.feed_forward), second


def _bytes(sizes: tuple[int, ...], type_: TYPES) -> int:
    block, size = gguf.GGML_QUANT_SIZES[type_]
    return int(np.prod(sizes)) // block * size


def _pool(shape: Shape, type_: TYPES, rng: np.random.Generator) -> np.ndarray:
    """Return random blocks of a type, each a row of bytes."""
    blocks = shape.vocab | 1
    weights = rng.standard_normal((blocks, BLOCK), dtype=np.float32) / np.float32(np.sqrt(shape.width))
    if type_ == TYPES.F16:
        return weights.astype(np.float16).view(np.uint8)
    data = np.empty((blocks, _bytes((BLOCK,), type_)), dtype=np.uint8)
    quantize = libggml.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = (
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )  # fmt: skip

    def work(first: int, last: int) -> None:
        source, target = weights.ctypes.data, data.ctypes.data
        quantize(type_, source, target, first * BLOCK, last - first, BLOCK, None)

    threads = len(os.sched_getaffinity(0))
    edges = np.linspace(0, blocks, threads + 1, dtype=int).tolist()
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(work, edges[:-1], edges[1:]))
    return data
