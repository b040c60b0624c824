"""llama.cpp's library without weights: its start, its log, the headers of GGUF files, and devices with their memory."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...errors import ConfigurationError

try:
    import llama_cpp.llama_cpp as _llama
    from llama_cpp import __version__ as _version
except ModuleNotFoundError:
    raise ConfigurationError(
        "llama:… needs the package llama-cpp-python; install it with: pip install 'viva-exam[local]', which compiles "
        "llama.cpp: it needs a C++ compiler and takes several minutes, once"
    ) from None

# `llama_cpp._ggml` loads a library of its own if LLAMA_CPP_LIB_PATH names another build.
lib, libggml = _llama, _llama._lib


def check_header(path: Path) -> None:
    """Refuse a file that is not GGUF, by its first bytes.

    Raises:
        ConfigurationError: The file is not GGUF, has an unknown version, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(24)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    if len(head) < 24 or head[:4] != b"GGUF":
        raise ConfigurationError(f"{path}: not a GGUF file (it begins with {head[:4]!r})")
    (version,) = struct.unpack("<I", head[4:8])
    if version not in (2, 3):
        raise ConfigurationError(f"{path}: GGUF version {version}; this build reads 2 and 3")


def explain_load_failure(path: Path) -> str:
    """Return why llama.cpp could not load a GGUF file. Reads the file's tables: slow for large vocabularies."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors), default=0)
        field = reader.fields["general.architecture"]
        architecture = bytes(field.parts[field.data[0]]).decode()
    except (ValueError, IndexError, KeyError, OverflowError):
        return f"it is truncated or damaged ({path.stat().st_size:,} bytes); copy it again"
    if path.stat().st_size < end:
        return f"it is truncated: {path.stat().st_size:,} bytes of {end:,}; copy it again"
    return f"this build does not know its architecture '{architecture}', or its tensors do not fit that architecture"


_LOG_ERROR = 4  # ggml's level
LOG_ERRORS: deque[str] = deque(maxlen=10)  # latest error messages of llama.cpp, to explain a failure


def _on_log(level: int, text: bytes | None, _: Any) -> None:
    if level == _LOG_ERROR and text:
        LOG_ERRORS.append(text.decode("utf-8", "replace").strip())


_QUIET = lib.llama_log_callback(_on_log)
_SILENT = False


def start_library() -> None:
    """Initialise llama.cpp and silence its log. Only the first call has an effect."""
    global _SILENT
    if not _SILENT:
        lib.llama_log_set(_QUIET, ctypes.c_void_p(0))
        lib.llama_backend_init()
        _SILENT = True


def build_info() -> str:
    """Return version and features of the installed llama.cpp."""
    features = lib.llama_print_system_info() or b""
    return f"llama-cpp-python {_version}: {features.decode('utf-8', 'replace').strip()}"


def processor() -> str:
    """Return the name of this machine's processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class _GgufOptions(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _declare_gguf(library: Any) -> Any:
    """Declare the ggml functions used here; the package `llama_cpp` binds llama.cpp's own functions only."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, *arguments in (
        ("gguf_init_from_file", pointer, ctypes.c_char_p, _GgufOptions),
        ("gguf_get_n_tensors", number, pointer),
        ("gguf_get_tensor_name", ctypes.c_char_p, pointer, number),
        ("gguf_get_tensor_size", ctypes.c_size_t, pointer, number),
        ("gguf_get_tensor_type", ctypes.c_int, pointer, number),
        ("gguf_find_key", number, pointer, ctypes.c_char_p),
        ("gguf_get_kv_type", ctypes.c_int, pointer, number),
        ("gguf_get_arr_type", ctypes.c_int, pointer, number),
        ("gguf_get_arr_n", ctypes.c_size_t, pointer, number),
        ("gguf_get_arr_data", pointer, pointer, number),
        ("gguf_get_val_u32", ctypes.c_uint32, pointer, number),
        ("gguf_get_val_str", ctypes.c_char_p, pointer, number),
        ("ggml_type_name", ctypes.c_char_p, ctypes.c_int),
        ("gguf_free", None, pointer),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class GgufHeader:
    """The header of a GGUF file that llama.cpp can read: keys and tensors, without weights. Use `with`."""

    _U32, _I32, _STRING, _ARRAY = 4, 5, 8, 9  # gguf's types of values

    def __init__(self, path: Path) -> None:
        """Read the header; one that cannot be read has no tensors and no keys."""
        self._gguf = _declare_gguf(libggml)
        self._handle = self._gguf.gguf_init_from_file(os.fsencode(path), _GgufOptions(True, None))

    def __enter__(self) -> GgufHeader:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._handle:
            self._gguf.gguf_free(self._handle)
            self._handle = None

    def tensors(self) -> Iterator[tuple[str, int, str]]:
        """Yield name, bytes and type (upper case) of each tensor."""
        gguf, handle = self._gguf, self._handle
        for index in range(gguf.gguf_get_n_tensors(handle) if handle else 0):
            kind = gguf.ggml_type_name(gguf.gguf_get_tensor_type(handle, index))
            name = gguf.gguf_get_tensor_name(handle, index)
            yield name.decode(), gguf.gguf_get_tensor_size(handle, index), kind.decode().upper()

    def text(self, key: str) -> str:
        """Return a text; "" if there is none."""
        index = self._find(key, self._STRING)
        return "" if index is None else self._gguf.gguf_get_val_str(self._handle, index).decode("utf-8", "replace")

    def number(self, key: str) -> int:
        """Return a 32-bit whole number, or the largest of an array of them; 0 if there is none."""
        if (index := self._find(key, self._U32)) is not None:
            return int(self._gguf.gguf_get_val_u32(self._handle, index))
        index = self._find(key, self._ARRAY)
        if index is None or self._gguf.gguf_get_arr_type(self._handle, index) not in (self._U32, self._I32):
            return 0
        count = self._gguf.gguf_get_arr_n(self._handle, index)
        data = (ctypes.c_int32 * count).from_address(self._gguf.gguf_get_arr_data(self._handle, index) or 0)
        return max(data, default=0) if count else 0

    def _find(self, key: str, kind: int) -> int | None:
        index: int = self._gguf.gguf_find_key(self._handle, key.encode()) if self._handle else -1
        return index if index >= 0 and self._gguf.gguf_get_kv_type(self._handle, index) == kind else None


def weight_types(path: Path) -> frozenset[str]:
    """Return the types of a file's tensors, as upper-case GGUF names. llama.cpp must have loaded the file before."""
    with GgufHeader(path) as header:
        return frozenset(kind for _, _, kind in header.tensors()) or frozenset({"UNKNOWN"})


