"""The lines of a text file in bounded memory: UTF-8 with or without a byte order mark, nothing else.

A line is what stands before ``\\n``. One that cannot be used comes as a ``BadLine`` and the next one follows; a file
that is no UTF-8 text at all is refused as a whole. No more than ``LIMIT`` bytes of a line are ever held.

What never belongs here: what a line says (``reading``).
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from viva.engine.errors import DatasetError
from viva.engine.permissions import permissions

LIMIT = 8 * 2**20
_PIECE = 2**20
_BOM = b"\xef\xbb\xbf"
# UTF-32 before UTF-16: the mark of the one begins with that of the other.
_ELSE: list[tuple[bytes, str]] = [
    (b"\xff\xfe\0\0", "UTF-32 text; save it as UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32 text; save it as UTF-8"),
    (b"\xff\xfe", "UTF-16 text; save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text; save it as UTF-8"),
    (b"\x1f\x8b", "compressed by gzip; unpack it first"),
    (b"BZh", "compressed by bzip2; unpack it first"),
    (b"\xfd7zXZ\0", "compressed by xz; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd; unpack it first"),
    (b"PK\3\4", "a zip archive or a spreadsheet; unpack it, or save it as CSV in UTF-8"),
    (b"PAR1", "a Parquet file; name it .parquet"),
]


@dataclass(slots=True)
class BadLine:
    """A line that cannot be used: why, and how many double quotes it holds (CSV needs to know)."""

    message: str
    quotes: int


def read_lines(path: Path) -> Iterator[tuple[int, str | BadLine]]:
    """The lines of a file with their 1-based numbers, line ends included.

    :raises DatasetError: it cannot be read, is no regular file, or is not UTF-8 text from its first bytes on.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            refuse_other_formats(path, file.peek(4096)[:4096])
            number = 0
            while line := file.readline(LIMIT + 1):
                number += 1
                if len(line) <= LIMIT:
                    yield number, line_text(line.removeprefix(_BOM) if number == 1 else line)
                    continue
                length, quotes = len(line), line.count(b'"')
                while line and not line.endswith(b"\n"):
                    line = file.readline(_PIECE)
                    length, quotes = length + len(line), quotes + line.count(b'"')
                yield number, BadLine(f"has {length:,} bytes; a line may have {LIMIT:,}", quotes)
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", path=str(path)) from None


def check_regular(path: Path) -> None:
    """Refuse what is not there, and what would hang or change between two readings.

    :raises DatasetError: it cannot be found or looked at, is a folder, or a pipe or device.
    """
    permissions().check_file(path)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DatasetError(f"cannot be read: {reason}", path=str(path)) from None
    if stat.S_ISDIR(mode):
        raise DatasetError("is a folder; expected a file", path=str(path))
    if not stat.S_ISREG(mode):
        raise DatasetError("is a pipe or a device; a dataset is read more than once: save it as a file", path=str(path))


def refuse_other_formats(path: Path, head: bytes) -> None:
    """Refuse a file whose first bytes are those of another format.

    :raises DatasetError: the message says which, and what to do.
    """
    for magic, what in _ELSE:
        if head.startswith(magic):
            raise DatasetError(f"is {what}", path=str(path), line=1)
    # UTF-16 without a mark: of most characters one byte is NUL, and it is always the same one of the two.
    nuls = sorted((head[0::2].count(0), head[1::2].count(0)))
    if nuls[1] > len(head) / 5 and nuls[0] < len(head) / 50:
        raise DatasetError("is UTF-16 text; save it as UTF-8", path=str(path), line=1)


def line_text(line: bytes) -> str | BadLine:
    """The text of a line's bytes, or why they are none."""
    if b"\0" in line:
        return BadLine(f"holds a NUL byte at position {line.index(0) + 1}", line.count(b'"'))
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        where = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        return BadLine(f"is not UTF-8 text ({where}); save the file as UTF-8", line.count(b'"'))
