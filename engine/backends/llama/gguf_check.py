"""What is wrong with a model file, where llama.cpp would only log it.

What never belongs here: llama.cpp itself (``native``).
"""

from __future__ import annotations

import struct
from pathlib import Path

from ...errors import ConfigurationError


def inspect_head(path: Path) -> None:
    """Find out cheaply what llama.cpp would only log: that this is no GGUF file at all.

    :raises ConfigurationError: it is none, or cannot be read.
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


def diagnosis(path: Path) -> str:
    """Why a GGUF file would not load, from the file's own tables (slow for large vocabularies: only when it failed)."""
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
