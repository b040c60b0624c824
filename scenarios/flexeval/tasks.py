"""The conversations of a suite: read once to be counted and checked, and again, one by one, while the run goes on.

A line that holds no conversation is a task too: it fails by name, and the others go on. What never belongs here: forms
of conversations (``readers``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from viva.data.unchanged import FirstReading
from viva.engine.errors import ConfigurationError

from .protocol import DialogTask
from .readers import Unreadable, read_dialogs


class DialogTasks:
    """The conversations of these files, in the order of their names and lines; the first ``limit`` of them.

    ``unreadable`` counts lines that hold none.

    :raises ConfigurationError: there is no conversation, or two conversations have one id.
    :raises DatasetError: a file cannot be read.
    """

    def __init__(self, files: Sequence[Path], limit: int | None = None) -> None:
        self.files = list(files)
        self._limit = limit
        self._first = FirstReading()
        self.unreadable = 0
        digest, seen = hashlib.sha256(), set[str]()
        for task in self._read():
            if task.id in seen:
                raise ConfigurationError(
                    f"{self._place}: the id '{task.id}' stands in an earlier line; give each conversation its own"
                )
            seen.add(task.id)
            self.unreadable += task.dialog is None
            record = task.to_record()
            self._first.add(record)
            digest.update(orjson.dumps(record, option=orjson.OPT_SORT_KEYS) + b"\n")
        if not seen:
            raise ConfigurationError(f"{', '.join(map(str, self.files))}: hold no conversation")
        self.digest = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._first)

    def __iter__(self) -> Iterator[DialogTask]:
        found = 0
        for place, task in enumerate(self._read()):
            self._first.check(place, task.to_record(), task.id, self._place)
            found += 1
            yield task
        self._first.check_end(found, len(self._first), ", ".join(map(str, self.files)))

    def _read(self) -> Iterator[DialogTask]:
        taken = 0
        for file in self.files:
            self._place = str(file)
            for one in read_dialogs(file):
                if self._limit is not None and taken == self._limit:
                    return
                taken += 1
                if isinstance(one, Unreadable):
                    yield DialogTask(f"{file.stem}:{one.line}", None, one.message, str(one.path), one.line)
                else:
                    yield DialogTask(one.id, one)

    def to_record(self, name: str) -> dict[str, Any]:
        """What the manifest says of them."""
        return {
            "name": name,
            "digest": self.digest,
            "chosen": len(self),
            "files": [str(file) for file in self.files],
            "unreadable": self.unreadable,
        }
