"""llama.cpp on a device that is not this process's CPU: `make device`.

That is Vulkan with Mesa's software driver, then the CPU of another process through llama.cpp's RPC backend. All layers
and the KV are on the device. Texts and log-probabilities are compared with those of the CPU: the kernels
differ, so they agree within llama.cpp's own noise only.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_models import at_once, talk_of, using
from tiny_gguf import make_model
from viva_process import completed

from viva.engine.backends.llama import backend as loaded
from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.llama.library import gpus
from viva.engine.backends.llama.native import NativeModel
from viva.engine.backends.llama.placement import OutOfDeviceMemory
from viva.engine.backends.llama.sizing import EngineConfig, choose_config
from viva.engine.errors import ConfigurationError
from viva.engine.likelihood import Reading
from viva.engine.messages import Completion, Request, Sampling
from viva.scenarios.kieval.verdicts import verdict_schema

if not gpus():
    pytest.skip("no device: run `make device`", allow_module_level=True)

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
NOISE = 0.15  # nats between the kernels of device and CPU; 0.073 was the largest difference of 144, on random weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Heads of 64 numbers, as in real models: kernels for devices want them.
    return make_model(tmp_path_factory.mktemp("device") / "tiny.gguf", width=256, heads=4, layers=3)


def test_devices_are_listed_with_their_memory() -> None:
    listed = json.loads(completed("list", "devices", "--json").stdout)["devices"]
    names = {device["name"]: device for device in listed}
    assert {device.name for device in gpus()} < names.keys()
    assert all(names[device.name]["total"] > 0 for device in gpus())


def test_all_layers_go_to_the_device_unless_the_name_says_otherwise(model: Path) -> None:
    async def layers(backend: LlamaBackend) -> int:
        return backend.engine.model.placement.layers

    assert using(f"llama:{model}?ctx=512&lanes=4", layers) == 4
    assert using(f"llama:{model}?ctx=512&lanes=4&gpu_layers=2", layers) == 2
    assert using(f"llama:{model}?ctx=512&lanes=4&gpu_layers=0", layers) == 0
    assert using(f"llama:{model}?ctx=512&lanes=4&device={gpus()[0].name}&kv_offload=off", layers) == 4
    with pytest.raises(ConfigurationError, match="there is no such device"):
        using(f"llama:{model}?device=CUDA99", layers)


def test_log_probabilities_are_those_of_the_cpu(model: Path) -> None:
    cases = [("the question is", " answer"), ("how many people", " would know the answer"), ("one two", " three" * 30)]

    async def read(backend: LlamaBackend) -> list[float]:
        values = []
        for context, said in cases * 3:
            answer = await backend.read(Reading(context * 5, (said, " other")))
            values += [value for likelihood in answer.likelihoods or () for value in likelihood.logprobs]
        return values

    on_device, on_cpu = (using(f"llama:{model}?ctx=512&lanes=4&gpu_layers={n}", read) for n in ("all", 0))
    differences = [abs(ours - theirs) for ours, theirs in zip(on_device, on_cpu, strict=True)]
    assert max(differences) < NOISE
    assert max(differences) > 0 or gpus()[0].backend == "RPC", "the CPU's kernels computed both"
    assert sum(differences) / len(differences) < NOISE / 5


def test_conversations_at_once_are_those_alone(model: Path) -> None:
    """Greedy text: the same alone and among others, up to ties that the noise decides."""

    async def answers(backend: LlamaBackend, together: bool) -> list[str]:
        async def answer(number: int) -> str:
            messages = talk_of(("user", f"question {number} " + "about people " * (number % 7)))
            request = Request(messages, Sampling(max_tokens=24), number + 1, b"", f"talk{number}")
            return (await backend.generate(request)).text

        return await at_once(24, answer) if together else [await answer(number) for number in range(24)]

    async def both(backend: LlamaBackend) -> tuple[list[str], list[str]]:
        return await answers(backend, True), await answers(backend, False)

    together, alone = using(f"llama:{model}?ctx=512&lanes=8", both)
    assert all(together)
    same = sum(one == other for one, other in zip(together, alone, strict=True))
    assert same >= 18, f"{same} of 24 texts are equal"


def test_verdicts_follow_their_schema(model: Path) -> None:
    async def verdicts(backend: LlamaBackend) -> list[Completion]:
        async def verdict(number: int) -> Completion:
            messages = talk_of(("user", f"judge reply {number}"))
            sampling = Sampling(temperature=1.0, max_tokens=400, schema=verdict_schema(400))
            return await backend.generate(Request(messages, sampling, number + 1, b"", f"talk{number}"))

        return await at_once(8, verdict)

    for completion in using(f"llama:{model}?ctx=1024&lanes=4", verdicts):
        if completion.finish != "length":
            assert json.loads(completion.text)["overall_score"] in (1, 2, 3, 4)


@pytest.mark.parametrize("slots", [None, 0, 3])
def test_idle_kv_returns_from_the_device_and_from_the_host(
    model: Path, slots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversations with more turns than there are lanes; `slots` None: as many as fit."""

    def choose(native: NativeModel, requested: EngineConfig) -> EngineConfig:
        config = choose_config(native, requested)
        return config if slots is None else replace(config, slots=slots)

    monkeypatch.setattr(loaded, "choose_config", choose)

    async def talks(backend: LlamaBackend) -> tuple[list[list[str]], dict[str, Any]]:
        async def talk(number: int) -> list[str]:
            asked = f"question {number} " + "tell me of people " * 10
            messages = talk_of(("system", "one question and one answer for people " * 6), ("user", asked))
            texts = []
            for ordinal in range(3):
                request = Request(messages, Sampling(max_tokens=12), number + 1, b"", f"talk{number}", ordinal=ordinal)
                texts.append((await backend.generate(request)).text)
                messages = [*messages, *talk_of(("assistant", texts[-1]), ("user", "and then?"))]
            return texts

        return await at_once(12, talk), backend.statistics()

    texts, told = using(f"llama:{model}?ctx=1024&lanes=4", talks)
    monkeypatch.setattr(loaded, "choose_config", lambda *given: replace(choose_config(*given), slots=0))
    recomputed, nothing = using(f"llama:{model}?ctx=1024&lanes=4&kv_cache=0", talks)
    assert told["found"] > nothing["found"] == 0
    assert (told["bytes"] == 0) == (slots is None)
    same = sum(one[0] == other[0] for one, other in zip(texts, recomputed, strict=True))
    assert same >= 9, f"{same} of 12 first answers are equal"


