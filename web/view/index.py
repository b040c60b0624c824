"""Index of the viewer: a database of all conversations with full-text search, updated from the journals.

The index can always be rebuilt from the journals, so it is deleted if it is damaged or has another version. It is in
the user's cache folder, never in a run's folder. Journals are only read, in short transactions, because other processes
write them.

SQLite's `unicode61` knows no word boundaries in Chinese, Japanese and Korean. Therefore characters of these scripts are
separated, in texts as well as in queries, so that a sequence of them is found as a phrase.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import VivaError
from viva.engine.files import user_cache
from viva.engine.journal_reader import JournalAdditions, JournalTail, journal_state
from viva.engine.run_folder import RunFolder, is_running
from viva.orchestration.completeness import planned_in_total
from viva.orchestration.launch import recorded_settings
from viva.scenarios.contract import SCORE, SupportsClusters, SupportsObservations, judge_role, score_ranges
from viva.scenarios.models import label_of_key, lineup_labels, model_labels
from viva.scenarios.registry import AnyScenario
from viva.scenarios.rendering import ResultSummary
from viva.scenarios.run_settings import repeats_of
from viva.scoring.aggregates import failure_reason

from .run_figures import CallUsage
from .run_record import json_text, likeness_of, manifest_part, name_of
from .runs import find_runs

LONGEST_TEXT = 200_000  # maximum searchable characters of one text
_UNSPACED_SCRIPTS = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])")
_QUERY_PARTS = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"\w")


def to_index_text(text: str) -> str:
    """Prepare a text for the index."""
    return _UNSPACED_SCRIPTS.sub(r" \1 ", text[:LONGEST_TEXT].encode("utf-8", "replace").decode())


def fts_query(typed: str) -> str | None:
    """Return the FTS5 query for typed words, or None if there are none.

    All words must occur, quoted words as a phrase; the last word may be a prefix.
    """
    parts = [(quoted or word, bool(quoted)) for quoted, word in _QUERY_PARTS.findall(typed)]
    parts = [(text, quoted) for text, quoted in parts if _WORD.search(text)]
    if not parts:
        return None
    phrases = ['"' + to_index_text(text).replace('"', " ") + '"' for text, _ in parts]
    if not parts[-1][1] and not typed[-1:].isspace():
        phrases[-1] += "*"
    return " AND ".join(phrases)


def excerpt_pattern(typed: str) -> re.Pattern[str] | None:
    """Return a pattern that roughly matches the words of a query in a text, for excerpts."""
    words = [quoted or word for quoted, word in _QUERY_PARTS.findall(typed) if _WORD.search(quoted or word)]
    return re.compile("|".join(re.escape(word) for word in words), re.IGNORECASE) if words else None


def strings_in(record: Any) -> Iterator[str]:
    """Iterate over all strings in plain data."""
    if isinstance(record, str):
        yield record
    elif isinstance(record, dict):
        for value in record.values():
            yield from strings_in(value)
    elif isinstance(record, list):
        for value in record:
            yield from strings_in(value)


_VERSION = "8"
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
    + f"insert into meta values ('format', '{_VERSION}'), ('version', '0'), ('texts', '0');\n"
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
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def open_index(file: Path) -> sqlite3.Connection:
    """Open the index for writing; create it if it does not exist or has another version."""
    if file.exists() and not _is_usable(file):
        _remove(file)
    connection = sqlite3.connect(file, isolation_level=None, timeout=30)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = off")  # a lost index can be rebuilt
    connection.execute("pragma cache_size = -32000")
    if not connection.execute("select 1 from sqlite_master where name = 'meta'").fetchone():
        connection.executescript(f"begin immediate; {_SCHEMA} commit;")
        file.chmod(0o600)
    return connection


def _is_usable(file: Path) -> bool:
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
    """The writer, used by one thread. Changes need `begin` before and `commit` after them; `version` counts commits."""

    def __init__(self, file: Path) -> None:
        self._connection = open_index(file)
        self.version = int(self._meta("version"))

    def close(self) -> None:
        self._connection.close()

    def begin(self) -> None:
        self._connection.execute("begin immediate")

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

    def plan(self, run: IndexedRun, planned: int | None) -> None:
        """Record how many conversations a run has in all."""
        self._connection.execute("update runs set planned = ? where id = ?", (planned, run.id))

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


def run_identity(manifest: dict[str, Any], journal: Path) -> str:
    """Return a key that distinguishes a run from a later one in the same folder."""
    digest = hashlib.blake2b(json_text(manifest).encode(), digest_size=12).hexdigest()
    try:
        return f"{digest}/{os.stat(journal).st_ino}"
    except OSError:
        return digest


def _cluster_and_set(run: _FollowedRun, result: Any) -> tuple[str, bool]:
    """Return the cluster of a result ("" if none), and whether its item is of a second set."""
    cluster, is_second = "", False
    try:
        if isinstance(run.scenario, SupportsClusters):
            cluster = run.scenario.cluster_of(result)
        if isinstance(run.scenario, SupportsObservations) and run.folder.manifest.get("against") is not None:
            observations = run.scenario.observe([result])
            is_second = bool(len(observations.second)) and not len(observations.benchmark)
    except Exception:  # another version has recorded the result in another form
        return "", False
    return cluster, is_second


_ROW_BATCH = 4_000  # maximum rows per read
_IDLE_SECONDS = 0.4
_REST_FACTOR = 4  # pause between reads while a run needs the processor, as a multiple of the last read's duration
_SEARCH_SECONDS = 5.0  # seconds between searches for new runs
_OPEN_JOURNALS = 16
_MOST_PROBLEMS = 100  # maximum problems reported
_log = logging.getLogger("viva")
OnChange = Callable[[int, list[tuple[str, int]]], None]


@dataclass(slots=True)
class _FollowedRun:
    """A followed run. `summary` summarizes a result; it and `scenario` are None if the scenario is unknown here."""

    folder: RunFolder
    row: IndexedRun
    labels: list[str]
    summary: Callable[[Any], ResultSummary] | None
    planned: int | None
    scenario: AnyScenario | None = None
    repeats: int = 1
    state: tuple[int, ...] = ()
    tail: JournalTail | None = None
    checked: bool = False
    running: bool = False
    used: float = field(default_factory=time.monotonic)


class Indexer:
    """Keeps an index up to date until it is stopped.

    `on_change` is called in the thread with the version and some of the changed conversations, each as (run, number).
    """

    def __init__(self, root: Path, file: Path, on_change: OnChange | None = None) -> None:
        self._root, self._file, self._on_change = root, file, on_change
        self._followed: dict[Path, _FollowedRun] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="viva-view-index", daemon=True)
        self.caught_up = threading.Event()
        self._reported_problems: set[str] = set()
        self.problem = ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def catch_up(self) -> None:
        """Read everything available, in the caller's thread."""
        writer = IndexWriter(self._file)
        try:
            self._find(writer)
            while self._look(writer):
                pass
        finally:
            self._close(writer)

    def _follow(self) -> None:
        try:
            writer = IndexWriter(self._file)
        except Exception as error:
            self.problem = f"{self._file}: the viewer's index cannot be written: {error}"
            _log.warning(self.problem)
            self.caught_up.set()
            return
        searched = 0.0
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    if began - searched > _SEARCH_SECONDS:
                        self._find(writer)
                        searched = began
                    busy = self._look(writer)
                except Exception as error:  # one damaged folder must not hide other runs
                    writer.rollback()
                    self._say(f"{type(error).__name__}: {error}")
                    busy = False
                if not busy:
                    if not self.caught_up.is_set():
                        self.caught_up.set()
                        self._report_changes(0, [])  # open pages say that the index is still being built
                    self._stop.wait(_IDLE_SECONDS)
                elif any(run.running for run in self._followed.values()):
                    self._stop.wait(_REST_FACTOR * (time.monotonic() - began))
        finally:
            self._close(writer)

    def _close(self, writer: IndexWriter) -> None:
        for run in self._followed.values():
            if run.tail is not None:
                run.tail.close()
        self._followed.clear()
        writer.close()

    # -- finding runs ---------------------------------------------------------------------------------------------

    def _find(self, writer: IndexWriter) -> None:
        """Add new runs, and remove those that no longer exist."""
        paths = {path: (position, name) for position, (name, path) in enumerate(find_runs(self._root))}
        removed = self._followed.keys() - paths.keys()
        new = [path for path in paths if path not in self._followed]
        unknown = [name for name in writer.names() if name not in {name for _, name in paths.values()}]
        if not (removed or new or unknown):
            return
        writer.begin()
        for path in removed:
            tail = self._followed.pop(path).tail
            if tail is not None:
                tail.close()
        for name in unknown:
            writer.forget(writer.names()[name])
        for path in new:
            position, name = paths[path]
            try:
                followed = self._taken_up(writer, path, name, position)
            except Exception as error:  # one damaged folder must not hide other runs
                self._say(f"{path}: {type(error).__name__}: {error}")
                continue
            if followed is not None:
                self._followed[path] = followed
        self._report_changes(writer.commit(texts=bool(unknown)), [])

    def _taken_up(self, writer: IndexWriter, path: Path, name: str, position: int) -> _FollowedRun | None:
        try:
            folder = RunFolder.open(path)
        except VivaError as error:
            self._say(str(error))
            return None
        manifest = folder.manifest
        facts: dict[str, Any] = {"place": position, "scenario": name_of(manifest.get("scenario"))}
        dataset, second, seed = (
            manifest_part(manifest, "dataset"),
            manifest_part(manifest, "against"),
            manifest.get("seed"),
        )
        facts |= {"seed": seed if isinstance(seed, int) and -(2**63) <= seed < 2**63 else None}
        facts |= {"dataset": name_of(dataset.get("name")), "digest": name_of(dataset.get("digest"))}
        facts |= {f"second_{key}": name_of(second[key]) for key in ("name", "digest") if key in second}
        labels = next(
            (list(model) for model in manifest_part(manifest, "models").values() if isinstance(model, dict)), []
        )
        summary, planned, scenario, repeats = None, None, None, 1
        facts |= {"likeness": json_text(likeness_of(manifest, manifest_part(manifest, "settings"), ()))}
        facts |= {"adaptive": int(manifest.get("bank") is not None)}
        try:
            scenario, settings = recorded_settings(folder)
            labels = lineup_labels(scenario.roles_of(settings), manifest)
            summary, planned = scenario.summary_of(settings), planned_in_total(folder)
            repeats = repeats_of(settings)
            compared = [role.name for role in scenario.roles_of(settings) if role.many]
            likeness = likeness_of(manifest, settings.model_dump(mode="json"), {*compared, scenario.data})
            facts["likeness"] = orjson.dumps(likeness).decode()
            facts["models"] = orjson.dumps({name: manifest["models"].get(name) for name in compared}).decode()
            ranges = scenario.ranges if scenario.rate else score_ranges(scenario, settings)
            low, high = ranges.get(SCORE, (-math.inf, math.inf))
            facts |= {"low": low if math.isfinite(low) else None, "high": high if math.isfinite(high) else None}
            facts |= {"unit": scenario.unit, "rate": int(scenario.rate)}
            judge = judge_role(scenario.roles_of(settings))
            if judge is not None and isinstance(manifest["models"].get(judge.name), str):
                facts["judge"] = next(iter(model_labels([manifest["models"][judge.name]])))
        except Exception as error:  # the scenario is not installed, or another version recorded the run
            facts["problem"] = f"its scenario is not available: {error}"[:300]
        row = writer.run(name, run_identity(manifest, folder.journal), facts | {"planned": planned})
        return _FollowedRun(folder, row, labels, summary, planned, scenario, repeats)

    # -- reading --------------------------------------------------------------------------------------------------

    def _look(self, writer: IndexWriter) -> bool:
        """Read each journal that has changed; return True if there was anything new."""
        busy = False
        for run in list(self._followed.values()):
            if self._stop.is_set():
                return False
            state = journal_state(run.folder.journal)
            if run.state and state[:1] != run.state[:1]:
                # The folder now has another run or none; the next search for runs finds out which.
                self._followed.pop(run.folder.path, None)
                if run.tail is not None:
                    run.tail.close()
                continue
            if state == run.state:
                self._finish_run(writer, run)
                continue
            try:
                more = self._read(writer, run)
            except VivaError as error:
                writer.rollback()
                run.state = state
                self._say(str(error))
                continue
            if more:
                busy = True
            else:
                run.state = state
        return busy

    def _read(self, writer: IndexWriter, run: _FollowedRun) -> bool:
        """Index what was added to a journal; return True if there may be more."""
        if run.tail is None:
            self._make_room()
            run.tail = JournalTail(run.folder.journal)
        run.used = time.monotonic()
        row = run.row
        repeated = [] if run.checked else list(self._changed_ends(writer, run))
        unended = {*writer.unended(row), *repeated}
        added = run.tail.read_additions(row.last_number, row.last_row, unended, _ROW_BATCH, writer.known(row))
        run.checked = not added.cut
        checksums = writer.checksums(row, [end.number for end in added.ended])
        ends = [end for end in added.ended if checksums.get(end.number) != end.checksum]
        running = run.running = is_running(run.folder.path)
        if not (added.started or added.calls or ends or added.more):
            self._set_state(writer, run, running)
            return False
        writer.begin()
        self._take_in(writer, run, added)
        changed = {number for number, _, _ in added.started} | {call.number for call in added.calls}
        for end in ends:
            changed.add(end.number)
            if end.failed:
                writer.fail(
                    row, end.number, str(end.result.get("type", "unknown")), failure_reason(end.result), end.checksum
                )
            else:
                cluster, is_second = _cluster_and_set(run, end.result)
                writer.end(row, end.number, self._summary(run, end.result), end.checksum, cluster, is_second)
        self._note_state(writer, run, running)
        writer.reached(row, added.last_number, added.last_row)
        texts = bool(added.started or added.calls)
        self._report_changes(writer.commit(texts=texts), [(row.name, number) for number in sorted(changed)])
        return added.more

    def _changed_ends(self, writer: IndexWriter, run: _FollowedRun) -> Iterator[int]:
        """Iterate over conversations whose end has changed since the index was written, such as retried ones."""
        assert run.tail is not None
        checksums = writer.checksums(run.row)
        if checksums:
            for number, checksum in run.tail.end_checksums().items():
                if number in checksums and checksums[number] != checksum:
                    yield number

    def _take_in(self, writer: IndexWriter, run: _FollowedRun, added: JournalAdditions) -> None:
        for number, key, item in added.started:
            try:
                candidate = label_of_key(key, run.labels)
            except VivaError:
                candidate = key.partition("/")[0]
            name = key.removeprefix(f"{candidate}/")
            task, _, repeat = name.rpartition("#")
            is_repeat = repeat.isascii() and repeat.isdigit() and len(repeat) < 9 and 2 <= int(repeat) <= run.repeats
            text = " ".join(strings_in(item))[:20_000]
            writer.start(run.row, number, key, candidate, name, task if is_repeat else name, text)
        calls: dict[int, CallTotals] = {}
        by_slot: Counter[int] = Counter()
        for call in added.calls:
            by_slot[slot := pace_slot(call.call.at)] += 1
            c, so_far = call.call.completion, calls.setdefault(call.number, CallTotals())
            so_far.count += 1
            so_far.prompt_tokens += c.prompt_tokens
            so_far.completion_tokens += c.completion_tokens
            so_far.seconds += c.latency
            so_far.retries += max(0, c.attempts - 1)
            so_far.at = max(so_far.at, call.call.at)
            so_far.texts.append(
                c.text[:LONGEST_TEXT] + "".join(f" {tool.name} {tool.arguments}" for tool in c.calls or ())
            )
            if (used := so_far.roles.get(call.call.role)) is None:
                used = so_far.roles[call.call.role] = CallUsage()
            used.count(c.prompt_tokens, c.completion_tokens, c.cached_tokens)
            if slot:
                used.span(call.call.at - c.latency, call.call.at)
        usage: dict[tuple[str, str], CallUsage] = {}
        for number, together in calls.items():
            candidate = writer.called(run.row, number, together)
            for role, used in together.roles.items():
                usage.setdefault((role, candidate), CallUsage()).add(used)
        writer.use(run.row, usage)
        writer.pace(run.row, by_slot)

    def _summary(self, run: _FollowedRun, result: Any) -> ResultSummary:
        if run.summary is None:
            return ResultSummary()
        try:
            return run.summary(result)
        except Exception:  # another version has recorded the result in another form
            return ResultSummary(end="from another version")

    def _finish_run(self, writer: IndexWriter, run: _FollowedRun) -> None:
        """Update a run whose journal has not changed, because the run may have ended."""
        if time.monotonic() - run.used > 1:
            run.used = time.monotonic()
            run.running = is_running(run.folder.path)
            self._set_state(writer, run, run.running)

    def _set_state(self, writer: IndexWriter, run: _FollowedRun, running: bool) -> None:
        writer.begin()
        if self._note_state(writer, run, running):
            self._report_changes(writer.commit(), [])
        else:
            writer.rollback()

    def _note_state(self, writer: IndexWriter, run: _FollowedRun, running: bool) -> bool:
        """Record whether a run is in progress; if it has ended, also how many conversations it had in the end."""
        changed = writer.set_state(run.row, running)
        if changed and not running:
            with suppress(VivaError):  # an exam ends early, and conversations are added while a run goes on
                writer.plan(run.row, planned_in_total(RunFolder.open(run.folder.path)))
        return changed

    def _make_room(self) -> None:
        """Close the least recently read journal if many are open."""
        opened = sorted((run for run in self._followed.values() if run.tail is not None), key=lambda run: run.used)
        for run in opened[: max(0, len(opened) - _OPEN_JOURNALS + 1)]:
            assert run.tail is not None
            run.tail.close()
            run.tail = None

    def _say(self, problem: str) -> None:
        """Report a problem once."""
        if problem not in self._reported_problems and len(self._reported_problems) < _MOST_PROBLEMS:
            self._reported_problems.add(problem)
            _log.warning("viva view: %s", problem)

    def _report_changes(self, version: int, changed: list[tuple[str, int]]) -> None:
        if self._on_change is not None:
            self._on_change(version, changed)
