"""Compaction of a finished run's journal: texts are packed, and the file is rewritten without gaps.

Nothing is removed: every call, start and end is there afterwards and reads as before. Each step is one SQLite
transaction that leaves the journal intact, so after a kill the journal can be read, resumed and compacted again. Rows
that fail their checksum are not changed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .journal import (
    PACKED_VERSION,
    PLAIN_ROLE,
    SCHEMA_VERSION,
    branch_and_role,
    damaged_journal_error,
    journal_error,
    open_database,
    schema_version,
)
from .journal_format import (
    CALL_COLUMNS,
    DICTIONARIES_SCHEMA,
    PACKED_MARK,
    Packer,
    Packers,
    build_dictionary,
    call_checksum,
    is_call_checksum,
    short_checksum,
)
from .journal_reader import DAMAGE_ERRORS, History

_BATCH = 2_000  # rows per transaction
_SAMPLES = 64  # texts per dictionary, at most
_SHORTEST = 24  # bytes; shorter texts are not worth packing
_LOGS = ("", "-wal")
# By table: its key, its columns, and the packed texts with their positions.
_TABLES: dict[str, tuple[str, str, dict[str, int]]] = {
    "started": ("number", "number, key, item", {"item": 2}),
    "calls": ("rowid", CALL_COLUMNS, {"text": 4, "extra": 10}),
    "ended": ("number", "number, status, result", {"result": 2}),
}


@dataclass(slots=True)
class Compaction:
    """Result of a compaction, in bytes of the journal and its write-ahead log; `after` is an estimate in a dry run.

    `packed` counts the texts packed now. `busy` means that another program reads the journal; the file shrinks once
    that program closes it.
    """

    before: int
    after: int
    packed: int = 0
    busy: bool = False


def compact_journal(journal: Path, *, dry_run: bool = False) -> Compaction:
    """Compact a journal that nobody writes; `dry_run` only estimates.

    Raises:
        JournalError: It cannot be read, its structure is damaged, or there is no space to write.
    """
    before = _size(journal)
    with History(journal) as history:
        if not history.sound:
            raise damaged_journal_error(journal)
    try:
        if dry_run:
            return _estimate_size(journal, before)
        with closing(open_database(journal)) as connection:
            _upgrade_schema(connection)
            packed = sum(_pack(connection, table) for table in _TABLES)
            if packed or connection.execute("pragma freelist_count").fetchone()[0]:
                connection.execute("vacuum")
            [(busy, *_)] = connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        return Compaction(before, _size(journal), packed, bool(busy))
    except sqlite3.Error as error:
        raise journal_error(journal, error) from error


def _upgrade_schema(connection: sqlite3.Connection) -> None:
    """Upgrade the journal to the schema with packed texts, in one transaction."""
    connection.execute("begin immediate")
    try:
        if schema_version(connection) < SCHEMA_VERSION:
            _add_checksums(connection)
        connection.execute(DICTIONARIES_SCHEMA)
        connection.execute("insert or replace into meta values ('schema', ?)", (str(PACKED_VERSION),))
        connection.execute("commit")
    except BaseException:
        connection.execute("rollback")
        raise


def _add_checksums(connection: sqlite3.Connection) -> None:
    """Add checksums to the rows of a journal of schema 1."""
    for table, (key, columns, _) in _TABLES.items():
        connection.execute(f"alter table {table} add column checksum integer not null default 0")
        compute_checksum = call_checksum if table == "calls" else short_checksum
        rows = connection.execute(f"select {key}, {columns} from {table}").fetchall()
        update = f"update {table} set checksum = ? where {key} = ?"
        connection.executemany(update, ((compute_checksum(tuple(row)), row_key) for row_key, *row in rows))


def _pack(connection: sqlite3.Connection, table: str) -> int:
    """Pack a table's texts, one batch of rows per transaction; return their number."""
    key, _, texts = _TABLES[table]
    packers = _open_packers(connection, table)
    assignments = ", ".join(f"{name} = ?" for name in texts)
    count = 0
    for rows in _iter_batches(connection, table):
        changed = []
        for row_key, row in rows:
            values = [row[at] for at in texts.values()]
            packed = _pack_row(packers, table, row, values)
            if packed is not None:
                changed.append((*packed, row_key))
                count += sum(_is_newly_packed(new, old) for new, old in zip(packed, values, strict=True))
        if changed:
            connection.execute("begin immediate")
            connection.executemany(f"update {table} set {assignments} where {key} = ?", changed)
            connection.execute("commit")
    return count


def _pack_row(
    packers: dict[tuple[str, bytes], Packer], table: str, row: tuple[Any, ...], values: list[Any]
) -> list[Any] | None:
    """Return a row's texts, packed if that is shorter; None if none is shorter or the row is damaged."""
    packed = []
    for name, value in zip(_TABLES[table][2], values, strict=True):
        packer = packers.get(_text_kind(table, name, row))
        worthwhile = packer is not None and value is not None and len(value) >= _SHORTEST and value[:1] != PACKED_MARK
        # Plain text is stored as SQLite text.
        plain = value.decode("utf-8", "replace") if value is not None and value[:1] != PACKED_MARK else value
        packed.append(plain if not worthwhile or packer is None else packer.pack(value) or plain)
    changed = any(_is_newly_packed(new, old) for new, old in zip(packed, values, strict=True))
    return packed if changed and _matches_checksum(table, row) else None


