"""Merge the journals of the shards of a run into one: rows are copied with their checksums; packed texts become plain.

Journals are read from copies, and the merged journal is built in a separate folder: nothing is written next to a
shard's journal, and no SQLite file is opened in a folder that other machines may be writing to.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from .errors import JournalError
from .journal import PACKED_VERSION, SCHEMA_VERSION, journal_error, open_database, schema_version
from .journal_format import DICTIONARIES, Unpacker

_ORDER = {"started": "number", "calls": "rowid", "ended": "number"}
_LOGS = ("-wal", "-shm")


def copy_journal(journal: Path, folder: Path) -> Path:
    """Copy a journal that nobody writes, with its write-ahead log, into a folder; return the copy.

    Raises:
        JournalError: It cannot be read, or there is no space.
    """
    copy = folder / journal.name
    try:
        for name in (journal.name, f"{journal.name}-wal"):
            if (journal.parent / name).exists():
                shutil.copyfile(journal.parent / name, folder / name)
    except OSError as error:
        raise JournalError(f"{journal}: cannot be copied to {folder}: {error.strerror or error}") from error
    return copy


class JournalMerger:
    """A merged journal under construction at `path`; `close` it, or use it as a context manager, before moving it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_database(path)

    def __enter__(self) -> JournalMerger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(self, journal: Path) -> None:
        """Copy all rows of a journal. Its conversations must be new.

        Raises:
            JournalError: A conversation is in both journals, the journal has another schema, or it cannot be read.
        """
        try:
            self._connection.execute("attach database ? as part", (str(journal),))
            try:
                [(version,)] = self._connection.execute("select value from part.meta where key = 'schema'").fetchall()
                if str(version) not in (str(SCHEMA_VERSION), str(PACKED_VERSION)):
                    versions = f"{SCHEMA_VERSION} and {PACKED_VERSION}"
                    raise JournalError(f"{journal}: journal schema {version}; only schemas {versions} can be merged")
                packed = str(version) == str(PACKED_VERSION)
                texts = _packed_columns(self._connection) if packed else []
                self._connection.execute("begin immediate")
                for table, order in _ORDER.items():
                    columns = ", ".join(
                        f"plain_text({name})" if name in texts else name for name in _columns(self._connection, table)
                    )
                    self._connection.execute(
                        f"insert into main.{table} select {columns} from part.{table} order by {order}"
                    )
                self._connection.execute("commit")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                self._connection.execute("detach database part")
        except sqlite3.IntegrityError as error:
            raise JournalError(f"{journal}: has a conversation that another shard also has: {error}") from error
        except (sqlite3.Error, ValueError) as error:
            if isinstance(error, sqlite3.Error):
                raise journal_error(journal, error) from error
            raise JournalError(f"{journal}: its schema's version is missing; restore it from a copy") from error

    def rows(self) -> dict[str, int]:
        """Return the number of rows per table."""
        return _row_counts(self._connection)

    def close(self) -> None:
        """Close the file, which then has no write-ahead log."""
        self._connection.close()


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [name for _, name, *_ in connection.execute(f"pragma main.table_info({table})")]


def _packed_columns(connection: sqlite3.Connection) -> list[str]:
    """Return the columns that may contain packed texts; register the SQL function `plain_text` to unpack them."""
    unpacker = Unpacker(connection, f"part.{DICTIONARIES}")

    def plain(value: Any) -> Any:
        return unpacker.text(value) if isinstance(value, bytes) else value

    connection.create_function("plain_text", 1, plain)
    return ["item", "text", "extra", "result"]


def count_rows(journal: Path) -> dict[str, int]:
    """Return the number of rows per table of a journal. The file is opened in place, so pass a copy.

    Raises:
        JournalError: It cannot be read.
    """
    try:
        with closing(sqlite3.connect(journal)) as connection:
            return _row_counts(connection) if schema_version(connection) else dict.fromkeys(_ORDER, 0)
    except sqlite3.Error as error:
        raise journal_error(journal, error) from error


def replace_journal(merged: Path, journal: Path) -> None:
    """Move a merged journal to its destination in one step, replacing what is there.

    Raises:
        JournalError: It cannot be written.
    """
    part = journal.with_name(f"{journal.name}.part")
    try:
        journal.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as target, merged.open("rb") as source:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        for log in _LOGS:  # of the replaced journal; SQLite would apply them to the new file
            with suppress(FileNotFoundError):
                journal.with_name(f"{journal.name}{log}").unlink()
        os.replace(part, journal)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise JournalError(f"{journal}: cannot be written: {error.strerror or error}") from error


def _row_counts(connection: sqlite3.Connection) -> dict[str, int]:
    return {table: connection.execute(f"select count(*) from {table}").fetchone()[0] for table in _ORDER}
