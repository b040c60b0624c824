"""Files of conversations as dialogs and as tasks of a suite: JSON lines, JSON lists, logs, checkpoints, run folders.

Each file is read once to count and check its dialogs, and again during the run, one dialog at a time.
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
from viva.engine.permissions import permissions

from .dialog import Dialog
from .readers.checkpoints import CHECKPOINT_SUFFIXES, read_checkpoints
from .readers.logs import LogForm, detect_form, read_log
from .readers.recorded_runs import is_run_path, read_run
from .readers.records import UnreadableRecord, default_id, dialog_from_record, unreadable_record
from .suite_conversation import DialogTask

_OTHER_ENDINGS = tuple(ending for ending in DATA_SUFFIXES if ending not in (".jsonl", ".json", ".ndjson"))


def expand_paths(patterns: Sequence[str], folder: Path) -> list[Path]:
    """Return the files and run folders that globs match, sorted by path; relative patterns start in `folder`.

    Raises:
        DatasetError: A pattern matches nothing; the message names it.
    """
    paths: set[Path] = set()
    for pattern in patterns:
        full = Path(pattern).expanduser()
        full = full if full.is_absolute() else folder / full
        # Only the user's text is a pattern: the folder's name may contain brackets, and so may a file's.
        root = Path(glob.escape(str(folder))) / pattern if full.is_relative_to(folder) else full
        matches = [full] if full.exists() else [Path(match) for match in glob.glob(str(root), recursive=True)]
        files = [match for match in matches if match.is_file() or is_run_path(match)]
        if not files:
            problem = "is a folder without a run" if matches else f"no such file{permissions().similar_name(full)}"
            raise DatasetError(f"{problem}; patterns start at {folder.resolve()}", path=pattern)
        paths.update(files)
    return sorted(paths)


def read_files(
    paths: Sequence[Path], form: LogForm | None = None, known_ids: set[bytes] | None = None
) -> Iterator[Dialog | UnreadableRecord]:
    """Yield the dialogs and unreadable lines of several files, with unique ids.

    A repeated id becomes `FILESTEM:ID`, with a number if needed. A `#` in an id becomes `:`, because `#` marks repeats
    in keys. The metadata of renamed dialogs has the original id as `id`. Digests of ids are added to `known_ids`.

    Raises:
        DatasetError: As in `read_dialogs`.
    """
    known_ids = set() if known_ids is None else known_ids
    for path in paths:
        for entry in read_dialogs(path, form):
            own = entry.id.replace("#", ":") if isinstance(entry, Dialog) else default_id(path, entry.line)
            id_ = _unique_id(own, path, known_ids)
            known_ids.add(_id_digest(id_))
            if isinstance(entry, Dialog) and id_ != entry.id:
                yield replace(entry, id=id_, metadata={"id": entry.id, **entry.metadata})
            else:
                yield entry if isinstance(entry, Dialog) else replace(entry, id=id_)


def read_dialogs(path: Path, form: LogForm | None = None) -> Iterator[Dialog | UnreadableRecord]:
    """Yield the dialogs of a file or of a finished run's folder; the default `form` is the first readable line's.

    Raises:
        DatasetError: The file cannot be read at all.
    """
    if is_run_path(path):
        yield from read_run(path)
        return
    if path.suffix in CHECKPOINT_SUFFIXES and form is None:
        yield from read_checkpoints(path)
        return
    detected = form or _detect_form(path)
    if detected == "dialogs":
        for line, raw in _read_records(path):
            try:
                if isinstance(raw, DatasetError):
                    raise raw
                dialog: Dialog | UnreadableRecord = dialog_from_record(raw, default_id(path, line))
            except (FieldError, DatasetError) as error:
                dialog = unreadable_record(path, line, error)
            yield dialog
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
    """Return True if a file is a single JSON list or object over several lines, not one JSON text per line."""
    in_object = False
    for _, line in read_lines(path):
        if isinstance(line, BadLine):
            return False
        text = line.strip()
        if in_object:
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
            in_object = True
    return in_object


def _unique_id(id_: str, path: Path, known_ids: set[bytes]) -> str:
    """Return an id that no dialog has yet."""
    if _id_digest(id_) not in known_ids:
        return id_
    base = id_ if id_.startswith(f"{path.stem}:") else f"{path.stem}:{id_}"
    number = 2
    candidate = base
    while _id_digest(candidate) in known_ids:
        candidate, number = f"{base}:{number}", number + 1
    return candidate


def _id_digest(id_: str) -> bytes:
    return blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest()


STATE_PREFIX = b'{"state":'


class DialogTasks:
    """Conversations of files, in the order of file names and lines, up to `limit`.

    `unreadable` counts lines without a readable conversation.

    Raises:
        ConfigurationError: There is no conversation.
        DatasetError: A file cannot be read.
    """

    def __init__(self, files: Sequence[Path], limit: int | None = None) -> None:
        self.files = list(files)
        self._limit = limit
        self._changes = ChangeDetector()
        self.unreadable = 0
        digest = hashlib.sha256()
        for task in self._read():
            self.unreadable += task.dialog is None
            record = task.to_record()
            self._changes.add(record)
            digest.update(orjson.dumps(record, option=orjson.OPT_SORT_KEYS) + b"\n")
        if not self._changes:
            raise ConfigurationError(f"{', '.join(map(str, self.files))}: no conversations found")
        self.digest = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._changes)

    def __iter__(self) -> Iterator[DialogTask]:
        count = 0
        for position, task in enumerate(self._read()):
            self._changes.check(position, task.to_record(), task.id, self._current_file)
            count += 1
            yield task
        self._changes.check_end(count, len(self._changes), ", ".join(map(str, self.files)))

    def _read(self) -> Iterator[DialogTask]:
        count = 0
        known_ids: set[bytes] = set()
        for file in self.files:
            self._current_file = str(file)
            for entry in read_files([file], known_ids=known_ids):
                if self._limit is not None and count == self._limit:
                    return
                count += 1
                if isinstance(entry, UnreadableRecord):
                    yield DialogTask(entry.id, None, entry.message, str(entry.path), entry.line)
                else:
                    yield DialogTask(entry.id, entry)

    def to_record(self, name: str) -> dict[str, Any]:
        """Return the record for the manifest."""
        return {
            "name": name,
            "digest": self.digest,
            "chosen": len(self),
            "files": [str(file) for file in self.files],
            "unreadable": self.unreadable,
        }


class WatchedTasks:
    """Dialogs of a watched log so far, spooled in the run folder.

    The spool has batches of records, one per line, each followed by the position in the log (`STATE_PREFIX`). An
    incomplete batch is ignored.
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

    def recover(self) -> dict[str, Any] | None:
        """Truncate an incomplete batch; return the position in the log, or None at its beginning."""
        state: bytes | None = None
        end = position = 0
        for line in self._lines():
            position += len(line)
            if line.startswith(STATE_PREFIX):
                state, end = line, position
        if self._file.exists() and self._file.stat().st_size > end:
            with self._file.open("r+b") as file:
                file.truncate(end)
        return None if state is None else orjson.loads(state)["state"]

    def _lines(self) -> Iterator[bytes]:
        if self._file.exists():
            with self._file.open("rb") as lines:
                yield from (line for line in lines if line.endswith(b"\n"))

    def to_record(self, name: str) -> dict[str, Any]:
        """Return the record for the manifest, without anything that may change."""
        return {"name": name, "digest": "watched", "chosen": 0, "files": [str(self._file)], "unreadable": 0}
