"""Diagnoses of unusable model files. llama.cpp itself only logs what is wrong."""

from __future__ import annotations

import struct
from pathlib import Path

from ...errors import ConfigurationError


def check_header(path: Path) -> None:
    """Refuse a file that is not GGUF, by its first bytes.

    :raises ConfigurationError: it is not GGUF, has an unknown version, or cannot be read.
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
    """Why llama.cpp could not load a GGUF file. Reads the file's tables, which is slow for large vocabularies."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors), default=0)
        field = reader.fields["general.architecture"]
        architecture = bytes(field.parts[field.data[0]]).decode()
    except (ValueError, IndexError, KeyError, OverflowError):
        return f"it is truncated or damaged ({path.stat().st_size:,} bytes are there); copy it again"
    if path.stat().st_size < end:
        return f"it is truncated: {path.stat().st_size:,} bytes of {end:,}; copy it again"
    return f"its architecture '{architecture}' is not known to this build, or its tensors are not what that needs"
