"""Question bank: question–answer pairs with states, versions and an audit log in SQLite; import and export.

Also checks of its questions: missing sources, expired, near duplicates, and what the project's plan still needs.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from viva.data.items import FieldError, optional_text, preview, record_id, text_field
from viva.data.record_files import TABLE_SUFFIXES, read_records
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.files import SqliteForm, transaction, write_atomically
from viva.reports.spreadsheet import write_table
from viva.reports.tables import spreadsheet_cell

from .project import DIFFICULTIES, Difficulty, GradedDimension, Project, short_digest, suggest

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

PAIR_COLUMNS = (
    *("id", "question", "standard_answer", "source", "designer", "dimension", "difficulty", "domain"),
    *("valid_from", "valid_until", "gold"),
)
_EXPORT_ONLY_COLUMNS = ("state",)  # columns of an export that an import ignores
_REQUIRED_COLUMNS = ("question", "standard_answer", "dimension", "difficulty")
_FORMULA_STARTS = tuple("=+-@＝＋－＠'\t\r")
_MAX_ERRORS = 10  # errors of a file that are listed


@dataclass(slots=True, frozen=True)
class GoldAnswer:
    """Answer written for a pair, with its correct grade: graders who miss it need training."""

    answer: str
    grade: int


@dataclass(slots=True, frozen=True)
class Pair:
    """Question–answer pair.

    `question` has a text for each round of the conversation. `valid_from` and `valid_until` are days, or empty.
    `source`: origin of the standard answer.
    """

    id: str
    question: tuple[str, ...]
    standard_answer: str
    dimension: str
    difficulty: Difficulty
    source: str = ""
    designer: str = ""
    domain: str = ""
    valid_from: str = ""
    valid_until: str = ""
    gold: tuple[GoldAnswer, ...] = ()

    @property
    def text(self) -> str:
        """The whole question, one line per round."""
        return "\n".join(self.question)

    def version(self) -> str:
        """Return 16 hex digits that identify question and standard answer; if they differ, it is another question."""
        return short_digest([list(self.question), self.standard_answer])

    def valid_on(self, day: date) -> bool:
        """Return True if its standard answer is valid on a day."""
        return (not self.valid_from or date.fromisoformat(self.valid_from) <= day) and not self.expired_on(day)

    def expired_on(self, day: date) -> bool:
        """Return True if its validity ended before a day."""
        return bool(self.valid_until) and date.fromisoformat(self.valid_until) < day

    def to_record(self) -> dict[str, Any]:
        """Return plain JSON data: a question of one round is a text."""
        record = asdict(self)
        record["question"] = self.question[0] if len(self.question) == 1 else list(self.question)
        return {name: record[name] for name in PAIR_COLUMNS}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Pair:
        """Return the pair of a record made by `to_record`."""
        question = record["question"]
        gold = tuple(GoldAnswer(**answer) for answer in record["gold"])
        return cls(
            **{**record, "question": (question,) if isinstance(question, str) else tuple(question), "gold": gold}
        )


def read_pairs(path: Path, project: Project) -> list[Pair]:
    """Return the pairs of a CSV, TSV or JSONL file.

    Raises:
        DatasetError: A line is broken or is not a pair of this project, or an id is duplicated; all errors are listed,
            with line and field.
    """
    by_id: dict[str, tuple[Pair, int]] = {}
    errors: list[DatasetError] = []
    for line, raw in read_records(path, required=_REQUIRED_COLUMNS):
        try:
            if isinstance(raw, DatasetError):
                raise raw
            pair = _parse_pair(_parse_cells(raw) if path.suffix in TABLE_SUFFIXES else raw, project)
            if pair.id in by_id:
                raise FieldError("id", f"{preview(pair.id)} is in line {by_id[pair.id][1]} already")
            by_id[pair.id] = pair, line
        except FieldError as error:
            errors.append(DatasetError(str(error), path=str(path), line=line, field=error.field))
        except DatasetError as error:
            errors.append(error)
    if errors:
        more = f"; and {len(errors) - _MAX_ERRORS:,} more" if len(errors) > _MAX_ERRORS else ""
        raise ConfigurationError("; ".join(map(str, errors[:_MAX_ERRORS])) + more + "; nothing was imported")
    if not by_id:
        raise DatasetError("contains no question", path=str(path))
    return [pair for pair, _ in by_id.values()]


def write_pairs(path: Path, pairs: Iterable[tuple[Pair, str]]) -> int:
    """Write pairs with their states to a CSV, TSV or JSONL file, which `read_pairs` can read; return their number.

    Raises:
        ConfigurationError: The file cannot be written, or has another extension.
    """
    entries = list(pairs)
    records = [pair.to_record() | {"state": state} for pair, state in entries]
    if path.suffix in TABLE_SUFFIXES:
        for (pair, _), record in zip(entries, records, strict=True):
            if pair.question[0].lstrip().startswith("["):  # it would be read as a list of rounds
                record["question"] = list(pair.question)
        rows = ([_format_cell(value) for value in record.values()] for record in records)
        columns = (*PAIR_COLUMNS, *_EXPORT_ONLY_COLUMNS)
        write_table(path, columns, rows, delimiter="\t" if path.suffix == ".tsv" else ",")
    elif path.suffix == ".jsonl":
        try:
            write_atomically(
                path, b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
            )
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None
    else:
        raise ConfigurationError(f"{path}: expected a file that ends in .csv, .tsv or .jsonl")
    return len(records)


def _parse_pair(raw: Mapping[str, Any], project: Project) -> Pair:
    foreign = [name for name in raw if name and name not in (*PAIR_COLUMNS, *_EXPORT_ONLY_COLUMNS)]
    if foreign:
        raise FieldError(str(foreign[0]), f"unknown field; known: {', '.join(PAIR_COLUMNS)}")
    question = _parse_question(raw.get("question"))
    dimension = _parse_choice(raw, "dimension", list(project.dimensions))
    domains = [name for name, priority in project.domains.items() if priority]
    difficulty: Any = _parse_choice(raw, "difficulty", DIFFICULTIES)
    valid = {name: _parse_day(raw, name) for name in ("valid_from", "valid_until")}
    if valid["valid_from"] and valid["valid_until"] and valid["valid_until"] < valid["valid_from"]:
        raise FieldError("valid_until", f"{valid['valid_until']} is before valid_from, {valid['valid_from']}")
    return Pair(
        id=record_id(raw, "id") or f"q-{short_digest(question)[:8]}",
        question=question,
        standard_answer=text_field(raw, "standard_answer").strip(),
        dimension=dimension,
        difficulty=difficulty,
        source=optional_text(raw, "source").strip(),
        designer=optional_text(raw, "designer").strip(),
        domain=_parse_choice(raw, "domain", domains) if raw.get("domain") else "",
        gold=_parse_gold(raw.get("gold"), project.dimensions[dimension]),
        **valid,
    )


def _parse_question(value: Any) -> tuple[str, ...]:
    rounds = value if isinstance(value, list) else [value]
    if not rounds or not all(isinstance(text, str) and text.strip() for text in rounds):
        raise FieldError("question", f"expected a text, or a list of texts for several rounds, found {preview(value)}")
    return tuple(text.strip() for text in rounds)


def _parse_choice(raw: Mapping[str, Any], name: str, allowed: Sequence[str]) -> str:
    value = text_field(raw, name).strip()
    if value not in allowed:
        raise FieldError(name, f"there is no '{value}'; {suggest(value, allowed)}")
    return value


def _parse_day(raw: Mapping[str, Any], name: str) -> str:
    value = optional_text(raw, name).strip()
    try:
        return value and date.fromisoformat(value).isoformat()
    except ValueError:
        raise FieldError(name, f"expected a day such as 2026-06-30, found {preview(value)}") from None


def _parse_gold(value: Any, dimension: GradedDimension) -> tuple[GoldAnswer, ...]:
    if value in (None, "", []):
        return ()
    entries = value if isinstance(value, list) else [value]
    answers = []
    for entry in entries:
        answer, grade = (entry.get("answer"), entry.get("grade")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(answer, str) or not answer.strip():
            raise FieldError("gold", f"expected a list of {{answer, grade}}, found {preview(value)}")
        if not isinstance(grade, int) or isinstance(grade, bool) or grade not in dimension.grades:
            allowed: Collection[int] = dimension.grades
            raise FieldError("gold", f"grade {preview(grade)}: the rubric has {', '.join(map(str, allowed))}")
        answers.append(GoldAnswer(answer.strip(), grade))
    return tuple(answers)


def _parse_cells(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's row with its cells as values.

    `question` and `gold` may be JSON lists; an apostrophe that escapes a formula is removed.
    """
    values: dict[str, Any] = {}
    for name, cell in raw.items():
        bare = cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA_STARTS) else cell
        values[name] = bare
        if name in ("question", "gold") and bare.lstrip().startswith("["):
            try:
                values[name] = orjson.loads(bare)
            except orjson.JSONDecodeError:
                if name == "gold":
                    raise FieldError(
                        name, f"expected a JSON list of {{answer, grade}}, found {preview(bare)}"
                    ) from None
    return values


