"""The question bank: pairs in their states, with every version and who did what when, in one SQLite file.

A pair is a draft, then inspected, then accepted; or returned to its designer with a reason. A pair whose content
changes is a draft again. Nothing is deleted. What never belongs here: files of pairs (``bank_rows``), what is wrong
with a pair (``findings``), which questions an evaluation draws (``drawing``).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.escapes import readable
from viva.engine.formats import other_version
from viva.engine.sound_file import damage_of

from .bank_rows import Pair
from .project import Project, digest_of

State = Literal["draft", "inspected", "accepted", "returned"]
STATES: tuple[State, ...] = ("draft", "inspected", "accepted", "returned")
VERSION = "1"
_WAIT_SECONDS = 30.0  # for another process that writes
_TABLES = """
create table meta (name text primary key, value text not null) without rowid;
create table pairs (
    number integer primary key, id text not null unique, version text not null, state text not null,
    record blob not null);
create table history (
    number integer primary key, pair text not null, at real not null, by text not null, what text not null,
    reason text not null, version text not null, record blob not null);
create index history_of on history (pair);
create table rubrics (number integer primary key, digest text not null, at real not null, record blob not null);
"""


@dataclass(slots=True, frozen=True)
class Entry:
    """A pair and its state."""

    pair: Pair
    state: State


@dataclass(slots=True, frozen=True)
class Deed:
    """What was done to a pair: a state it came into, ``changed``, or ``new``. ``at``: seconds since 1970. ``version``
    stands for its content then, which ``pair`` is.
    """

    at: float
    by: str
    what: str
    reason: str
    version: str
    pair: Pair


@dataclass(slots=True, frozen=True)
class RubricVersion:
    """What graders went by from ``at`` (seconds since 1970) on; ``number`` counts from 1."""

    number: int
    digest: str
    at: float
    rubric: dict[str, Any]


@dataclass(slots=True)
class Imported:
    """What came of an import: ids that are new, that changed (drafts again), and that are as they were."""

    new: list[str]
    changed: list[str]
    unchanged: list[str]


class Bank:
    """See the module. Used by one thread at a time; a change is committed when its method returns."""

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Callable[[], float] = time.time) -> None:
        self.path, self.connection, self.clock = path, connection, clock

    @classmethod
    def open(cls, project: Project, clock: Callable[[], float] = time.time) -> Bank:
        """A project's bank, made where there is none. The project's rubric is noted where it has changed.

        :raises ConfigurationError: the file cannot be used.
        """
        path = project.bank
        try:
            connection = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
            connection.execute("pragma journal_mode = wal")
            bank = cls(path, connection, clock)
            with bank._batch():
                if not connection.execute("select 1 from sqlite_master where name = 'meta'").fetchone():
                    for statement in filter(str.strip, _TABLES.split(";")):
                        connection.execute(statement)
                    connection.execute("insert into meta values ('version', ?)", (VERSION,))
            [found] = connection.execute("select value from meta where name = 'version'").fetchone() or ["unknown"]
        except sqlite3.Error as error:
            damage = f"{error}; restore the file from a copy"
            raise ConfigurationError(f"{path}: cannot be used as a question bank: {damage}") from None
        if found != VERSION:
            connection.close()
            raise ConfigurationError(f"{path}: {other_version('question bank of version', found, [VERSION])}")
        damage = damage_of(connection, _TABLES) or bank._wrong_record()
        if damage:
            connection.close()
            raise ConfigurationError(f"{path}: cannot be used as a question bank: {damage}")
        bank._note_rubric(project)
        return bank

    def _wrong_record(self) -> str:
        """What is wrong with a record that has not the fields that it was written with; empty without one."""
        what = "the rubrics"
        try:
            self.rubrics()
            for table, key in (("pairs", "id"), ("history", "pair")):
                rows = self.connection.execute(f"select {key}, record from {table} order by number")
                for name, record in rows:
                    what = f"question '{name}'"
                    _read(record)
        except (ValueError, TypeError, KeyError, AttributeError, ConfigurationError) as error:
            return f"{what} cannot be read ({type(error).__name__}: {error}); restore the file from a copy"
        return ""

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def __enter__(self) -> Bank:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _batch(self) -> Iterator[None]:
        self.connection.execute("begin immediate")
        try:
            yield
        except BaseException:
            self.connection.execute("rollback")
            raise
        self.connection.execute("commit")

    # -- pairs ----------------------------------------------------------------------------------------------------

    def put(self, pairs: Iterable[Pair], by: str) -> Imported:
        """Take pairs in, all or none: new ones as drafts, those whose content changed as drafts again."""
        done = Imported([], [], [])
        with self._batch():
            for pair in pairs:
                row = self.connection.execute("select version from pairs where id = ?", (pair.id,)).fetchone()
                record = orjson.dumps(pair.to_record())
                version = digest_of(pair.to_record())
                if row is not None and row[0] == version:
                    done.unchanged.append(pair.id)
                    continue
                (done.new if row is None else done.changed).append(pair.id)
                self.connection.execute(
                    "insert into pairs (id, version, state, record) values (?1, ?2, 'draft', ?3) "
                    "on conflict (id) do update set version = ?2, state = 'draft', record = ?3",
                    (pair.id, version, record),
                )
                self._note(pair.id, by, "new" if row is None else "changed", "")
        return done

    def entries(self, state: State | None = None) -> list[Entry]:
        """The pairs in the order in which they came; of one state where it is named."""
        rows = self.connection.execute("select record, state from pairs order by number")
        return [Entry(_read(record), found) for record, found in rows if state in (None, found)]

    def entry(self, name: str) -> Entry:
        """The pair of this id.

        :raises ConfigurationError: there is none.
        """
        row = self.connection.execute("select record, state from pairs where id = ?", (readable(name),)).fetchone()
        if row is None:
            raise ConfigurationError(f"{self.path}: there is no question '{name}'")
        return Entry(_read(row[0]), row[1])

    def history(self, name: str) -> list[Deed]:
        """What was done to a pair, oldest first."""
        rows = self.connection.execute(
            "select at, by, what, reason, version, record from history where pair = ? order by number", (name,)
        )
        return [Deed(at, by, what, reason, version, _read(record)) for at, by, what, reason, version, record in rows]

    def reason(self, name: str) -> str:
        """What was said when a pair came into its state; empty where nothing was."""
        row = self.connection.execute(
            "select reason from history where pair = ? order by number desc limit 1", (name,)
        ).fetchone()
        return "" if row is None else str(row[0])

    def inspect(self, names: Sequence[str], by: str, note: str = "") -> None:
        """Drafts were looked at and keep the criteria.

        :raises ConfigurationError: one is no draft; none is changed.
        """
        self._move(names, "inspected", by, note, ("draft",))

    def accept(self, names: Sequence[str], by: str, note: str = "") -> None:
        """Take inspected pairs into the bank that evaluations draw from.

        :raises ConfigurationError: one is not inspected, or has no source; none is changed.
        """
        self._move(names, "accepted", by, note, ("inspected",), sourced=True)

    def give_back(self, names: Sequence[str], by: str, reason: str) -> None:
        """Return pairs to their designers.

        :raises ConfigurationError: no reason is given; none is changed.
        """
        if not reason.strip():
            raise ConfigurationError("a question is returned with a reason: give --reason")
        self._move(names, "returned", by, reason, ("draft", "inspected", "accepted"))

    def _move(
        self, names: Sequence[str], to: State, by: str, reason: str, allowed: Sequence[str], *, sourced: bool = False
    ) -> None:
        with self._batch():
            for name in dict.fromkeys(names):
                entry = self.entry(name)
                if entry.state not in allowed:
                    wanted = " or ".join(allowed)
                    raise ConfigurationError(f"question '{name}': is {entry.state}; only what is {wanted} becomes {to}")
                if sourced and not entry.pair.source:
                    raise ConfigurationError(
                        f"question '{name}': has no source, so it cannot be accepted; return it to "
                        f"{entry.pair.designer or 'its designer'}, or import it again with its source"
                    )
                self.connection.execute("update pairs set state = ? where id = ?", (to, name))
                self._note(name, by, to, reason)

    def _note(self, name: str, by: str, what: str, reason: str) -> None:
        self.connection.execute(
            "insert into history (pair, at, by, what, reason, version, record) "
            "select id, ?, ?, ?, ?, version, record from pairs where id = ?",
            (self.clock(), readable(by), what, readable(reason), name),
        )

    # -- rubrics --------------------------------------------------------------------------------------------------

    def rubrics(self) -> list[RubricVersion]:
        """What graders went by, oldest first."""
        rows = self.connection.execute("select number, digest, at, record from rubrics order by number")
        return [RubricVersion(number, digest, at, orjson.loads(record)) for number, digest, at, record in rows]

    def _note_rubric(self, project: Project) -> None:
        digest = project.rubric_digest()
        with self._batch():
            last = self.connection.execute("select digest from rubrics order by number desc limit 1").fetchone()
            if last is None or last[0] != digest:
                self.connection.execute(
                    "insert into rubrics (digest, at, record) values (?, ?, ?)",
                    (digest, self.clock(), orjson.dumps(project.rubric())),
                )


def _read(record: bytes) -> Pair:
    return Pair.from_record(orjson.loads(record))
