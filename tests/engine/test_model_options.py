"""Options of model names as they are described, against those that the code accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from viva.engine.backends.registry import build, describe_options, described_kinds
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError

_NAMES = {
    "openai": "openai:http://127.0.0.1:1/v1#m",
    "anthropic": "anthropic:http://127.0.0.1:1#m",
    "gemini": "gemini:http://127.0.0.1:1#m",
    "http": 'http:{"url":"http://127.0.0.1:1/{message}","method":"GET"}',
    "llama": "llama:DIR/model.gguf",
    "hf": "hf:DIR",
    "simulated": "simulated:a",
    "oracle": "oracle:a",
    "human": "human:DIR",
    "pool": "pool:DIR/pool.yaml",
}


@pytest.mark.parametrize("kind", _NAMES)
def test_descriptions_name_the_options_that_exist(kind: str, tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text("members: [simulated:a, simulated:b]\n")
    (tmp_path / "model.gguf").touch()
    name = _NAMES[kind].replace("DIR", str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        build(f"{name}?nonsense=1", RealClock())
    known = re.search(rf"{kind} knows ([^;]+)", str(caught.value))
    assert known is not None, str(caught.value)
    assert sorted(describe_options(kind)) == known[1].split(", ")


def test_every_described_option_has_a_default_and_a_meaning() -> None:
    for kind in described_kinds():
        assert all(default and meaning for default, meaning in describe_options(kind).values())
