"""What the tests of the local backend share: one small vocabulary to let answers grow over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from growing_answers import Make, making


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """``make(schema, **settings)``: a generation over a small real vocabulary."""
    with making(tmp_path_factory.mktemp("generation")) as made:
        yield made
