"""Question–answer pairs as records and as rows of CSV and JSONL files, both ways.

What never belongs here: the bank's file (``bank``), what state a pair is in.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import orjson

from viva.data.fields import FieldError, optional_text, own_id, shown, text_field
from viva.data.reading import TABLE_ENDINGS, read_records
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.files import write_atomically
from viva.reports.controls import spreadsheet_cell

from .project import GradedDimension, Project, digest_of
from .project_file import DIFFICULTIES, Difficulty, near

COLUMNS = (
    *("id", "question", "standard_answer", "source", "designer", "dimension", "difficulty", "domain"),
    *("valid_from", "valid_until", "gold"),
)
_EXPORTED_ONLY = ("state",)  # columns that an export has besides; not taken back
_NEEDED = ("question", "standard_answer", "dimension", "difficulty")
_FORMULA = tuple("=+-@＝＋－＠'\t\r")
_MOST_SHOWN = 10  # mistakes of a file that are told one by one


@dataclass(slots=True, frozen=True)
class GoldAnswer:
    """An answer that was written for a pair, with its right grade: graders who miss it need training."""

    answer: str
    grade: int


@dataclass(slots=True, frozen=True)
class Pair:
    """A question–answer pair. ``question``: what is asked, a text for each round of the conversation. ``valid_from``
    and ``valid_until`` are days, empty where it has no such end. ``source``: where the standard answer is taken from.
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
        """The whole question, a line for each round."""
        return "\n".join(self.question)

    def version(self) -> str:
        """16 hex digits that stand for question and standard answer: where they differ, it is another question."""
        return digest_of([list(self.question), self.standard_answer])

    def valid_on(self, day: date) -> bool:
        """Whether its standard answer holds on a day."""
        return (not self.valid_from or date.fromisoformat(self.valid_from) <= day) and not self.expired_on(day)

    def expired_on(self, day: date) -> bool:
        """Whether its validity has ended before a day."""
        return bool(self.valid_until) and date.fromisoformat(self.valid_until) < day

    def to_record(self) -> dict[str, Any]:
        """Plain JSON data: a question of one round is a text."""
        record = asdict(self)
        record["question"] = self.question[0] if len(self.question) == 1 else list(self.question)
        return {name: record[name] for name in COLUMNS}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Pair:
        """The pair of a record that ``to_record`` made."""
        asked = record["question"]
        gold = tuple(GoldAnswer(**one) for one in record["gold"])
        return cls(**{**record, "question": (asked,) if isinstance(asked, str) else tuple(asked), "gold": gold})


def read_pairs(path: Path, project: Project) -> list[Pair]:
    """The pairs of a CSV, TSV or JSONL file.

    :raises DatasetError: a line is broken or is no pair of this project, or an id is there twice; all of them are told,
        with line and field.
    """
    found: dict[str, tuple[Pair, int]] = {}
    wrong: list[DatasetError] = []
    for line, raw in read_records(path, required=_NEEDED):
        try:
            if isinstance(raw, DatasetError):
                raise raw
            pair = _pair(_uncelled(raw) if path.suffix in TABLE_ENDINGS else raw, project)
            if pair.id in found:
                raise FieldError("id", f"{shown(pair.id)} is in line {found[pair.id][1]} already")
            found[pair.id] = pair, line
        except FieldError as error:
            wrong.append(DatasetError(str(error), path=str(path), line=line, field=error.field))
        except DatasetError as error:
            wrong.append(error)
    if wrong:
        more = f"; and {len(wrong) - _MOST_SHOWN:,} more" if len(wrong) > _MOST_SHOWN else ""
        raise ConfigurationError("; ".join(map(str, wrong[:_MOST_SHOWN])) + more + "; nothing was imported")
    if not found:
        raise DatasetError("holds no question", path=str(path))
    return [pair for pair, _ in found.values()]


def write_pairs(path: Path, pairs: Iterable[tuple[Pair, str]]) -> int:
    """Write pairs with their states to a CSV, TSV or JSONL file, which ``read_pairs`` reads back; their number.

    :raises ConfigurationError: the file cannot be written, or its ending is another one.
    """
    listed = list(pairs)
    records = [pair.to_record() | {"state": state} for pair, state in listed]
    if path.suffix in TABLE_ENDINGS:
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
        writer.writerow([*COLUMNS, *_EXPORTED_ONLY])
        for (pair, _), record in zip(listed, records, strict=True):
            if pair.question[0].lstrip().startswith("["):  # it would be read as a list of rounds
                record["question"] = list(pair.question)
            writer.writerow([_cell(value) for value in record.values()])
        data = text.getvalue().encode()
    elif path.suffix == ".jsonl":
        data = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
    else:
        raise ConfigurationError(f"{path}: expected a file that ends in .csv, .tsv or .jsonl")
    try:
        write_atomically(path, data)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None
    return len(records)


