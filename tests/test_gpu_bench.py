"""The bench for machines with a GPU, as far as no GPU is needed: its models, its limits of time, what it keeps."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.messages import Completion, Request, Sampling, View

BENCHES = Path(__file__).parents[1] / "benches"


@pytest.fixture(scope="module")
def parts() -> Iterator[ModuleType]:
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHES / "gpu"), str(BENCHES), *sys.path])
        import parts

        yield parts
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHES)):
            del sys.modules[name]


@pytest.mark.parametrize(("size", "kind"), [("1b", "f16"), ("8b", "q8_0"), ("8b", "q4_k_m"), ("30b-moe", "q4_k_m")])
def test_models_of_random_weights_answer_each_prompt_in_another_way(
    parts: ModuleType, tmp_path: Path, size: str, kind: str
) -> None:
    path = parts.write_model(tmp_path / "model.gguf", parts.small(parts.SHAPES[size]), kind)

    async def answers() -> list[Completion]:
        async with build(f"llama:{path}?lanes=8&ctx=512&threads=1&kv_cache=0", RealClock()) as backend:
            views = [View() for _ in range(4)]
            for number, view in enumerate(views):
                view.append("user", "the answer " * number + "a question")
            sampling = Sampling(max_tokens=6, logprobs=1)
            return [await backend.generate(Request(view.messages, sampling, 1, b"", "")) for view in views]

    completions = asyncio.run(answers())
    assert len({completion.text for completion in completions}) == len(completions)
    assert all(-20 < row[1] < 0 for completion in completions for row in completion.logprobs or [])


def test_results_survive_a_part_that_fails_and_another_call_measures_what_is_missing(
    parts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Model:
        def __init__(self, name: str, quick: bool, gpu: bool, seconds: float) -> None:
            self.seconds = seconds

    def first(bench: Model) -> dict[str, float]:
        return {"first": 1.23456}

    def second(bench: Model) -> dict[str, float]:
        if not works:
            raise parts.PeerFailed("llama-server ended with 1")
        return {"second": 2.0}

    works = False
    monkeypatch.setattr(parts, "GpuBench", Model)
    monkeypatch.setattr(parts, "WORK", tmp_path)
    monkeypatch.setattr(parts, "PARTS", {"one": (first, "a", 60), "two": (second, "a", 60)})
    monkeypatch.setenv("OUT", str(tmp_path))
    (tmp_path / "pack.json").write_text('{"commit": "abc", "date": "2026-01-01", "llama": "llama_cpp_python-1"}')
    options = argparse.Namespace(device="cpu", quick=True, only=None)

    parts.measure(options, {"build_s": 7.0}, time.monotonic() + 1000)
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert (result["bench"], result["figures"]) == ("gpu", {"first": 1.2346})
    assert result["machine"]["build_s"] == 7.0
    assert result["commit"]
    assert "two: llama-server ended with 1" in capsys.readouterr().out

    works = True
    parts.measure(options, {}, time.monotonic() + 5)
    assert "two: left out, for the time is over" in capsys.readouterr().out
    parts.measure(options, {}, time.monotonic() + 1000)
    assert json.loads((tmp_path / "gpu.json").read_text())["figures"] == {"first": 1.2346, "second": 2.0}


def test_a_program_that_takes_too_long_is_killed_with_what_it_started(parts: ModuleType, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(parts.PeerFailed, match="did not end within 1 s"):
        parts.finish(["sh", "-c", f"sleep 1000 > {pipe} & wait"], tmp_path, seconds=1.0)
    ready, _, _ = select.select([reader], [], [], 60)  # as soon as nobody holds the other end
    assert (ready, os.read(reader, 1)) == ([reader], b"")
    os.close(reader)
