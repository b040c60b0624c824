"""SQLite files damaged in many ways: cut off, overwritten, without a table or a column, with values of wrong kinds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

PAGE = 4096
_WRONG = {"integer": "'many'", "real": "'long ago'", "text": "x'ff00'", "blob": "'{\"turns\": 3}'"}
Damage = Callable[[Path], None]


def damages(file: Path, *, bytes_: int = 12) -> Iterator[tuple[str, Damage]]:
    """Ways to damage a file like this one, each with its name; ``bytes_`` places are overwritten."""
    size = file.stat().st_size
    yield "empty", lambda path: path.write_bytes(b"")
    yield "text", lambda path: path.write_text("answer,grade\na,3\n" * 100)
    yield "garbage", lambda path: path.write_bytes(bytes(range(256)) * 64)
    yield "header", _overwritten(0, b"Damaged format 9")
    yield "page size", _overwritten(16, b"\x00\x03")
    for end in (50, 100, PAGE, size // 2, size - PAGE):
        yield f"cut to {end}", _cut(end)
    for page in range(min(size // PAGE, 10)):
        yield f"page {page} of zeros", _overwritten(page * PAGE, bytes(PAGE))
        yield f"page {page} of noise", _overwritten(page * PAGE + 100, bytes(range(1, 200)) * 15)
    for at in range(bytes_):
        yield f"noise at {at * size // bytes_}", _overwritten(at * size // bytes_, b"\xff\x7f\x13")
    with closing(sqlite3.connect(file)) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        columns = {name: connection.execute(f"pragma table_info({name})").fetchall() for name in tables}
        filled = {name for name in tables if connection.execute(f"select 1 from {name}").fetchone()}
    for table in tables:
        if table.startswith("sqlite_"):
            continue
        yield f"no table {table}", _changed(f"drop table {table}")
        for _, column, kind, *_ in columns[table]:
            yield f"no column {table}.{column}", _changed(f"alter table {table} rename column {column} to other")
            if table in filled and kind.lower() in _WRONG:
                yield f"wrong {table}.{column}", _changed(f"update {table} set {column} = {_WRONG[kind.lower()]}")
            if table in filled and kind.lower() in ("blob", "text"):
                for word in ("x'ff'", "'null'", "'[]'", "'{}'", "''"):
                    yield f"{word} as {table}.{column}", _changed(f"update {table} set {column} = {word}")


def _overwritten(at: int, data: bytes) -> Damage:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data[: path.stat().st_size - at])

    return damage


def _cut(end: int) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes()[: max(0, end)])


def _changed(statement: str) -> Damage:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("pragma foreign_keys = off")
            try:
                connection.execute(statement)
            except sqlite3.Error:  # a key, or what an index rests on: the next best damage
                table = statement.split()[1 if statement.startswith("update") else 2]
                connection.execute("pragma writable_schema = on")
                connection.execute("delete from sqlite_master where tbl_name = ?", (table,))

    return damage
