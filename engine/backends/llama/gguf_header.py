"""What llama.cpp can read from a model file without loading the weights, and the library itself: its import and
initialisation.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError

try:
    import llama_cpp.llama_cpp as lib
    from llama_cpp._ggml import libggml
except ModuleNotFoundError:
    raise ConfigurationError(
        "llama:… needs the package llama-cpp-python; install it with: pip install 'viva-exam[local]', which compiles "
        "llama.cpp: it needs a C++ compiler and takes several minutes, once"
    ) from None

__all__ = ["lib", "libggml", "nondeterminism_reason", "start_library", "weight_types"]

_QUIET = lib.llama_log_callback(lambda level, text, data: None)
_SILENT = False


def nondeterminism_reason(path: Path) -> str | None:
    """Why answers of this model depend on the other sequences of a batch even in strict mode; None if they do not,
    or if the file is no readable model. The weights are not loaded.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return _nondeterminism_reason(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _nondeterminism_reason(path: Path, size: int, changed: int) -> str | None:
    start_library()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    handle = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        return None
    try:
        if lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle):
            return "a recurrent state cannot drop dummy tokens, so batches have no fixed shape"
        return None
    finally:
        lib.llama_model_free(handle)


def start_library() -> None:
    """Initialise llama.cpp and silence its log. Only the first call has an effect."""
    global _SILENT
    if not _SILENT:
        lib.llama_log_set(_QUIET, ctypes.c_void_p(0))
        lib.llama_backend_init()
        _SILENT = True


class _GgufOptions(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _declare_gguf(library: Any) -> Any:
    """Declare the ggml functions used here; the package ``llama_cpp`` binds llama.cpp's own functions only."""
    for name, result, *arguments in (
        ("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _GgufOptions),
        ("gguf_get_n_tensors", ctypes.c_int64, ctypes.c_void_p),
        ("gguf_get_tensor_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64),
        ("ggml_type_name", ctypes.c_char_p, ctypes.c_int),
        ("gguf_free", None, ctypes.c_void_p),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def weight_types(path: Path) -> frozenset[str]:
    """The types of a file's tensors, as GGUF names in capitals. The file must have been loaded by llama.cpp before."""
    gguf = _declare_gguf(libggml)
    handle = gguf.gguf_init_from_file(os.fsencode(path), _GgufOptions(True, None))
    if not handle:
        return frozenset({"UNKNOWN"})
    kinds = {gguf.gguf_get_tensor_type(handle, index) for index in range(gguf.gguf_get_n_tensors(handle))}
    gguf.gguf_free(handle)
    return frozenset(gguf.ggml_type_name(kind).decode().upper() for kind in kinds)
