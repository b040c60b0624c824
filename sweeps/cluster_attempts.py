"""Attempts at a cluster's tasks in the shared folder: each publishes copies of run folders; one attempt is committed.

`FOLDER/attempts/TASK/2/` contains the copies of runs that the second attempt has published, laid out like the sweep's
own folder. Ray may run a task more than once, so a worker that Ray has given up may still be working. Attempts
therefore never write to the cells' folders: the driver moves the results of the attempt whose return value it received.
An attempt is fenced, that is, publishes nothing more, if it finds a later attempt or its folder has been removed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ClusterError, JournalError
from viva.engine.files import write_atomically
from viva.engine.journal import journal_error
from viva.engine.journal_merge import copy_journal, replace_journal
from viva.engine.journal_merge import count_rows as journal_merge_count_rows
from viva.orchestration.prepared_run import Shard

from .cells import CELLS
from .sweep_folder import shards_of

PARTIAL_SUFFIX = "~part"  # suffix of incomplete folders; no cell's name contains ~
JOURNAL_FILE = "journal.sqlite"


def find_run(root: Path, cell: str, shard: Shard | None) -> Path | None:
    """Return the run folder of a cell, or of one attempt at one of its shards, below `root`; None if there is none."""
    if shard is None:
        return root / cell if (root / cell / "manifest.json").exists() else None
    runs = [
        path
        for candidate, path in shards_of(root / cell)
        if (candidate.index, candidate.total) == (shard.index, shard.total)
    ]
    return runs[-1] if runs else None


def count_rows(run: Path, scratch: Path) -> dict[str, int]:
    """Return the number of rows of a run's journal by table, read from a copy in `scratch`.

    Raises:
        JournalError: The journal cannot be read.
    """
    folder = scratch / "counted"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return journal_merge_count_rows(copy_journal(run / JOURNAL_FILE, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restore_run(run: Path, to: Path) -> None:
    """Copy a run to a new folder; no process may be writing to the run.

    Raises:
        JournalError: The run cannot be read, or the copy cannot be written.
    """
    try:
        to.mkdir(parents=True)
        copy_journal(run / JOURNAL_FILE, to)
        _copy_files(run, to)
    except OSError as error:
        raise JournalError(f"{run}: cannot be copied to {to}: {error.strerror or error}") from error


def publish_run(run: Path, to: Path, scratch: Path) -> None:
    """Publish a copy of a run, even while its journal is being written.

    The first copy appears as a complete folder; each later copy replaces the journal atomically.

    Raises:
        JournalError: The run cannot be read, or the copy cannot be written.
    """
    snapshot = scratch / "snapshot.sqlite"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        _snapshot(run / JOURNAL_FILE, snapshot)
        if (to / "manifest.json").exists():
            replace_journal(snapshot, to / JOURNAL_FILE)
            return
        partial = to.with_name(f"{to.name}{PARTIAL_SUFFIX}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        replace_journal(snapshot, partial / JOURNAL_FILE)
        _copy_files(run, partial)
        os.rename(partial, to)
    except OSError as error:
        raise JournalError(f"{run}: cannot be copied to {to}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            snapshot.unlink()


def install_run(run: Path, to: Path) -> None:
    """Make a published copy the run of its cell.

    If the cell has a run, its journal is replaced atomically. Otherwise the manifest is moved last, so that no
    incomplete run remains if the process is killed.

    Raises:
        JournalError: The run cannot be written.
    """
    try:
        if (to / "manifest.json").exists():
            replace_journal(run / JOURNAL_FILE, to / JOURNAL_FILE)
            return
        to.mkdir(parents=True, exist_ok=True)
        for file in sorted(run.iterdir(), key=lambda path: path.name == "manifest.json"):
            os.replace(file, to / file.name)
    except OSError as error:
        raise JournalError(f"{to}: cannot be written: {error.strerror or error}") from error


def _snapshot(journal: Path, to: Path) -> None:
    try:
        with closing(sqlite3.connect(journal)) as source, closing(sqlite3.connect(to)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        raise journal_error(journal, error) from error


def _copy_files(run: Path, to: Path) -> None:
    """Copy all files except the journal and the lock, the manifest last."""
    for file in sorted(run.iterdir(), key=lambda path: path.name == "manifest.json"):
        if file.is_file() and file.name != "lock" and not file.name.startswith(JOURNAL_FILE):
            shutil.copyfile(file, to / file.name)


ATTEMPTS_FOLDER = "attempts"
_STOP = "stop"
_RECORD = "attempt.json"
_PROGRESS = "progress.json"


class Attempt:
    """Attempt at a task. `number` counts from 1; `root` is its folder, `scratch` a folder on a local disk."""

    def __init__(self, out: Path, task_id: str, scratch: Path) -> None:
        """Claim the next attempt by creating its numbered folder.

        Raises:
            JournalError: The shared folder cannot be written.
        """
        self.out, self._scratch = out, scratch
        self._folder = out / ATTEMPTS_FOLDER / task_id
        self.number = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            while not self.number:
                number = max(attempt_numbers(out, task_id), default=0) + 1
                try:
                    (self._folder / str(number)).mkdir()
                    self.number = number
                except FileExistsError:  # another attempt began at the same moment
                    continue
        except OSError as error:
            raise JournalError(f"{self._folder}: cannot be written: {error.strerror or error}") from error
        self.root = self._folder / str(self.number)

    @property
    def is_fenced(self) -> bool:
        """Return True if another attempt has replaced this one or has been committed."""
        return not self.root.is_dir() or max(_numbered_folders(self._folder), default=0) > self.number

    def restore(self, cells: Iterable[str], shard: Shard | None, local: Path) -> None:
        """Copy the current state of each cell to the `local` sweep folder.

        The state is an earlier attempt's latest copy if it continues the run in the cell's folder; otherwise that run.

        Raises:
            JournalError: A copy cannot be read.
        """
        basis: dict[str, dict[str, int] | None] = {}
        for cell in cells:
            current = find_run(self.out, cell, shard)
            basis[cell] = None if current is None else count_rows(current, self._scratch)
            source, base = current, self.out
            for number in sorted(_numbered_folders(self._folder), reverse=True):
                earlier = self._folder / str(number)
                run = find_run(earlier, cell, shard) if number < self.number else None
                if run is not None and _read_basis(earlier).get(cell) == basis[cell]:
                    source, base = run, earlier
                    break
            if source is not None:
                restore_run(source, local / source.relative_to(base))
        write_atomically(self.root / _RECORD, orjson.dumps({"attempt": 1, "basis": basis}))

    def publish(self, cells: Iterable[str], shard: Shard | None, local: Path) -> None:
        """Copy the local runs into this attempt's folder.

        Raises:
            ClusterError: Another attempt has replaced this one.
            JournalError: A copy cannot be written.
        """
        for cell in cells:
            run = find_run(local, cell, shard)
            if run is not None:
                if self.is_fenced:
                    raise ClusterError(f"attempt {self.number}: replaced by another attempt at this task")
                publish_run(run, self.root / run.relative_to(local), self._scratch)

    def write_progress(self, progress: dict[str, Any]) -> None:
        """Write the progress for the driver to show."""
        write_atomically(self.root / _PROGRESS, orjson.dumps(progress))


def attempt_numbers(out: Path, task_id: str) -> list[int]:
    """Return the numbers of the attempts that have begun at a task."""
    return sorted(_numbered_folders(out / ATTEMPTS_FOLDER / task_id))


def read_progress(out: Path, task_id: str, number: int) -> dict[str, Any]:
    """Return the progress that an attempt last wrote; empty if it has written none."""
    return _read_json(out / ATTEMPTS_FOLDER / task_id / str(number) / _PROGRESS)


def commit_attempt(out: Path, task_id: str, number: int, scratch: Path) -> None:
    """Move the results of an attempt to its cells' folders, and remove all attempts at this task.

    Raises:
        ClusterError: The attempt has no results, or a cell's run has changed since the attempt copied it; the run then
            stays unchanged.
        JournalError: A folder cannot be read or written.
    """
    root = out / ATTEMPTS_FOLDER / task_id / str(number)
    runs = _published_runs(root)
    if not runs:
        raise ClusterError(f"attempt {number} has published nothing, or was replaced by another attempt")
    basis = _read_basis(root)
    refused = []
    for run in runs:
        target = out / run.relative_to(root)
        rows = count_rows(target, scratch) if (target / "manifest.json").exists() else None
        cell = next((name for name in basis if target == out / name or (out / name) in target.parents), "")
        if rows == basis.get(cell):
            install_run(run, target)
        else:
            refused.append(str(target))
    shutil.rmtree(out / ATTEMPTS_FOLDER / task_id, ignore_errors=True)
    if refused:
        raise ClusterError(
            f"{', '.join(refused)}: changed since attempt {number} copied it; it is left as it is, and the "
            "attempt's results are discarded; repeat the command to continue"
        )


def settle_attempts(out: Path, scratch: Path) -> None:
    """Commit what attempts of a terminated driver have published: for each task, the latest attempt.

    If a cell has changed since that attempt copied it, the attempt's results are discarded.

    This fences attempts that are still running.

    Raises:
        JournalError: A folder cannot be read or written.
    """
    for folder in sorted((out / ATTEMPTS_FOLDER).iterdir()) if (out / ATTEMPTS_FOLDER).is_dir() else []:
        if folder.is_dir():
            published = [
                number for number in attempt_numbers(out, folder.name) if _published_runs(folder / str(number))
            ]
            if published:
                try:
                    commit_attempt(out, folder.name, published[-1], scratch)
                except ClusterError:  # the cell has changed since the attempt copied it
                    pass
            shutil.rmtree(folder, ignore_errors=True)
    (out / ATTEMPTS_FOLDER / _STOP).unlink(missing_ok=True)
    try:
        (out / ATTEMPTS_FOLDER).rmdir()
    except OSError:  # the folder does not exist, or a fenced attempt has written to it again
        pass


def has_attempts(out: Path) -> bool:
    """Return True if a sweep's folder contains attempts: a cluster is running it, or its driver was killed."""
    return any((out / ATTEMPTS_FOLDER).glob(f"*/*/{_RECORD}"))


def request_stop(out: Path, action: str) -> None:
    """Ask all attempts to `interrupt` or `halt`."""
    (out / ATTEMPTS_FOLDER).mkdir(parents=True, exist_ok=True)
    write_atomically(out / ATTEMPTS_FOLDER / _STOP, action.encode())


def requested_stop(out: Path) -> str | None:
    """Return the requested action, `interrupt` or `halt`; None if attempts may continue."""
    try:
        return (out / ATTEMPTS_FOLDER / _STOP).read_text()
    except OSError:
        return None


def _published_runs(root: Path) -> list[Path]:
    return sorted(
        manifest.parent
        for manifest in (root / CELLS).rglob("manifest.json")
        if not manifest.parent.name.endswith(PARTIAL_SUFFIX)
    )


def _numbered_folders(folder: Path) -> list[int]:
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isascii() and path.name.isdigit()]
    except OSError:
        return []


def _read_basis(root: Path) -> dict[str, dict[str, int] | None]:
    basis: dict[str, dict[str, int] | None] = _read_json(root / _RECORD).get("basis", {})
    return basis


def _read_json(file: Path) -> dict[str, Any]:
    try:
        record = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return record if isinstance(record, dict) else {}
