"""Models with a sliding window: KV that was saved and put back gives the same bits as KV that never left its lane."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from tiny_architectures import WINDOW, make_architecture
from viva_process import ended, started

from viva.engine.backends.base import Backend
from viva.engine.backends.llama.native import NativeContext, NativeModel, SavedState, with_all_cells
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.messages import Request, Sampling, View

ITEMS = Path(__file__).parents[4] / "scenarios" / "kieval" / "items" / "science.jsonl"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_architecture(tmp_path_factory.mktemp("window") / "gemma3.gguf", "gemma3", seed=4)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[NativeModel]:
    native = NativeModel(path)
    yield native
    native.close()


def computed(context: NativeContext, lane: int, tokens: Sequence[int], start: int) -> str:
    positions = range(start, start + len(tokens))
    logits = context.decode(tokens, positions, [lane] * len(tokens), [0] * (len(tokens) - 1) + [1])
    assert logits is not None
    return hashlib.sha256(logits[0].tobytes()).hexdigest()


def saved(context: NativeContext, lane: int) -> SavedState:
    state = np.zeros(context.saved_size(lane), dtype=np.uint8)
    context.save(lane, state)
    return state


@pytest.mark.parametrize("flash_attention", ["on", "off"])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_line_31_kv_put_back_gives_the_bits_of_kv_that_never_left(
    model: NativeModel, flash_attention: str, kv_type: str
) -> None:
    draw = np.random.default_rng(2)
    tokens = draw.integers(3, model.n_vocab, size=700).tolist()
    context = NativeContext(
        model, lanes=3, context=1024, batch=512, threads=2, kv_type=kv_type, flash_attention=flash_attention
    )
    try:
        for border in (WINDOW - 1, WINDOW + 1, 300, 600):
            for lane in range(3):
                context.forget(lane)
                for start in range(0, border, 512):
                    computed(context, lane, tokens[start : min(border, start + 512)], start)
            for lane in (1, 2):
                state = saved(context, lane)
                context.restore(lane, state)
                assert saved(context, lane).tobytes() == state.tobytes()
            context.restore(2, saved(context, 2))  # again and again
            for count in (1, 2, 40):
                told = [computed(context, lane, tokens[border : border + count], border) for lane in range(3)]
                assert told[1] == told[2] == told[0]
                for lane in range(3):
                    context.forget(lane, border)
    finally:
        context.close()


def test_line_31_log_probabilities_are_the_same_with_and_without_saved_kv(path: Path) -> None:
    async def talk(backend: Backend, number: int) -> list[Any]:
        view, told = View(), []
        view.append("system", "Be brief, and answer in as few words as the question of these people wants.")
        for turn in range(3):
            view.append("user", f"{'people and words ' * (3 + number % 4)}{number} {turn}")
            request = Request(view.messages, Sampling(max_tokens=12, logprobs=0), turn + 1, b"", f"talk-{number}")
            completion = await backend.generate(request)
            view.append("assistant", completion.text, completion.pieces)
            told.append((completion.text, completion.logprobs))
        return told

    async def all_talks(options: str, side_by_side: int) -> str:
        told: dict[int, list[Any]] = {}

        async def one(backend: Backend, number: int) -> None:
            async with limiter:
                told[number] = await talk(backend, number)

        limiter = anyio.CapacityLimiter(side_by_side)
        async with build(f"llama:{path}?ctx=1536{options}", RealClock()) as backend, anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(one, backend, number)
        return repr([told[number] for number in range(8)])

    alone = anyio.run(all_talks, "&lanes=2", 1)
    for options, side_by_side in (("&lanes=2&kv_cache=0", 1), ("&lanes=8", 8), ("&lanes=4&kv_cache=1", 8)):
        assert hash(anyio.run(all_talks, options, side_by_side)) == hash(alone)


def test_line_31_a_run_is_of_tier_c_and_says_the_same_in_company(path: Path, tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text("".join(ITEMS.read_text().splitlines(keepends=True)[:4]))
    options = ["--dataset", tmp_path / "items.jsonl", "--rounds", "2", "--candidate-tokens", "16", "--strict"]
    options += ["--temperature", "0.9", "--interactor", "simulated:asks", "--evaluator", "simulated:judges"]

    def transcripts(name: str, extra: str, concurrency: int) -> bytes:
        given = [*options, "--candidate", f"llama:{path}?label=c&ctx=2048{extra}", "--concurrency", str(concurrency)]
        code, _, said = ended(started("run", "kieval", *given, "--out", tmp_path / name))
        assert code == 0, said
        assert json.loads((tmp_path / name / "manifest.json").read_text())["tier"] == "C"
        return ended(started("show", tmp_path / name, "--json"))[1]

    assert transcripts("one", "", 1) == transcripts("sixteen", "&kv_cache=0", 16)


def test_a_state_of_another_form_is_refused() -> None:
    for state in (b"", b"magic and a number", bytes(8) + b"\1\0\0\0" + b"\2\0\0\0" + bytes(24)):
        with pytest.raises(ValueError, match="state"):
            with_all_cells(np.frombuffer(state, dtype=np.uint8))
