"""Grading folder: one SQLite file with questions in blind order, graders, assignments, grades and decisions.

Every change is one transaction; the log says who made it and when. Grades are replaced, never deleted: an excluded
grade keeps its value, and records who excluded it and why.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.files import SqliteForm, transaction
from viva.engine.json_data import strip_surrogates

from .records import Answer, Decision, Grade, Grader, GraderKind, GraderRole, GraderState, Label, Question, Turn

GRADES_FILE = "grades.sqlite"
_MAX_NAMED = 5
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


def to_json_bytes(value: Any) -> bytes:
    """Return JSON, with dataclasses as objects and lone surrogates as U+FFFD."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_replace_surrogates(value))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return strip_surrogates(value)
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_surrogates(item) for item in value]
    return _replace_surrogates(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


FORM = SqliteForm("grades", "read as grades", _TABLES, "1")


def create_file(path: Path) -> sqlite3.Connection:
    """Create the file.

    Raises:
        ConfigurationError: The file exists already, or cannot be created.
    """
    if path.exists():
        raise ConfigurationError(f"{path}: exists already; choose another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be created: {error}") from None
    return FORM.open(path, make=True)


def open_file(path: Path) -> sqlite3.Connection:
    """Open an existing file.

    Raises:
        ConfigurationError: The file does not exist, or is no file of grades of this version.
    """
    if not path.is_file():
        folders = sorted({file.parent for depth in ("*", "*/*") for file in path.parent.glob(f"{depth}/{GRADES_FILE}")})
        hint = f"; did you mean {', '.join(map(str, folders[:_MAX_NAMED]))}?" if folders else ""
        if (path.parent / "manifest.json").is_file():
            hint = f"; it is a run: create one from it with `viva grade queue {path.parent} --out FOLDER`"
        raise ConfigurationError(f"{path.parent}: not a grading folder: it contains no {GRADES_FILE}{hint}")
    return FORM.open(path)


Clock = Callable[[], float]
_SELECT_GRADERS = "select number, name, kind, role, state, model from graders"
_SELECT_GRADES = "select answer, grader, value, comment, at, invalid from grades"


class GradeStore:
    """Store of a grading folder (see the module). `about` is JSON data that the folder's creator wants to keep."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, clock: Clock = time.time) -> None:
        self.folder, self.connection, self.clock = folder, connection, clock
        self._labels: dict[int, tuple[float, ...]] = {}

    @classmethod
    def create(
        cls,
        folder: Path,
        questions: Iterable[Question],
        *,
        title: str,
        seed: int = 0,
        about: Mapping[str, Any] | None = None,
        clock: Clock = time.time,
    ) -> GradeStore:
        """Create a folder with these questions; the seed determines the positions of answers.

        Raises:
            ConfigurationError: The folder exists already, there is no question, or an id is duplicated.
        """
        question_list = list(questions)
        if not question_list:
            raise ConfigurationError(f"{folder}: there is no question to grade")
        store = cls(folder, create_file(folder / GRADES_FILE), clock)
        try:
            with store.batch():
                for name, value in {"title": title, "seed": seed, "about": dict(about or {})}.items():
                    store.set_meta(name, value)
                store.add_questions(question_list)
        except BaseException:
            store.close()
            (folder / GRADES_FILE).unlink()
            raise
        return store

    @classmethod
    def open(cls, folder: Path, clock: Clock = time.time) -> GradeStore:
        """Open an existing folder.

        Raises:
            ConfigurationError: The folder is no grading folder, or is damaged.
        """
        store = cls(folder, open_file(folder / GRADES_FILE), clock)
        try:
            store._check_records()
        except BaseException:
            store.close()
            raise
        return store

    def _check_records(self) -> None:
        """Check that all records can be read.

        Raises:
            ConfigurationError: A record has other fields than those that are written.
        """
        location = "its table 'meta'"
        try:
            about = self.meta("about")
            if not isinstance(self.meta("title"), str) or not isinstance(about, dict) or self.meta("seed") is None:
                raise ValueError("title, seed or about is missing")
            for number, name in self.connection.execute("select number, id from questions order by number").fetchall():
                location = f"question '{name}'"
                question = self.question(number)
                texts = [
                    question.text,
                    question.dimension,
                    *(turn.text for answer in question.answers for turn in answer.turns),
                ]
                if not all(isinstance(text, str) for text in texts) or not question.labels:
                    raise ValueError("its texts or labels are missing")
                for label in question.labels:
                    float(label.value)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"{location} cannot be read ({type(error).__name__}: {error}); restore the file from a copy"
            raise FORM.damage_error(self.folder / GRADES_FILE, problem) from None

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def __enter__(self) -> GradeStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def batch(self) -> AbstractContextManager[None]:
        """Commit all changes made inside the context together, like `transaction`."""
        return transaction(self.connection)

    # -- questions --------------------------------------------------------------------------------------------------

    def meta(self, name: str) -> Any:
        """Return a property of the folder (title, seed, about); None if it is missing."""
        row = self.connection.execute("select value from meta where name = ?", (name,)).fetchone()
        return None if row is None else orjson.loads(row[0])

    def set_meta(self, name: str, value: Any) -> None:
        """Store a property of the folder."""
        with self.batch():
            self.connection.execute("insert or replace into meta values (?, ?)", (name, to_json_bytes(value).decode()))

    def add_questions(self, questions: Iterable[Question]) -> None:
        """Append questions; the positions of their answers depend on the folder's seed, question and candidate.

        Raises:
            ConfigurationError: An id exists already, or a question has no answers or no labels.
        """
        seed = self.meta("seed")
        with self.batch():
            for question in questions:
                if not question.answers or not question.labels:
                    raise ConfigurationError(
                        f"question '{question.id}': has no {'labels' if question.answers else 'answers'}"
                    )
                try:
                    number = self._add_question(question)
                except sqlite3.IntegrityError:
                    raise ConfigurationError(f"question '{question.id}': is duplicated") from None
                keyed = [(_blind_id(seed, question.id, answer), answer) for answer in question.answers]
                for position, (name, answer) in enumerate(sorted(keyed, key=lambda pair: pair[0]), 1):
                    self._add_answer(number, position, name, answer)

    def _add_question(self, question: Question) -> int:
        record = {**question.to_record(), "number": 0}
        cursor = self.connection.execute(
            "insert into questions (id, record, overlap, gold, invalid) values (?, ?, ?, ?, ?)",
            (question.id, to_json_bytes(record), question.overlap, question.gold, question.invalid),
        )
        return int(cursor.lastrowid or 0)

    def _add_answer(self, question: int, position: int, name: str, answer: Answer) -> None:
        record = {"turns": answer.turns, "key": answer.key, "round": answer.round, "score": answer.score}
        record |= {"probability": answer.probability, "expected": answer.expected}
        try:
            self.connection.execute(
                "insert into answers values (?, ?, ?, ?, ?)",
                (name, question, position, answer.candidate, to_json_bytes(record)),
            )
        except sqlite3.IntegrityError:
            raise ConfigurationError(
                f"question {question}: has two answers by candidate '{answer.candidate}'"
            ) from None

    def questions(self) -> Iterator[Question]:
        """Yield all questions in order, with their answers."""
        for (number,) in self.connection.execute("select number from questions order by number").fetchall():
            yield self.question(number)

    def question(self, number: int) -> Question:
        """Return a question by its number, with its answers by position.

        Raises:
            ConfigurationError: There is no question with this number.
        """
        row = self.connection.execute("select record, invalid from questions where number = ?", (number,)).fetchone()
        if row is None:
            raise ConfigurationError(f"there is no question {number}")
        record = orjson.loads(row[0])
        rows = self.connection.execute(
            "select id, position, candidate, record from answers where question = ? order by position", (number,)
        )
        return Question(
            **record | {
                "number": number,
                "invalid": row[1],
                "labels": [Label(**label) for label in record["labels"]],
                "context": [Turn(**turn) for turn in record["context"]],
                "answers": [_read_answer(*fields) for fields in rows],
            }
        )  # fmt: skip

    def invalidate_question(self, number: int, actor: str, reason: str) -> None:
        """Exclude a question from the figures, recording who did it and why; an empty reason includes it again."""
        note = f"{actor}: {reason}" if reason else ""
        with self.batch():
            if not self.connection.execute(
                "update questions set invalid = ? where number = ?", (note, number)
            ).rowcount:
                raise ConfigurationError(f"there is no question {number}")
            self.log(actor, f"question {number}: {'invalid: ' + reason if reason else 'counts again'}")

    # -- graders --------------------------------------------------------------------------------------------------

    def add_grader(
        self, name: str, *, kind: GraderKind = "person", role: GraderRole = "grader", model: str = ""
    ) -> Grader:
        """Add a grader.

        Raises:
            ConfigurationError: The name is taken or empty.
        """
        name = strip_surrogates(name)
        if not name.strip():
            raise ConfigurationError("a grader needs a name")
        with self.batch():
            try:
                cursor = self.connection.execute(
                    "insert into graders (name, kind, role, model, created) values (?, ?, ?, ?, ?)",
                    (name, kind, role, model, self.clock()),
                )
            except sqlite3.IntegrityError:
                raise ConfigurationError(f"a grader '{name}' exists already") from None
        return Grader(int(cursor.lastrowid or 0), name, kind, role, "active", model)

    def graders(self) -> list[Grader]:
        """Return all graders in the order in which they were added."""
        return [Grader(*row) for row in self.connection.execute(f"{_SELECT_GRADERS} order by number")]

    def grader(self, name: str) -> Grader:
        """Return the grader with this name.

        Raises:
            ConfigurationError: There is no such grader.
        """
        row = self.connection.execute(f"{_SELECT_GRADERS} where name = ?", (name,)).fetchone()
        if row is None:
            near = did_you_mean(name, [grader.name for grader in self.graders()], "the graders are")
            raise ConfigurationError(f"there is no grader '{name}'{near}")
        return Grader(*row)

    def set_state(self, grader: int, state: GraderState, actor: str) -> None:
        """Pause, retire or reactivate a grader. A retired grader's unfinished assignments become free."""
        with self.batch():
            self.connection.execute("update graders set state = ? where number = ?", (state, grader))
            if state == "retired":
                self.connection.execute("delete from seats where grader = ? and finished is null", (grader,))
            self.log(actor, f"grader {grader}: {state}")

    def set_token(self, grader: int, hashed: str, expires: float | None) -> None:
        """Store the hash of a new secret link, which replaces earlier ones."""
        with self.batch():
            self.connection.execute(
                "update graders set token = ?, expires = ? where number = ?", (hashed, expires, grader)
            )

    def by_token(self, hashed: str) -> tuple[Grader, float | None] | None:
        """Return (grader, time when the link expires) of the link with this hash; None if no link has it."""
        row = self.connection.execute(
            "select number, name, kind, role, state, model, expires from graders where token = ?", (hashed,)
        ).fetchone()
        return None if row is None else (Grader(*row[:6]), row[6])

    # -- grades --------------------------------------------------------------------------------------------------

    def grade(
        self,
        grader: int,
        answer: str,
        value: float | None,
        comment: str = "",
        *,
        submission: str,
        at: float | None = None,
    ) -> Grade:
        """Record a grade, replacing this grader's earlier one for this answer; return the current grade.

        A `submission` that was recorded before changes nothing.

        Raises:
            ConfigurationError: There is no such answer, or its question does not permit the value.
        """
        with self.batch():
            self._check_value(answer, value)
            now = self.clock() if at is None else at
            try:
                self.connection.execute(
                    "insert into submissions values (?, ?, ?, ?, ?, ?)",
                    (submission, grader, answer, value, comment, now),
                )
            except sqlite3.IntegrityError:
                pass
            else:
                self.connection.execute(
                    "insert into grades (answer, grader, value, comment, at) values (?1, ?2, ?3, ?4, ?5) "
                    "on conflict (answer, grader) do update set value = ?3, comment = ?4, at = ?5, invalid = ''",
                    (answer, grader, value, comment, now),
                )
            row = self.connection.execute(
                f"{_SELECT_GRADES} where answer = ? and grader = ?", (answer, grader)
            ).fetchone()
        return Grade(answer, grader, None, "", now) if row is None else Grade(*row)

    def _check_value(self, answer: str, value: float | None) -> None:
        row = self.connection.execute("select question from answers where id = ?", (answer,)).fetchone()
        if row is None:
            raise ConfigurationError("there is no such answer")
        if row[0] not in self._labels:
            self._labels[row[0]] = tuple(label.value for label in self.question(row[0]).labels)
        allowed = self._labels[row[0]]
        if value is not None and value not in allowed:
            raise ConfigurationError(
                f"expected one of {', '.join(f'{number:g}' for number in allowed)}, found {value:g}"
            )

    def grades(self, *, grader: int | None = None, question: int | None = None) -> list[Grade]:
        """Return the current grades, including invalidated and withdrawn ones."""
        conditions: dict[str, int] = {}
        if grader is not None:
            conditions["grader = ?"] = grader
        if question is not None:
            conditions["answer in (select id from answers where question = ?)"] = question
        clause = f" where {' and '.join(conditions)}" if conditions else ""
        return [
            Grade(*row)
            for row in self.connection.execute(
                f"{_SELECT_GRADES}{clause} order by answer, grader", tuple(conditions.values())
            )
        ]

    def invalidate(self, answer: str, grader: int, actor: str, reason: str) -> None:
        """Exclude one grade from the figures, recording who did it and why; an empty reason includes it again."""
        note = f"{actor}: {reason}" if reason else ""
        with self.batch():
            changed = self.connection.execute(
                "update grades set invalid = ? where answer = ? and grader = ?", (note, answer, grader)
            )
            if not changed.rowcount:
                raise ConfigurationError("there is no such grade")
            self.log(actor, f"grade of {answer} by {grader}: {'invalid: ' + reason if reason else 'counts again'}")

    def decide(self, answer: str, adjudicator: int, value: float, reason: str) -> None:
        """Record an adjudicator's grade of an answer; it replaces an earlier decision, which remains in the log.

        Raises:
            ConfigurationError: The reason is empty, or the value is not permitted.
        """
        if not reason.strip():
            raise ConfigurationError("a decision needs a reason")
        with self.batch():
            self._check_value(answer, value)
            self.connection.execute(
                "insert or replace into decisions values (?, ?, ?, ?, ?)",
                (answer, adjudicator, value, reason, self.clock()),
            )
            self.log(f"grader {adjudicator}", f"decided {answer}: {value:g}: {reason}")

    def decisions(self) -> dict[str, Decision]:
        """Return the decisions by answer's id."""
        return {row[0]: Decision(*row) for row in self.connection.execute("select * from decisions")}

    def log(self, actor: str, action: str) -> None:
        """Record an action in the audit log."""
        self.connection.execute("insert into deeds (at, by, what) values (?, ?, ?)", (self.clock(), actor, action))

    def audit_log(self) -> list[tuple[float, str, str]]:
        """Return the audit log: (seconds since 1970, who, what)."""
        return [tuple(row) for row in self.connection.execute("select at, by, what from deeds order by number")]


def _blind_id(seed: int, question: str, answer: Answer) -> str:
    """Return an answer's id: a hash that hides the candidate and determines the answer's place in the blind order."""
    parts = [seed, "blind", question, answer.candidate, answer.key, answer.round]
    return hashlib.blake2b(to_json_bytes(parts), digest_size=12).hexdigest()


def _read_answer(name: str, position: int, candidate: str, record: bytes) -> Answer:
    fields = orjson.loads(record)
    fields["turns"] = [Turn(**turn) for turn in fields["turns"]]
    return Answer(candidate, **fields, id=name, position=position)