def _pair(raw: Mapping[str, Any], project: Project) -> Pair:
    foreign = [name for name in raw if name and name not in (*COLUMNS, *_EXPORTED_ONLY)]
    if foreign:
        raise FieldError(str(foreign[0]), f"unknown field; known: {', '.join(COLUMNS)}")
    question = _question(raw.get("question"))
    dimension = _one_of(raw, "dimension", list(project.dimensions))
    domains = [name for name, priority in project.domains.items() if priority]
    difficulty: Any = _one_of(raw, "difficulty", DIFFICULTIES)
    valid = {name: _day(raw, name) for name in ("valid_from", "valid_until")}
    if valid["valid_from"] and valid["valid_until"] and valid["valid_until"] < valid["valid_from"]:
        raise FieldError("valid_until", f"{valid['valid_until']} is before valid_from, {valid['valid_from']}")
    return Pair(
        id=own_id(raw, "id") or f"q-{digest_of(question)[:8]}",
        question=question,
        standard_answer=text_field(raw, "standard_answer").strip(),
        dimension=dimension,
        difficulty=difficulty,
        source=optional_text(raw, "source").strip(),
        designer=optional_text(raw, "designer").strip(),
        domain=_one_of(raw, "domain", domains) if raw.get("domain") else "",
        gold=_gold(raw.get("gold"), project.dimensions[dimension]),
        **valid,
    )


def _question(value: Any) -> tuple[str, ...]:
    rounds = value if isinstance(value, list) else [value]
    if not rounds or not all(isinstance(one, str) and one.strip() for one in rounds):
        raise FieldError("question", f"expected a text, or a list of texts for several rounds, found {shown(value)}")
    return tuple(one.strip() for one in rounds)


def _one_of(raw: Mapping[str, Any], name: str, known: Sequence[str]) -> str:
    value = text_field(raw, name).strip()
    if value not in known:
        raise FieldError(name, f"there is no '{value}'; {near(value, known)}")
    return value


def _day(raw: Mapping[str, Any], name: str) -> str:
    value = optional_text(raw, name).strip()
    try:
        return value and date.fromisoformat(value).isoformat()
    except ValueError:
        raise FieldError(name, f"expected a day such as 2026-06-30, found {shown(value)}") from None


def _gold(value: Any, dimension: GradedDimension) -> tuple[GoldAnswer, ...]:
    if value in (None, "", []):
        return ()
    entries = value if isinstance(value, list) else [value]
    found = []
    for one in entries:
        answer, grade = (one.get("answer"), one.get("grade")) if isinstance(one, Mapping) else (None, None)
        if not isinstance(answer, str) or not answer.strip():
            raise FieldError("gold", f"expected a list of {{answer, grade}}, found {shown(value)}")
        if not isinstance(grade, int) or isinstance(grade, bool) or grade not in dimension.grades:
            allowed: Collection[int] = dimension.grades
            raise FieldError("gold", f"grade {shown(grade)}: the rubric has {', '.join(map(str, allowed))}")
        found.append(GoldAnswer(answer.strip(), grade))
    return tuple(found)


def _uncelled(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A table's row with its cells as values: JSON lists in ``question`` and ``gold``, apostrophes before what would be
    a formula taken away.
    """
    values: dict[str, Any] = {}
    for name, cell in raw.items():
        bare = cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell
        values[name] = bare
        if name in ("question", "gold") and bare.lstrip().startswith("["):
            try:
                values[name] = orjson.loads(bare)
            except orjson.JSONDecodeError:
                if name == "gold":
                    raise FieldError(name, f"expected a JSON list of {{answer, grade}}, found {shown(bare)}") from None
    return values


def _cell(value: Any) -> str:
    text = orjson.dumps(value).decode() if isinstance(value, list | tuple) else str(value)
    text = "" if text == "[]" else text
    return f"'{text}" if text.startswith("'") else spreadsheet_cell(text, lines=True)
