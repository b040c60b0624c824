"""People's grades of what a judge graded: read, joined with the answers, and the list of what to grade next.

What never belongs here: statistics, and where a judge's scores come from (``graded_answers``).
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from viva.data.fields import FieldError, Raw, own_id, shown, text_field
from viva.data.lines import check_regular
from viva.data.reading import read_records
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.files import write_atomically
from viva.reports.controls import spreadsheet_cell
from viva.reports.sheet import read_sheet
from viva.scenarios.graded import GradedAnswer

from .graded_answers import GradedAnswers, number, passed_of, round_of

Name = tuple[str, int | None]
# As spreadsheet programs save tables, UTF-16 text with tabs as .txt.
_SHEETS = (".csv", ".tsv", ".txt")
# Spreadsheet programs take ids of digits, and of digits around an e, for numbers.
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
# Where a program that separates columns by semicolons begins a cell, and that cell would be computed.
_LATER_FORMULA = re.compile(r"(?<=[\n;])(?=[=+\-@＝＋－＠])")


@dataclass(slots=True)
class HumanGrades:
    """What people said, by the place of the answer in ``GradedAnswers.answers``, in the order of the file.

    ``probabilities``: with which each answer was to be graded; empty where the file does not say, and then all were
    alike. They may be there for answers without a grade. ``waiting``: lines that have neither grade nor probability.
    ``on_unscored``: grades of answers that the judge gave no score. ``chosen``: answers that are to have a grade,
    with or without one.
    """

    grades: dict[int, float] = field(default_factory=dict)
    probabilities: dict[int, float] = field(default_factory=dict)
    waiting: int = 0
    on_unscored: int = 0
    chosen: list[int] = field(default_factory=list)


def names_rounds(path: Path) -> bool:
    """Whether the grades in a file are of rounds: its first record names one.

    :raises DatasetError: the file cannot be read.
    """
    for _, _, raw in _grade_lines(path):
        return raw.get("round") not in (None, "")
    raise DatasetError("holds no grade; expected rows of key and grade", path=str(path))


def read_grades(path: Path, answers: GradedAnswers, *, unfinished: bool = False) -> HumanGrades:
    """The grades of a file, joined by key, by round where rounds are graded, and by candidate where a file of scores
    has candidates. An ``unfinished`` one may have no grade yet, or not all that its list asks for.

    :raises DatasetError: a grade joins no answer or several, is there twice or out of range, or only some have a
        probability; or an answer that was chosen with a known probability has no grade. The error names file, line and
        field.
    """
    places: dict[Name, list[int]] = {}
    for place, one in enumerate(answers.answers):
        for key in {one.key, name_cell(one.key)}:
            places.setdefault((key, one.round), []).append(place)
    found, lines, without, waiting = HumanGrades(), dict[int, int](), 0, 0
    for file, line, raw in _grade_lines(path):
        try:
            place = _joined(raw, places, answers)
            before = lines.setdefault(place, line)
            if before != line:
                raise FieldError("key", f"{shown(raw['key'])} is graded in line {before} already; keep one of them")
            probability, grade = _probability(raw), _grade(raw, answers)
            if not _left_out(raw):
                found.chosen.append(place)
            if probability is not None:
                found.probabilities[place] = probability
            if grade is None:
                if not _left_out(raw):
                    found.waiting += 1
                    waiting = waiting or line
                continue
            if _left_out(raw):
                raise FieldError("chosen", "says no, but there is a grade; grade only what was chosen, or say yes")
            if probability is None:
                without = without or line
            if answers.answers[place].score is None:
                found.on_unscored += 1
                continue
            found.grades[place] = grade
        except FieldError as error:
            raise DatasetError(str(error), path=str(file), line=line, field=error.field) from None
    if found.probabilities and without:
        message = "is missing, though other grades have one; give it for all, or for none if all were drawn evenly"
        raise DatasetError(message, path=str(path), line=without, field="probability")
    if found.probabilities and waiting and not unfinished:
        message = "is empty, though the answer was chosen; probabilities hold once all that were chosen are graded"
        message += f": {found.waiting} still to grade"
        raise DatasetError(message, path=str(path), line=waiting, field="grade")
    if not found.grades and not unfinished:
        raise DatasetError("holds no grade of an answer that has a score", path=str(path))
    return found


def calibration_pairs(path: Path, passes: bool, low: float, high: float) -> list[tuple[float, float]]:
    """The pairs of a calibration: a judge's score and a person's grade of the same thing.

    :raises DatasetError: a line has none, or one out of range; the error names it.
    """
    pairs: list[tuple[float, float]] = []
    for line, raw in read_records(path, required=("score", "grade")):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            score, grade = (_value(raw, name, passes, low, high) for name in ("score", "grade"))
            if score is None or grade is None:
                raise FieldError("grade" if grade is None else "score", "is missing")
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
        pairs.append((score, grade))
    if not pairs:
        raise DatasetError("holds no pair of score and grade", path=str(path))
    return pairs


def key_file(path: Path) -> Path:
    """Return the file that says whose answers are graded in the file at ``path``, which has only ids."""
    return path.with_name(f"{path.stem}.key.csv")


def write_next(
    path: Path,
    answers: GradedAnswers,
    known: HumanGrades,
    chosen: Iterable[int],
    probabilities: Mapping[int, float],
    texts: Mapping[int, tuple[str, str]],
    seed: int,
) -> None:
    """Write the answers to grade for people, in random order, and beside them the file that says whose they are.

    People see an id, question and answer, and an empty grade. Keys, candidates, scores, probabilities and the grades so
    far of all answers are in ``key_file``.

    Args:
        texts: question and answer of each chosen place; of one without texts its key is shown, for want of better.

    Raises:
        ConfigurationError: a file cannot be written.
    """
    secret = repr((seed, [one.score for one in answers.answers]))  # what graders know is not enough to tell ids
    ids = {place: _id(answers.answers[place], secret) for place in probabilities}
    now = sorted(chosen, key=ids.__getitem__)
    pages = [[ids[place], *map(_text_cell, _texts(answers.answers[place], texts.get(place))), ""] for place in now]
    _write_rows(path, ["id", "question", "answer", "grade"], pages, mark=True)

    columns = ["id", "key", *(["round"] if answers.rounds else []), "candidate", "score"]
    columns += ["probability", "chosen", "grade"]
    asked = set(now)
    rest = [place for place in probabilities if place not in asked and place not in known.grades]
    rows = []
    for places, said in ((sorted(now), "yes"), (sorted(known.grades), "yes"), (sorted(rest), "no")):
        for place in places:
            one = answers.answers[place]
            assert one.score is not None
            grade = known.grades.get(place)
            cells = [ids[place], name_cell(one.key), *([str(one.round)] if answers.rounds else [])]
            cells.append(name_cell(one.candidate))
            cells += [_shown(one.score, answers), repr(probabilities[place]), said]
            rows.append([*cells, "" if grade is None else _shown(grade, answers)])
    _write_rows(key_file(path), columns, rows)


def _write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]], *, mark: bool = False) -> None:
    """Write a CSV file; ``mark``: begin with a byte order mark, or Excel would take it for the local code page."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    try:
        write_atomically(path, text.getvalue().encode("utf-8-sig" if mark else "utf-8", "replace"))
    except OSError as error:
        raise ConfigurationError(f"--out {path}: cannot be written: {error.strerror}") from None


