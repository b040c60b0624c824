"""Makes small GGUF models with random weights in a second: a real file for a real llama.cpp, of no intelligence.

The vocabulary holds every byte, the printable characters and the pieces of some common words, so any text can be
encoded. ``quote_bias`` raises the logit of the quotation mark, so that strings in constrained JSON come to an end;
``marks`` are further tokens, such as the mark of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# A KIEval pack of short prompts, for these models read about a token per character.
SHORT_PACK = """
name: short
candidate: {system: Answer., question: "{question} {choices}"}
interactor: {system: Ask., opening: "{question} {reply}", reply: "{reply}"}
evaluator:
  system: Grade the answer as JSON.
  opening: "{question} {reply}"
  exchange: "{question} {reply}"
  right: Correct.
  wrong: Wrong.
  repair: "Not a verdict: {problem}. Again."
"""
_CONTROL = ["<|system|>", "<|user|>", "<|assistant|>"]
_TEXT = (
    "the of and to in is that it for was on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people question "
    "answer candidate interactor evaluator comment score accuracy logic relevance coherence conciseness overall stop"
)
WORDS = _TEXT.split()


def vocabulary(size: int = 0, marks: Mapping[str, bool] | None = None) -> tuple[list[bytes], list[float], list[int]]:
    """Tokens, scores and types of a SentencePiece vocabulary with byte fallback. ``marks``: whether each is control."""
    kind = gguf.TokenType
    tokens = ["<unk>", "<s>", "</s>", *_CONTROL]
    types = [kind.UNKNOWN, *[kind.CONTROL] * (len(tokens) - 1)]
    tokens += [f"<0x{value:02X}>" for value in range(256)]
    types += [kind.BYTE] * 256
    pieces = [chr(value) for value in range(33, 127)] + ["▁", "\n"]
    for word in WORDS:
        pieces += [f"▁{word}"[:end] for end in range(2, len(word) + 2)]
    pieces = list(dict.fromkeys(pieces))
    tokens += pieces
    types += [kind.NORMAL] * len(pieces)
    tokens += marks or {}
    types += [kind.CONTROL if control else kind.USER_DEFINED for control in (marks or {}).values()]
    filler = [f"▁filler{number}" for number in range(size - len(tokens))]  # never merged into, only computed
    tokens += filler
    types += [kind.NORMAL] * len(filler)
    # Longer pieces merge first, as a trained vocabulary would have it.
    scores = [float(len(token)) if kind_ == kind.NORMAL else 0.0 for token, kind_ in zip(tokens, types, strict=True)]
    return [token.encode() for token in tokens], scores, [int(kind_) for kind_ in types]


def make_model(
    path: Path,
    *,
    seed: int = 1,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 0,
    context: int = 8192,
    feed_forward: int = 0,
    vocab: int = 0,
    quantised: bool = False,
    quote_bias: float = 0.0,
    template: str | None = CHAT_TEMPLATE,
    tool_template: str | None = None,
    marks: Mapping[str, bool] | None = None,
    spaced: bool = False,
    name: str = "",
    biases: Mapping[str, float] | None = None,
    pooling: gguf.PoolingType | None = None,
) -> Path:
    """Write a llama-architecture model and return its path.

    ``kv_heads``: heads of keys and values, as many as ``heads`` if 0. ``quantised``: Q8_0 matrices, else F16.
    ``marks``: further tokens, and whether each is a control token, that is to say no text. ``spaced``: a space is put
    before texts behind marks, as Llama 2 and Phi-3 have it. ``biases``: what is added to the logits of tokens, by their
    texts. ``pooling`` makes it a model of embeddings.
    """
    tokens, scores, types = vocabulary(vocab, marks)
    inner = feed_forward or width * 2
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads or heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(spaced)
    if name:
        writer.add_name(name)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if template is not None:
        writer.add_chat_template(template)
    if tool_template is not None:
        writer.add_string("tokenizer.chat_template.tool_use", tool_template)

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def add(name: str, values: np.ndarray) -> None:
        if values.ndim == 1:
            writer.add_tensor(name, values.astype(np.float32))
        elif quantised:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, values.astype(np.float16))

    embedding = matrix("token_embd", len(tokens), width, np.sqrt(width))
    output = matrix("output", len(tokens), width, 3.0)
    # One direction is always on; along it the bias of a token is a constant.
    embedding[:, 0] = 4.0
    output[:, 0] = 0.0
    output[tokens.index(b'"'), 0] = quote_bias
    for text, bias in (biases or {}).items():
        output[tokens.index(text.encode()), 0] = bias
    add("token_embd.weight", embedding)
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            rows = width // heads * (kv_heads or heads) if name in ("attn_k", "attn_v") else width
            add(f"blk.{layer}.{name}.weight", matrix(name, rows, width))
        add(f"blk.{layer}.ffn_gate.weight", matrix("gate", inner, width))
        add(f"blk.{layer}.ffn_up.weight", matrix("up", inner, width))
        add(f"blk.{layer}.ffn_down.weight", matrix("down", width, inner))
        add(f"blk.{layer}.attn_norm.weight", np.ones(width))
        add(f"blk.{layer}.ffn_norm.weight", np.ones(width))
    add("output_norm.weight", np.ones(width))
    add("output.weight", output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def make_adapter(
    path: Path,
    *,
    seed: int = 1,
    rank: int = 8,
    width: int = 64,
    layers: int = 2,
    kind: str = "F32",
    architecture: str = "llama",
    strength: float = 1.0,
    invocation: tuple[int, ...] = (),
) -> Path:
    """Write a LoRA adapter for the attention of a model that ``make_model`` made with this width and these layers.

    ``invocation``: tokens behind which it would begin to count, as an activated LoRA.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    if invocation:
        writer.add_key_value(
            "adapter.alora.invocation_tokens", invocation, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32
        )
    for layer in range(layers):
        for name in ("attn_q", "attn_v", "attn_output"):
            for half, shape in (("a", (rank, width)), ("b", (width, rank))):
                values = (rng.standard_normal(shape) * strength / np.sqrt(shape[1])).astype(np.float32)
                tensor = f"blk.{layer}.{name}.weight.lora_{half}"
                writer.add_tensor(tensor, values if kind == "F32" else values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


KINDS = {"Q4_0": 2, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "BF16": 32}  # llama.cpp's numbers of file types


def requantised(source: Path, path: Path, kind: str) -> Path:
    """Write ``source`` (F16) again with weights of mostly one of ``KINDS``. K kinds want widths that 256 divides."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = KINDS[kind]
    options.nthread = 1
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), options) == 0
    return path
