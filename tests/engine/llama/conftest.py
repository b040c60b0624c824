"""What the tests of the local backend share: a small and a real vocabulary, and answers that grow over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from growing_answers import Make, making
from tiny_gguf import make_model

from viva.engine.backends.llama.native import NativeModel


@pytest.fixture(scope="session")
def real(smollm2: Path) -> Iterator[NativeModel]:
    """A real model, for its tokenizer, its template and its 49,152 tokens."""
    model = NativeModel(smollm2)
    yield model
    model.close()


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """``make(schema, **settings)``: a generation over a small vocabulary."""
    model = NativeModel(make_model(tmp_path_factory.mktemp("generation") / "tiny.gguf"))
    yield making(model)
    model.close()


@pytest.fixture(scope="session", params=["small", "real"])
def make_any(request: pytest.FixtureRequest, make: Make) -> Make:
    """As ``make``, also over the vocabulary of a real model."""
    return make if request.param == "small" else making(request.getfixturevalue("real"))
