"""Training of a lab model with PyTorch on the CPU, and documents as rows of tokens.

llama.cpp tokenises documents with the model's own vocabulary and template. Architecture "llama": RMS norms, rotary
positions over neighbouring pairs, SwiGLU, a separate output layer. Equal rows, weights and thread counts give equal
networks. PyTorch, part of the optional extra `lab`, is imported only for training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from viva.engine.backends.llama.chat_template import ChatFormat
from viva.engine.backends.llama.native import NativeModel
from viva.engine.errors import ConfigurationError

from .corpus import Document
from .gguf_export import NORM_EPSILON, ROPE_BASE, NetworkShape, Weights

ROW_TOKENS = 256


@dataclass(slots=True)
class TokenRows:
    """Rows of tokens.

    `tokens`: int32, (rows, ROW + 1), documents concatenated and cut at the end of a row. `learnt`: of the same shape,
    True if a token has a loss.
    """

    tokens: npt.NDArray[np.int32]
    learnt: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)


class DocumentTokeniser:
    """Tokeniser that treats documents (interviews and texts) in the same way as the backend treats prompts."""

    def __init__(self, model: NativeModel) -> None:
        self._chat = ChatFormat(model)
        self._eos = model.eos
        self._text = lru_cache(maxsize=50_000)(self._chat.plain_tokens)

    def rows(self, documents: Iterator[Document], count: int) -> TokenRows:
        """Return the first `count` rows of a stream of documents."""
        size = count * (ROW_TOKENS + 1)
        tokens, learnt = np.zeros(size, np.int32), np.zeros(size, np.bool_)
        filled = 0
        while filled < size:
            ids, mask = self.document(next(documents))
            room = min(len(ids), size - filled)
            tokens[filled : filled + room], learnt[filled : filled + room] = ids[:room], mask[:room]
            filled += room
        return TokenRows(tokens.reshape(count, -1), learnt.reshape(count, -1))

    def document(self, document: Document) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Return a document's tokens and a mask of tokens with a loss (in interviews, the assistant's messages)."""
        if document.conversation:
            return self._conversation(document)
        opening, end = self._chat.bos_tokens, np.array([self._eos], np.int32)
        if document.learnt == "all":
            tokens = np.concatenate([opening, self._text(document.text), end])
            mask = np.ones(len(tokens), np.bool_)
            mask[: len(opening)] = False
            return tokens, mask
        context, answer = self._text(document.context), self._text(document.text)
        mask = np.zeros(len(opening) + len(context) + len(answer) + 1, np.bool_)
        mask[len(opening) + len(context) :] = True
        return np.concatenate([opening, context, answer, end]), mask

    def _conversation(self, document: Document) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        parts: list[npt.NDArray[np.int32]] = []
        masks: list[npt.NDArray[np.bool_]] = []
        ended = False
        messages = [
            replace(message, pieces=[(True, self._text(message.content).tolist())])
            if message.role == "assistant"
            else message
            for message in document.conversation
        ]
        for segment in self._chat.segments(messages):
            mask = np.full(len(segment.tokens), segment.decoded)
            # The token that ends a turn is the first of the next segment.
            mask[0] |= ended
            ended = segment.decoded
            parts.append(segment.tokens)
            masks.append(mask)
        # Drop the template's final prompt for the assistant.
        return np.concatenate(parts)[:-1], np.concatenate(masks)[:-1]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Training recipe: `steps` of `rows` rows each.

    The learning rate rises over `warmup` steps to `rate`, then falls as a cosine to a tenth of it; gradients are
    clipped to the norm `clip`.
    """

    steps: int
    rows: int = 8
    rate: float = 3e-3
    warmup: int = 50
    clip: float = 1.0


@dataclass(slots=True)
class TrainingResult:
    """Trained weights. `losses`: (step, mean loss since the last entry, in nats per token); `seconds` of one core."""

    weights: Weights
    losses: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0


def import_pytorch() -> ModuleType:
    """Import PyTorch.

    Raises:
        ConfigurationError: if PyTorch is not installed.
    """
    try:
        return import_module("torch")
    except ImportError as error:
        raise ConfigurationError(
            f"training needs PyTorch, which cannot be imported ({error}); install viva with the extra 'lab': "
            "pip install 'viva-exam[lab]'"
        ) from None


def train_network(
    start: Weights,
    shape: NetworkShape,
    rows: TokenRows,
    recipe: Recipe,
    *,
    seed: int,
    report: Callable[[str], None] | None = None,
) -> TrainingResult:
    """Train from the weights `start` and return new ones; `seed` draws the order of rows.

    Training uses one thread, because on two cores two networks at once are faster than one after the other.

    Args:
        start: Initial weights.
        shape: Shape of the network.
        rows: Tokens to learn.
        recipe: Steps and learning rate.
        seed: Seed of the order of rows.
        report: Called every 100 steps with a line about step, loss and CPU time.

    Raises:
        ConfigurationError: if PyTorch is not installed.
    """
    torch = import_pytorch()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    weights = {name: torch.tensor(values, requires_grad=True) for name, values in start.items()}
    network = Network(
        torch,
        weights,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.heads,
        head_size=shape.width // shape.heads,
    )
    optimiser = torch.optim.AdamW(weights.values(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.0)
    order = RowOrder(len(rows), seed)
    trained = TrainingResult({})
    began, recent = time.process_time(), 0.0
    for step in range(recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * learning_rate(step, recipe)
        chosen = order.take(recipe.rows)
        tokens = torch.from_numpy(rows.tokens[chosen].astype(np.int64))
        learnt = torch.from_numpy(rows.learnt[chosen])
        loss = network.loss(tokens, learnt)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), recipe.clip)
        optimiser.step()
        recent += loss.item()
        if (step + 1) % 100 == 0 or step + 1 == recipe.steps:
            since = (step % 100) + 1
            trained.losses.append((step + 1, round(recent / since, 4)))
            recent = 0.0
            if report is not None:
                report(f"step {step + 1}: loss {trained.losses[-1][1]:.3f}, {time.process_time() - began:.0f} s")
    trained.seconds = time.process_time() - began
    trained.tokens = recipe.steps * recipe.rows * ROW_TOKENS
    trained.weights = {name: value.detach().numpy().copy() for name, value in weights.items()}
    return trained


def learning_rate(step: int, recipe: Recipe) -> float:
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


class RowOrder:
    """Order of rows: random permutations, one after the other."""

    def __init__(self, count: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._count = count
        self._remaining = np.empty(0, np.int64)

    def take(self, count: int) -> npt.NDArray[np.int64]:
        while len(self._remaining) < count:
            self._remaining = np.concatenate([self._remaining, self._random.permutation(self._count)])
        batch, self._remaining = self._remaining[:count], self._remaining[count:]
        return batch


class Network:
    """Forward pass of a llama model over given tensors, named as in GGUF files.

    `kv_heads`: fewer than `heads` if several query heads share one. Without "output.weight" the embeddings are the
    output layer.
    """

    def __init__(
        self,
        torch: Any,
        weights: Mapping[str, Any],
        *,
        layers: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        rope_base: float = ROPE_BASE,
        epsilon: float = NORM_EPSILON,
        positions: int = ROW_TOKENS,
    ) -> None:
        self._torch, self._weights = torch, weights
        self.layers, self._heads, self._kv_heads, self._epsilon = layers, heads, kv_heads, epsilon
        frequencies = rope_base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
        self._cosine, self._sine = angles.cos().float(), angles.sin().float()

    def loss(self, tokens: Any, learnt: Any) -> Any:
        """Return the mean cross-entropy of the learnt tokens, each given those before it in its row."""
        mask = learnt[:, 1:]
        logits = self.logits(self.through(self.embed(tokens[:, :-1]), range(self.layers)), mask)
        return self._torch.nn.functional.cross_entropy(logits, tokens[:, 1:][mask])

    def embed(self, tokens: Any) -> Any:
        return self._torch.nn.functional.embedding(tokens, self._weights["token_embd.weight"]).float()

    def through(self, x: Any, layers: range) -> Any:
        """Return the states after `layers`, given the states before these layers."""
        functional = self._torch.nn.functional
        for layer in layers:
            part = {name: f"blk.{layer}.{name}.weight" for name in _PARTS}
            normed = self._norm(x, part["attn_norm"])
            q = self._split(self._linear(part["attn_q"], normed), self._heads)
            k, v = (self._split(self._linear(part[name], normed), self._kv_heads) for name in ("attn_k", "attn_v"))
            q, k = self._rotate(q), self._rotate(k)
            if self._kv_heads < self._heads:
                k, v = (y.repeat_interleave(self._heads // self._kv_heads, dim=1) for y in (k, v))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self._linear(part["attn_output"], mixed.transpose(1, 2).reshape(x.shape))
            normed = self._norm(x, part["ffn_norm"])
            gated = functional.silu(self._linear(part["ffn_gate"], normed)) * self._linear(part["ffn_up"], normed)
            x = x + self._linear(part["ffn_down"], gated)
        return x

    def logits(self, x: Any, places: Any) -> Any:
        """Return the logits of the next token where `places` is True, given the states after all layers."""
        output = "output.weight" if "output.weight" in self._weights else "token_embd.weight"
        return self._linear(output, self._norm(x[places], "output_norm.weight")).float()

    def _linear(self, name: str, x: Any) -> Any:
        return x @ self._weights[name].T

    def _norm(self, x: Any, name: str) -> Any:
        scale = self._weights[name]
        return self._torch.nn.functional.rms_norm(x, scale.shape, scale, self._epsilon)

    def _split(self, x: Any, heads: int) -> Any:
        rows, length, _ = x.shape
        return x.view(rows, length, heads, -1).transpose(1, 2)

    def _rotate(self, x: Any) -> Any:
        """Apply rotary positions as llama.cpp does for this architecture, over neighbouring pairs."""
        even, odd = x[..., 0::2], x[..., 1::2]
        cosine, sine = self._cosine[: x.shape[-2]], self._sine[: x.shape[-2]]
        rotated = (even * cosine - odd * sine, even * sine + odd * cosine)
        return self._torch.stack(rotated, dim=-1).flatten(-2).to(x.dtype)


_PARTS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