def _name(one: GradedAnswer) -> tuple[str, str, str]:
    return one.candidate, one.key, "" if one.round is None else str(one.round)


def _id(one: GradedAnswer, secret: str) -> str:
    """Return a name of the answer that says nothing of its candidate, of letters alone."""
    digest = hashlib.blake2b("\0".join([secret, *_name(one)]).encode("utf-8", "surrogatepass"), digest_size=6)
    return digest.hexdigest().translate(_LETTERS)


def _texts(one: GradedAnswer, texts: tuple[str, str] | None) -> tuple[str, str]:
    question, answer = texts or (one.question, one.answer)
    if question or answer:
        return question, answer
    return one.key.removeprefix(f"{one.candidate}/") + (f", round {one.round}" if one.round is not None else ""), ""


def _text_cell(text: str) -> str:
    return _LATER_FORMULA.sub(" ", spreadsheet_cell(text, lines=True))


def name_cell(text: str) -> str:
    """Return a key or a name as a cell that no spreadsheet computes; files of grades may have either form."""
    return spreadsheet_cell(text, lines=True)


def _grade_lines(path: Path) -> Iterator[tuple[Path, int, Raw]]:
    """The lines of a file of grades with file and line, those of a file for people under the names of its key file.

    :raises DatasetError: a line, or the key file, cannot be read, or an id is not in it.
    """
    if not _has_ids_alone(path):
        yield from ((path, line, raw) for line, raw in _records(path, ("key", "grade")))
        return
    beside = key_file(path)
    if not beside.exists():
        message = f"says by 'id' what is graded, and {beside.name}, which was written with it, says whose answers these"
        raise DatasetError(f"{message} are; put that file beside it under this name", path=str(path))
    known: dict[str, tuple[int, Raw]] = {}
    for line, raw in _records(beside, ("id", "key", "grade")):
        known[str(raw.get("id"))] = line, raw
    given: dict[str, tuple[Path, int, Raw]] = {}
    for line, raw in _records(path, ("id", "grade")):
        id_ = str(raw.get("id")).strip()
        if id_ in given:
            message = f"{shown(id_)} is graded in line {given[id_][1]} already; keep one of them"
            raise DatasetError(message, path=str(path), line=line, field="id")
        if id_ not in known:
            message = f"{shown(id_)} is not in {beside.name}; give the file that was written with it"
            raise DatasetError(message, path=str(path), line=line, field="id")
        given[id_] = path, line, {**known[id_][1], "grade": raw.get("grade")}
    others = [(beside, line, raw) for id_, (line, raw) in known.items() if id_ not in given]
    yield from (one for one in others if one[2].get("grade") not in (None, ""))  # they were made before
    yield from given.values()
    yield from (one for one in others if one[2].get("grade") in (None, ""))