def test_too_little_memory_is_an_error_that_names_a_remedy_or_takes_fewer_lanes(model: Path) -> None:
    total = sum(device.total for device in gpus())

    async def lanes(backend: LlamaBackend) -> int:
        return backend.engine.config.lanes

    huge = 1 << 20  # tokens a lane
    with pytest.raises(OutOfDeviceMemory, match=r"GB of KV on the devices, .* GB are free; .* would fit"):
        using(f"llama:{model}?ctx={huge}&lanes=256&gpu_layers=all", lanes)
    assert 256 * huge * 3072 > total, "the lanes above could not fit"
    assert 4 <= using(f"llama:{model}?ctx=8192&gpu_layers=all", lanes) <= 256


def test_a_run_on_the_device_is_killed_resumed_and_complete(model: Path, tmp_path: Path) -> None:
    name = f"llama:{model}?ctx=2048&lanes=8"
    run = tmp_path / "run"
    options = ["run", "kieval", "--dataset", ITEMS, "-n", "6", "--rounds", "2", "--no-qualify", "--out", run]
    models = ["--candidate", f"{name}&label=tiny", "--interactor", "simulated:asker", "--evaluator", "simulated:judge"]
    with subprocess.Popen(
        [sys.executable, "-m", "viva", *map(str, [*options, *models, "--candidate-tokens", "16"])],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while not _recorded(run) and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
    before = _recorded(run)
    last = completed("resume", run, "--json")
    assert last.returncode == 0, last.stderr.decode()
    assert gpus()[0].name in last.stderr.decode(), "the run says which device computes"
    report = json.loads(last.stdout)
    assert report["candidates"]["tiny"]["interviews"] == 6
    assert _recorded(run) >= before
    manifest = json.loads((run / "manifest.json").read_text())
    assert any("GPU" in reason for reason in manifest["not_identical"])


def _recorded(run: Path) -> int:
    """Return the number of calls in a run's journal."""
    if not (run / "journal.sqlite").exists():
        return 0
    with sqlite3.connect(f"file:{run}/journal.sqlite?mode=ro", uri=True) as journal:
        try:
            return int(journal.execute("SELECT count(*) FROM calls").fetchone()[0])
        except sqlite3.OperationalError:
            return 0
