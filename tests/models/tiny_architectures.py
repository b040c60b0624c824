"""Small GGUF models of other architectures than llama, with random weights: recurrent, hybrid, sliding-window, and
models that write no text.

``ARCHITECTURES`` names what can be made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from tiny_gguf import CHAT_TEMPLATE, vocabulary

WIDTH, HEADS, LAYERS, INNER, CONTEXT = 64, 4, 2, 128, 4096
HEAD = WIDTH // HEADS
WINDOW = 32  # tokens of the sliding window
WIDE_HEAD = 48  # three times what the width and the number of heads suggest


class _File:
    def __init__(self, path: Path, architecture: str, seed: int, quantised: bool, template: str | None) -> None:
        self.writer = gguf.GGUFWriter(str(path), architecture)
        self.architecture, self.quantised = architecture, quantised
        self.rng = np.random.default_rng(seed)
        tokens, scores, types = vocabulary()
        self.vocab = len(tokens)
        writer = self.writer
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(LAYERS)
        writer.add_vocab_size(self.vocab)
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(False)
        if template is not None:
            writer.add_chat_template(template)

    def number(self, key: str, value: int) -> None:
        self.writer.add_uint32(f"{self.architecture}.{key}", value)

    def matrix(
        self, name: str, rows: int, columns: int, scale: float = 1.0, *, exact: bool = False, count: int = 0
    ) -> None:
        """``count``: that many matrices in one tensor, one for each head or expert."""
        shape = (count, rows, columns) if count else (rows, columns)
        values = (self.rng.standard_normal(shape) * scale / np.sqrt(columns)).astype(np.float32)
        if exact:
            self.writer.add_tensor(name, values)
        elif self.quantised:
            kind = gguf.GGMLQuantizationType.Q4_0
            self.writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self.writer.add_tensor(name, values.astype(np.float16))

    def ones(self, name: str, count: int, value: float = 1.0) -> None:
        self.writer.add_tensor(name, np.full(count, value, dtype=np.float32))

    def ends(self, norm: str = "output_norm") -> None:
        self.matrix("token_embd.weight", self.vocab, WIDTH, np.sqrt(WIDTH))
        self.ones(f"{norm}.weight", WIDTH)
        self.matrix("output.weight", self.vocab, WIDTH, 3.0)

    def attention(self, layer: int, head: int = HEAD, *, norms: bool = False) -> None:
        for name in ("attn_q", "attn_k", "attn_v"):
            self.matrix(f"blk.{layer}.{name}.weight", head * HEADS, WIDTH)
        self.matrix(f"blk.{layer}.attn_output.weight", WIDTH, head * HEADS)
        for name in ("attn_q_norm", "attn_k_norm") if norms else ():
            self.ones(f"blk.{layer}.{name}.weight", head)

    def feed_forward(self, layer: int) -> None:
        self.number_once("feed_forward_length", INNER)
        self.ones(f"blk.{layer}.ffn_norm.weight", WIDTH)
        self.matrix(f"blk.{layer}.ffn_gate.weight", INNER, WIDTH)
        self.matrix(f"blk.{layer}.ffn_up.weight", INNER, WIDTH)
        self.matrix(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)

    def number_once(self, key: str, value: int) -> None:
        if f"{self.architecture}.{key}" not in self.writer.kv_data[0]:
            self.number(key, value)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def _mamba(file: _File) -> None:
    inner, state, rank, kernel = 2 * WIDTH, 16, 4, 4
    for key, value in (("conv_kernel", kernel), ("inner_size", inner), ("state_size", state), ("time_step_rank", rank)):
        file.number(f"ssm.{key}", value)
    file.writer.add_layer_norm_rms_eps(1e-5)
    file.ends()
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        file.ones(f"{block}.attn_norm.weight", WIDTH)
        file.matrix(f"{block}.ssm_in.weight", 2 * inner, WIDTH)
        file.matrix(f"{block}.ssm_conv1d.weight", inner, kernel, exact=True)
        file.ones(f"{block}.ssm_conv1d.bias", inner, 0.1)
        file.matrix(f"{block}.ssm_x.weight", rank + 2 * state, inner)
        file.matrix(f"{block}.ssm_dt.weight", inner, rank, exact=True)
        file.ones(f"{block}.ssm_dt.bias", inner, 0.1)
        file.writer.add_tensor(f"{block}.ssm_a", np.full((inner, state), -0.5, dtype=np.float32))
        file.ones(f"{block}.ssm_d", inner)
        file.matrix(f"{block}.ssm_out.weight", WIDTH, inner)


def _lfm2(file: _File) -> None:
    kernel = 3
    file.number("shortconv.l_cache", kernel)
    file.number("attention.head_count", HEADS)
    file.writer.add_head_count_kv([0, HEADS])
    file.writer.add_layer_norm_rms_eps(1e-5)
    file.ends("token_embd_norm")
    for layer in range(LAYERS):
        file.ones(f"blk.{layer}.attn_norm.weight", WIDTH)
        file.feed_forward(layer)
        if layer:
            file.attention(layer, norms=True)
        else:
            file.matrix(f"blk.{layer}.shortconv.conv.weight", WIDTH, kernel, exact=True)
            file.matrix(f"blk.{layer}.shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
            file.matrix(f"blk.{layer}.shortconv.out_proj.weight", WIDTH, WIDTH)


def _gemma3(file: _File) -> None:
    file.number("attention.sliding_window", WINDOW)
    file.number("attention.sliding_window_pattern", 2)
    for key, value in (("head_count", HEADS), ("head_count_kv", HEADS)):
        file.number(f"attention.{key}", value)
    for key in ("key_length", "value_length"):
        file.number(f"attention.{key}", WIDE_HEAD)
    file.writer.add_layer_norm_rms_eps(1e-5)
    file.ends()
    for layer in range(LAYERS):
        for name in ("attn_norm", "post_attention_norm", "post_ffw_norm"):
            file.ones(f"blk.{layer}.{name}.weight", WIDTH)
        file.attention(layer, WIDE_HEAD, norms=True)
        file.feed_forward(layer)


def _deepseek2_dense(file: _File) -> None:
    _deepseek2(file, dense=LAYERS)


def _deepseek2(file: _File, dense: int = 1) -> None:
    """Latent attention, whose KV cache has keys only; behind ``dense`` layers a router chooses 2 of 8 experts."""
    rank, rotated, plain, experts, inner = 32, 16, 32, 8, 32
    for key, value in (
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", 1),
        ("attention.q_lora_rank", rank),
        ("attention.kv_lora_rank", rank),
        ("attention.key_length", rank + rotated),
        ("attention.value_length", rank),
        ("attention.key_length_mla", plain + rotated),
        ("attention.value_length_mla", plain),
        ("rope.dimension_count", rotated),
        ("leading_dense_block_count", dense),
        ("expert_count", experts),
        ("expert_used_count", 2),
        ("expert_shared_count", 1),
        ("expert_feed_forward_length", inner),
        ("feed_forward_length", INNER),
    ):
        file.number(key, value)
    file.writer.add_layer_norm_rms_eps(1e-5)
    file.ends()
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        file.ones(f"{block}.attn_norm.weight", WIDTH)
        file.ones(f"{block}.attn_q_a_norm.weight", rank)
        file.ones(f"{block}.attn_kv_a_norm.weight", rank)
        file.matrix(f"{block}.attn_q_a.weight", rank, WIDTH)
        file.matrix(f"{block}.attn_q_b.weight", HEADS * (plain + rotated), rank)
        file.matrix(f"{block}.attn_kv_a_mqa.weight", rank + rotated, WIDTH)
        file.matrix(f"{block}.attn_k_b.weight", rank, plain, count=HEADS)
        file.matrix(f"{block}.attn_v_b.weight", plain, rank, count=HEADS)
        file.matrix(f"{block}.attn_output.weight", WIDTH, HEADS * plain)
        if layer < dense:
            file.feed_forward(layer)
            continue
        file.ones(f"{block}.ffn_norm.weight", WIDTH)
        file.matrix(f"{block}.ffn_gate_inp.weight", experts, WIDTH, exact=True)
        for kind, count in (("exps", experts), ("shexp", 0)):
            file.matrix(f"{block}.ffn_gate_{kind}.weight", inner, WIDTH, count=count)
            file.matrix(f"{block}.ffn_up_{kind}.weight", inner, WIDTH, count=count)
            file.matrix(f"{block}.ffn_down_{kind}.weight", WIDTH, inner, count=count)


def _llada(file: _File) -> None:
    for key, value in (("head_count", HEADS), ("head_count_kv", HEADS)):
        file.number(f"attention.{key}", value)
    file.writer.add_layer_norm_rms_eps(1e-5)
    file.ends()
    for layer in range(LAYERS):
        file.ones(f"blk.{layer}.attn_norm.weight", WIDTH)
        file.attention(layer)
        file.feed_forward(layer)


def _bert(file: _File) -> None:
    file.number("attention.head_count", HEADS)
    file.number("feed_forward_length", INNER)
    file.writer.add_layer_norm_eps(1e-5)
    file.writer.add_token_type_count(1)
    file.writer.add_causal_attention(False)
    file.matrix("token_embd.weight", file.vocab, WIDTH)
    file.matrix("token_types.weight", 1, WIDTH, exact=True)
    file.matrix("position_embd.weight", CONTEXT, WIDTH)
    for name in ("token_embd_norm", *(f"blk.{n}.{kind}" for n in range(LAYERS) for kind in _BERT_NORMS)):
        file.ones(f"{name}.weight", WIDTH)
        file.ones(f"{name}.bias", WIDTH, 0.0)
    for layer in range(LAYERS):
        file.attention(layer)
        file.matrix(f"blk.{layer}.ffn_up.weight", INNER, WIDTH)
        file.matrix(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)


def _t5(file: _File) -> None:
    file.number("attention.head_count", HEADS)
    file.number("attention.relative_buckets_count", 8)
    file.number("feed_forward_length", INNER)
    file.writer.add_layer_norm_rms_eps(1e-5)
    file.matrix("token_embd.weight", file.vocab, WIDTH)
    file.ones("dec.output_norm.weight", WIDTH)
    file.ones("enc.output_norm.weight", WIDTH)
    for side in ("enc", "dec"):
        for layer in range(LAYERS):
            block = f"{side}.blk.{layer}"
            file.matrix(f"{block}.attn_rel_b.weight", 8, HEADS, exact=True)
            for kind in ("attn", "cross_attn") if side == "dec" else ("attn",):
                file.ones(f"{block}.{kind}_norm.weight", WIDTH)
                for part in ("q", "k", "v", "o"):
                    file.matrix(f"{block}.{kind}_{part}.weight", WIDTH, WIDTH)
            file.ones(f"{block}.ffn_norm.weight", WIDTH)
            file.matrix(f"{block}.ffn_up.weight", INNER, WIDTH)
            file.matrix(f"{block}.ffn_down.weight", WIDTH, INNER)


_BERT_NORMS = ("attn_output_norm", "layer_output_norm")
ARCHITECTURES: dict[str, Callable[[_File], None]] = {
    "deepseek2": _deepseek2,
    "deepseek2 dense": _deepseek2_dense,
    "mamba": _mamba,
    "lfm2": _lfm2,
    "gemma3": _gemma3,
    "llada": _llada,
    "bert": _bert,
    "t5": _t5,
}


def make_architecture(
    path: Path, architecture: str, *, seed: int = 1, quantised: bool = False, template: str | None = CHAT_TEMPLATE
) -> Path:
    """Write a model of one of ``ARCHITECTURES`` and return its path. ``quantised``: Q4_0 matrices, else F16."""
    file = _File(path, architecture.partition(" ")[0], seed, quantised, template)
    ARCHITECTURES[architecture](file)
    file.close()
    return path
