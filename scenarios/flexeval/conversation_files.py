"""Files of conversations read as dialogs and as the tasks of a suite: JSON lines, JSON lists, logs, folders of runs.

They are read once to be counted and checked, and again, one dialog at a time, while the run goes on.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from viva.data.dataset import ChangeDetector
from viva.data.items import FieldError
from viva.data.record_files import (
    DATA_SUFFIXES,
    BadLine,
    Record,
    read_json_values,
    read_jsonl,
    read_lines,
    read_records,
)
from viva.engine.errors import ConfigurationError, DatasetError

from .dialog import Dialog
from .readers.logs import LogForm, detect_form, read_log
from .readers.recorded_runs import is_run_path, read_run
from .readers.records import UnreadableRecord, default_id, dialog_from_record, unreadable_record
from .suite_conversation import DialogTask

_OTHER_ENDINGS = tuple(ending for ending in DATA_SUFFIXES if ending not in (".jsonl", ".json", ".ndjson"))


def expand_paths(patterns: Sequence[str], folder: Path) -> list[Path]:
    """The files and run folders that globs stand for (``**``: folders at any depth), each once, sorted by path.

    :param folder: relative patterns begin here.
    :raises DatasetError: a pattern stands for no file; the message names it.
    """
    found: set[Path] = set()
    for pattern in patterns:
        whole = Path(pattern).expanduser()
        whole = whole if whole.is_absolute() else folder / whole
        # The folder's own name may hold brackets: only what the user wrote is a pattern, unless a file has that name.
        root = Path(glob.escape(str(folder))) / pattern if whole.is_relative_to(folder) else whole
        named = [whole] if whole.exists() else [Path(one) for one in glob.glob(str(root), recursive=True)]
        files = [one for one in named if one.is_file() or is_run_path(one)]
        if not files:
            what = "is a folder without a run in it" if named else "there is no such file"
            raise DatasetError(f"{what}; patterns begin at {folder.resolve()}", path=pattern)
        found.update(files)
    return sorted(found)


def read_files(
    paths: Sequence[Path], form: LogForm | None = None, known: set[bytes] | None = None
) -> Iterator[Dialog | UnreadableRecord]:
    """The dialogs of several files, each with an id of its own, lines that cannot be read too: where an id was there
    before, the later one is called ``FILESTEM:ID`` instead, or with a number behind it. ``#`` becomes ``:``, for behind
    it a conversation's key has the number of the repeat. A dialog's own id is then in its metadata as ``id``.

    :param known: digests of the ids so far; added to.
    :raises DatasetError: as ``read_dialogs``.
    """
    known = set() if known is None else known
    for path in paths:
        for one in read_dialogs(path, form):
            own = one.id.replace("#", ":") if isinstance(one, Dialog) else default_id(path, one.line)
            id_ = _unique_id(own, path, known)
            known.add(_id_digest(id_))
            if isinstance(one, Dialog) and id_ != one.id:
                yield replace(one, id=id_, metadata={"id": one.id, **one.metadata})
            else:
                yield one if isinstance(one, Dialog) else replace(one, id=id_)


def read_dialogs(path: Path, form: LogForm | None = None) -> Iterator[Dialog | UnreadableRecord]:
    """The dialogs of a file, or of the folder of a finished run.

    :param form: what the lines are; None: what the first line that can be read is.
    :raises DatasetError: the file cannot be read at all.
    """
    if is_run_path(path):
        yield from read_run(path)
        return
    detected = form or _detect_form(path)
    if detected == "dialogs":
        for line, raw in _read_records(path):
            try:
                if isinstance(raw, DatasetError):
                    raise raw
                one: Dialog | UnreadableRecord = dialog_from_record(raw, default_id(path, line))
            except (FieldError, DatasetError) as error:
                one = unreadable_record(path, line, error)
            yield one
    else:
        yield from read_log(path, detected, lambda: _read_records(path))


def _detect_form(path: Path) -> LogForm:
    for _, raw in _read_records(path):
        if not isinstance(raw, DatasetError) and (form := detect_form(raw)) is not None:
            return form
    return "dialogs"


def _read_records(path: Path) -> Iterator[Record]:
    if path.suffix in _OTHER_ENDINGS:
        return read_records(path)
    return read_json_values(path) if _is_one_json_text(path) else read_jsonl(path)


def _is_one_json_text(path: Path) -> bool:
    """Whether a file is one JSON text, a list or an object over several lines, instead of one a line."""
    begun = False
    for _, line in read_lines(path):
        if isinstance(line, BadLine):
            return False
        text = line.strip()
        if begun:
            return not text.startswith("{")
        if not text:
            continue
        if text[0] == "[":
            return True
        if text[0] != "{" or path.suffix != ".json":
            return False
        try:
            orjson.loads(text)
            return False
        except orjson.JSONDecodeError:
            begun = True
    return begun


def _unique_id(id_: str, path: Path, known: set[bytes]) -> str:
    """An id that no dialog has yet."""
    if _id_digest(id_) not in known:
        return id_
    named = id_ if id_.startswith(f"{path.stem}:") else f"{path.stem}:{id_}"
    number = 2
    found = named
    while _id_digest(found) in known:
        found, number = f"{named}:{number}", number + 1
    return found


def _id_digest(id_: str) -> bytes:
    return blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest()


STATE_PREFIX = b'{"state":'


class DialogTasks:
    """The conversations of these files, in the order of their names and lines; the first ``limit`` of them.

    ``unreadable`` counts lines that hold none.

    :raises ConfigurationError: there is no conversation.
    :raises DatasetError: a file cannot be read.
    """

    def __init__(self, files: Sequence[Path], limit: int | None = None) -> None:
        self.files = list(files)
        self._limit = limit
        self._first = ChangeDetector()
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
            for one in read_files([file], known=known):
                if self._limit is not None and taken == self._limit:
                    return
                taken += 1
                if isinstance(one, UnreadableRecord):
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
    line, each batch with where the log goes on behind it (``STATE_PREFIX``). A batch that was not written whole
    counts for nothing.
    """

    unreadable = 0

    def __init__(self, file: Path) -> None:
        self._file = file

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[DialogTask]:
        batch: list[DialogTask] = []
        for line in self._lines():
            if line.startswith(STATE_PREFIX):
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
            if line.startswith(STATE_PREFIX):
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
