"""Layers on GPUs: options, errors where there is none, and how many layers fit. `make device` computes on a device."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st
from tiny_gguf import make_model

from viva.engine.backends.base import ModelSpec
from viva.engine.backends.llama import placement
from viva.engine.backends.llama.library import Device
from viva.engine.backends.llama.placement import (
    ALL_LAYERS,
    CPU,
    PlacementOptions,
    TensorSizes,
    parse_placement,
    tensor_sizes,
)
from viva.engine.errors import ConfigurationError

HOST = Device("CPU", "a processor", "CPU", "CPU", 16 << 30, 16 << 30, 1)


def gpu(name: str, free: int) -> Device:
    return Device(name, "a card", "GPU", "Test", free, free, 2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "tiny.gguf")


@case_table(
    "options, expected",
    [
        ("", PlacementOptions()),
        ("gpu_layers=auto", PlacementOptions()),
        ("gpu_layers=all", PlacementOptions(layers=ALL_LAYERS)),
        ("gpu_layers=-1", PlacementOptions(layers=ALL_LAYERS)),
        ("gpu_layers=7&device=CUDA0,CUDA1", PlacementOptions(layers=7, devices=("CUDA0", "CUDA1"))),
        ("tensor_split=3,1&split_mode=row", PlacementOptions(tensor_split=(3.0, 1.0), split_mode="row")),
        ("override_tensor=exps=CPU,attn=CUDA1", PlacementOptions(overrides=(("exps", "CPU"), ("attn", "CUDA1")))),
        (
            "main_gpu=1&split_mode=none&kv_offload=off",
            PlacementOptions(main_gpu=1, split_mode="none", kv_offload=False),
        ),
    ],
)
def test_options_are_those_of_llama_cpp(options: str, expected: PlacementOptions) -> None:
    assert parse_placement(ModelSpec.parse(f"llama:m.gguf?{options}")) == expected


@case_table(
    "option, problem",
    [
        ("gpu_layers=many", "expected auto, all or a number of layers"),
        ("gpu_layers=-2", "expected auto, all or a number of layers"),
        ("tensor_split=0,0", "expected a proportion for each device"),
        ("tensor_split=1,x", "expected a proportion for each device"),
        ("tensor_split=inf", "expected a proportion for each device"),
        ("override_tensor=exps", "expected EXPRESSION=DEVICE"),
        ("split_mode=rows", "did you mean 'row'"),
        ("kv_offload=no", "expected one of on, off"),
    ],
)
def test_wrong_values_are_refused_with_what_is_accepted(option: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse_placement(ModelSpec.parse(f"llama:m.gguf?{option}"))


def test_without_a_gpu_the_default_is_the_cpu_and_requested_layers_are_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "gpus", list)
    assert PlacementOptions().choose([model], 512) == CPU
    assert PlacementOptions(layers=0).choose([model], 512) == CPU
    for options in (PlacementOptions(layers=3), PlacementOptions(layers=ALL_LAYERS), PlacementOptions(devices=("X",))):
        with pytest.raises(ConfigurationError, match=r"there is no GPU: llama-cpp-python was built .*gpu_layers=0"):
            options.choose([model], 512)


def test_devices_are_chosen_by_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [gpu("CUDA0", 1 << 30), gpu("CUDA1", 1 << 30)]
    monkeypatch.setattr(placement, "gpus", lambda: cards)
    monkeypatch.setattr(placement, "all_devices", lambda: [HOST, *cards])
    total = len(tensor_sizes([model]).layers) + 1
    assert PlacementOptions().choose([model], 512).devices == tuple(cards)
    assert PlacementOptions().choose([model], 512).layers == total, "a gigabyte holds the tiny model"
    assert PlacementOptions(layers=99).choose([model], 512).layers == total
    assert PlacementOptions(layers=1).choose([model], 512).layers == 1
    assert PlacementOptions(devices=("CUDA1",)).choose([model], 512).devices == (cards[1],)
    assert PlacementOptions(split_mode="none", main_gpu=1).choose([model], 512).devices == (cards[1],)
    for options, problem in (
        (PlacementOptions(devices=("CUDA7",)), "did you mean 'CUDA"),
        (PlacementOptions(devices=("CPU",)), "no such device"),
        (PlacementOptions(overrides=(("exps", "Metal"),)), "override_tensor=Metal: there is no such device"),
        (PlacementOptions(main_gpu=2), "2 devices are used, numbered from 0"),
        (PlacementOptions(tensor_split=(1.0, 1.0, 1.0)), "3 proportions for 2 devices"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            options.choose([model], 512)


def test_a_card_too_small_for_one_layer_leaves_all_on_the_cpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "gpus", lambda: [gpu("CUDA0", 1000)])
    monkeypatch.setattr(placement, "all_devices", lambda: [HOST, gpu("CUDA0", 1000)])
    assert PlacementOptions().choose([model], 512) == CPU


def test_sizes_of_tensors_add_up_to_the_file(model: Path) -> None:
    sizes = tensor_sizes([model])
    assert 0 < sum(sizes.layers) + sizes.inputs <= model.stat().st_size
    assert sizes.kv_per_token > 0


SIZES = st.builds(
    TensorSizes,
    st.lists(st.integers(1, 1 << 30), min_size=1, max_size=100).map(tuple),
    st.integers(0, 1 << 32),
    st.integers(0, 1 << 32),
    st.integers(0, 1 << 16),
)


@given(SIZES, st.integers(0, 1 << 38), st.integers(0, 1 << 38), st.integers(0, 1 << 15))
def test_the_layers_that_fit_fit_and_more_memory_holds_no_fewer(
    sizes: TensorSizes, free: int, more: int, context: int
) -> None:
    count = sizes.fitting(free, context)
    assert 0 <= count <= len(sizes.layers) + 1
    assert count <= sizes.fitting(free + more, context)
    assert count <= sizes.fitting(free, 0)
    blocks = sizes.layers[len(sizes.layers) - (count - 1) :] if count else ()
    assert sum(blocks) + (sizes.output if count else 0) <= free
