"""Our own files: written atomically, refused if their version is unknown, checked for damage if they are SQLite."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sqlite3
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from .errors import ConfigurationError, replace_surrogates
from .json_data import strip_surrogates


def user_cache(*names: str) -> Path:
    """Return a path below `viva` in the user's cache. Raise RuntimeError if the user has no home directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").joinpath("viva", *names)


def shell_path(path: Path | str) -> str:
    """Return a path as one word of a command to copy, which no program takes for an option."""
    text = replace_surrogates(str(path))
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def describe_version_problem(form: str, version: Any, supported: Iterable[int | str]) -> str:
    """Return why a file of another version cannot be used, and what to do.

    Args:
        form: Name of the format (`journal schema`).
        version: Version given in the file; None if missing.
        supported: Versions that can be read.
    """
    versions = [str(number) for number in supported]
    reads = versions[0] if len(versions) == 1 else f"{', '.join(versions[:-1])} and {versions[-1]}"
    problem = "no version" if version is None else f"{form} {str(version)[:40]}"
    newer = str(version).isdecimal() and all(number.isdecimal() and int(version) > int(number) for number in versions)
    advice = (
        "it was written by a newer viva: use that version" if newer else "the file is damaged: restore it from a copy"
    )
    return f"{problem}; this version of viva reads {form} {reads}; {advice}"


_VALUE_KINDS = {"integer": ("integer",), "real": ("real", "integer"), "text": ("text",), "blob": ("blob",)}
_RESTORE_ADVICE = "restore the file from a copy"

# Columns by table: name, declared kind, and True if it may be null.
_ColumnsByTable = dict[str, list[tuple[str, str, bool]]]


def find_sqlite_damage(connection: sqlite3.Connection, statements: str) -> str:
    """Return what is wrong with a file that was created by these `create` statements, and what to do; "" if nothing.

    Other tables and columns are ignored.
    """
    try:
        columns_by_table = _read_columns(connection)
        for table, columns in _expected_columns(statements).items():
            if table not in columns_by_table:
                return f"its table '{table}' is missing; {_RESTORE_ADVICE}"
            names = {name for name, _, _ in columns_by_table[table]}
            if missing := [name for name, _, _ in columns if name not in names]:
                return f"the column '{missing[0]}' of its table '{table}' is missing; {_RESTORE_ADVICE}"
        [verdict] = connection.execute("pragma integrity_check(1)").fetchone()
        if verdict != "ok":
            return f"its structure is damaged ({' '.join(str(verdict).split())}); {_RESTORE_ADVICE}"
        for table, columns in _expected_columns(statements).items():
            if problem := _first_wrong_value(connection, table, columns):
                return f"{problem}; {_RESTORE_ADVICE}"
            texts = [name for name, kind, _ in columns if kind == "text"]
            deque(connection.execute(f"select {', '.join(texts or ['1'])} from {table}"), maxlen=0)  # are they UTF-8?
        if (row := connection.execute("pragma foreign_key_check").fetchone()) is not None:
            return f"a row of its table '{row[0]}' refers to a missing row of '{row[2]}'; {_RESTORE_ADVICE}"
    except sqlite3.Error as error:
        return f"{error}; {_RESTORE_ADVICE}"
    return ""


@cache
def _expected_columns(statements: str) -> _ColumnsByTable:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(statements)
        return _read_columns(connection)


def _read_columns(connection: sqlite3.Connection) -> _ColumnsByTable:
    tables = connection.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite%'")
    columns_by_table: _ColumnsByTable = {}
    for (table,) in tables.fetchall():
        rows = connection.execute(f"pragma table_info({table})").fetchall()
        columns_by_table[table] = [
            (name, kind.lower(), not filled and not key) for _, name, kind, filled, _, key in rows
        ]
    return columns_by_table


def _first_wrong_value(connection: sqlite3.Connection, table: str, columns: list[tuple[str, str, bool]]) -> str:
    """Describe the first value whose kind does not match its column; "" if all match."""
    conditions = {}
    for name, kind, empty in columns:
        kinds = (*_VALUE_KINDS[kind], *(("null",) if empty else ()))
        conditions[name] = f"typeof({name}) not in ({', '.join(map(repr, kinds))})"
    if connection.execute(f"select 1 from {table} where {' or '.join(conditions.values())} limit 1").fetchone() is None:
        return ""
    for name, kind, _ in columns:
        row = connection.execute(f"select typeof({name}) from {table} where {conditions[name]} limit 1").fetchone()
        if row is not None:
            return f"its table '{table}' has a value of type {row[0]} in the column '{name}'; expected {kind}"
    return ""


_BUSY_SECONDS = 30.0  # wait for another writing process


