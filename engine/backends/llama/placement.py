"""Placement of a model's layers: on the CPU, or on GPUs as their memory allows."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError, did_you_mean
from ..base import ModelSpec
from .library import Device, GgufHeader, all_devices, gpus, lib, missing_gpu_reason

SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}
ALL_LAYERS = -1
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # tensors of the experts in a mixture of experts
DEVICE_MARGIN = 0.1  # share of a device's free memory that stays free, for compute buffers and other programs
_PLANNED_LANES = 8  # lanes whose KV must fit beside the weights


class OutOfDeviceMemory(ConfigurationError):
    """Layers or KV do not fit into a device's memory."""


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """The devices that compute the layers of a loaded model.

    `layers` of `total` are on `devices`, counted from the last, which is the output; the others are on the CPU.
    `overrides` are (regular expression, device) for tensors that are elsewhere.
    """

    devices: tuple[Device, ...] = ()
    layers: int = 0
    total: int = 0
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    kv_offload: bool = True

    def __str__(self) -> str:
        if not self.layers:
            return "all layers on the CPU"
        return f"{self.layers} of {self.total} layers on {', '.join(map(str, self.devices))}"

    @property
    def kv_share(self) -> float:
        """The share of the KV that is on the devices."""
        blocks = max(1, self.total - 1)
        return min(self.layers, blocks) / blocks if self.kv_offload and self.layers else 0.0

    def free_memory(self) -> int:
        """Return how many bytes are free on the devices now."""
        names = {device.name for device in self.devices}
        return sum(device.free for device in all_devices() if device.name in names)

    def holds_tensor(self, size: int) -> bool:
        """Return True if each device can compute on a tensor of `size` bytes."""
        return all(device.supports_tensor(size) for device in self.devices)

    def configure(self, params: Any) -> list[Any]:
        """Set llama.cpp's parameters of a model; return the arrays that they point to: keep them until it is loaded."""
        handles = (ctypes.c_void_p * (len(self.devices) + 1))(*(device.handle for device in self.devices), None)
        params.devices = ctypes.addressof(handles)
        params.n_gpu_layers = self.layers
        params.split_mode = SPLIT_MODES[self.split_mode]
        params.main_gpu = 0  # of the devices that are named
        kept: list[Any] = [handles]
        if self.tensor_split:
            count = max(int(lib.llama_max_devices()), len(self.tensor_split))
            split = (ctypes.c_float * count)(*self.tensor_split)
            params.tensor_split = split
            kept.append(split)
        if self.overrides:
            by_name = {device.name: device for device in all_devices()}
            overrides = (_TensorOverride * (len(self.overrides) + 1))()  # the last one is empty
            for override, (expression, name) in zip(overrides, self.overrides, strict=False):
                override.pattern, override.buffer_type = expression.encode(), by_name[name].buffer_type()
            params.tensor_buft_overrides = ctypes.addressof(overrides)
            kept.append(overrides)
        return kept


