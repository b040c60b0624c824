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
from .readers import Unreadable, read_all

STATE = b'{"state":'


class DialogTasks:
    """The conversations of these files, in the order of their names and lines; the first ``limit`` of them.

    ``unreadable`` counts lines that hold none.

    :raises ConfigurationError: there is no conversation.
    :raises DatasetError: a file cannot be read.
    """

    def __init__(self, files: Sequence[Path], limit: int | None = None) -> None:
        self.files = list(files)
        self._limit = limit
        self._first = FirstReading()
        self.unreadable = 0
        digest = hashlib.sha256()
        for task in self._read():
            self.unreadable += task.dialog is None
            record = task.to_record()
            self._first.add(record)
            digest.update(orjson.dumps(record, option=orjson.OPT_SORT_KEYS) + b"\n")
        if not self._first:
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
        known: set[bytes] = set()
        for file in self.files:
            self._place = str(file)
            for one in read_all([file], known=known):
                if self._limit is not None and taken == self._limit:
                    return
                taken += 1
                if isinstance(one, Unreadable):
                    yield DialogTask(one.id, None, one.message, str(one.path), one.line)
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


class WatchedTasks:
    """The dialogs of a watched log that have come so far, as they lie in the run's folder: batches of records, one a
    line, each batch with where the log goes on behind it (``STATE``). A batch that was not written whole counts for
    nothing.
    """

    unreadable = 0

    def __init__(self, file: Path) -> None:
        self._file = file

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[DialogTask]:
        batch: list[DialogTask] = []
        for line in self._lines():
            if line.startswith(STATE):
                yield from batch
                batch = []
            else:
                batch.append(DialogTask.from_record(orjson.loads(line)))

    def recovered(self) -> dict[str, Any] | None:
        """Cut off what was not written whole; where the log goes on, None at its beginning."""
        state: bytes | None = None
        end = place = 0
        for line in self._lines():
            place += len(line)
            if line.startswith(STATE):
                state, end = line, place
        if self._file.exists() and self._file.stat().st_size > end:
            with self._file.open("r+b") as file:
                file.truncate(end)
        return None if state is None else orjson.loads(state)["state"]

    def _lines(self) -> Iterator[bytes]:
        if self._file.exists():
            with self._file.open("rb") as lines:
                yield from (line for line in lines if line.endswith(b"\n"))

    def to_record(self, name: str) -> dict[str, Any]:
        """What the manifest says of them: nothing that would change."""
        return {"name": name, "digest": "watched", "chosen": 0, "files": [str(self._file)], "unreadable": 0}
