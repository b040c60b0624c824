"""Follows a growing file from a byte offset on: complete new lines only, without ever waiting for one.

A file that was cut, or replaced by another one under its name, is read from its beginning again. Where a file was
renamed, what it holds is read to its end first. What never belongs here: what a line says (``logs``), and when to look
again (whoever follows the file).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

from viva.data.lines import LIMIT, BadLine, check_regular, line_text, refuse_other_formats
from viva.engine.errors import DatasetError

_HEAD = 512  # bytes at the beginning that tell a file from one that took its place
_BOM = b"\xef\xbb\xbf"


class Growing:
    """Close it, or use it as a context manager.

    ``notes`` says what happened to the file, a sentence each.

    :param state: an earlier ``state``, to go on behind the lines that were taken until then.
    """

    def __init__(self, path: Path, state: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.notes: list[str] = []
        self._offset = self._line = 0
        self._inode = (0, 0)
        self._head = ""
        self._skipping = False  # within a line that is too long
        self._file: FileIO | None = None
        if state is not None:
            self._offset, self._line = int(state["offset"]), int(state["line"])
            self._inode, self._head = (int(state["device"]), int(state["inode"])), str(state["head"])
            self._skipping = bool(state["skipping"])

    def __enter__(self) -> Growing:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def state(self) -> dict[str, Any]:
        """Where the next line begins, as JSON data: right behind the last line that ``lines`` gave."""
        device, inode = self._inode
        return {
            "offset": self._offset,
            "line": self._line,
            "device": device,
            "inode": inode,
            "head": self._head,
            "skipping": self._skipping,
        }

    def lines(self) -> Iterator[tuple[int, str | BadLine]]:
        """The complete lines that are new, with their 1-based numbers in the file; none where there are none yet, or
        there is no file.

        :raises DatasetError: the file is no text, or cannot be read.
        """
        try:
            if not self._opened():
                return
            yield from self._rest()
            while self._replaced():
                yield from self._rest(last=True)
                self._begin_anew("was replaced")
                if not self._opened():
                    return
                yield from self._rest()
        except OSError as error:
            raise DatasetError(f"cannot be read: {error.strerror}", path=str(self.path)) from None

    def _opened(self) -> bool:
        """See that the file is open and is the one that was followed; False where there is none."""
        if self._file is None:
            if not self.path.exists():
                return False
            check_regular(self.path)
            try:
                self._file = FileIO(self.path)
            except FileNotFoundError:
                return False
            found = os.fstat(self._file.fileno())
            if self._offset and (found.st_dev, found.st_ino) != self._inode:
                self._restart("was replaced since it was last looked at; what the earlier one had besides is not read")
            self._inode = (found.st_dev, found.st_ino)
        if os.fstat(self._file.fileno()).st_size < self._offset or not self._same_head():
            self._restart("was cut; it is read from its beginning")
            self._same_head()
        return True

    def _same_head(self) -> bool:
        """Whether the file begins as it did; remembers how it begins, as far as it has become longer."""
        assert self._file is not None
        head = os.pread(self._file.fileno(), _HEAD, 0)
        if not self._head:
            refuse_other_formats(self.path, head)
        length, _, digest = self._head.partition(":")
        same = not self._head or _digest(head[: int(length)]) == digest
        if same and len(head) > int(length or 0):
            self._head = f"{len(head)}:{_digest(head)}"
        return same

    def _rest(self, last: bool = False) -> Iterator[tuple[int, str | BadLine]]:
        """The complete lines behind the offset; ``last``: what stands behind the last one is a line, too."""
        assert self._file is not None
        file = BufferedReader(self._file)  # a new one each time: what an old one holds may have changed in the file
        try:
            file.seek(self._offset)
            while True:
                line = file.readline(LIMIT + 1)
                whole = line.endswith(b"\n")
                if not line or not (whole or last or len(line) > LIMIT):
                    return
                self._offset += len(line)
                if self._skipping:
                    self._skipping = not whole
                    continue
                self._line += 1
                if len(line) > LIMIT:
                    self._skipping = not whole
                    yield self._line, BadLine(f"has more than {LIMIT:,} bytes; a line may have as many", 0)
                else:
                    yield self._line, line_text(line.removeprefix(_BOM) if self._line == 1 else line)
        finally:
            with suppress(ValueError):  # closed meanwhile
                file.detach()

    def _replaced(self) -> bool:
        """Whether another file stands under the name by now."""
        with suppress(FileNotFoundError):
            found = self.path.stat()
            return (found.st_dev, found.st_ino) != self._inode
        return False

    def _begin_anew(self, what: str) -> None:
        self.close()
        self._restart(f"{what}; the new file is read from its beginning")
        self._inode = (0, 0)

    def _restart(self, what: str) -> None:
        self._offset = self._line = 0
        self._head, self._skipping = "", False
        self.notes.append(f"{self.path} {what}")


def _digest(head: bytes) -> str:
    return blake2b(head, digest_size=8).hexdigest()
