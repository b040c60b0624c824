"""The viewer's own database: a line for each conversation of the runs that are looked at, and an index of their texts.

It is made from the journals and can be made again: one that is of another version, or damaged, is thrown away. It lies
in a cache folder of the user's, never in a run's.
What never belongs here: reading journals (``indexing``), and questions of pages (``query``).
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from viva.scenarios.shown import ResultSummary

from .search_text import searchable

_VERSION = "2"
OPEN, FINISHED, FAILED = 0, 1, 2  # states of a conversation
_CHUNK = 500  # numbers in one question
_SLOTS = 16  # bits of a text's row that number the rows of one conversation
_BETWEEN = " \ue000 "  # a word of no text, so that no phrase goes from one text to the next
_LAST_TEXT = (1 << _SLOTS) - 1
_SCHEMA = (
    """
create table meta (name text primary key, value text not null) without rowid;
create table runs (
    id integer primary key, name text not null unique, identity text not null, scenario text not null default '',
    dataset text not null default '', digest text not null default '', seed integer,
    judge text not null default '', planned integer, problem text not null default '',
    last_number integer not null default -1, last_row integer not null default 0, state text not null default '',
    place integer not null default 0);
create table conversations (
    id integer primary key autoincrement, run integer not null, number integer not null, key text not null,
    candidate text not null, item text not null, state integer not null default 0, score real,
    end text not null default '', error text not null default '', reason text not null default '',
    unscored integer not null default 0, calls integer not null default 0, prompt_tokens integer not null default 0,
    completion_tokens integer not null default 0, seconds real not null default 0, retries integer not null default 0,
    at real not null default 0, checksum integer, unique (run, number));
create index by_candidate on conversations (candidate, run);
create index by_item on conversations (item);
create index by_end on conversations (end);
create index by_error on conversations (error) where error != '';
create index by_state on conversations (run, state);
create index by_score on conversations (score);
create table aspects (conversation integer not null, name text not null, value real not null,
    primary key (conversation, name)) without rowid;
