"""Low-rank adapters for a real model: its weights from a GGUF file, training on the CPU, and the adapter's file.

The base is dequantised to bfloat16 and never changes; its matrices get no gradients. Only the adapter's two factors per
matrix are learnt, in float32. Logits are computed only for tokens that have a loss. Everything uses GGUF's names and
its order of rows in query and key matrices, so nothing is permuted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from .gguf_export import ROPE_BASE
from .train import Network, Recipe, RowOrder, import_pytorch, learning_rate

RANK = 8
ALPHA = 16.0
MAX_TOKENS = 1024
REPORTED = 10  # steps between reports of the loss
Document = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """Base model: dequantised weights by GGUF name, and the arguments of `Network` that describe it."""

    weights: Mapping[str, npt.NDArray[np.float32]]
    shape: Mapping[str, Any]


def read_base(path: Path) -> BaseModel:
    """Dequantise the weights of a GGUF file of architecture "llama".

    Raises:
        ValueError: for another architecture.
    """
    reader = gguf.GGUFReader(path)

    def value(key: str, default: Any = None) -> Any:
        field = reader.fields.get(key)
        return default if field is None else field.contents()

    architecture = value("general.architecture")
    if architecture != "llama":
        raise ValueError(f"{path}: architecture '{architecture}'; adapters are trained for 'llama' only")
    weights = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    heads = value("llama.attention.head_count")
    shape = {
        "layers": value("llama.block_count"),
        "heads": heads,
        "kv_heads": value("llama.attention.head_count_kv"),
        "head_size": value("llama.embedding_length") // heads,
        "rope_base": value("llama.rope.freq_base", ROPE_BASE),
        "epsilon": value("llama.attention.layer_norm_rms_epsilon"),
    }
    return BaseModel(weights, shape)


Factors = Mapping[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class AdaptedNetwork(Network):
    """Base model with an adapter; `factors` maps the name of a matrix to its two factors (A, B)."""

    def __init__(self, torch: Any, base: BaseModel, factors: Mapping[str, tuple[Any, Any]], kind: Any) -> None:
        """Hold the base's matrices in the number type `kind`, and compute their products in it."""
        tensors = {name: torch.tensor(values) for name, values in base.weights.items()}
        matrices = {name: tensor.to(kind) if tensor.ndim == 2 else tensor for name, tensor in tensors.items()}
        super().__init__(torch, matrices, **base.shape, positions=MAX_TOKENS)
        self._factors, self._kind = factors, kind

    def _linear(self, name: str, x: Any) -> Any:
        y = x @ self._weights[name].T
        if name not in self._factors:
            return y
        a, b = (factor.to(self._kind) for factor in self._factors[name])
        return self._torch.addmm(y.flatten(0, -2), x.flatten(0, -2) @ a.T, b.T, alpha=ALPHA / RANK).view(y.shape)

    def _norm(self, x: Any, name: str) -> Any:
        return super()._norm(x, name).to(self._kind)


@dataclass(slots=True)
class TrainedAdapter:
    """Factors by matrix. `losses`: (step, mean loss since last entry); `seconds` of all threads; trained `tokens`."""

    factors: Factors
    losses: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0


def train_adapter(
    base: BaseModel,
    documents: Sequence[Document],
    recipe: Recipe,
    *,
    seed: int,
    layers: int,
    threads: int = 1,
    report: Callable[[str], None] | None = None,
) -> TrainedAdapter:
    """Train an adapter of the uppermost `layers` on documents, each (tokens, mask of tokens with a loss).

    The states that the lower layers compute for a document never change, so they are computed only once.

    Raises:
        ConfigurationError: if PyTorch is not installed.
    """
    torch = import_pytorch()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    began = time.process_time()
    depth = base.shape["layers"]
    factors = initial_factors(base, range(depth - layers, depth), seed)
    parameters = {name: tuple(torch.tensor(f, requires_grad=True) for f in pair) for name, pair in factors.items()}
    network = AdaptedNetwork(torch, base, parameters, torch.bfloat16)
    with torch.no_grad():
        states = [
            network.through(network.embed(torch.tensor(tokens[None, :-1]).long()), range(depth - layers))[0]
            for tokens, _ in documents
        ]
    flat = [factor for pair in parameters.values() for factor in pair]
    optimiser = torch.optim.AdamW(flat, lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.0)
    order = RowOrder(len(documents), seed)
    trained, recent = TrainedAdapter({}), 0.0
    for step in range(recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * learning_rate(step, recipe)
        chosen = order.take(recipe.rows)
        # Rows of a step have nearly one length. What is computed behind the end of a shorter row is ignored.
        pad = torch.nn.utils.rnn.pad_sequence
        x = pad([states[index] for index in chosen], batch_first=True)
        targets = pad([torch.tensor(documents[index][0][1:]).long() for index in chosen], batch_first=True)
        learnt = pad([torch.tensor(documents[index][1][1:]) for index in chosen], batch_first=True)
        logits = network.logits(network.through(x, range(depth - layers, depth)), learnt)
        loss = torch.nn.functional.cross_entropy(logits, targets[learnt])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flat, recipe.clip)
        optimiser.step()
        recent += loss.item()
        trained.tokens += sum(len(documents[index][0]) for index in chosen)
        if (step + 1) % REPORTED == 0 or step + 1 == recipe.steps:
            trained.losses.append((step + 1, round(recent / (step % REPORTED + 1), 4)))
            recent = 0.0
            if report is not None:
                report(f"step {step + 1}: loss {trained.losses[-1][1]:.3f}, {time.process_time() - began:.0f} s")
    trained.seconds = time.process_time() - began
    trained.factors = {
        name: (a.detach().numpy().copy(), b.detach().numpy().copy()) for name, (a, b) in parameters.items()
    }
    return trained


def initial_factors(base: BaseModel, layers: range, seed: int) -> Factors:
    """Draw A for all matrices of `layers`, and set B to zero: an adapter that changes nothing yet."""
    random = np.random.default_rng(seed)
    factors = {}
    for layer in layers:
        for part in _MATRICES:
            outputs, inputs = base.weights[f"blk.{layer}.{part}.weight"].shape
            a = (random.standard_normal((RANK, inputs)) * inputs**-0.5).astype(np.float32)
            factors[f"blk.{layer}.{part}.weight"] = a, np.zeros((outputs, RANK), np.float32)
    return factors


def write_adapter(path: Path, factors: Factors, *, name: str, about: str) -> None:
    """Write an adapter as llama.cpp reads it, in float16."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("adapter")
    writer.add_name(name)
    writer.add_description(about)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_F16))
    for matrix, (a, b) in factors.items():
        writer.add_tensor(f"{matrix}.lora_a", a.astype(np.float16))
        writer.add_tensor(f"{matrix}.lora_b", b.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