Kind = Literal["CPU", "GPU", "integrated GPU", "accelerator"]
_KINDS: tuple[Kind, ...] = ("CPU", "GPU", "integrated GPU", "accelerator")


@dataclass(frozen=True, slots=True)
class Device:
    """A device as llama.cpp names it. `backend` is the library that drives it, such as CUDA, Vulkan or Metal."""

    name: str
    description: str
    kind: Kind
    backend: str
    free: int = field(compare=False)
    total: int = field(compare=False)
    handle: int = field(compare=False)

    def buffer_type(self) -> int:
        """Return llama.cpp's type of buffers in this device's memory."""
        address: int = _declare(libggml).ggml_backend_dev_buffer_type(self.handle)
        return address

    def supports_tensor(self, size: int) -> bool:
        """Return True if the device can compute on a tensor of `size` bytes; llama.cpp ends the process if not."""
        ggml = _declare(libggml)
        memory = ggml.ggml_init(_GgmlOptions(1 << 12, None, True))
        try:
            tensor = ggml.ggml_new_tensor_1d(memory, _F16, max(1, size // 2))
            return bool(ggml.ggml_backend_dev_supports_op(self.handle, tensor))
        finally:
            ggml.ggml_free(memory)

    def __str__(self) -> str:
        return f"{self.name} ({self.description}, {self.free / 1e9:.1f} of {self.total / 1e9:.1f} GB free)"


_F16 = 1  # ggml's number of the type


class _GgmlOptions(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def _declare(library: Any) -> Any:
    """Declare the ggml functions used here; the package `llama_cpp` binds llama.cpp's own functions only."""
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, *arguments in (
        ("ggml_backend_dev_count", size),
        ("ggml_backend_dev_get", pointer, size),
        ("ggml_backend_dev_name", ctypes.c_char_p, pointer),
        ("ggml_backend_dev_description", ctypes.c_char_p, pointer),
        ("ggml_backend_dev_type", ctypes.c_int, pointer),
        ("ggml_backend_dev_memory", None, pointer, ctypes.POINTER(size), ctypes.POINTER(size)),
        ("ggml_backend_dev_backend_reg", pointer, pointer),
        ("ggml_backend_dev_buffer_type", pointer, pointer),
        ("ggml_backend_dev_supports_op", ctypes.c_bool, pointer, pointer),
        ("ggml_init", pointer, _GgmlOptions),
        ("ggml_new_tensor_1d", pointer, pointer, ctypes.c_int, ctypes.c_int64),
        ("ggml_free", None, pointer),
        ("ggml_backend_reg_count", size),
        ("ggml_backend_reg_get", pointer, size),
        ("ggml_backend_reg_name", ctypes.c_char_p, pointer),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def all_devices() -> list[Device]:
    """Return all devices of this build, CPU included, with their memory now."""
    start_library()
    ggml = _declare(libggml)
    devices = []
    for index in range(ggml.ggml_backend_dev_count()):
        handle = ggml.ggml_backend_dev_get(index)
        kind = ggml.ggml_backend_dev_type(handle)
        if kind >= len(_KINDS):  # devices that llama.cpp makes out of others
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        if not kind:  # llama.cpp calls all of the host's memory free
            free.value = min(free.value, memory_available())
        name, description, backend = (
            (text or b"").decode("utf-8", "replace")
            for text in (
                ggml.ggml_backend_dev_name(handle),
                ggml.ggml_backend_dev_description(handle),
                ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(handle)),
            )
        )
        devices.append(Device(name, description, _KINDS[kind], backend, free.value, total.value, handle))
    return devices


def memory_available() -> int:
    """Return how many bytes of the host's memory can be allocated now without swapping; 8 GiB without /proc/meminfo."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 8 << 30


def gpus() -> list[Device]:
    """Return the devices that layers can be put on. Integrated GPUs count if there are no others."""
    devices = all_devices()
    return [device for device in devices if device.kind == "GPU"] or [
        device for device in devices if device.kind == "integrated GPU"
    ]


def missing_gpu_reason() -> str:
    """Return why there is no device for layers."""
    ggml = _declare(libggml)
    names = [ggml.ggml_backend_reg_name(ggml.ggml_backend_reg_get(at)) for at in range(ggml.ggml_backend_reg_count())]
    backends = [name.decode() for name in names if name != b"CPU"]
    if not backends:
        return "llama-cpp-python was built for the CPU only; docs/models.md says how to install it for a GPU"
    return f"llama-cpp-python was built with {' and '.join(backends)}, which finds no device; is its driver installed?"
