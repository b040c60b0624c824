"""Files that list item ids: one a line, a JSON list, or a JSON object such as the validated items of Yu et al. 2024.

What never belongs here: choosing items (``selection``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import DatasetError

from .lines import BadLine, check_regular, read_lines

# Of an object: its list under the first of these names. The authors' file also lists ids under ``invalid_uuids``.
NAMES = ("ids", "valid_uuids")
_LARGEST = 2**28


@dataclass(frozen=True, slots=True)
class IdList:
    """The ids of a file; ``digest`` identifies its content."""

    path: str
    ids: frozenset[str]
    digest: str


def read_ids(path: Path) -> IdList:
    """Read a list of item ids. Ids that no dataset has are nothing wrong: a list may serve several benchmarks.

    :raises DatasetError: it cannot be read, is no such list, or is empty.
    """
    check_regular(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise DatasetError(f"has more than {_LARGEST:,} bytes: too many for a list of ids", path=str(path))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            file.seek(0)
            is_json = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{")
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None
    ids = frozenset(_from_json(path) if is_json else _from_lines(path))
    if not ids:
        raise DatasetError("lists no id", path=str(path))
    return IdList(str(path), ids, digest)


def _from_lines(path: Path) -> Iterable[str]:
    for number, line in read_lines(path):
        if isinstance(line, BadLine):
            raise DatasetError(line.message, path=str(path), line=number)
        if line.strip():
            yield line.strip()


def _from_json(path: Path) -> Iterable[str]:
    try:
        content: Any = orjson.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise DatasetError(f"not valid JSON: {error.msg}", path=str(path), line=error.lineno) from None
    field = None
    if isinstance(content, dict):
        field = next((name for name in NAMES if name in content), None)
        if field is None:
            message = f"expected the ids under one of {', '.join(NAMES)}; found {', '.join(map(str, content))[:120]}"
            raise DatasetError(message, path=str(path))
        content = content[field]
    if not isinstance(content, list):
        raise DatasetError(f"expected a list of ids, found {type(content).__name__}", path=str(path), field=field)
    for one in content:
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise DatasetError(f"expected ids as text, found {str(one)[:60]!r}", path=str(path), field=field)
        yield str(one)