def _is_newly_packed(new: Any, old: Any) -> bool:
    """Return True if a plain text was packed."""
    return isinstance(new, bytes) and new is not old


def _matches_checksum(table: str, row: tuple[Any, ...]) -> bool:
    """Return True if the plain row is what was written."""
    *fields, checksum = row
    if checksum is None:  # schema 1
        return True
    try:
        decoded = tuple(
            field.decode() if isinstance(field, bytes) and at != 3 else field for at, field in enumerate(fields)
        )
        if table != "calls":
            return bool(short_checksum(decoded) == checksum)
        return is_call_checksum(checksum, decoded)
    except DAMAGE_ERRORS:
        return False


def _iter_batches(
    connection: sqlite3.Connection, table: str, checksum: str = "checksum"
) -> Iterator[list[tuple[Any, tuple[Any, ...]]]]:
    """Yield all rows by key, with the checksum after the columns; texts are bytes."""
    key, columns, _ = _TABLES[table]
    latest = -1
    query = f"select {key}, {columns}, {checksum} from {table} where {key} > ? order by {key} limit {_BATCH}"
    connection.text_factory = bytes
    while rows := connection.execute(query, (latest,)).fetchall():
        latest = rows[-1][0]
        yield [(row_key, tuple(row)) for row_key, *row in rows]


def _text_kind(table: str, column: str, row: tuple[Any, ...]) -> tuple[str, bytes]:
    """Return the group of similar texts: the same column and, for answers, the same role."""
    if column != "text" or not isinstance(row[1], bytes):
        return f"{table}.{column}", b""
    role = branch_and_role(row[1].decode("utf-8", "surrogateescape"))[1]
    return f"{table}.{column}", role.encode("utf-8", "surrogateescape")


def _open_packers(connection: sqlite3.Connection, table: str) -> dict[tuple[str, bytes], Packer]:
    """Return the packers for a table's kinds of text; store new dictionaries in the journal."""
    samples = _sample_texts(connection, table)
    connection.text_factory = bytes
    connection.execute("begin immediate")
    packers = Packers(connection)
    packers_by_kind = {
        kind: packers.get_or_create(f"{kind[0]} {kind[1].decode('utf-8', 'replace')}".strip(), texts, total)
        for kind, (texts, total) in samples.items()
    }
    connection.execute("commit")
    return packers_by_kind


def _sample_texts(connection: sqlite3.Connection, table: str) -> dict[tuple[str, bytes], tuple[list[bytes], int]]:
    """Return a few plain texts of each kind, evenly spaced over the table, and the total bytes of the kind."""
    key, _, texts = _TABLES[table]
    connection.text_factory = bytes
    samples: dict[tuple[str, bytes], tuple[list[bytes], int]] = {}
    for column in texts:
        group = PLAIN_ROLE if column == "text" else "''"
        kinds = connection.execute(
            f"select cast({group} as text), count(*), sum(length({column})) from {table} "
            f"where {column} is not null and typeof({column}) = 'text' group by 1"
        ).fetchall()
        for name, count, total in kinds:
            step = max(1, count // _SAMPLES)
            rows = connection.execute(
                f"select {column} from (select {column}, row_number() over (order by {key}) as place from {table} "
                f"where typeof({column}) = 'text' and cast({group} as text) = cast(? as text)) "
                "where place % ? = 0 limit ?",
                (name, step, _SAMPLES),
            ).fetchall()
            samples[f"{table}.{column}", name if column == "text" else b""] = ([text for (text,) in rows], int(total))
    return samples


def _estimate_size(journal: Path, before: int) -> Compaction:
    """Estimate the result of packing; freed pages are estimated from the bytes of their texts."""
    saved = packed = 0
    with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        checksum = "checksum" if schema_version(connection) >= SCHEMA_VERSION else "null"
        free, page = (connection.execute(f"pragma {name}").fetchone()[0] for name in ("freelist_count", "page_size"))
        for table in _TABLES:
            packers = {}
            for kind, (texts, total) in _sample_texts(connection, table).items():
                dictionary = build_dictionary(texts, total)
                packers[kind] = Packer(1 if dictionary else 0, dictionary)
                saved -= len(dictionary)
            for rows in _iter_batches(connection, table, checksum):
                for _, row in rows:
                    values = [row[at] for at in _TABLES[table][2].values()]
                    new_values = _pack_row(packers, table, row, values) or ()
                    for new, old in zip(new_values, values, strict=False):
                        if _is_newly_packed(new, old):
                            packed, saved = packed + 1, saved + len(old) - len(new)
    log = before - os.stat(journal).st_size
    return Compaction(before, max(0, before - log - free * page - saved), packed)


def _size(journal: Path) -> int:
    """Return the bytes of a journal and its write-ahead log."""
    files = (journal.with_name(f"{journal.name}{suffix}") for suffix in _LOGS)
    return sum(os.stat(file).st_size for file in files if file.exists())
