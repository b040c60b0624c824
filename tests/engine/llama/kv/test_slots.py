"""Idle KV in slots of the context, as on a GPU: answers are those of KV in the host's memory, or of none at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from local_models import at_once, using
from tiny_architectures import make_architecture
from tiny_gguf import make_model

from viva.engine.backends.llama import backend as loaded
from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.llama.native import NativeModel
from viva.engine.backends.llama.sizing import EngineConfig, choose_config
from viva.engine.messages import Request, Sampling, View

Sizes = Callable[[int], None]


@pytest.fixture(params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model with full attention, then one with sliding windows."""
    file = tmp_path / "m.gguf"
    return make_model(file) if request.param == "llama" else make_architecture(file, "gemma3")


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    """Give the contexts of models opened from now on so many slots."""

    def use(count: int) -> None:
        def choose(model: NativeModel, requested: EngineConfig) -> EngineConfig:
            return replace(choose_config(model, requested), slots=count)

        monkeypatch.setattr(loaded, "choose_config", choose)

    return use


async def talk(backend: LlamaBackend, turns: int, number: int) -> list[str]:
    view, said = View(), []
    view.append("system", "Be brief, and answer what you are asked.")
    for turn in range(turns):
        view.append("user", f"{'people ' * (number % 5)}{number} {turn}")
        request = Request(view.messages, Sampling(max_tokens=20), number * 9 + turn + 1, b"", f"talk-{number}")
        completion = await backend.generate(request)
        view.append("assistant", completion.text, completion.pieces)
        said.append(completion.text)
    backend.ended(f"talk-{number}")
    return said


@pytest.mark.parametrize("count", [1, 3, 40])
def test_answers_do_not_depend_on_where_idle_kv_is(model: Path, slots: Sizes, count: int) -> None:
    async def main(backend: LlamaBackend) -> tuple[list[list[str]], dict[str, float]]:
        said = await at_once(10, partial(talk, backend, 4))
        return said, backend.statistics()

    name = f"llama:{model}?lanes=8&ctx=512&threads=1&kv_cache="
    without, nothing = using(f"{name}0", main)
    slots(count)
    for budget in ("0", "1", "200"):
        said, told = using(f"{name}{budget}", main)
        assert said == without
        assert told["found"] > nothing["found"] == 0
        if count == 40:  # everything that is idle is in a slot
            assert told["bytes"] == told["evictions"] == 0
        assert told["states"] <= count + (budget != "0") * 1000


def test_ended_conversations_leave_their_slots(model: Path, slots: Sizes) -> None:
    slots(4)

    async def main(backend: LlamaBackend) -> list[float]:
        states = []
        for number in range(12):
            await talk(backend, 2, number)
            states.append(backend.statistics()["states"])
        return states

    states = using(f"llama:{model}?lanes=8&ctx=512&threads=1&kv_cache=0", main)
    assert max(states) <= 3  # the common system prompt, and what the inference thread has not removed yet
