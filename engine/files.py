"""Writing a whole file: what is there already is never left half written, nor taken for what it is not.

What never belongs here: what is in the file.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
# Why a file that may be written itself cannot be replaced by another.
_NOT_REPLACEABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half.

    A symbolic link stays a link: its target is written likewise. An existing file keeps its permissions, and no other
    file is touched. The data is written through what is no regular file (a device, a FIFO), through a file that is
    open as this process's stdout or stderr (at its end, so ``>> log`` keeps what is there), and into an existing file
    that cannot be replaced: its folder is not writable, or it is a mount point.

    :raises OSError: it cannot be written.
    """
    try:
        there = os.stat(path)
    except FileNotFoundError:
        there = None
    if there is not None and stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    descriptor = _descriptor(path, there)
    if descriptor is not None:
        with open(os.dup(descriptor), "wb", buffering=0) as through:
            _write_all(through, data)
    elif there is not None and not stat.S_ISREG(there.st_mode):
        with path.open("wb", buffering=0) as through:
            _write_all(through, data)
    else:
        _write_regular(path.resolve(), data, there)


def _write_regular(path: Path, data: bytes, there: os.stat_result | None) -> None:
    temporary: Path | None = None
    try:
        temporary, file = _new_file_beside(path)
        with os.fdopen(file, "wb") as opened:
            if there is not None:
                os.fchmod(opened.fileno(), stat.S_IMODE(there.st_mode))
            opened.write(data)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        if there is None or not isinstance(error, OSError) or error.errno not in _NOT_REPLACEABLE:
            raise
        with path.open("wb", buffering=0) as through:
            _write_all(through, data)


def _descriptor(path: Path, there: os.stat_result | None) -> int | None:
    """The number under which this process has the file open for its output, if it has."""
    named = _DESCRIPTOR.fullmatch(str(path))
    for number in (int(named[1]),) if named else (1, 2):
        with suppress(OSError):
            if there is not None and os.path.samestat(os.fstat(number), there):
                return number
    return None


def _write_all(through: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[through.write(rest) or 0 :]


def is_leftover(name: str, of: str) -> bool:
    """Whether a file's name is one that a killed ``write_atomically`` leaves beside the file ``of``."""
    return name.startswith(f"{of}.") and name.endswith(".part")


def _new_file_beside(path: Path) -> tuple[Path, int]:
    """A file of our own in the same folder, open for writing; one that exists is never taken."""
    for number in count():
        temporary = path.with_name(f"{path.name}.{os.getpid()}{f'-{number}' if number else ''}.part")
        with suppress(FileExistsError):
            return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    raise AssertionError
