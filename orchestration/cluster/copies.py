"""Run folders copied between a worker's disk and the shared folder: always whole, and of a journal that is being
written too.

What never belongs here: which copy counts (``attempts``), and rows of journals (``engine.joining``).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from viva.engine.errors import JournalError
from viva.engine.joining import copied, put_in_place, rows_of
from viva.engine.journal_errors import journal_error

from ..share import Share
from ..sweep.shards import shards_of

PART = "~part"  # behind the name of a folder that is not whole yet; no cell's name has such a letter
JOURNAL = "journal.sqlite"


def run_of(root: Path, cell: str, share: Share | None) -> Path | None:
    """The run folder of a cell, or of its share, below a folder that is laid out as a sweep's; None where none is."""
    if share is None:
        return root / cell if (root / cell / "manifest.json").exists() else None
    mine = [path for one, path in shards_of(root / cell) if (one.index, one.of) == (share.index, share.of)]
    return mine[-1] if mine else None


def rows_in(run: Path, scratch: Path) -> dict[str, int]:
    """How many rows the journal of a run has; it is read from a copy in ``scratch``.

    :raises JournalError: it cannot be read.
    """
    place = scratch / "counted"
    place.mkdir(parents=True, exist_ok=True)
    try:
        return rows_of(copied(run / JOURNAL, place))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def restore(run: Path, to: Path) -> None:
    """Copy a run that nobody writes to a place where nothing is.

    :raises JournalError: it cannot be read or written.
    """
    try:
        to.mkdir(parents=True)
        copied(run / JOURNAL, to)
        _copy_files(run, to)
    except OSError as error:
        raise JournalError(f"{run}: cannot be copied to {to}: {error.strerror or error}") from error


def publish(run: Path, to: Path, scratch: Path) -> None:
    """Copy a run as it stands, also while its journal is written, to a place that others read: the first copy appears
    there as a whole folder, later ones replace its journal in one step.

    :raises JournalError: it cannot be read or written.
    """
    snapshot = scratch / "snapshot.sqlite"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        _snapshot(run / JOURNAL, snapshot)
        if (to / "manifest.json").exists():
            put_in_place(snapshot, to / JOURNAL)
            return
        part = to.with_name(f"{to.name}{PART}")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        put_in_place(snapshot, part / JOURNAL)
        _copy_files(run, part)
        os.rename(part, to)
    except OSError as error:
        raise JournalError(f"{run}: cannot be copied to {to}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            snapshot.unlink()


def move_into_place(run: Path, to: Path) -> None:
    """Make a published copy the run of its cell. Where a run lies there already, its journal is replaced in one step;
    else the manifest comes last, so that a kill leaves no run that is not whole.

    :raises JournalError: it cannot be written.
    """
    try:
        if (to / "manifest.json").exists():
            put_in_place(run / JOURNAL, to / JOURNAL)
            return
        to.mkdir(parents=True, exist_ok=True)
        for file in sorted(run.iterdir(), key=lambda one: one.name == "manifest.json"):
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
    """All files but the journal and the lock, the manifest last."""
    for file in sorted(run.iterdir(), key=lambda one: one.name == "manifest.json"):
        if file.is_file() and file.name != "lock" and not file.name.startswith(JOURNAL):
            shutil.copyfile(file, to / file.name)