def _format_cell(value: Any) -> str:
    text = orjson.dumps(value).decode() if isinstance(value, list | tuple) else str(value)
    text = "" if text == "[]" else text
    return f"'{text}" if text.startswith("'") else spreadsheet_cell(text, lines=True)


State = Literal["draft", "inspected", "accepted", "returned"]
STATES: tuple[State, ...] = ("draft", "inspected", "accepted", "returned")
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
_FORM = SqliteForm("question bank", "used as a question bank", _TABLES, "1")


@dataclass(slots=True, frozen=True)
class BankEntry:
    """Pair and its state."""

    pair: Pair
    state: State


@dataclass(slots=True, frozen=True)
class AuditEvent:
    """Event in the history of a pair: a state it entered, `changed`, or `new`.

    `at`: seconds since 1970. `version` identifies its content at the time, which is in `pair`.
    """

    at: float
    actor: str
    action: str
    reason: str
    version: str
    pair: Pair


@dataclass(slots=True, frozen=True)
class RubricVersion:
    """Instructions to graders, valid from `at` (seconds since 1970); `number` counts from 1."""

    number: int
    digest: str
    at: float
    rubric: dict[str, Any]


@dataclass(slots=True)
class ImportResult:
    """Outcome of an import: ids that are new, changed (drafts again), or unchanged."""

    new: list[str]
    changed: list[str]
    unchanged: list[str]


