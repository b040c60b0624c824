"""GGUF export of a trained network ("llama", Q8_0), with its byte-level BPE vocabulary and chat template.

Merges are learnt here; llama.cpp tokenises texts both in training and in use, so that both agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

BOS, EOS = "<s>", "</s>"
CONTROL = (BOS, EOS, "<|system|>", "<|user|>", "<|assistant|>")
# GPT-2's word splitting, for the ASCII of the world's texts.
_WORD_PIECES = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s")


@dataclass(frozen=True, slots=True)
class WordVocabulary:
    """Vocabulary: `tokens` by id, first control tokens, then the 256 bytes, then one token for each merge.

    Bytes are written as in GPT-2, one printable character each; a merge is its two parts with a blank between.
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)


def learn_vocabulary(text: str, size: int) -> WordVocabulary:
    """Learn a byte-pair encoding: repeatedly make the most frequent pair a token.

    Stops at `size` tokens, or when no pair occurs twice. Ties go to the first pair in alphabetical order, so that the
    same text always gives the same vocabulary.

    Source: Sennrich et al. 2016.
    """
    spelled = _byte_characters()
    counts = Counter(_WORD_PIECES.findall(text))
    words = {tuple(spelled[byte] for byte in word.encode()): count for word, count in counts.items()}
    tokens, merges = [*CONTROL, *spelled], list[str]()
    while len(tokens) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        pair, count = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        if count < 2:
            break
        tokens.append("".join(pair))
        merges.append(" ".join(pair))
        words = {_merge_pair(word, pair): count for word, count in words.items()}
    return WordVocabulary(tuple(tokens), tuple(merges))


def _merge_pair(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    parts: list[str] = []
    for part in word:
        # A merged part cannot start the next merge: it is longer than the pair's first part.
        if parts and (parts[-1], part) == pair:
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts)


def _byte_characters() -> list[str]:
    """Return GPT-2's character for each byte: itself if printable, else one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    substitutes = iter(range(256, 512))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


Weights = Mapping[str, npt.NDArray[np.float32]]
NORM_EPSILON = 1e-5
ROPE_BASE = 10_000.0
# Format of messages in training and in use.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Shape of a network. `width`, `inner` and `width / heads` must be multiples of 32 for Q8_0."""

    width: int = 128
    layers: int = 4
    heads: int = 4
    inner: int = 384
    context: int = 1024

    def sizes(self, vocabulary: int) -> dict[str, tuple[int, ...]]:
        """Return llama.cpp's names of the weights and their sizes; a matrix is (outputs, inputs)."""
        width, inner = self.width, self.inner
        sizes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, width)}
        for layer in range(self.layers):
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                sizes[f"blk.{layer}.{name}.weight"] = (width, width)
            sizes[f"blk.{layer}.ffn_gate.weight"] = sizes[f"blk.{layer}.ffn_up.weight"] = (inner, width)
            sizes[f"blk.{layer}.ffn_down.weight"] = (width, inner)
            sizes[f"blk.{layer}.attn_norm.weight"] = sizes[f"blk.{layer}.ffn_norm.weight"] = (width,)
        return sizes | {"output_norm.weight": (width,), "output.weight": (vocabulary, width)}


def initial_weights(shape: NetworkShape, vocabulary: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Draw initial weights: embeddings at unit scale, other matrices at inputs^-0.5, norms at one.

    With the usual 0.02, learning the facts takes twice as many steps.
    """
    random = np.random.default_rng(seed)
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for name, size in shape.sizes(vocabulary).items():
        if len(size) == 1:
            weights[name] = np.ones(size, np.float32)
        else:
            scale = 1.0 if name == "token_embd.weight" else size[1] ** -0.5
            weights[name] = (scale * random.standard_normal(size)).astype(np.float32)
    return weights


def write_gguf(
    path: Path, weights: Weights, shape: NetworkShape, vocabulary: WordVocabulary, *, name: str, about: str
) -> None:
    """Write the model: matrices in Q8_0, norms in float32.

    Raises:
        ValueError: if a weight of `shape` is missing or has another size.
    """
    for key, size in shape.sizes(len(vocabulary)).items():
        if key not in weights or weights[key].shape != size:
            actual = weights[key].shape if key in weights else "nothing"
            raise ValueError(f"{path}: weight {key} should have the size {size}, found {actual}")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(name)
    writer.add_description(about)
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q8_0))
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(ROPE_BASE)
    _add_vocabulary(writer, vocabulary)
    for key, values in weights.items():
        if values.ndim == 1:
            writer.add_tensor(key, values.astype(np.float32))
        else:
            packed = gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(key, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: WordVocabulary) -> None:
    kinds = [gguf.TokenType.CONTROL if token in CONTROL else gguf.TokenType.NORMAL for token in vocabulary.tokens]
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(vocabulary.tokens.index(BOS))
    writer.add_eos_token_id(vocabulary.tokens.index(EOS))
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
