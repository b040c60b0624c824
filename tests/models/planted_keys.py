"""Keys that are planted in the environment, and the search for any part of them in what a program leaves behind."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

# The beginning holds what encodings change; the rest is drawn, so that no part of it stands anywhere by chance.
KEYS = {
    "OPENAI_API_KEY": "sk-'q\"/7+&<o>-Jx4vQ9TzLw2NfR8sKb5YhD3c",
    "ANTHROPIC_API_KEY": 'sk-ant-"/+&<a>-Wm7pGd2VtXe9RuZc4HnBq6Lk',
    "GEMINI_API_KEY": "AIza'+/&<g>-Ty5kPs8JvMw3XrCf6DzQh9Nb",
}
_PART = 8  # characters of a key that are too many
_DRAWN = 24


def _parts() -> tuple[list[bytes], list[bytes]]:
    """What must not be found: parts of each key as they stand and in hex, in lower case; and in base64."""
    plain, packed = [], []
    for key in KEYS.values():
        drawn = key.encode()[-_DRAWN:]
        whole = [drawn.lower(), drawn.hex().encode()]
        plain += [one[at : at + _PART] for one in whole for at in range(0, len(one) - _PART + 1, _PART)]
        for before in range(3):
            # Characters at both ends depend on what stands around them.
            inner = base64.b64encode(bytes(before) + drawn)[2:-4]
            packed += [inner[at : at + _PART] for at in range(0, len(inner) - _PART + 1, _PART)]
    return plain, packed


_PLAIN, _PACKED = _parts()
_ESCAPES = re.compile(rb"\\+(?:u00|x)([0-9a-fA-F]{2})")


def leaks(data: bytes) -> bool:
    """Whether a part of a key can be read from some bytes."""
    if any(part in data for part in _PACKED):
        return True
    return any(part in lowered for lowered in map(bytes.lower, _views(data)) for part in _PLAIN)


def _views(data: bytes) -> Iterator[bytes]:
    yield data
    if b"\0" in data:
        yield data.replace(b"\0", b"")  # UTF-16
    if b"\\" in data:
        yield _ESCAPES.sub(lambda found: bytes([int(found[1], 16)]), data).replace(b"\\", b"")
    if b"%" in data:
        yield unquote_to_bytes(data)
        yield unquote_to_bytes(unquote_to_bytes(data))
    if b"&" in data:
        yield html.unescape(html.unescape(data.decode("latin-1"))).encode("utf-8")


def leaking_files(paths: set[Path]) -> list[str]:
    """The files that hold a part of a key."""
    return sorted(str(path) for path in paths if path.is_file() and leaks(path.read_bytes()))
