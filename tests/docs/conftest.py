"""Fixtures that the tests of the documentation share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_hub import hub


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with a quick ``viva``, to be put on the path."""
    with hub(tmp_path_factory.mktemp("hub") / "bin") as folder:
        yield folder
