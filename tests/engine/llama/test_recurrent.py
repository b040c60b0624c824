"""Models with a recurrent state: whole interviews side by side, answers cut by a stop string, readings, and tiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import pytest
from local_models import at_once, using
from tiny_architectures import make_architecture
from viva_process import ended, started

from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.llama.native import NativeContext, NativeModel
from viva.engine.errors import Unavailable
from viva.engine.likelihood import Reading
from viva.engine.messages import Request, Sampling, View

T = TypeVar("T")
ITEMS = Path(__file__).parents[3] / "scenarios" / "kieval" / "items" / "science.jsonl"
SCHEMA = {"type": "object", "properties": {"first": {"enum": ["yes", "no"]}, "second": {"enum": [1, 2]}}}
SCHEMA |= {"required": ["first", "second"]}


@pytest.fixture(scope="module", params=["mamba", "lfm2"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[False, True], ids=["F16", "Q4_0"])
def model(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(kind) / f"{kind}.gguf"
    return make_architecture(path, kind, seed=5, quantised=request.param)


async def talk(backend: LlamaBackend, number: int, **sampling: object) -> list[str]:
    """Three turns; answers are free text and answers by a schema in turn."""
    view, said = View(), []
    view.append("system", "Be brief.")
    for turn in range(3):
        view.append("user", f"{'people ' * (number % 5)}{number} {turn}")
        settings = {"max_tokens": 60, "schema": SCHEMA if (number + turn) % 2 else None, **sampling}
        request = Request(view.messages, Sampling(**settings), number * 9 + turn + 1, b"", f"talk-{number}")  # type: ignore[arg-type]
        completion = await backend.generate(request)
        view.append("assistant", completion.text, completion.pieces)
        said.append(completion.text)
    return said


@pytest.mark.parametrize("lanes", [1, 8])
def test_line_30_talks_side_by_side_through_few_lanes_are_all_answered(model: Path, lanes: int) -> None:
    async def main(backend: LlamaBackend) -> list[list[str]]:
        return await at_once(12, lambda number: talk(backend, number))

    said = using(f"llama:{model}?lanes={lanes}&ctx=512&kv_cache=20", main)
    for number, answers in enumerate(said):
        for turn, text in enumerate(answers):
            assert not (number + turn) % 2 or set(json.loads(text)) == {"first", "second"}


def test_line_30_readings_leave_no_trace_in_the_state(model: Path) -> None:
    context, texts = "the question is", (" answer", " other words", " answer", " an answer", " answer")

    async def main(backend: LlamaBackend) -> tuple[list[list[float]], list[list[float]]]:
        together = await backend.read(Reading(context, texts))
        alone = [await backend.read(Reading(context, (text,))) for text in texts]
        return [one.logprobs for one in together.likelihoods or []], [
            one.logprobs for completion in alone for one in completion.likelihoods or []
        ]

    together, alone = using(f"llama:{model}?lanes=4&ctx=512", main)
    assert together[0] == together[2] == together[4]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-3)


def test_line_30_an_answer_cut_by_a_stop_string_is_followed_by_a_turn_as_without_any_state(model: Path) -> None:
    async def free(backend: LlamaBackend) -> str:
        return (await talk(backend, 4, schema=None))[0]

    stop = using(f"llama:{model}?lanes=1&ctx=512", free)[3:5]

    async def main(backend: LlamaBackend) -> list[str]:
        return await talk(backend, 4, schema=None, stop=(stop,))

    kept, lost = (using(f"llama:{model}?lanes=1&ctx=512{cache}", main) for cache in ("", "&kv_cache=0"))
    assert stop not in kept[0]
    assert kept == lost


def test_line_30_a_refusal_to_cut_kv_is_an_error(model: Path) -> None:
    native = NativeModel(model)
    context = NativeContext(native, lanes=2, context=256, batch=64, threads=1)
    try:
        context.decode([5, 6, 7], [0, 1, 2], [0, 0, 0], [0, 0, 1])
        with pytest.raises(Unavailable, match="cannot remove"):
            context.forget(0, 2)
        context.forget(0)  # the whole of it always goes
        assert context.decode([5], [0], [0], [1]) is not None
    finally:
        context.close()
        native.close()


def test_line_30_runs_with_a_recurrent_model_are_of_tier_a_and_strict_refuses_them(kind: str, tmp_path: Path) -> None:
    model = make_architecture(tmp_path / "m.gguf", kind)
    (tmp_path / "items.jsonl").write_text("".join(ITEMS.read_text().splitlines(keepends=True)[:2]))
    options = ["--dataset", tmp_path / "items.jsonl", "--candidate", f"llama:{model}?ctx=2048", "--rounds", "1"]
    options += ["--interactor", "simulated:asks", "--evaluator", "simulated:judges", "--candidate-tokens", "8"]
    code, _, said = ended(started("run", "kieval", *options, "--out", tmp_path / "strict", "--strict"))
    assert code == 2
    assert "recurrent" in said
    code, _, said = ended(started("run", "kieval", *options, "--out", tmp_path / "loose"))
    assert code == 0, said
    manifest = json.loads((tmp_path / "loose" / "manifest.json").read_text())
    assert manifest["tier"] == "A"
    assert len(manifest["not_identical"]) == 1
    assert "recurrent" in manifest["not_identical"][0]
