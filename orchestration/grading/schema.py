"""The file of a grading folder: ``grades.sqlite``, its tables, and how it is opened.

What never belongs here: what may be done with it (``store``).
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.escapes import readable
from viva.engine.formats import other_version
from viva.engine.sound_file import damage_of

FILE = "grades.sqlite"
VERSION = "1"
_WAIT_SECONDS = 30.0  # for another process that writes
_MOST_NAMED = 5
_TABLES = """
create table meta (name text primary key, value text not null) without rowid;
create table questions (
    number integer primary key, id text not null unique, record blob not null, overlap integer,
    gold integer not null default 0, invalid text not null default '');
create table answers (
    id text primary key, question integer not null references questions, position integer not null,
    candidate text not null, record blob not null, unique (question, position)) without rowid;
create index answers_of on answers (question);
create table graders (
    number integer primary key, name text not null unique, kind text not null, role text not null,
    state text not null default 'active', model text not null default '', token text unique, expires real,
    created real not null);
-- A seat is a grader's place at a question: two cannot have the same one.
create table seats (
    question integer not null references questions, seat integer not null, grader integer not null references graders,
    claimed real not null, finished real, primary key (question, seat), unique (question, grader)) without rowid;
create index seats_of on seats (grader);
create table grades (
    answer text not null references answers, grader integer not null references graders, value real,
    comment text not null default '', at real not null, invalid text not null default '',
    primary key (answer, grader)) without rowid;
create index grades_of on grades (grader);
-- Every submission once, under the name that the page gave it: a form that is sent again changes nothing.
create table submissions (
    name text primary key, grader integer not null, answer text not null, value real, comment text not null,
    at real not null) without rowid;
create table decisions (
    answer text primary key references answers, adjudicator integer not null references graders, value real not null,
    reason text not null, at real not null) without rowid;
create table deeds (number integer primary key, at real not null, by text not null, what text not null);
"""


class GradesConnection(sqlite3.Connection):
    """A connection that writes halves of surrogate pairs, which SQLite cannot hold, as U+FFFD."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """As SQLite's; ``parameters`` are a sequence."""
        return super().execute(sql, tuple(readable(one) if type(one) is str else one for one in parameters))


def as_json(value: Any) -> bytes:
    """JSON data, with dataclasses as objects; halves of surrogate pairs become U+FFFD.

    :raises TypeError: it is no JSON data.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_mended(value))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, dict):
        return {_mended(name): _mended(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(one) for one in value]
    return _mended(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


def create(path: Path) -> sqlite3.Connection:
    """A new file.

    :raises ConfigurationError: it is there already, or cannot be made.
    """
    if path.exists():
        raise ConfigurationError(f"{path}: is there already; name another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(path)
        with connection:
            connection.executescript(f"begin; {_TABLES} insert into meta values ('version', '{VERSION}'); commit;")
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"{path}: cannot be made: {error}") from None
    return connection


def open_file(path: Path) -> sqlite3.Connection:
    """A file that is there.

    :raises ConfigurationError: it is not, or is no file of grades of this version.
    """
    if not path.is_file():
        below = sorted({file.parent for depth in ("*", "*/*") for file in path.parent.glob(f"{depth}/{FILE}")})
        hint = f"; there is {', '.join(map(str, below[:_MOST_NAMED]))}" if below else ""
        if (path.parent / "manifest.json").is_file():
            hint = f"; it is a run, and `viva grade queue {path.parent} --out FOLDER` makes one of it"
        raise ConfigurationError(f"{path.parent}: not a grading folder, for it holds no {FILE}{hint}")
    try:
        connection = _connect(path)
        found = connection.execute("select value from meta where name = 'version'").fetchone()
    except sqlite3.Error as error:
        raise unreadable(path, f"{error}; restore the file from a copy") from None
    if found is None or found[0] != VERSION:
        connection.close()
        raise ConfigurationError(f"{path}: {other_version('grades of version', found and found[0], [VERSION])}")
    if damage := damage_of(connection, _TABLES):
        connection.close()
        raise unreadable(path, damage)
    return connection


def unreadable(path: Path, why: object) -> ConfigurationError:
    """The error where a file of grades is damaged."""
    return ConfigurationError(f"{path}: cannot be read as grades: {why}")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False, factory=GradesConnection
    )
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    connection.execute("pragma foreign_keys = on")
    return connection
