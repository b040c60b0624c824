"""Writing a whole file: what is there already is never left half written, nor taken for what it is not.

What never belongs here: what is in the file.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half.

    What is no regular file (a device, a FIFO) and what is reached through a symbolic link stays what it is: the data is
    written through it. An existing file keeps its permissions, and no other file is touched.

    :raises OSError: it cannot be written.
    """
    try:
        there = os.stat(path)
    except FileNotFoundError:
        there = None
    if there is not None and stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.is_symlink() or (there is not None and not stat.S_ISREG(there.st_mode)):
        with path.open("wb", buffering=0) as through:
            rest = memoryview(data)
            while rest:
                rest = rest[through.write(rest) or 0 :]
        return
    temporary, file = _new_file_beside(path)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
            if there is not None:
                os.fchmod(opened.fileno(), stat.S_IMODE(there.st_mode))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


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
