"""Training: the network that is trained is the one that llama.cpp computes, and it learns. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from viva.engine.backends.llama.native import NativeContext, NativeModel
from viva.engine.errors import ConfigurationError
from viva.lab import train as training
from viva.lab.corpus import Corpus, sample_text
from viva.lab.gguf_export import NetworkShape, initial_weights, learn_vocabulary, write_gguf
from viva.lab.train import ROW_TOKENS, DocumentTokeniser, Recipe, TokenRows, train_network
from viva.lab.world import World

WORLD = World()
SHAPE = NetworkShape(width=64, layers=2, heads=2, inner=96)
VOCABULARY = learn_vocabulary(sample_text(WORLD, documents=800), 1280)
START = initial_weights(SHAPE, len(VOCABULARY), 1)


def _model(path: Path) -> NativeModel:
    write_gguf(path, START, SHAPE, VOCABULARY, name="start", about="Knows nothing.")
    return NativeModel(path)


def test_one_step_sees_the_loss_that_llama_cpp_computes(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch (extra 'lab') is not installed")
    model = _model(tmp_path / "start.gguf")
    rows = DocumentTokeniser(model).rows(Corpus(WORLD, WORLD.known_facts(1.0), 1).documents(), 1)
    every = TokenRows(rows.tokens, np.ones_like(rows.learnt))
    [(_, loss)] = train_network(START, SHAPE, every, Recipe(steps=1, rows=1), seed=1).losses
    context = NativeContext(model, lanes=1, context=512, batch=512, threads=1)
    places = np.arange(ROW_TOKENS, dtype=np.int32)
    tokens = rows.tokens[0].astype(np.int32)
    logits = context.decode(tokens[:-1], places, np.zeros(ROW_TOKENS, np.int32), np.ones(ROW_TOKENS, bool)).astype(
        np.float64
    )
    logits -= logits.max(axis=1, keepdims=True)
    expected = (np.log(np.exp(logits).sum(axis=1)) - logits[places, tokens[1:]]).mean()
    assert loss == pytest.approx(expected, rel=0.005)  # Q8_0 against float32


def test_training_learns_and_is_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch (extra 'lab') is not installed")
    rows = DocumentTokeniser(_model(tmp_path / "start.gguf")).rows(
        Corpus(WORLD, WORLD.known_facts(0.25), 1).documents(), 8
    )
    first, again = (train_network(START, SHAPE, rows, Recipe(steps=20, rows=2, warmup=2), seed=1) for _ in range(2))
    assert first.losses == again.losses
    assert all((first.weights[name] == again.weights[name]).all() for name in START)
    before = train_network(START, SHAPE, rows, Recipe(steps=1, rows=2), seed=1).losses[0][1]
    assert first.losses[-1][1] < before


def test_without_pytorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(training, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"viva-exam\[lab\]"):
        train_network(
            START,
            SHAPE,
            TokenRows(np.zeros((1, ROW_TOKENS + 1), np.int32), np.ones((1, ROW_TOKENS + 1), bool)),
            Recipe(1),
            seed=1,
        )
