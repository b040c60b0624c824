"""Opening a journal for reading, wherever it lies: also in a place where nothing may be written.

SQLite shares a journal's memory with other processes through a file beside it (``-shm``). Where that cannot be made,
a finished journal is read as a file that does not change, and one with a write-ahead log as a copy.
What never belongs here: what is in a journal.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from .errors import JournalError
from .journal import (
    NAMES,
    READABLE_VERSIONS,
    foreign_version,
    schema_version,
)
from .journal_errors import journal_error, missing_journal


@dataclass(slots=True)
class OpenedJournal:
    """A connection that only reads, the version of the schema, and the copy that is read, if any."""

    connection: sqlite3.Connection
    version: int
    copy: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Close the file."""
        self.connection.close()
        if self.copy is not None:
            self.copy.cleanup()


def open_for_reading(path: Path) -> OpenedJournal:
    """Open a journal that is there.

    :raises JournalError: it is missing, no journal, of another version, or cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise JournalError(f"{path}: not a regular file, and so not a journal of viva")
    except FileNotFoundError:
        raise missing_journal(path) from None
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        opened = _open(path, "mode=rw")
    except sqlite3.OperationalError as error:
        if not (error.sqlite_errorname or "").startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise journal_error(path, error) from error
        opened = _open_read_only(path)
    except sqlite3.Error as error:
        raise journal_error(path, error) from error
    except UnicodeDecodeError as error:  # SQLite's own message holds a piece of the damage
        raise JournalError(f"{path}: the file is damaged: {error.object!r}; restore it from a copy") from None
    if opened.version == 0:
        names = table_names(opened.connection)
        opened.close()
        if names - NAMES:
            raise JournalError(f"{path}: this file is not a journal of viva")
        raise JournalError(
            f"{path}: the journal is empty: if that was left by a kill, `viva resume {path.parent}` goes on; else "
            "restore it from a copy"
        )
    if opened.version not in READABLE_VERSIONS:
        opened.close()
        raise foreign_version(path, opened.version)
    return opened


def table_names(connection: sqlite3.Connection) -> set[str]:
    """The names of all tables and indices of a file."""
    return {str(name) for (name,) in connection.execute("select name from sqlite_master")}


def _open(path: Path, how: str) -> OpenedJournal:
    connection = sqlite3.connect(f"file:{quote(os.fsencode(path.absolute()))}?{how}", uri=True, isolation_level=None)
    try:
        return OpenedJournal(connection, schema_version(connection))
    except BaseException:
        connection.close()
        raise


def _open_read_only(path: Path) -> OpenedJournal:
    """Open a journal in a place where SQLite can make no file beside it."""
    log = path.with_name(f"{path.name}-wal")
    try:
        path.open("rb").close()
        if not log.exists() or log.stat().st_size == 0:
            return _open(path, "mode=ro&immutable=1")
        copy = tempfile.TemporaryDirectory(prefix="viva-")
        try:
            for file in (path, log):
                shutil.copyfile(file, Path(copy.name) / file.name)
            opened = _open(Path(copy.name) / path.name, "mode=rw")
        except BaseException:
            copy.cleanup()
            raise
        opened.copy = copy
        return opened
    except sqlite3.Error as error:
        raise journal_error(path, error) from error
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from None
