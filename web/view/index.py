"""Index of the viewer: a database of all conversations with full-text search, updated from the journals.

The index can always be rebuilt from the journals. Its file may be damaged after a power cut, of another version, or
planted by others: it is used only if it has exactly this schema, and otherwise deleted and made again. It is in the
user's cache folder, never in a run's folder.

SQLite's `unicode61` knows no word boundaries in Chinese, Japanese and Korean. Therefore characters of these scripts are
separated, in texts as well as in queries, so that a sequence of them is found as a phrase.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from viva.engine.files import user_cache
from viva.engine.journal import is_locked, refuse_special_database, refuse_special_file
from viva.scenarios.rendering import ResultSummary

from .run_figures import CallUsage

LONGEST_TEXT = 200_000  # maximum searchable characters of one text
_UNSPACED_SCRIPTS = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])")
_QUERY_PARTS = re.compile(r'"([^"]*)("|$)|(\S+)')
_WORD = re.compile(r"\w")


def to_index_text(text: str) -> str:
    """Prepare a text for the index."""
    return _UNSPACED_SCRIPTS.sub(r" \1 ", text[:LONGEST_TEXT].encode("utf-8", "replace").decode())


@dataclass(frozen=True, slots=True)
class QueryPart:
    """A word or phrase of a search; `is_prefix`: its last word may be incomplete."""

    text: str
    is_prefix: bool


def query_parts(typed: str) -> list[QueryPart]:
    """Return the words and phrases of a search, "a phrase" being quoted; one that is not closed goes to the end.

    The last word may be a prefix, unless its quotation mark is closed or a space follows.
    """
    parts = [
        (quoted or word, closing == '"')
        for quoted, closing, word in _QUERY_PARTS.findall(typed)
        if _WORD.search(quoted or word)
    ]
    last = len(parts) - 1
    ended = typed[-1:].isspace()
    return [QueryPart(text, at == last and not (ended or closed)) for at, (text, closed) in enumerate(parts)]


def fts_query(typed: str) -> str | None:
    """Return the FTS5 query for typed words, all of which must occur, or None if there are none."""
    phrases = [
        '"' + to_index_text(part.text).replace('"', " ") + '"' + "*" * part.is_prefix for part in query_parts(typed)
    ]
    return " AND ".join(phrases) or None


def strings_in(record: Any) -> Iterator[str]:
    """Iterate over all strings in plain data, however deeply nested it is."""
    waiting = [record]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            waiting += reversed(value.values() if isinstance(value, dict) else value)


_VERSION = "9"
OPEN, FINISHED, FAILED = 0, 1, 2  # states of a conversation
_CHUNK = 500  # maximum numbers in one query
_SLOTS = 16  # bits of a text's row id that number the texts of one conversation
_TEXT_SEPARATOR = " \ue000 "  # occurs in no text; between two texts, it prevents phrases that span both
_LAST_TEXT = (1 << _SLOTS) - 1
PACE_SECONDS = 10  # seconds of a slot of `pace`, which counts the calls and the conversations that ended in it
_SCHEMA = (
    """
create table meta (name text primary key, value text not null) without rowid;
create table runs (
    id integer primary key, name text not null unique, identity text not null, scenario text not null default '',
    dataset text not null default '', digest text not null default '', seed integer,
    judge text not null default '', planned integer, problem text not null default '', low real, high real,
    unit text not null default '', likeness text not null default '{}', models text not null default '{}',
    adaptive integer not null default 0, rate integer not null default 0,
    second_name text not null default '', second_digest text not null default '',
    last_number integer not null default -1, last_row integer not null default 0, state text not null default '',
    place integer not null default 0);
create table conversations (
    id integer primary key autoincrement, run integer not null, number integer not null, key text not null,
    candidate text not null, item text not null, task text not null, state integer not null default 0, score real,
    end text not null default '', error text not null default '', reason text not null default '',
    unscored integer not null default 0, calls integer not null default 0, prompt_tokens integer not null default 0,
    completion_tokens integer not null default 0, seconds real not null default 0, retries integer not null default 0,
    at real not null default 0, checksum integer, rounds integer, cluster text not null default '',
    second integer not null default 0, unique (run, number));
