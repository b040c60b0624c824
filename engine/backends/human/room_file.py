"""The file of a room: ``room.sqlite``, its tables, and how it is opened or made.

What never belongs here: what may be done with it (``room``).
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from ...errors import ConfigurationError
from ...formats import other_version
from ...sound_file import damage_of

FILE = "room.sqlite"
VERSION = "1"
_WAIT_SECONDS = 30.0  # for another process that writes
_TABLES = """
create table meta (name text primary key, value text not null) without rowid;
create table requests (
    number integer primary key, name text not null unique, conversation text not null, role text not null,
    ordinal integer not null, digest blob not null, record blob not null, preview text not null,
    state text not null, asker text not null, asked real not null, deadline real);
create index requests_by_state on requests (state, asked);
-- Every submission once, under the name that the page gave it; of those to one request only the first counts.
create table submissions (
    number integer primary key, name text not null, request integer not null references requests,
    text text not null, calls text not null, who text not null, at real not null, counts integer not null,
    unique (request, name));
create unique index answers on submissions (request) where counts;
"""


def open_file(folder: Path) -> sqlite3.Connection:
    """The room's file, made where there is none yet; several processes may do so at once.

    :raises ConfigurationError: the folder cannot be used, or its room is of another version.
    """
    file = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot be made a room: {error.strerror}") from None
    try:
        connection = sqlite3.connect(file, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, file)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise unusable(file, error) from error
    return connection


def unusable(file: Path, error: Exception) -> ConfigurationError:
    """What is raised where SQLite cannot do what is asked of it, or a record cannot be read."""
    return ConfigurationError(f"{file}: cannot be used as a room: {error}")


def _prepare(connection: sqlite3.Connection, file: Path) -> None:
    connection.execute("begin immediate")
    if connection.execute("select 1 from sqlite_master").fetchone() is None:
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.execute("insert into meta values ('version', ?)", (VERSION,))
    connection.execute("commit")
    found = connection.execute("select value from meta where name = 'version'").fetchone()
    if found is None or found[0] != VERSION:
        said = other_version("room of version", found and found[0], [VERSION])
        raise ConfigurationError(f"{file}: {said}; or name another folder")
    if damage := damage_of(connection, _TABLES):
        raise ConfigurationError(f"{file}: cannot be used as a room: {damage}")
    _use_wal(connection)
    connection.execute("pragma synchronous = full")  # an answer that was confirmed outlives a power cut


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. SQLite refuses at once, without its usual patience, where another process does the
    same in this moment.
    """
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.01)