create index aspects_by_value on aspects (name, value);
create virtual table texts using fts5 (text, content = '', tokenize = 'unicode61 remove_diacritics 2');
insert into texts (texts, rank) values ('hashsize', 16000000);
"""
    + f"insert into meta values ('format', '{_VERSION}'), ('version', '0'), ('texts', '0');\n"
)


@dataclass(slots=True)
class IndexedRun:
    """A run in the index: its row, and how far its journal was read."""

    id: int
    name: str
    last_number: int
    last_row: int


@dataclass(slots=True)
class Calls:
    """Some calls of one conversation, added up; ``retries`` counts tries beyond the first, ``at`` is the latest."""

    count: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    retries: int = 0
    at: float = 0.0
    texts: list[str] = field(default_factory=list)


def index_file(root: Path, folder: Path | None = None) -> Path:
    """Where the index of a viewed folder lies: in ``folder``, else in the user's cache.

    Where nothing can be written in the cache, in a new temporary folder.
    """
    name = f"{hashlib.blake2b(os.fsencode(root.resolve()), digest_size=12).hexdigest()}.sqlite"
    if folder is None:
        cache = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(cache) if cache else Path.home() / ".cache") / "viva" / "view"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            usable = os.access(folder, os.W_OK)
        except OSError:
            usable = False
        if not usable:
            folder = Path(tempfile.mkdtemp(prefix="viva-view-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def open_index(file: Path) -> sqlite3.Connection:
    """Open the index for writing, made anew where it is none of this version."""
    if file.exists() and not _usable(file):
        _remove(file)
    connection = sqlite3.connect(file, isolation_level=None, timeout=30)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = off")  # it can be made again
    connection.execute("pragma cache_size = -32000")
    if not connection.execute("select 1 from sqlite_master where name = 'meta'").fetchone():
        connection.executescript(f"begin immediate; {_SCHEMA} commit;")
        file.chmod(0o600)
    return connection


def _usable(file: Path) -> bool:
    try:
        connection = sqlite3.connect(file)
        try:
            row = connection.execute("select value from meta where name = 'format'").fetchone()
        finally:
            connection.close()
    except sqlite3.Error:
        return False
    return row is not None and row[0] == _VERSION


def _remove(file: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)


class IndexWriter:
    """The writing half, used by one thread. ``version`` counts what readers could see change."""

    def __init__(self, file: Path) -> None:
        self._connection = open_index(file)
        self.version = int(self._meta("version"))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def begin(self) -> None:
        """Begin one change."""
        self._connection.execute("begin immediate")

    def commit(self, *, texts: bool = False) -> int:
        """End the change; the new version. ``texts``: what is found by words has changed too."""
        self.version += 1
        self._connection.execute("update meta set value = ? where name = 'version'", (str(self.version),))
        if texts:
            self._connection.execute("update meta set value = ? where name = 'texts'", (str(self.version),))
        self._connection.execute("commit")
        return self.version

    def rollback(self) -> None:
        """Forget the change that was begun."""
        if self._connection.in_transaction:
            self._connection.execute("rollback")

    def run(self, name: str, identity: str, facts: dict[str, Any]) -> IndexedRun:
        """The row of a run; one that is another run by now begins anew. ``facts`` are further columns."""
        found = self._connection.execute(
            "select id, identity, last_number, last_row from runs where name = ?", (name,)
        ).fetchone()
        if found is not None and found[1] != identity:
            self.forget(found[0])
            found = None
        if found is None:
            cursor = self._connection.execute("insert into runs (name, identity) values (?, ?)", (name, identity))
            assert cursor.lastrowid is not None
            found = (cursor.lastrowid, identity, -1, 0)
        named = ", ".join(f"{column} = ?" for column in facts)
        self._connection.execute(f"update runs set {named} where id = ?", (*facts.values(), found[0]))
        return IndexedRun(found[0], name, found[2], found[3])

    def names(self) -> dict[str, int]:
        """All runs that the index has."""
        return dict(self._connection.execute("select name, id from runs").fetchall())

    def forget(self, run: int) -> None:
        """Leave a run out. Its texts stay behind, of no conversation."""
        conversations = "select id from conversations where run = ?"
        self._connection.execute(f"delete from aspects where conversation in ({conversations})", (run,))
        self._connection.execute("delete from conversations where run = ?", (run,))
        self._connection.execute("delete from runs where id = ?", (run,))

    def set_state(self, run: IndexedRun, state: str) -> bool:
        """Whether a run goes on; True where that is news."""
        cursor = self._connection.execute(
            "update runs set state = ? where id = ? and state != ?", (state, run.id, state)
        )
        return cursor.rowcount > 0

    def start(self, run: IndexedRun, number: int, key: str, candidate: str, item: str, text: str) -> None:
        """Take up a conversation that was admitted."""
        cursor = self._connection.execute(
            "insert or ignore into conversations (run, number, key, candidate, item) values (?, ?, ?, ?, ?)",
            (run.id, number, _plain(key), _plain(candidate), _plain(item)),
        )
        if cursor.rowcount > 0 and cursor.lastrowid is not None:
            self._add_text(cursor.lastrowid, 0, [key, text])

    def called(self, run: IndexedRun, number: int, calls: Calls) -> None:
        """Add some calls of a conversation."""
        figures = (calls.count, calls.prompt_tokens, calls.completion_tokens, calls.seconds, calls.retries, calls.at)
        found = self._connection.execute(
            "update conversations set calls = calls + ?, prompt_tokens = prompt_tokens + ?,"
            " completion_tokens = completion_tokens + ?, seconds = seconds + ?, retries = retries + ?, at = max(at, ?)"
            " where run = ? and number = ? returning id, calls",
            (*figures, run.id, number),
        ).fetchall()
        for conversation, so_far in found:
            self._add_text(conversation, min(so_far, _LAST_TEXT - 1), calls.texts)

    def end(self, run: IndexedRun, number: int, summary: ResultSummary, checksum: int) -> None:
        """A conversation finished."""
        found = self._ended(run, number, FINISHED, summary.score, summary.end, "", "", summary.unscored, checksum)
        for conversation in found:
            self._connection.execute("delete from aspects where conversation = ?", (conversation,))
            self._connection.executemany(
                "insert into aspects values (?, ?, ?)",
                [(conversation, _plain(name), value) for name, value in summary.aspects.items()],
            )

    def fail(self, run: IndexedRun, number: int, error: str, reason: str, checksum: int) -> None:
        """A conversation failed; ``error`` is the type, ``reason`` a line about it."""
        for conversation in self._ended(run, number, FAILED, None, "failed", error, reason, 0, checksum):
            self._add_text(conversation, _LAST_TEXT, [reason])

    def _ended(self, run: IndexedRun, number: int, *columns: Any) -> list[int]:
        values = [_plain(one) if isinstance(one, str) else one for one in columns]
        return [
            conversation
            for (conversation,) in self._connection.execute(
                "update conversations set state = ?, score = ?, end = ?, error = ?, reason = ?, unscored = ?,"
                " checksum = ? where run = ? and number = ? returning id",
                (*values, run.id, number),
            ).fetchall()
        ]

    def reached(self, run: IndexedRun, last_number: int, last_row: int) -> None:
        """How far the journal was read."""
        run.last_number, run.last_row = last_number, last_row
        self._connection.execute(
            "update runs set last_number = ?, last_row = ? where id = ?", (last_number, last_row, run.id)
        )

    def unended(self, run: IndexedRun) -> list[int]:
        """The numbers of the conversations that have not ended."""
        rows = self._connection.execute(
            "select number from conversations where run = ? and state = ?", (run.id, OPEN)
        ).fetchall()
        return [number for (number,) in rows]

    def checksums(self, run: IndexedRun, numbers: Sequence[int] | None = None) -> dict[int, int]:
        """The checksums of the ends that were taken up, of all conversations or of those with these numbers."""
        asked = "select number, checksum from conversations where run = ? and state != ?"
        if numbers is None:
            return dict(self._connection.execute(asked, (run.id, OPEN)).fetchall())
        found: dict[int, int] = {}
        for at in range(0, len(numbers), _CHUNK):
            chunk = numbers[at : at + _CHUNK]
            marks = ",".join("?" * len(chunk))
            found.update(
                self._connection.execute(f"{asked} and number in ({marks})", (run.id, OPEN, *chunk)).fetchall()
            )
        return found

    def _add_text(self, conversation: int, place: int, texts: Sequence[str]) -> None:
        text = _BETWEEN.join(searchable(text) for text in texts)
        self._connection.execute(
            "insert into texts (rowid, text) values (?, ?)", (conversation << _SLOTS | place, text)
        )

    def _meta(self, name: str) -> str:
        return str(self._connection.execute("select value from meta where name = ?", (name,)).fetchone()[0])


def conversations_with_texts() -> str:
    """The part of a question that gives the conversations in which the words of its one parameter stand."""
    return f"select distinct rowid >> {_SLOTS} from texts where texts match ?"


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def identity_of(manifest: dict[str, Any], journal: Path) -> str:
    """What tells a run from another one that may come to lie in its folder."""
    digest = hashlib.blake2b(orjson.dumps(manifest, default=str), digest_size=12).hexdigest()
    try:
        return f"{digest}/{os.stat(journal).st_ino}"
    except OSError:
        return digest
