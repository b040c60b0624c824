"""Whether what a second reading of a file gives is what the first one gave.

A run reads its data twice: once to check all of it, and again, record by record, while it goes on. A file that is
edited in between would put other texts under the ids of the manifest's dataset.

What never belongs here: reading, and the digest of whole files (``sources``).
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

from viva.engine.errors import DatasetError

_ADVICE = "put the file back as it was and go on with viva resume, or begin a new run"


class FirstReading:
    """Eight bytes of hash for each record, in the order of the first reading."""

    __slots__ = ("_digests",)

    def __init__(self) -> None:
        self._digests = array("Q")

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, record: Any) -> None:
        """Remember the next record. ``record``: plain data; its ``repr`` stands for it."""
        self._digests.append(_digest(record))

    def check(self, place: int, record: Any, id_: str, path: str, line: int | None = None) -> None:
        """Compare a record of a later reading with the one that stood at this 0-based place.

        :raises DatasetError: there was another one, or none; the error names the file, the line where it is known, and
            the id.
        """
        if place >= len(self._digests) or self._digests[place] != _digest(record):
            what = f"changed since the run began: '{id_}' is not what was checked here"
            raise DatasetError(f"{what}; {_ADVICE}", path=path, line=line)

    def check_end(self, found: int, expected: int, path: str) -> None:
        """See that a later reading gave as many records as the first.

        :raises DatasetError: it gave fewer.
        """
        if found < expected:
            what = f"changed since the run began: {expected - found} of its {expected} records are no longer there"
            raise DatasetError(f"{what}; {_ADVICE}", path=path)


def _digest(record: Any) -> int:
    text = repr(record).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