class Bank:
    """Question bank. Used by one thread at a time; a change is committed when its method returns."""

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Callable[[], float] = time.time) -> None:
        self.path, self.connection, self.clock = path, connection, clock

    @classmethod
    def open(cls, project: Project, clock: Callable[[], float] = time.time) -> Bank:
        """Open a project's bank, creating it if needed. A changed rubric is recorded.

        Raises:
            ConfigurationError: The file cannot be used.
        """
        bank = cls(project.bank, _FORM.open(project.bank, make=True), clock)
        if damage := bank._wrong_record():
            bank.close()
            raise _FORM.damage_error(bank.path, damage)
        bank._note_rubric(project)
        return bank

    def _wrong_record(self) -> str:
        """Return a description of the first unreadable record; empty without one."""
        location = "the rubrics"
        try:
            self.rubrics()
            for table, key in (("pairs", "id"), ("history", "pair")):
                rows = self.connection.execute(f"select {key}, record from {table} order by number")
                for name, record in rows:
                    location = f"question '{name}'"
                    _read_pair(record)
        except (ValueError, TypeError, KeyError, AttributeError, ConfigurationError) as error:
            return f"{location} cannot be read ({type(error).__name__}: {error}); restore the file from a copy"
        return ""

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def __enter__(self) -> Bank:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- pairs ----------------------------------------------------------------------------------------------------

    def put(self, pairs: Iterable[Pair], actor: str) -> ImportResult:
        """Add pairs, all or none; new pairs and pairs with changed content become drafts."""
        result = ImportResult([], [], [])
        with transaction(self.connection):
            for pair in pairs:
                row = self.connection.execute("select version from pairs where id = ?", (pair.id,)).fetchone()
                record = orjson.dumps(pair.to_record())
                version = short_digest(pair.to_record())
                if row is not None and row[0] == version:
                    result.unchanged.append(pair.id)
                    continue
                (result.new if row is None else result.changed).append(pair.id)
                self.connection.execute(
                    "insert into pairs (id, version, state, record) values (?1, ?2, 'draft', ?3) "
                    "on conflict (id) do update set version = ?2, state = 'draft', record = ?3",
                    (pair.id, version, record),
                )
                self._note(pair.id, actor, "new" if row is None else "changed", "")
        return result

    def entries(self, state: State | None = None) -> list[BankEntry]:
        """Return the pairs in order of addition; `state` restricts them to one state."""
        rows = self.connection.execute("select record, state from pairs order by number")
        return [
            BankEntry(_read_pair(record), entry_state) for record, entry_state in rows if state in (None, entry_state)
        ]

    def entry(self, name: str) -> BankEntry:
        """Return the pair of this id, or raise ConfigurationError."""
        row = self.connection.execute("select record, state from pairs where id = ?", (name,)).fetchone()
        if row is None:
            raise ConfigurationError(f"{self.path}: there is no question '{name}'")
        return BankEntry(_read_pair(row[0]), row[1])

    def history(self, name: str) -> list[AuditEvent]:
        """Return the events of a pair, oldest first."""
        rows = self.connection.execute(
            "select at, by, what, reason, version, record from history where pair = ? order by number", (name,)
        )
        return [
            AuditEvent(at, actor, action, reason, version, _read_pair(record))
            for at, actor, action, reason, version, record in rows
        ]

    def reason(self, name: str) -> str:
        """Return the note made when a pair entered its state, or ""."""
        row = self.connection.execute(
            "select reason from history where pair = ? order by number desc limit 1", (name,)
        ).fetchone()
        return "" if row is None else str(row[0])

    def inspect(self, names: Sequence[str], actor: str, note: str = "") -> None:
        """Mark drafts as inspected; if one is not a draft, none is changed."""
        self._move(names, "inspected", actor, note, ("draft",))

    def accept(self, names: Sequence[str], actor: str, note: str = "") -> None:
        """Accept inspected pairs with a source; if one cannot be accepted, none is changed."""
        self._move(names, "accepted", actor, note, ("inspected",), sourced=True)

    def return_for_revision(self, names: Sequence[str], actor: str, reason: str) -> None:
        """Return pairs to their designers, with a reason; if one has been returned already, none is changed."""
        if not reason.strip():
            raise ConfigurationError("returning a question needs a reason: give --reason")
        self._move(names, "returned", actor, reason, ("draft", "inspected", "accepted"))

    def _move(
        self, names: Sequence[str], to: State, actor: str, reason: str, allowed: Sequence[str], *, sourced: bool = False
    ) -> None:
        with transaction(self.connection):
            for name in dict.fromkeys(names):
                entry = self.entry(name)
                if entry.state not in allowed:
                    required = " or ".join(allowed)
                    raise ConfigurationError(
                        f"question '{name}': is {entry.state}; only {required} questions can become {to}"
                    )
                if sourced and not entry.pair.source:
                    raise ConfigurationError(
                        f"question '{name}': has no source, so it cannot be accepted; return it to "
                        f"{entry.pair.designer or 'its designer'}, or import it again with its source"
                    )
                self.connection.execute("update pairs set state = ? where id = ?", (to, name))
                self._note(name, actor, to, reason)

    def _note(self, name: str, actor: str, action: str, reason: str) -> None:
        self.connection.execute(
            "insert into history (pair, at, by, what, reason, version, record) "
            "select id, ?, ?, ?, ?, version, record from pairs where id = ?",
            (self.clock(), actor, action, reason, name),
        )

    # -- rubrics --------------------------------------------------------------------------------------------------

    def rubrics(self) -> list[RubricVersion]:
        """Return the rubric versions, oldest first."""
        rows = self.connection.execute("select number, digest, at, record from rubrics order by number")
        return [RubricVersion(number, digest, at, orjson.loads(record)) for number, digest, at, record in rows]

    def _note_rubric(self, project: Project) -> None:
        digest = project.rubric_digest()
        with transaction(self.connection):
            last = self.connection.execute("select digest from rubrics order by number desc limit 1").fetchone()
            if last is None or last[0] != digest:
                self.connection.execute(
                    "insert into rubrics (digest, at, record) values (?, ?, ?)",
                    (digest, self.clock(), orjson.dumps(project.rubric())),
                )