create index by_candidate on conversations (candidate, run);
create index by_task on conversations (task);
create index by_end on conversations (end);
create index by_error on conversations (error) where error != '';
create index by_state on conversations (run, state);
create index by_score on conversations (score);
create table aspects (conversation integer not null, name text not null, value real not null,
    primary key (conversation, name)) without rowid;
create index aspects_by_value on aspects (name, value);
create table pace (run integer not null, slot integer not null, calls integer not null, ended integer not null,
    primary key (run, slot)) without rowid;
create table usage (run integer not null, role text not null, candidate text not null, calls integer not null,
    prompt_tokens integer not null, completion_tokens integer not null, cached_tokens integer not null,
    first real, last real, primary key (run, role, candidate)) without rowid;
create virtual table texts using fts5 (text, content = '', tokenize = 'unicode61 remove_diacritics 2');
insert into texts (texts, rank) values ('hashsize', 16000000);
"""
    + f"insert into meta values ('format', '{_VERSION}'), ('version', '0'), ('texts', '0'),"
    " ('left out', '[]');\n"
)


@dataclass(slots=True)
class IndexedRun:
    """A run in the index: its row, and how far its journal has been read."""

    id: int
    name: str
    last_number: int
    last_row: int


@dataclass(slots=True)
class CallTotals:
    """Totals of some calls of one conversation. `retries` counts repeated attempts; `at` is the latest time."""

    count: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    retries: int = 0
    at: float = 0.0
    texts: list[str] = field(default_factory=list)
    roles: dict[str, CallUsage] = field(default_factory=dict)


def index_file(root: Path, folder: Path | None = None) -> Path:
    """Return the index file of a viewed folder: in `folder`, else in the user's cache.

    If the cache is not writable, the file is in a new temporary folder.
    """
    name = f"{hashlib.blake2b(os.fsencode(root.resolve()), digest_size=12).hexdigest()}.sqlite"
    if folder is None:
        folder = user_cache("view")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            usable = os.access(folder, os.W_OK)
        except OSError:
            usable = False
        if not usable:
            folder = Path(tempfile.mkdtemp(prefix="viva-view-"))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / name


def private_file(file: Path) -> None:
    """Make sure that a file exists and that it is not a link; a new one is only for this user.

    Raises:
        JournalError: It is a link or no regular file.
        OSError: It cannot be created.
    """
    refuse_special_file(file)
    os.close(os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def open_index(file: Path, version: int = 0) -> sqlite3.Connection:
    """Open the index for writing; create it if it does not exist or cannot be used. A new one begins at `version`.

    Raises:
        JournalError: Something else than a regular file is in its place.
    """
    refuse_special_database(file)
    if file.exists() and not _is_usable(file):
        remove_index(file)
    private_file(file)
    connection = sqlite3.connect(file, isolation_level=None, timeout=30)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = off")  # a lost index can be rebuilt
    connection.execute("pragma cache_size = -32000")
    if not connection.execute("select 1 from sqlite_master where name = 'meta'").fetchone():
        connection.executescript(f"begin immediate; {_SCHEMA} commit;")
        connection.execute("update meta set value = ? where name in ('version', 'texts')", (str(version),))
    return connection


def remove_index(file: Path) -> None:
    """Remove the index; it is made again when it is opened."""
    for ending in ("", "-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)


def is_damage(error: Exception) -> bool:
    """Return True if an error of the index says that its file is damaged."""
    if isinstance(error, sqlite3.OperationalError):
        return "Could not decode to UTF-8" in str(error)
    return type(error) in (sqlite3.DatabaseError, sqlite3.InternalError) or isinstance(error, UnicodeDecodeError)


def _is_usable(file: Path) -> bool:
    try:
        if file.stat().st_uid != os.geteuid():
            return False
        with closing(sqlite3.connect(file)) as connection:
            if _objects(connection) != _expected_objects():
                return False
            meta = dict(connection.execute("select name, value from meta limit 100").fetchall())
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return isinstance(error, sqlite3.Error) and is_locked(error)
    numbers = [str(meta.get(name, "")) for name in ("version", "texts")]
    return meta.get("format") == _VERSION and all(
        text.isascii() and text.isdigit() and len(text) < 16 for text in numbers
    )


def _objects(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("select type, name, tbl_name, sql from sqlite_master order by type, name").fetchall()


@cache
def _expected_objects() -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _objects(connection)


class IndexWriter:
    """The writer, used by one thread. Changes need `begin` before and `commit` after them; `version` counts commits."""

    def __init__(self, file: Path, version: int = 0) -> None:
        self._connection = open_index(file, version)
        self.version = int(self._meta("version"))

    def close(self) -> None:
        self._connection.close()

    @property
    def is_sound(self) -> bool:
        """True if the structure of the file is intact."""
        try:
            return bool(self._connection.execute("pragma quick_check(1)").fetchone() == ("ok",))
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return False

    def begin(self) -> None:
        """Begin a change. Another viewer of the same folder may have changed the index since the last one."""
        self._connection.execute("begin immediate")
        self.version = int(self._meta("version"))

    @contextmanager
    def part(self) -> Iterator[None]:
        """Undo the part of a change in this block if it fails."""
        self._connection.execute("savepoint part")
        try:
            yield
        except BaseException:
            self._connection.execute("rollback to part")
            raise
        finally:
            self._connection.execute("release part")

    def commit(self, *, texts: bool = False) -> int:
        """Commit the change; return the new version. `texts`: search results have changed, too."""
        self.version += 1
        self._connection.execute("update meta set value = ? where name = 'version'", (str(self.version),))
        if texts:
            self._connection.execute("update meta set value = ? where name = 'texts'", (str(self.version),))
        self._connection.execute("commit")
        return self.version

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("rollback")

    def run(self, name: str, identity: str, facts: dict[str, Any]) -> IndexedRun:
        """Return the row of a run; reset it if the folder now has another run. `facts` are further columns."""
        row = self._connection.execute(
            "select id, identity, last_number, last_row from runs where name = ?", (name,)
        ).fetchone()
        if row is not None and row[1] != identity:
            self.forget(row[0])
            row = None
        if row is None:
            cursor = self._connection.execute("insert into runs (name, identity) values (?, ?)", (name, identity))
            assert cursor.lastrowid is not None
            row = (cursor.lastrowid, identity, -1, 0)
        facts = facts | {name: index_name(facts[name]) for name in _NAMED & facts.keys()}
        columns = ", ".join(f"{column} = ?" for column in facts)
        self._connection.execute(f"update runs set {columns} where id = ?", (*facts.values(), row[0]))
        return IndexedRun(row[0], name, row[2], row[3])

    def is_current(self, run: IndexedRun) -> bool:
        """Return True if nobody else has read this run's journal further, else note how far; call it after `begin`.

        Raises:
            KeyError: The run is no longer in the index.
        """
        row = self._connection.execute("select last_number, last_row from runs where id = ?", (run.id,)).fetchone()
        if row is None:
            raise KeyError(run.name)
        is_current = bool(row == (run.last_number, run.last_row))
        run.last_number, run.last_row = row
        return is_current

    def leave_out(self, sentences: Sequence[str]) -> bool:
        """Record what the index leaves out, as sentences; return True if that has changed."""
        text = orjson.dumps([_plain(sentence) for sentence in sentences]).decode()
        cursor = self._connection.execute(
            "update meta set value = ? where name = 'left out' and value != ?", (text, text)
        )
        return cursor.rowcount > 0

    def names(self) -> dict[str, int]:
        """Return the row ids of all runs in the index, by name."""
        return dict(self._connection.execute("select name, id from runs").fetchall())

    def forget(self, run: int) -> None:
        """Remove the run with this row id, and its conversations. The texts remain, but belong to no conversation."""
        conversations = "select id from conversations where run = ?"
        self._connection.execute(f"delete from aspects where conversation in ({conversations})", (run,))
        self._connection.execute("delete from conversations where run = ?", (run,))
        self._connection.execute("delete from pace where run = ?", (run,))
        self._connection.execute("delete from usage where run = ?", (run,))
        self._connection.execute("delete from runs where id = ?", (run,))

    def set_state(self, run: IndexedRun, running: bool) -> bool:
        """Record whether a run is in progress; return True if that has changed."""
        state = "running" if running else "ended"
        cursor = self._connection.execute(
            "update runs set state = ? where id = ? and state != ?", (state, run.id, state)
        )
        return cursor.rowcount > 0

    def plan(self, run: IndexedRun, planned: int | None) -> bool:
        """Record how many conversations a run has in all; return True if that has changed."""
        cursor = self._connection.execute(
            "update runs set planned = ? where id = ? and planned is not ?", (planned, run.id, planned)
        )
        return cursor.rowcount > 0

    def start(self, run: IndexedRun, number: int, key: str, candidate: str, item: str, task: str, text: str) -> None:
        """Add a conversation that was admitted.

        `item` is its task with the number of the repeat, `task` without; `text` is what a search finds of it.
        """
        cursor = self._connection.execute(
            "insert or ignore into conversations (run, number, key, candidate, item, task) values (?, ?, ?, ?, ?, ?)",
            (run.id, number, _plain(key), index_name(candidate), index_name(item), index_name(task)),
        )
        if cursor.rowcount > 0 and cursor.lastrowid is not None:
            self._add_text(cursor.lastrowid, 0, [key, text])

    def called(self, run: IndexedRun, number: int, calls: CallTotals) -> str:
        """Add calls to a conversation; return its candidate, "" if its start is unknown."""
        figures = (calls.count, calls.prompt_tokens, calls.completion_tokens, calls.seconds, calls.retries, calls.at)
        row = self._connection.execute(
            "update conversations set calls = calls + ?, prompt_tokens = prompt_tokens + ?,"
            " completion_tokens = completion_tokens + ?, seconds = seconds + ?, retries = retries + ?, at = max(at, ?)"
            " where run = ? and number = ? returning id, calls, candidate",
            (*figures, run.id, number),
        ).fetchall()
        for conversation, so_far, _ in row:
            self._add_text(conversation, min(so_far, _LAST_TEXT - 1), calls.texts)
        return str(row[0][2]) if row else ""

    def use(self, run: IndexedRun, usage: Mapping[tuple[str, str], CallUsage]) -> None:
        """Add the usage of calls, by role and candidate."""
        self._connection.executemany(
            "insert into usage values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (run, role, candidate) do update set"
            " calls = calls + excluded.calls, prompt_tokens = prompt_tokens + excluded.prompt_tokens,"
            " completion_tokens = completion_tokens + excluded.completion_tokens,"
            " cached_tokens = cached_tokens + excluded.cached_tokens,"
            " first = min(coalesce(first, excluded.first), coalesce(excluded.first, first)),"
            " last = max(coalesce(last, excluded.last), coalesce(excluded.last, last))",
            ((run.id, _plain(role), candidate, *astuple(used)) for (role, candidate), used in usage.items()),
        )

    def pace(self, run: IndexedRun, calls: Mapping[int, int]) -> None:
        """Add calls by the slot of time in which they ended."""
        self._add_pace((run.id, slot, count, 0) for slot, count in calls.items())

    def _add_pace(self, rows: Iterable[tuple[int, int, int, int]]) -> None:
        self._connection.executemany(
            "insert into pace values (?, ?, ?, ?) on conflict (run, slot) do update set"
            " calls = calls + excluded.calls, ended = ended + excluded.ended",
            rows,
        )

    def end(
        self, run: IndexedRun, number: int, summary: ResultSummary, checksum: int, cluster: str, second: bool
    ) -> None:
        """Record that a conversation has finished. `second`: its item is of a second set."""
        end, own = index_name(summary.end), index_name(cluster)
        columns = (FINISHED, summary.score, end, "", "", summary.unscored, checksum, summary.rounds, own)
        row = self._ended(run, number, *columns, int(second))
        for conversation in row:
            self._connection.execute("delete from aspects where conversation = ?", (conversation,))
            self._connection.executemany(
                "insert into aspects values (?, ?, ?)",
                [(conversation, index_name(name), value) for name, value in summary.aspects.items()],
            )

    def fail(self, run: IndexedRun, number: int, error: str, reason: str, checksum: int) -> None:
        """Record that a conversation has failed. `error` is the type, `reason` a line about it."""
        reason = reason[:_LONGEST_REASON]
        columns = (FAILED, None, "failed", index_name(error), reason, 0, checksum, None, "", 0)
        for conversation in self._ended(run, number, *columns):
            self._add_text(conversation, _LAST_TEXT, [reason])

    def _ended(self, run: IndexedRun, number: int, *columns: Any) -> list[int]:
        values = [_plain(value) if isinstance(value, str) else value for value in columns]
        rows = self._connection.execute(
            "update conversations set state = ?, score = ?, end = ?, error = ?, reason = ?, unscored = ?,"
            " checksum = ?, rounds = ?, cluster = ?, second = ? where run = ? and number = ? returning id, at",
            (*values, run.id, number),
        ).fetchall()
        # An end has no time in the journal; a conversation ends soon after its last call.
        self._add_pace((run.id, pace_slot(at), 0, 1) for _, at in rows if at > 0)
        return [conversation for conversation, _ in rows]

    def reached(self, run: IndexedRun, last_number: int, last_row: int) -> None:
        """Record how far the journal has been read."""
        run.last_number, run.last_row = last_number, last_row
        self._connection.execute(
            "update runs set last_number = ?, last_row = ? where id = ?", (last_number, last_row, run.id)
        )

    def known(self, run: IndexedRun) -> set[int] | None:
        """Return the numbers of all conversations if some number up to the last is missing, else None."""
        [(count,)] = self._connection.execute("select count(*) from conversations where run = ?", (run.id,))
        if count > run.last_number:
            return None
        return {
            number
            for (number,) in self._connection.execute("select number from conversations where run = ?", (run.id,))
        }

    def unended(self, run: IndexedRun) -> list[int]:
        """Return the numbers of the conversations that have not ended."""
        rows = self._connection.execute(
            "select number from conversations where run = ? and state = ?", (run.id, OPEN)
        ).fetchall()
        return [number for (number,) in rows]

    def checksums(self, run: IndexedRun, numbers: Sequence[int] | None = None) -> dict[int, int]:
        """Return the checksums of recorded ends by number, of all conversations or of those with these numbers."""
        query = "select number, checksum from conversations where run = ? and state != ?"
        if numbers is None:
            return dict(self._connection.execute(query, (run.id, OPEN)).fetchall())
        checksums: dict[int, int] = {}
        for at in range(0, len(numbers), _CHUNK):
            chunk = numbers[at : at + _CHUNK]
            marks = ",".join("?" * len(chunk))
            checksums.update(
                self._connection.execute(f"{query} and number in ({marks})", (run.id, OPEN, *chunk)).fetchall()
            )
        return checksums

    def _add_text(self, conversation: int, position: int, texts: Sequence[str]) -> None:
        text = _TEXT_SEPARATOR.join(to_index_text(text) for text in texts)
        self._connection.execute(
            "insert into texts (rowid, text) values (?, ?)", (conversation << _SLOTS | position, text)
        )

    def _meta(self, name: str) -> str:
        return str(self._connection.execute("select value from meta where name = ?", (name,)).fetchone()[0])


def pace_slot(at: float) -> int:
    """Return the slot of `pace` for a time in seconds since 1970; a damaged time is in slot 0."""
    return int(at // PACE_SECONDS) if 0.0 <= at < 1e12 else 0


def conversations_with_texts() -> str:
    """Return the subquery for conversations that contain the words of its one parameter."""
    return f"select distinct rowid >> {_SLOTS} from texts where texts match ?"


_LONGEST_REASON = 1_000  # characters
_LONGEST_NAME = 200
_NAMED = frozenset({"scenario", "dataset", "judge", "unit", "second_name"})  # columns of runs


def index_name(text: str) -> str:
    """Return a name as the index has it: a very long one is cut, and a digest distinguishes it from others.

    So lists stay short, and every name fits into an address.
    """
    plain = _plain(text)
    if len(plain) <= _LONGEST_NAME:
        return plain
    digest = hashlib.blake2b(plain.encode(), digest_size=6).hexdigest()
    return f"{plain[: _LONGEST_NAME - len(digest) - 1]}…{digest}"


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
