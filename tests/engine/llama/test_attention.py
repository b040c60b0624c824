"""Flash attention is chosen by a measurement, once for a model on a machine, and a resumed run keeps the choice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probing import recorded
from tiny_architectures import make_architecture
from tiny_gguf import make_model
from viva_process import ended, started

from viva.engine.backends.llama import attention
from viva.engine.backends.llama.native import NativeContext, NativeModel
from viva.engine.backends.llama.placement import LayerPlacement
from viva.engine.backends.llama.sizing import EngineConfig, choose_config

ITEMS = Path(__file__).parents[3] / "scenarios" / "kieval" / "items" / "science.jsonl"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("attention") / "m.gguf", width=256, layers=1, context=131_072)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, as of a new process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(attention, "_chosen", {})
    monkeypatch.setattr(attention, "_recorded", {})
    return tmp_path / "cache" / "viva" / "attention"


def chosen(model: NativeModel, **wanted: object) -> str:
    config = EngineConfig(**{"context": 2048, "threads": 2} | wanted)  # type: ignore[arg-type]
    return attention.choose_attention(model, choose_config(model, config)).flash_attention


def measures(monkeypatch: pytest.MonkeyPatch, *results: dict[str, float]) -> list[dict[str, float]]:
    """Replace the measurement; the returned list has the results that were not asked for yet."""
    left = list(results)
    monkeypatch.setattr(attention, "_measure", lambda model, config: left.pop(0))
    return left


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"on": 1.0, "off": 0.5}, "off"),
        ({"on": 1.0, "off": 0.84}, "off"),
        ({"on": 1.0, "off": 0.86}, "on"),  # a small gain at this depth is a loss after few tokens
        ({"on": 1.0, "off": 2.0}, "on"),
        ({}, "on"),  # not measurable
    ],
)
def test_the_clearly_faster_way_is_chosen(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], expected: str
) -> None:
    measures(monkeypatch, seconds)
    with closing(NativeModel(path)) as model:
        assert chosen(model) == expected


def test_nothing_is_measured_where_there_is_nothing_to_choose(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures(monkeypatch)
    with closing(NativeModel(path)) as model:
        assert chosen(model, context=1024) == "auto"
        assert chosen(model, context=131_072, lanes=1) == "auto"  # no room for the scores
        assert chosen(model, kv_type="q8_0") == "auto"  # wanted for such KV
        assert chosen(model, flash_attention="on") == "on"
        assert chosen(model, flash_attention="off") == "off"
        model.placement = LayerPlacement(layers=2, total=2, kv_offload=False)
        assert chosen(model) == "auto"
        assert not cache.exists()


def test_a_measurement_takes_real_seconds_of_both_ways_and_is_kept(path: Path, cache: Path) -> None:
    with closing(NativeModel(path)) as model:
        first = chosen(model)
        [file] = cache.iterdir()
        record = json.loads(file.read_text())
        assert record["flash_attention"] == first
        assert min(record["seconds"]["on"], record["seconds"]["off"]) > 0
        assert (record["context"], record["threads"]) == (2048, 2)
        chosen(model, context=4096)  # another case
        assert len(list(cache.iterdir())) == 2


_THREADS = """
import os, sys
from pathlib import Path
from viva.engine.backends.llama.attention import choose_attention
from viva.engine.backends.llama.native import NativeModel
from viva.engine.backends.llama.sizing import EngineConfig, choose_config

model = NativeModel(Path(sys.argv[1]))
print(len(os.listdir("/proc/self/task")))
choose_attention(model, choose_config(model, EngineConfig(context=2048, threads=2, contexts=1)))
while len(os.listdir("/proc/self/task")) > 1:  # they are on their way out
    pass
