"""LoRA adapters: several models on one set of weights, each beside the others as it is alone."""

from __future__ import annotations

import hashlib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import llama_cpp
import pytest
from command import viva
from local_models import at_once, using
from tiny_gguf import make_adapter, make_model

from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.llama.model_files import Adapter, parse_adapters
from viva.engine.backends.registry import build, file_records, with_absolute_path
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message, Request, Sampling

ITEMS = Path(__file__).parents[3] / "scenarios" / "kieval" / "items" / "science.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and two adapters for it."""
    path = tmp_path_factory.mktemp("adapters")
    make_model(path / "base.gguf", seed=3, quantised=True)
    for name, seed in (("one", 1), ("two", 2)):
        make_adapter(path / f"{name}.gguf", seed=seed)
    return path


def asked(number: int, **sampling: Any) -> Request:
    messages = [Message("user", f"what do people know about {number}")]
    return Request(messages, Sampling(max_tokens=24, **sampling), number + 1, b"", f"talk-{number}", "candidate", 0)


async def greedy(backend: LlamaBackend) -> tuple[list[int], list[int]]:
    request = asked(0)
    prompt = [int(token) for segment in backend.engine.chat.segments(request.messages) for token in segment.tokens]
    completion = await backend.generate(request)
    return prompt, [token for _, ids in completion.pieces or [] for token in ids]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_greedy_text_with_an_adapter_is_that_of_the_package(folder: Path, scale: float) -> None:
    base, adapter = folder / "base.gguf", folder / "one.gguf"
    # The same attention kernel on both sides: the two that llama.cpp has differ by more than some of the margins here.
    name = f"llama:{base}?lanes=1&ctx=512&flash_attn=off"
    prompt, said = using(f"{name}&lora={adapter},{scale}", greedy)
    reference = llama_cpp.Llama(str(base), n_ctx=512, verbose=False, lora_path=str(adapter), lora_scale=scale)
    expected = []
    for token in reference.generate(prompt, temp=0.0, repeat_penalty=1.0):
        if token == reference.token_eos() or len(expected) == 24:
            break
        expected.append(token)
    reference.close()
    assert said == expected
    assert using(f"{name}&lora={adapter},0", greedy) == using(name, greedy) != (prompt, said)


def test_models_with_other_adapters_share_weights_and_answer_as_they_do_alone(folder: Path) -> None:
    base = f"llama:{folder}/base.gguf?lanes=4&ctx=512"
    one, two = folder / "one.gguf", folder / "two.gguf"
    names = [base, f"{base}&lora={one}", f"{base}&lora={two},0.5", f"{base}&lora={one},{two},-0.5"]

    async def answers(backend: Any) -> list[str]:
        return await at_once(6, lambda number: answer(backend, number))

    async def answer(backend: Any, number: int) -> str:
        return str((await backend.generate(asked(number, temperature=0.7))).text)

    async def together() -> list[list[str]]:
        async with AsyncExitStack() as stack:
            backends = [await stack.enter_async_context(build(name, RealClock())) for name in names]
            engines = [backend.engine for backend in backends if isinstance(backend, LlamaBackend)]
            assert len({id(engine.model) for engine in engines}) == 1, "the weights are loaded once"
            assert len(set(map(id, engines))) == 4
            return await at_once(4, lambda index: answers(backends[index]))

    alone = [using(name, answers) for name in names]
    assert len({tuple(texts) for texts in alone}) == 4
    assert anyio.run(together) == alone


def test_an_adapter_for_another_model_is_refused_by_what_it_is(folder: Path, tmp_path: Path) -> None:
    base = folder / "base.gguf"
    (tmp_path / "text.gguf").write_text("no adapter at all, just some text")
    cases = {
        make_adapter(tmp_path / "gemma.gguf", architecture="gemma3"): "arch mismatch",
        make_adapter(tmp_path / "wide.gguf", width=128): "incorrect shape",
        make_adapter(tmp_path / "deep.gguf", layers=5): r"blk\.[234]\.attn_\w+\.weight' does not exist in base model",
        make_adapter(tmp_path / "activated.gguf", invocation=(5, 7)): "activated LoRA",
        base: "expect general.type to be 'adapter'",
        tmp_path / "text.gguf": "not a GGUF file",
    }
    for path, reason in cases.items():
        with pytest.raises(ConfigurationError, match=reason) as caught:
            using(f"llama:{base}?ctx=512&lanes=1&lora={path}", greedy)
        assert str(path) in str(caught.value)
    assert using(f"llama:{base}?ctx=512&lanes=1", greedy)[1], "the weights still serve others"


@pytest.mark.parametrize(
    ("option", "adapters"),
    [
        ("a.gguf", [("a.gguf", 1.0)]),
        ("a.gguf,0.5", [("a.gguf", 0.5)]),
        ("a.gguf,-1e-2,b%2Cc.gguf", [("a.gguf", -0.01), ("b,c.gguf", 1.0)]),
        ("a.gguf,b%2Cc.gguf,2", [("a.gguf", 1.0), ("b,c.gguf", 2.0)]),
        ("./7,7", [("7", 7.0)]),
        ("d+e.gguf", [("d e.gguf", 1.0)]),
        ("0.5", None),
        ("a.gguf,0.5,0.5", None),
        ("a.gguf,1e9", None),
        ("a.gguf,", None),
        ("b,c.gguf", None),
        ("", None),
    ],
)
def test_the_option_names_files_and_scales(
    option: str, adapters: list[tuple[str, float]] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.gguf", "b,c.gguf", "7", "d e.gguf"):
        (tmp_path / name).write_bytes(b"x")
    if adapters is None:
        with pytest.raises(ConfigurationError, match="lora="):
            parse_adapters(f"llama:m.gguf?ctx=512&lora={option}&label=x")
        return
    expected = tuple(Adapter(tmp_path / name, scale) for name, scale in adapters)
    assert parse_adapters(f"llama:m.gguf?ctx=512&lora={option}&label=x") == expected
    for model in ("m.gguf", "hf/o/r:Q8_0"):
        absolute = with_absolute_path(f"llama:{model}?ctx=512&lora={option}&label=x")
        monkeypatch.chdir("/")
        assert parse_adapters(absolute) == expected
        assert with_absolute_path(absolute) == absolute
        monkeypatch.chdir(tmp_path)


def test_a_resume_refuses_a_changed_adapter_and_names_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    adapter = tmp_path / "mine.gguf"
    adapter.write_bytes((folder / "one.gguf").read_bytes())
    before = hashlib.sha256(adapter.read_bytes()).hexdigest()
    name = f"llama:{folder}/base.gguf?ctx=2048&lanes=1&lora={adapter}"
    done = viva("run", "kieval", "--dataset", ITEMS, "-n", "1", "--rounds", "1", "--candidate-tokens", "4",
                "--candidate", name, "--interactor", "simulated:i", "--evaluator", "simulated:e",
                "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert file_records(name)[str(adapter)] == f"sha256:{before}"
    assert viva("resume", tmp_path / "run").returncode == 0
    adapter.write_bytes((folder / "two.gguf").read_bytes())
    refused = viva("resume", tmp_path / "run")
    assert refused.returncode == 2
    after = hashlib.sha256(adapter.read_bytes()).hexdigest()
    told = " ".join(refused.stderr.split())
    assert f"files; {adapter} was sha256:{before}, is sha256:{after}" in told