class SafeConnection(sqlite3.Connection):
    """A connection that writes lone surrogates, which SQLite cannot store, as U+FFFD."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute like SQLite; `parameters` are a sequence."""
        return super().execute(
            sql, tuple(strip_surrogates(value) if type(value) is str else value for value in parameters)
        )


@dataclass(slots=True, frozen=True)
class SqliteForm:
    """A kind of SQLite file: its tables, and its version in a table `meta` of names and values.

    `name` and `use` are for errors: `question bank`, `used as a question bank`.
    """

    name: str
    use: str
    tables: str
    version: str

    def open(self, path: Path, *, make: bool = False) -> sqlite3.Connection:
        """Open and check a file; with `make`, create its tables if there are none.

        Raises:
            ConfigurationError: The file cannot be read or created, is damaged, or of another version.
        """
        try:
            connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=SafeConnection
            )
            for setting in ("journal_mode = wal", "synchronous = normal", "foreign_keys = on"):
                connection.execute(f"pragma {setting}")
            if make:
                self._make(connection)
            row = connection.execute("select value from meta where name = 'version'").fetchone()
        except sqlite3.Error as error:
            raise self.damage_error(path, f"{error}; {_RESTORE_ADVICE}") from None
        if row is None or row[0] != self.version:
            connection.close()
            problem = describe_version_problem(f"{self.name} of version", row and row[0], [self.version])
            raise ConfigurationError(f"{path}: {problem}")
        if damage := find_sqlite_damage(connection, self.tables):
            connection.close()
            raise self.damage_error(path, damage)
        return connection

    def damage_error(self, path: Path, problem: str) -> ConfigurationError:
        """Return the error for a damaged file."""
        return ConfigurationError(f"{path}: cannot be {self.use}: {problem}")

    def _make(self, connection: sqlite3.Connection) -> None:
        with transaction(connection):
            if not connection.execute("select 1 from sqlite_master where name = 'meta'").fetchone():
                for statement in filter(str.strip, self.tables.split(";")):
                    connection.execute(statement)
                connection.execute("insert into meta values ('version', ?)", (self.version,))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit the changes made inside together. A nested transaction that raises is rolled back alone."""
    nested = connection.in_transaction
    connection.execute("savepoint change" if nested else "begin immediate")
    try:
        yield
        connection.execute("release change" if nested else "commit")
    except BaseException:
        if connection.in_transaction:  # else SQLite has rolled back already, e.g. on a full disk
            connection.execute("rollback to change" if nested else "rollback")
            if nested:
                connection.execute("release change")
        raise


_DESCRIPTOR_PATH = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
# Why a writable file cannot be replaced.
_NOT_REPLACEABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half.

    A symbolic link stays a link: its target is written in this way. An existing file keeps its permissions, and no
    other file is touched. The data is written directly into a path that is no regular file (a device, a FIFO), into a
    file that is open as this process's stdout or stderr (at its end, so `>> log` keeps its content), and into an
    existing file that cannot be replaced because its folder is not writable or the file is a mount point.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        status = None
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    descriptor = _find_descriptor(path, status)
    if descriptor is not None:
        with open(os.dup(descriptor), "wb", buffering=0) as stream:
            _write_all(stream, data)
    elif status is not None and not stat.S_ISREG(status.st_mode):
        with path.open("wb", buffering=0) as stream:
            _write_all(stream, data)
    else:
        _write_regular(path.resolve(), data, status)


def _write_regular(path: Path, data: bytes, status: os.stat_result | None) -> None:
    temporary: Path | None = None
    try:
        temporary, file = _create_file_beside(path)
        with os.fdopen(file, "wb") as opened:
            if status is not None:
                os.fchmod(opened.fileno(), stat.S_IMODE(status.st_mode))
            opened.write(data)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        if status is None or not isinstance(error, OSError) or error.errno not in _NOT_REPLACEABLE:
            raise
        with path.open("wb", buffering=0) as stream:
            _write_all(stream, data)


def _find_descriptor(path: Path, status: os.stat_result | None) -> int | None:
    """Return the descriptor under which this process has the file open as its output, or None."""
    match = _DESCRIPTOR_PATH.fullmatch(str(path))
    for number in (int(match[1]),) if match else (1, 2):
        with suppress(OSError):
            if status is not None and os.path.samestat(os.fstat(number), status):
                return number
    return None


def _write_all(stream: io.FileIO, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[stream.write(remaining) or 0 :]


def is_leftover(name: str, target: str) -> bool:
    """Return True if a killed `write_atomically` of `target` leaves a file of this name."""
    return name.startswith(f"{target}.") and name.endswith(".part")


def _create_file_beside(path: Path) -> tuple[Path, int]:
    """Create a file in the same folder and open it for writing; existing files are never used."""
    for number in count():
        temporary = path.with_name(f"{path.name}.{os.getpid()}{f'-{number}' if number else ''}.part")
        with suppress(FileExistsError):
            return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    raise AssertionError
