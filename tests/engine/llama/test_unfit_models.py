"""Models that write no text, weights that are not finite, memory as the model takes it, contexts beyond training."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import gguf
import pytest
from case_tables import case_table
from local_models import using
from tiny_architectures import HEADS, LAYERS, WIDE_HEAD, make_architecture
from tiny_gguf import make_model

from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.llama.native import NativeContext, NativeModel
from viva.engine.backends.llama.sizing import EngineConfig, choose_config
from viva.engine.errors import BackendError, ConfigurationError, Rejected
from viva.engine.likelihood import Reading
from viva.engine.messages import Message, Request, Sampling

T = TypeVar("T")
GEMMA_BYTES = 2 * LAYERS * HEADS * WIDE_HEAD * 2  # of a token: keys and values, two bytes a number
BAD_WORD = "people"  # the token whose embedding is NaN in a model with one such row


def overwritten(path: Path, value: float, tensors: Callable[[str], bool], rows: slice = slice(None)) -> Path:
    """A model's file with some rows of some tensors replaced by one value."""
    reader = gguf.GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if tensors(tensor.name):
            tensor.data[rows] = value
    reader.data.flush()
    return path


@pytest.mark.parametrize(
    ("architecture", "says"), [("t5", "encoder"), ("bert", "embedding"), ("llada", "diffusion"), ("pooled", "pooling")]
)
def test_line_36_models_that_write_no_text_are_refused_by_what_they_are(
    architecture: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    if architecture == "pooled":
        make_model(path, pooling=gguf.PoolingType.LAST)
    else:
        make_architecture(path, architecture)
    with pytest.raises(ConfigurationError, match=says):
        using(f"llama:{path}", lambda backend: backend.check())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_line_36_a_request_whose_logits_are_no_numbers_fails_by_name_and_the_others_go_on(
    temperature: float, tmp_path: Path
) -> None:
    path = make_model(tmp_path / "model.gguf")
    native = NativeModel(path)
    [token] = native.tokenize(f" {BAD_WORD}", special=False).tolist()
    native.close()
    overwritten(path, float("nan"), lambda name: name == "token_embd.weight", slice(token, token + 1))

    async def main(backend: LlamaBackend) -> None:
        texts = ["what is this", f"many {BAD_WORD} know", "write about the time"] * 3
        failed: dict[int, Rejected] = {}

        async def one(number: int) -> None:
            sampling = Sampling(max_tokens=6, temperature=temperature, logprobs=1 if number > 5 else None)
            request = Request([Message("user", texts[number])], sampling, number + 1, b"", f"talk-{number}")
            try:
                assert (await backend.generate(request)).text
            except Rejected as error:
                failed[number] = error

        async with anyio.create_task_group() as group:
            for number in range(9):
                group.start_soon(one, number)
        assert sorted(failed) == [1, 4, 7]
        assert all("not finite" in str(error) and not error.retryable for error in failed.values())
        with pytest.raises(BackendError, match="not finite"):
            await backend.read(Reading(f"many {BAD_WORD} know", (" the question", " more")))
        with pytest.raises(BackendError, match="not finite"):
            await backend.read(Reading("many know", (f" the {BAD_WORD} question", " more")))
        assert (await backend.read(Reading("many know", (" the question",)))).likelihoods
        await one(0)

    using(f"llama:{path}?ctx=512&lanes=4", main)


def test_line_36_nothing_is_left_in_a_lane_of_what_was_no_number(tmp_path: Path) -> None:
    """Without flash attention cells out of use are multiplied by zero, which NaN survives."""
    path = make_model(tmp_path / "model.gguf")
    native = NativeModel(path)
    [token] = native.tokenize(f" {BAD_WORD}", special=False).tolist()
    native.close()

    def said(name: str) -> list[str]:
        async def main(backend: LlamaBackend) -> list[str]:
            async def one(number: int, text: str, most: int = 6) -> str:
                request = Request([Message("user", text)], Sampling(max_tokens=most), 1, b"", f"talk-{number}")
                return (await backend.generate(request)).text

            told: list[str] = []

            async def beside() -> None:
                told.append(await one(9, "how many are there", 80))

            async with anyio.create_task_group() as group:
                group.start_soon(beside)
                for number in range(4):
                    with contextlib.suppress(Rejected):
                        await one(number, f"many of them and {BAD_WORD} more and more of them")
                told += [await one(number, "what is this") for number in range(4, 8)]
            return sorted(told)

        return using(name, main)

    overwritten(path, 0.5, lambda name: name == "token_embd.weight", slice(token, token + 1))
    sound = said(f"llama:{path}?ctx=512&lanes=2&flash_attn=off")
    overwritten(path, float("nan"), lambda name: name == "token_embd.weight", slice(token, token + 1))
    assert said(f"llama:{path}?ctx=512&lanes=2&flash_attn=off") == sound


@case_table(
    ("value", "tensors", "says"),
    [
        (0.0, lambda name: True, "empty weights"),
        (0.0, lambda name: name == "output.weight", "empty weights"),
        (0.0, lambda name: name == "token_embd.weight", "empty weights"),
        (float("nan"), lambda name: True, "not finite"),
        (float("nan"), lambda name: name == "blk.1.ffn_down.weight", "not finite"),
    ],
    ids=["zeros", "no output", "no input", "NaN", "one matrix of NaN"],
)
def test_line_26_files_of_zeros_or_nan_are_refused(
    value: float, tensors: Callable[[str], bool], says: str, tmp_path: Path
) -> None:
    path = overwritten(make_model(tmp_path / "model.gguf"), value, tensors)
    with pytest.raises(ConfigurationError, match=says):
        using(f"llama:{path}", lambda backend: backend.check())


@case_table(
    ("architecture", "kv_type"),
    [("llama", "f16"), ("llama", "q8_0"), ("gemma3", "f16"), ("mamba", "f16"), ("lfm2", "f16"), ("lfm2", "f32")],
)
def test_line_37_the_memory_planned_is_what_the_model_takes(architecture: str, kv_type: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    if architecture == "llama":
        make_model(path, width=128)
    else:
        make_architecture(path, architecture)
    model = NativeModel(path)
    context = NativeContext(model, lanes=1, context=512, batch=512, threads=1, kv_type=kv_type, flash_attention="on")
    try:
        context.decode([5] * 500, range(500), [0] * 500, [0] * 499 + [1])
        taken = context.saved_size(0)
        if architecture == "gemma3":  # only the window of one layer is saved, but all of it is held
            taken = 500 * GEMMA_BYTES
        assert model.kv_bytes(kv_type, 500, 1) == pytest.approx(taken, rel=0.1)
    finally:
        context.close()
        model.close()


def test_line_37_a_context_beyond_the_trained_length_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "viva")
    path = make_model(tmp_path / "model.gguf", context=1024)
    for ctx, beyond in (("1024", False), ("2048", True)):
        using(f"llama:{path}?lanes=1&ctx={ctx}", lambda backend: backend.check())
        assert ("exceeds the 1,024 tokens" in caplog.text) == beyond


def test_line_37_what_does_not_fit_is_refused_by_what_the_model_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = NativeModel(make_architecture(tmp_path / "model.gguf", "gemma3"))
    needed = GEMMA_BYTES * 4 * 2048
    try:
        monkeypatch.setattr("viva.engine.backends.llama.sizing.memory_available", lambda: needed * 3 // 4)
        with pytest.raises(ConfigurationError, match="would fit"):
            choose_config(model, EngineConfig(lanes=4, context=2048))
    finally:
        model.close()
