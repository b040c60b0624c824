"""Whether a SQLite file of ours is as it was made: its structure, its tables and columns, the kinds of its values.

Files that people write to for weeks are looked at whole when they are opened: what is damaged is named once, there, and
not by whatever line of code first meets a row that is not as it should be.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from contextlib import closing
from functools import cache

_KINDS = {"integer": ("integer",), "real": ("real", "integer"), "text": ("text",), "blob": ("blob",)}
_ADVICE = "restore the file from a copy"

# By table, its columns: name, declared kind, and whether it may be null.
_Columns = dict[str, list[tuple[str, str, bool]]]


def damage_of(connection: sqlite3.Connection, statements: str) -> str:
    """Return what is wrong with a file that was made by these ``create`` statements, and what to do; empty if nothing.

    Tables and columns that the statements do not name are none of ours, and let be.
    """
    try:
        found = _columns_of(connection)
        for table, columns in _made_by(statements).items():
            if table not in found:
                return f"it has no table '{table}' any more; {_ADVICE}"
            names = {name for name, _, _ in found[table]}
            if missing := [name for name, _, _ in columns if name not in names]:
                return f"its table '{table}' has no column '{missing[0]}' any more; {_ADVICE}"
        [verdict] = connection.execute("pragma integrity_check(1)").fetchone()
        if verdict != "ok":
            return f"its structure is damaged ({' '.join(str(verdict).split())}); {_ADVICE}"
        for table, columns in _made_by(statements).items():
            if wrong := _wrong_value(connection, table, columns):
                return f"{wrong}; {_ADVICE}"
            texts = [name for name, kind, _ in columns if kind == "text"]
            deque(connection.execute(f"select {', '.join(texts or ['1'])} from {table}"), maxlen=0)  # are they UTF-8?
        if (row := connection.execute("pragma foreign_key_check").fetchone()) is not None:
            return f"a row of its table '{row[0]}' belongs to a row of '{row[2]}' that is not there any more; {_ADVICE}"
    except sqlite3.Error as error:
        return f"{error}; {_ADVICE}"
    return ""


@cache
def _made_by(statements: str) -> _Columns:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(statements)
        return _columns_of(connection)


def _columns_of(connection: sqlite3.Connection) -> _Columns:
    tables = connection.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite%'")
    found: _Columns = {}
    for (table,) in tables.fetchall():
        rows = connection.execute(f"pragma table_info({table})").fetchall()
        found[table] = [(name, kind.lower(), not filled and not key) for _, name, kind, filled, _, key in rows]
    return found


def _wrong_value(connection: sqlite3.Connection, table: str, columns: list[tuple[str, str, bool]]) -> str:
    """What is wrong with the first value of a kind that its column does not have; empty without one."""
    wrong = {}
    for name, kind, empty in columns:
        kinds = (*_KINDS[kind], *(("null",) if empty else ()))
        wrong[name] = f"typeof({name}) not in ({', '.join(map(repr, kinds))})"
    if connection.execute(f"select 1 from {table} where {' or '.join(wrong.values())} limit 1").fetchone() is None:
        return ""
    for name, kind, _ in columns:
        row = connection.execute(f"select typeof({name}) from {table} where {wrong[name]} limit 1").fetchone()
        if row is not None:
            return f"its table '{table}' holds a value of kind {row[0]} as '{name}', where {kind} belongs"
    return ""