def _has_ids_alone(path: Path) -> bool:
    first = next((raw for _, raw in _records(path)), None)
    return first is not None and "id" in first and "key" not in first


def _records(path: Path, required: Sequence[str] = ()) -> Iterator[tuple[int, Raw]]:
    """The records of a file of grades with their lines; tables as spreadsheet programs save them.

    :raises DatasetError: a record, or the file, cannot be read.
    """
    if path.suffix.lower() in _SHEETS:
        check_regular(path)
        yield from read_sheet(path, required)
        return
    for line, raw in read_records(path, required=required):
        if isinstance(raw, DatasetError):
            raise raw
        yield line, raw


def _joined(raw: Mapping[str, Any], places: Mapping[Name, Sequence[int]], answers: GradedAnswers) -> int:
    key, held = text_field(raw, "key"), round_of(raw)
    if held is None and answers.rounds:
        raise FieldError("round", f"is missing; {answers.source} has rounds, and so needs each grade")
    if held is not None and not answers.rounds:
        raise FieldError("round", f"{answers.source} has no rounds; leave the field out of all lines")
    met = places.get((key, held), ())
    candidate = own_id(raw, "candidate")
    if candidate is not None:
        met = [place for place in met if candidate in ((name := answers.answers[place].candidate), name_cell(name))]
    where = shown(key) + (f", round {held}" if held is not None else "")
    if not met:
        by = f" by {shown(candidate)}" if candidate is not None else ""
        near = get_close_matches(key, {one for one, _ in places}, n=1) or [name for name, _ in places][:1]
        hint = f"; it has {shown(near[0])}" if near and near[0] != key else ""
        raise FieldError("key", f"{answers.source} has no graded answer {where}{by}{hint}")
    if len(met) > 1:
        raise FieldError("candidate", f"is missing; {answers.source} has {where} by several candidates")
    return met[0]


def _grade(raw: Mapping[str, Any], answers: GradedAnswers) -> float | None:
    return _value(raw, "grade", answers.passes, answers.low, answers.high)


def _value(raw: Mapping[str, Any], name: str, passes: bool, low: float, high: float) -> float | None:
    value = raw.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    found = number(value)
    if passes:
        passed = passed_of(value) if found is None else found
        if passed not in (0.0, 1.0):
            raise FieldError(name, f"expected pass or fail, found {shown(value)}")
        return passed
    if found is None or not low <= found <= high:
        raise FieldError(name, f"expected a number{_range(low, high)}, found {shown(value)}")
    return found


def _range(low: float, high: float) -> str:
    return f" from {low:g} to {high:g}" if math.isfinite(high - low) else ""


def _probability(raw: Mapping[str, Any]) -> float | None:
    value = raw.get("probability")
    if value is None or value == "":
        return None
    found = number(value)
    if found is None or not 0.0 < found <= 1.0:
        raise FieldError("probability", f"expected a number above 0 and at most 1, found {shown(value)}")
    return found


def _left_out(raw: Mapping[str, Any]) -> bool:
    value = raw.get("chosen")
    if value is None or value == "":
        return False
    said = {"yes": True, "no": False, True: True, False: False}.get(value.lower() if isinstance(value, str) else value)
    if said is None:
        raise FieldError("chosen", f"expected yes or no, found {shown(value)}")
    return not said


def _shown(value: float, answers: GradedAnswers) -> str:
    if answers.passes:
        return "pass" if value else "fail"
    return repr(int(value)) if value == int(value) else repr(value)


def candidates_of(answers: Iterable[GradedAnswer]) -> list[str]:
    """The candidates in the order in which they are first met."""
    return list(dict.fromkeys(one.candidate for one in answers))