def _read_pair(record: bytes) -> Pair:
    return Pair.from_record(orjson.loads(record))


_BLOCK_ROWS = 500  # questions compared with all others at once


@dataclass(slots=True, frozen=True)
class Duplicate:
    """Two questions that are nearly the same. `likeness`: 0–1."""

    first: str
    second: str
    likeness: float


@dataclass(slots=True, frozen=True)
class PlanRow:
    """Numbers of planned, of accepted and valid, and of unfinished questions, for one dimension and difficulty."""

    dimension: str
    difficulty: Difficulty
    wanted: int
    accepted: int
    under_way: int


def find_near_duplicates(
    pairs: Sequence[Pair], threshold: float, only: Collection[str] | None = None
) -> list[Duplicate]:
    """Return pairs of questions whose likeness is at least `threshold`, most alike first.

    If `only` has ids, at least one question of each pair is among them. Likeness is the cosine between weighted counts
    of runs of 3 to 5 letters within words (TF–IDF, as scikit-learn computes it): it detects other word forms and
    orders, but not meaning.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    if len(pairs) < 2:
        return []
    vectors: csr_matrix = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True).fit_transform(
        [f"{pair.text} " for pair in pairs]
    )
    chosen = [index for index, pair in enumerate(pairs) if only is None or pair.id in only]
    chosen_set, duplicates = set(chosen), []
    for start in range(0, len(chosen), _BLOCK_ROWS):
        rows = chosen[start : start + _BLOCK_ROWS]
        similarities = (vectors[rows] @ vectors.T).tocoo()
        for index, column, value in zip(similarities.row, similarities.col, similarities.data, strict=True):
            row = rows[index]
            if value >= threshold and (row < column or (column not in chosen_set and row != column)):
                first, second = sorted((row, int(column)))
                duplicates.append(Duplicate(pairs[first].id, pairs[second].id, min(1.0, float(value))))
    return sorted(duplicates, key=lambda duplicate: (-duplicate.likeness, duplicate.first, duplicate.second))


def pair_problems(pair: Pair, project: Project, day: date) -> list[str]:
    """Return the problems of a pair, a few words each."""
    problems = []
    if not pair.source:
        problems.append("has no source")
    if pair.dimension not in project.dimensions:
        problems.append(f"dimension '{pair.dimension}' is no longer in the project")
    if pair.domain and not project.domains.get(pair.domain):
        problems.append(f"domain '{pair.domain}' is no longer evaluated")
    if pair.expired_on(day):
        problems.append(f"expired on {pair.valid_until}")
    return problems


def compare_with_plan(entries: Sequence[BankEntry], project: Project, day: date) -> list[PlanRow]:
    """Compare the plan with the bank: a row for each dimension and difficulty with existing or planned questions."""
    accepted: Counter[tuple[str, str]] = Counter()
    under_way: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        pair = entry.pair
        if entry.state == "accepted":
            accepted[pair.dimension, pair.difficulty] += not pair.expired_on(day)
        else:
            under_way[pair.dimension, pair.difficulty] += 1
    rows = []
    for dimension in project.dimensions:
        for difficulty in DIFFICULTIES:
            key = dimension, difficulty
            planned = project.file.plan.get(dimension, {}).get(difficulty, 0)
            if planned or accepted[key] or under_way[key]:
                rows.append(PlanRow(dimension, difficulty, planned, accepted[key], under_way[key]))
    return rows
