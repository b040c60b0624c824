"""What llama.cpp reads of a model file without its weights, and the library's start.

What never belongs here: anything that computes (``native``).
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
from llama_cpp._ggml import libggml

_QUIET = lib.llama_log_callback(lambda level, text, data: None)
_SILENT = False


def unrepeatable(path: Path) -> str | None:
    """Why answers of this model depend on what is computed with them, in any mode; None if they do not, or if there is
    no model to be read. The weights are not loaded.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return _unrepeatable(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _unrepeatable(path: Path, size: int, changed: int) -> str | None:
    start_library()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    handle = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        return None
    try:
        if lib.llama_model_is_recurrent(handle) or lib.llama_model_is_hybrid(handle):
            return "a recurrent state takes back no rows, so calls cannot be filled up to one shape"
        return None
    finally:
        lib.llama_model_free(handle)


def start_library() -> None:
    """Make llama.cpp ready, and quiet; at the first call."""
    global _SILENT
    if not _SILENT:
        lib.llama_log_set(_QUIET, ctypes.c_void_p(0))
        lib.llama_backend_init()
        _SILENT = True


class _GgufOptions(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _declare_gguf(library: Any) -> Any:
    """llama_cpp binds llama.cpp only; these few functions are of the library below it."""
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


def weight_kinds(path: Path) -> frozenset[str]:
    """The kinds of weights in a file by their GGUF names, in capitals; llama.cpp has found the file good before."""
    gguf = _declare_gguf(libggml)
    handle = gguf.gguf_init_from_file(os.fsencode(path), _GgufOptions(True, None))
    if not handle:
        return frozenset({"UNKNOWN"})
    kinds = {gguf.gguf_get_tensor_type(handle, index) for index in range(gguf.gguf_get_n_tensors(handle))}
    gguf.gguf_free(handle)
    return frozenset(gguf.ggml_type_name(kind).decode().upper() for kind in kinds)
