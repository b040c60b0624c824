"""Open a journal for reading, without changing it.

SQLite shares a journal's memory with other processes through a file next to it (`-shm`). If that cannot be created, a
finished journal is read as an immutable file, and one with a write-ahead log from a copy.

The log of a killed run is not merged, and a change that another program left unfinished is not undone. A file may be by
somebody else, so only plain tables are read, and only from regular files.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from .errors import JournalError
from .journal import (
    READABLE_VERSIONS,
    TABLE_NAMES,
    journal_error,
    missing_journal_error,
    refuse_special_file,
    schema_version,
    unreadable_version_error,
)
from .journal_format import DICTIONARIES


@dataclass(slots=True)
class OpenedJournal:
    """A read-only connection, the version of the schema, and the temporary copy being read, if any."""

    connection: sqlite3.Connection
    version: int
    path: Path
    copy: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Close the connection and delete the copy. The log of a run that was killed stays as it is."""
        if self.copy is None:
            _close_unmerged(self.connection, self.path)
        else:
            self.connection.close()
            self.copy.cleanup()


def _close_unmerged(connection: sqlite3.Connection, path: Path) -> None:
    """Close a connection so that SQLite does not merge the log of a killed run into its journal.

    Only the last connection to a file merges its log, and one that may not write cannot.
    """
    with ExitStack() as stack:
        if _size(path, "-wal"):
            with suppress(sqlite3.Error):
                keeper = stack.enter_context(closing(_connect(path, "mode=ro")))
                keeper.execute("select 1 from sqlite_master limit 1").fetchone()
        connection.close()


def _connect(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.fsencode(path.absolute()))}?{options}", uri=True, isolation_level=None)


def _size(path: Path, suffix: str) -> int:
    """Return the bytes of an auxiliary file of a database; 0 if there is none."""
    try:
        return os.stat(os.path.realpath(path) + suffix).st_size
    except OSError:
        return 0


def open_for_reading(path: Path) -> OpenedJournal:
    """Open an existing journal.

    Raises:
        JournalError: It is missing, is no journal, has another version, or cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise JournalError(f"{path}: not a regular file, so not a viva journal")
        _refuse_special_auxiliaries(path)
    except FileNotFoundError:
        if path.exists():  # then it is the current folder that is missing
            raise
        raise missing_journal_error(path) from None
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        opened = _open_journal(path, _options(path))
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname == "SQLITE_READONLY_ROLLBACK":
            raise JournalError(
                f"{path}: a change of it was interrupted ({path.name}-journal), and reading does not undo it: restore "
                "both files from a copy, or `viva resume` the run if they are yours"
            ) from None
        if not (error.sqlite_errorname or "").startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise journal_error(path, error) from error
        opened = _open_read_only(path)
    except sqlite3.Error as error:
        raise journal_error(path, error) from error
    except UnicodeDecodeError as error:  # SQLite's message contains part of the damage
        raise JournalError(f"{path}: the file is damaged: {error.object!r}; restore it from a copy") from None
    if opened.version == 0:
        names = names_in_file(opened.connection)
        opened.close()
        if names - TABLE_NAMES:
            raise JournalError(f"{path}: this file is not a viva journal")
        raise JournalError(
            f"{path}: the journal is empty: if the run was killed, continue it with `viva resume {path.parent}`; "
            "otherwise restore it from a copy"
        )
    if opened.version not in READABLE_VERSIONS:
        opened.close()
        raise unreadable_version_error(path, opened.version)
    if missing := {"started", "calls", "ended"} - names_in_file(opened.connection):
        opened.close()
        raise JournalError(f"{path}: the file is damaged: it has no table '{min(missing)}'; restore it from a copy")
    return opened


def names_in_file(connection: sqlite3.Connection) -> set[str]:
    """Return the names of all tables and indices of a file."""
    names = (name for (name,) in connection.execute("select name from sqlite_master"))
    return {name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names}


def _refuse_special_auxiliaries(path: Path) -> None:
    """Refuse a journal beside which a link, FIFO or device has the name of one of SQLite's files."""
    path = path.resolve()
    for suffix in ("-wal", "-shm", "-journal"):
        refuse_special_file(path.with_name(path.name + suffix))


@contextmanager
def opened_unchecked(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file that may be a journal of any version, or none.

    Raises:
        JournalError: It is not read, because reading it could change something or never end.
        sqlite3.Error: It cannot be read.
    """
    _refuse_special_auxiliaries(path)
    connection = _connect(path, _options(path))
    try:
        _refuse_computed_tables(connection, path)
        yield connection
    finally:
        _close_unmerged(connection, path)


def _options(path: Path) -> str:
    """Return how to open a file: SQLite must not be able to finish or undo another program's change."""
    return "mode=ro" if _size(path, "-journal") else "mode=rw"


def _open_journal(path: Path, options: str) -> OpenedJournal:
    connection = _connect(path, options)
    try:
        _refuse_computed_tables(connection, path)
        return OpenedJournal(connection, schema_version(connection), path)
    except BaseException:
        _close_unmerged(connection, path)
        raise


# A definition that computes its rows may never end: a view, a virtual table, or a table with a computed column.
_COMPUTED = """select 1 from sqlite_master where sql is not null and sql not like 'create table %'
    and sql not like 'create index %' and sql not like 'create unique index %' and sql not like 'create trigger %'"""


def _refuse_computed_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file in which reading a table of ours may compute something, or whose numbers are no numbers."""
    computed = connection.execute(f"{_COMPUTED} limit 1").fetchone() is not None
    for table in ("meta", "started", "calls", "ended", "control", DICTIONARIES):
        for _, name, kind, _, _, key, hidden in connection.execute(f"pragma table_xinfo({table})"):
            is_number = name == "number" and table in ("started", "ended")
            computed |= hidden != 0 or (is_number and (kind.lower(), key) != ("integer", 1))
    if computed:
        problem = "this file has tables of another form than a viva journal (such as views or computed columns)"
        raise JournalError(f"{path}: {problem}; restore it from a copy")


def _open_read_only(path: Path) -> OpenedJournal:
    """Open a journal in a folder where SQLite cannot create files."""
    log = path.with_name(f"{path.name}-wal")
    try:
        path.open("rb").close()
        if not log.exists() or log.stat().st_size == 0:
            return _open_journal(path, "mode=ro&immutable=1")
        copy = tempfile.TemporaryDirectory(prefix="viva-")
        try:
            for file in (path, log):
                shutil.copyfile(file, Path(copy.name) / file.name)
            opened = _open_journal(Path(copy.name) / path.name, "mode=rw")
        except BaseException:
            copy.cleanup()
            raise
        opened.copy = copy
        return opened
    except sqlite3.Error as error:
        raise journal_error(path, error) from error
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from None