class _TensorOverride(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


CPU = LayerPlacement()


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """A user's options for the placement of a model's layers.

    `layers` is their number, `ALL_LAYERS` for all and None for as many as fit; `devices` are names, none for all
    devices. `main_gpu` is the index, among them, of the only device to use with the `split_mode` none. `tensor_split`
    has the proportions of the devices; `overrides` are as in `LayerPlacement`.
    """

    layers: int | None = None
    devices: tuple[str, ...] = ()
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    kv_offload: bool = True

    def choose(self, paths: Sequence[Path], context: int) -> LayerPlacement:
        """Choose devices and the number of layers for a model in these files, with `context` tokens a lane.

        Raises:
            ConfigurationError: A device does not exist, layers were requested without any device, or `main_gpu` or
                `tensor_split` does not fit the number of devices.
        """
        devices = self.chosen_devices()
        if not devices:
            return CPU
        sizes = tensor_sizes(paths)
        total = len(sizes.layers) + 1
        if self.layers is None:
            layers = sizes.fitting(sum(device.free for device in devices), context if self.kv_offload else 0)
        else:
            layers = total if self.layers < 0 else min(self.layers, total)
        if not layers:
            return CPU
        return LayerPlacement(
            tuple(devices), layers, total, self.split_mode, self.tensor_split, self.overrides, self.kv_offload
        )

    def chosen_devices(self) -> list[Device]:
        """Return the devices to use; none if all layers are computed on the CPU.

        Raises:
            ConfigurationError: As for `choose`.
        """
        if self.layers == 0:
            return []
        present = gpus()
        if not present and (self.layers or self.devices):
            layers = "all" if self.layers == ALL_LAYERS else self.layers
            option = f"device={','.join(self.devices)}" if self.devices else f"gpu_layers={layers}"
            raise ConfigurationError(f"{option}: there is no GPU: {missing_gpu_reason()}; gpu_layers=0 uses the CPU")
        by_name = {device.name: device for device in all_devices()}
        for option, names in (("device", self.devices), ("override_tensor", [name for _, name in self.overrides])):
            for name in names:
                if name not in by_name or (option == "device" and by_name[name].kind == "CPU"):
                    hint = did_you_mean(name, by_name) or "; `viva list devices` lists them"
                    raise ConfigurationError(f"{option}={name}: there is no such device{hint}")
        devices = [by_name[name] for name in self.devices] or present
        if devices and self.main_gpu >= len(devices):
            raise ConfigurationError(f"main_gpu={self.main_gpu}: {len(devices)} devices are used, numbered from 0")
        if len(self.tensor_split) > len(devices):
            raise ConfigurationError(
                f"tensor_split: {len(self.tensor_split)} proportions for {len(devices)} devices; give one for each"
            )
        return [devices[self.main_gpu]] if devices and self.split_mode == "none" else devices


def parse_placement(spec: ModelSpec) -> PlacementOptions:
    """Read the options of a model's name that say where its layers are computed.

    Raises:
        ConfigurationError: An option has a value that it does not accept.
    """
    return PlacementOptions(
        layers=_parse_layers(spec),
        devices=tuple(filter(None, (spec.take("device") or "").split(","))),
        split_mode=spec.one_of("split_mode", tuple(SPLIT_MODES), "layer"),
        main_gpu=spec.whole("main_gpu", low=0) or 0,
        tensor_split=_parse_tensor_split(spec),
        overrides=_parse_overrides(spec),
        kv_offload=spec.one_of("kv_offload", ("on", "off"), "on") == "on",
    )


def _parse_layers(spec: ModelSpec) -> int | None:
    text = spec.take("gpu_layers", "auto")
    if text in ("auto", "all"):
        return ALL_LAYERS if text == "all" else None
    try:
        layers = int(text or "")
    except ValueError:
        layers = ALL_LAYERS - 1
    if layers < ALL_LAYERS:
        raise ConfigurationError(f"model '{spec.text}': gpu_layers={text}: expected auto, all or a number of layers")
    return layers


def _parse_tensor_split(spec: ModelSpec) -> tuple[float, ...]:
    text = spec.take("tensor_split")
    if not text:
        return ()
    try:
        shares = tuple(float(share) for share in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 <= share < float("inf") for share in shares) or not sum(shares):
        raise ConfigurationError(
            f"model '{spec.text}': tensor_split={text}: expected a proportion for each device, such as 3,1"
        )
    return shares


def _parse_overrides(spec: ModelSpec) -> tuple[tuple[str, str], ...]:
    overrides = []
    for text in filter(None, (spec.take("override_tensor") or "").split(",")):
        expression, _, device = text.rpartition("=")
        if not expression or not device:
            raise ConfigurationError(
                f"model '{spec.text}': override_tensor={text}: expected EXPRESSION=DEVICE, such as exps=CPU"
            )
        overrides.append((expression, device))
    if spec.one_of("cpu_moe", ("on", "off"), "off") == "on":
        overrides.append((_EXPERTS, "CPU"))
    return tuple(overrides)


@dataclass(frozen=True, slots=True)
class TensorSizes:
    """Bytes of a model's tensors: `layers` by layer, `output` beside them; `inputs` always stay in the host's memory.

    `kv_per_token` is an estimate of one layer's KV for a token, in f16.
    """

    layers: tuple[int, ...]
    output: int
    inputs: int
    kv_per_token: int

    def fitting(self, free: int, context: int) -> int:
        """Return how many layers fit into `free` bytes with the KV of some lanes; the output counts as the last one."""
        room = int(free * (1 - DEVICE_MARGIN)) - self.output
        kv = self.kv_per_token * context * _PLANNED_LANES
        count = 0
        for size in reversed(self.layers):
            room -= size + kv
            if room < 0:
                return count + 1 if count else 0
            count += 1
        return count + 1


def tensor_sizes(paths: Sequence[Path]) -> TensorSizes:
    """Read the sizes of a model's tensors from the headers of its files."""
    layers: dict[int, int] = {}
    output = inputs = kv_per_token = 0
    has_output = False
    for path in paths:
        with GgufHeader(path) as header:
            kv_per_token = kv_per_token or _kv_per_token(header)
            for name, size, _ in header.tensors():
                prefix, _, rest = name.partition(".")
                has_output = has_output or prefix == "output"
                if prefix == "blk":
                    number = int(rest.partition(".")[0])
                    layers[number] = layers.get(number, 0) + size
                elif prefix in ("token_embd", "per_layer_token_embd"):
                    inputs += size
                else:
                    output += size
    if not has_output:
        output += inputs  # the output shares the weights of the input, of which a device gets a copy
    return TensorSizes(tuple(layers[number] for number in sorted(layers)), output, inputs, kv_per_token)


def _kv_per_token(header: GgufHeader) -> int:
    """Estimate the bytes of one layer's KV for a token in f16. It is too large for compressed KV (MLA)."""
    architecture = header.text("general.architecture")
    heads = header.number(f"{architecture}.attention.head_count") or 1
    kv_heads = header.number(f"{architecture}.attention.head_count_kv") or heads
    size = header.number(f"{architecture}.embedding_length") // heads
    key = header.number(f"{architecture}.attention.key_length") or size
    value = header.number(f"{architecture}.attention.value_length") or size
    return 2 * kv_heads * (key + value)