"""


def test_loading_and_measuring_leave_no_threads_behind(path: Path, cache: Path) -> None:
    """With more OpenMP threads than processors, those of the inference threads would sleep at every barrier."""
    command = [sys.executable, "-c", _THREADS, str(path)]
    # NumPy's own threads are left out.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    printed = subprocess.run(command, capture_output=True, check=True, text=True, env=environment, timeout=300).stdout
    assert printed.split() == ["1"]
    assert cache.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"flash_attention": "maybe"}', b"\xff" * 9, b"[" * 99_999, b" " * 99_999]
)
def test_a_damaged_record_is_measured_and_written_anew(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    left = measures(monkeypatch, {"on": 2.0, "off": 1.0}, {"on": 1.0, "off": 2.0})
    with closing(NativeModel(path)) as model:
        assert chosen(model) == "off"
        [file] = cache.iterdir()
        for written, expected in ((file.read_bytes(), "off"), (content, "on"), (None, "on")):
            if written is not None:
                file.write_bytes(written)
            attention._chosen.clear()
            assert chosen(model) == expected
        assert left == []


@pytest.mark.parametrize("where", ["no home", "a file in its place"])
def test_without_a_cache_a_process_measures_once(
    path: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "no home":
        monkeypatch.setattr(attention, "user_cache", no_home)
    else:
        (tmp_path / "cache").write_text("")
    measures(monkeypatch, {"on": 2.0, "off": 1.0})
    with closing(NativeModel(path)) as model:
        assert (chosen(model), chosen(model)) == ("off", "off")


def no_home(*names: str) -> Path:
    raise RuntimeError("Could not determine home directory.")


# Full attention, sliding windows, keys only, a recurrent state beside attention.
@pytest.mark.parametrize("kind", ["llama", "gemma3", "deepseek2", "lfm2"])
def test_kv_that_nobody_computed_is_as_long_as_it_says(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    make_model(file, width=64, layers=1) if kind == "llama" else make_architecture(file, kind)
    with closing(NativeModel(file)) as model:
        if model.recurrent:
            assert attention._measure(model, choose_config(model, EngineConfig(context=2048))) == {}
            return
        for way in ("on", "off"):
            with closing(
                NativeContext(model, lanes=2, context=1024, batch=512, threads=1, flash_attention=way)
            ) as context:
                context.fill(1, 700)
                logits = context.decode([5, 5], [0, 700], [0, 1], [1, 1])
                assert logits is not None
                assert np.isfinite(logits).all()
                context.forget(1, 700)
                size = context.saved_size(1)
                context.fill(1, 699)
                assert context.saved_size(1) <= size


def test_a_resumed_run_keeps_the_choice_that_it_began_with(path: Path, cache: Path, tmp_path: Path) -> None:
    name = f"llama:{path}?ctx=2048&lanes=8"
    probe = ["run", "probe", "--dataset", ITEMS, "--candidate", name, "-n", "4", "--shots", "0"]
    with closing(NativeModel(path)) as model:
        chosen(model, lanes=8)
    [file] = cache.iterdir()
    results = {}
    for way in ("off", "on"):
        set_choice(file, way)
        for folder, budget in ((f"{way} whole", []), (f"{way} cut", ["--max-calls", "2", "--concurrency", "1"])):
            code, _, said = ended(started(*probe, *budget, "--out", tmp_path / folder))
            assert code == (1 if budget else 0), said
            assert json.loads((tmp_path / folder / "manifest.json").read_text())["flash_attention"] == {name: way}
        results[way] = result_of(tmp_path / f"{way} whole")
    assert results["off"] != results["on"]
    for way, other in (("off", "on"), ("on", "off")):  # as if measured again, or on another machine
        set_choice(file, other)
        code, _, said = ended(started("resume", tmp_path / f"{way} cut", "--max-calls", "1000"))
        assert code == 0, said
        assert result_of(tmp_path / f"{way} cut") == results[way]


def result_of(run: Path) -> dict[str, Any]:
    """The log-probabilities of a probe's items, to the last bit."""
    return {key: result["letter"]["logprobs"] for key, result in recorded(run).items()}


def set_choice(file: Path, way: str) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"flash_attention": way}))
