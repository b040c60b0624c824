"""A judge's scores and people's grades of the same answers: read from runs and files, joined, listed to grade."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from viva.data.items import FieldError, Raw, preview, record_id, text_field
from viva.data.record_files import DATA_SUFFIXES, read_records, require_regular_file
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_settings
from viva.reports.spreadsheet import read_spreadsheet, write_table
from viva.reports.tables import spreadsheet_cell
from viva.scenarios.contract import JudgeGrade, grade_reader
from viva.scenarios.models import label_of_key, lineup_labels

# Columns of a file of scores that are not numbers known of an answer.
_KNOWN_COLUMNS = ("key", "score", "round", "candidate", "item", "question", "answer")
_PASS_WORDS = {"pass": 1.0, "fail": 0.0, "true": 1.0, "false": 0.0}


@dataclass(slots=True, frozen=True)
class GradedAnswers:
    """All answers that a judge was asked about, those that it left ``unscored`` (score None) among them.

    ``low`` and ``high`` are infinite where the scale is not known. ``rounds``: answers are rounds.
    """

    source: Path
    answers: list[JudgeGrade]
    low: float
    high: float
    passes: bool
    rounds: bool

    @property
    def unscored(self) -> int:
        """How many answers have no score."""
        return sum(answer.score is None for answer in self.answers)


def read_graded_answers(
    source: Path,
    *,
    by_round: bool,
    scale: tuple[float, float] | None = None,
    purpose: str = "labels",
    need_scores: bool = True,
) -> GradedAnswers:
    """The graded answers of a run folder, or of a CSV, TSV or JSONL file of scores.

    ``scale``: the ends of the scale of scores that have none of their own, as those of a file. ``what`` names, for
    errors, what asks for rounds.
    Without ``need_scores`` a run may have no graded answer, or no answer at all that its judge was asked about.

    :raises ConfigurationError: the folder is no run, its system has no grades of this kind, or nothing is graded.
    :raises DatasetError: a line of the file is wrong; the message names it.
    """
    if source.is_file() or source.suffix in DATA_SUFFIXES:
        return _read_score_file(source, scale)
    folder = RunFolder.open(source)
    scenario, settings = recorded_settings(folder)
    grading = grade_reader(scenario, settings, by_round=by_round)
    if grading is None:
        if by_round and grade_reader(scenario, settings) is not None:
            raise ConfigurationError(
                f"{source}: a run of {scenario.name} is graded whole; leave 'round' out of the {purpose}"
            )
        kind = "rounds" if by_round else "answers"
        raise ConfigurationError(f"{source}: a run of {scenario.name} under these settings has no graded {kind}")
    low, high = grading.low, grading.high
    if scale is not None:
        if math.isfinite(high - low):
            raise ConfigurationError(
                f"--scale: {source} is a run with a scale of its own, {low:g} to {high:g}; leave it out"
            )
        low, high = scale
    labels = lineup_labels(scenario.roles_of(settings), folder.manifest)
    answers: list[JudgeGrade] = []
    with History(folder.journal) as history:
        for ended in history.ended():
            if not ended.failed and ended.item is not None:
                task = scenario.task(ended.item)
                answers += grading.answers(ended.key, label_of_key(ended.key, labels), task, ended.result)
    if need_scores and not any(answer.score is not None for answer in answers):
        raise ConfigurationError(f"{source}: no answer of this run has been graded")
    beyond = next(
        (answer.score for answer in answers if answer.score is not None and not low <= answer.score <= high), None
    )
    if beyond is not None:
        raise ConfigurationError(f"{source}: has a score of {beyond:g}, which is not from {low:g} to {high:g}")
    return GradedAnswers(source, answers, low, high, grading.passes, by_round)


def _read_score_file(path: Path, scale: tuple[float, float] | None) -> GradedAnswers:
    answers: list[JudgeGrade] = []
    lines: dict[tuple[str, str, int | None], int] = {}
    words: bool | None = None
    low, high = scale or (-math.inf, math.inf)
    for line, raw in read_records(path, required=("key", "score")):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            score, worded = _parse_score(raw)
            if worded is not None and words is not None and worded is not words:
                raise FieldError("score", "the file has both pass or fail and numbers; use one of them")
            words = worded if words is None else words
            if score is not None and not words and not low <= score <= high:
                raise FieldError("score", f"expected a number from {low:g} to {high:g}, found {score:g}")
            answer = _answer_from_row(raw, score)
            before = lines.setdefault((answer.candidate, answer.key, answer.round), line)
            if before != line:
                raise FieldError("key", f"{preview(answer.key)} is in line {before} already; keep one of them")
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
        answers.append(answer)
    if not any(answer.score is not None for answer in answers):
        raise DatasetError("holds no score; expected rows of key and score", path=str(path))
    rounds = any(answer.round is not None for answer in answers)
    if words:
        low, high = 0.0, 1.0
    return GradedAnswers(path, answers, low, high, bool(words), rounds)


def _answer_from_row(raw: Mapping[str, Any], score: float | None) -> JudgeGrade:
    key = text_field(raw, "key")
    numbers = {
        name: value for name in raw if name not in _KNOWN_COLUMNS and (value := finite_number(raw[name])) is not None
    }
    texts = [value if isinstance(value := raw.get(name), str) else "" for name in ("question", "answer")]
    candidate, item = record_id(raw, "candidate") or "all", record_id(raw, "item") or key
    return JudgeGrade(key, candidate, item, score, parse_round(raw), numbers, *texts)


def _parse_score(raw: Mapping[str, Any]) -> tuple[float | None, bool | None]:
    """The score and whether it is pass or fail; None, None where there is none."""
    value = raw.get("score")
    if value is None or value == "":
        return None, None
    if (passed := parse_pass(value)) is not None:
        return passed, True
    number = finite_number(value)
    if number is None:
        raise FieldError("score", f"expected a number, pass or fail, found {preview(value)}")
    return number, False


def parse_pass(value: Any) -> float | None:
    """1 for pass, 0 for fail; None for anything else."""
    if isinstance(value, bool):
        return float(value)
    return _PASS_WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def finite_number(value: Any) -> float | None:
    """A finite number that stands in a cell or in JSON; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def parse_round(raw: Mapping[str, Any]) -> int | None:
    """The round, counted from 1; None where there is none.

    :raises FieldError: it is no whole number from 1 on.
    """
    value = raw.get("round")
    if value is None or value == "":
        return None
    number = finite_number(value)
    if number is None or number != int(number) or number < 1:
        raise FieldError("round", f"expected a whole number from 1 on, found {preview(value)}")
    return int(number)


AnswerName = tuple[str, int | None]
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


def has_rounds(path: Path) -> bool:
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
    indices: dict[AnswerName, list[int]] = {}
    for index, answer in enumerate(answers.answers):
        for key in {answer.key, name_cell(answer.key)}:
            indices.setdefault((key, answer.round), []).append(index)
    grades, lines, unweighted, waiting = HumanGrades(), dict[int, int](), 0, 0
    for file, line, raw in _grade_lines(path):
        try:
            index = _matching_answer(raw, indices, answers)
            before = lines.setdefault(index, line)
            if before != line:
                raise FieldError("key", f"{preview(raw['key'])} is graded in line {before} already; keep one of them")
            probability, grade = _parse_probability(raw), _parse_grade(raw, answers)
            if not _is_excluded(raw):
                grades.chosen.append(index)
            if probability is not None:
                grades.probabilities[index] = probability
            if grade is None:
                if not _is_excluded(raw):
                    grades.waiting += 1
                    waiting = waiting or line
                continue
            if _is_excluded(raw):
                raise FieldError("chosen", "says no, but there is a grade; grade only what was chosen, or say yes")
            if probability is None:
                unweighted = unweighted or line
            if answers.answers[index].score is None:
                grades.on_unscored += 1
                continue
            grades.grades[index] = grade
        except FieldError as error:
            raise DatasetError(str(error), path=str(file), line=line, field=error.field) from None
    if grades.probabilities and unweighted:
        message = "is missing, though other grades have one; give it for all, or for none if all were drawn evenly"
        raise DatasetError(message, path=str(path), line=unweighted, field="probability")
    if grades.probabilities and waiting and not unfinished:
        message = "is empty, though the answer was chosen; probabilities hold once all that were chosen are graded"
        message += f": {grades.waiting} still to grade"
        raise DatasetError(message, path=str(path), line=waiting, field="grade")
    if not grades.grades and not unfinished:
        raise DatasetError("holds no grade of an answer that has a score", path=str(path))
    return grades


def calibration_pairs(path: Path, passes: bool, low: float, high: float) -> list[tuple[float, float]]:
    """The pairs of a calibration: a judge's score and a person's grade of the same thing.

    :raises DatasetError: a line has none, or one out of range; the error names it.
    """
    pairs: list[tuple[float, float]] = []
    for line, raw in read_records(path, required=("score", "grade")):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            score, grade = (_parse_value(raw, name, passes, low, high) for name in ("score", "grade"))
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


def write_grading_list(
    path: Path,
    answers: GradedAnswers,
    earlier: HumanGrades,
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
    secret = repr((seed, [answer.score for answer in answers.answers]))  # what graders know is not enough to tell ids
    ids = {index: _blind_id(answers.answers[index], secret) for index in probabilities}
    order = sorted(chosen, key=ids.__getitem__)
    pages = [[ids[index], *map(_text_cell, _texts_of(answers.answers[index], texts.get(index))), ""] for index in order]
    write_table(path, ["id", "question", "answer", "grade"], pages, mark=True, option="--out ")

    columns = ["id", "key", *(["round"] if answers.rounds else []), "candidate", "score"]
    columns += ["probability", "chosen", "grade"]
    listed = set(order)
    unlisted = [index for index in probabilities if index not in listed and index not in earlier.grades]
    rows = []
    for indices, is_chosen in ((sorted(order), "yes"), (sorted(earlier.grades), "yes"), (sorted(unlisted), "no")):
        for index in indices:
            answer = answers.answers[index]
            assert answer.score is not None
            grade = earlier.grades.get(index)
            cells = [ids[index], name_cell(answer.key), *([str(answer.round)] if answers.rounds else [])]
            cells.append(name_cell(answer.candidate))
            cells += [_score_text(answer.score, answers), repr(probabilities[index]), is_chosen]
            rows.append([*cells, "" if grade is None else _score_text(grade, answers)])
    write_table(key_file(path), columns, rows, option="--out ")


def _name_parts(answer: JudgeGrade) -> tuple[str, str, str]:
    return answer.candidate, answer.key, "" if answer.round is None else str(answer.round)


def _blind_id(answer: JudgeGrade, secret: str) -> str:
    """Return a name of the answer that says nothing of its candidate, of letters alone."""
    digest = hashlib.blake2b("\0".join([secret, *_name_parts(answer)]).encode("utf-8", "surrogatepass"), digest_size=6)
    return digest.hexdigest().translate(_LETTERS)


def _texts_of(answer: JudgeGrade, texts: tuple[str, str] | None) -> tuple[str, str]:
    question, answer_text = texts or (answer.question, answer.answer)
    if question or answer_text:
        return question, answer_text
    return answer.key.removeprefix(f"{answer.candidate}/") + (
        f", round {answer.round}" if answer.round is not None else ""
    ), ""


def _text_cell(text: str) -> str:
    return _LATER_FORMULA.sub(" ", spreadsheet_cell(text, lines=True))


def name_cell(text: str) -> str:
    """Return a key or a name as a cell that no spreadsheet computes; files of grades may have either form."""
    return spreadsheet_cell(text, lines=True)


def _grade_lines(path: Path) -> Iterator[tuple[Path, int, Raw]]:
    """The lines of a file of grades with file and line, those of a file for people under the names of its key file.

    :raises DatasetError: a line, or the key file, cannot be read, or an id is not in it.
    """
    if not _has_ids_only(path):
        yield from ((path, line, raw) for line, raw in _read_rows(path, ("key", "grade")))
        return
    beside = key_file(path)
    if not beside.exists():
        message = f"says by 'id' what is graded, and {beside.name}, which was written with it, says whose answers these"
        raise DatasetError(f"{message} are; put that file beside it under this name", path=str(path))
    rows_by_id: dict[str, tuple[int, Raw]] = {}
    for line, raw in _read_rows(beside, ("id", "key", "grade")):
        rows_by_id[str(raw.get("id"))] = line, raw
    graded: dict[str, tuple[Path, int, Raw]] = {}
    for line, raw in _read_rows(path, ("id", "grade")):
        id_ = str(raw.get("id")).strip()
        if id_ in graded:
            message = f"{preview(id_)} is graded in line {graded[id_][1]} already; keep one of them"
            raise DatasetError(message, path=str(path), line=line, field="id")
        if id_ not in rows_by_id:
            message = f"{preview(id_)} is not in {beside.name}; give the file that was written with it"
            raise DatasetError(message, path=str(path), line=line, field="id")
        graded[id_] = path, line, {**rows_by_id[id_][1], "grade": raw.get("grade")}
    ungraded = [(beside, line, raw) for id_, (line, raw) in rows_by_id.items() if id_ not in graded]
    yield from (row for row in ungraded if row[2].get("grade") not in (None, ""))  # they were made before
    yield from graded.values()
    yield from (row for row in ungraded if row[2].get("grade") in (None, ""))


def _has_ids_only(path: Path) -> bool:
    first = next((raw for _, raw in _read_rows(path)), None)
    return first is not None and "id" in first and "key" not in first


def _read_rows(path: Path, required: Sequence[str] = ()) -> Iterator[tuple[int, Raw]]:
    """The records of a file of grades with their lines; tables as spreadsheet programs save them.

    :raises DatasetError: a record, or the file, cannot be read.
    """
    if path.suffix.lower() in _SHEETS:
        require_regular_file(path)
        yield from read_spreadsheet(path, required)
        return
    for line, raw in read_records(path, required=required):
        if isinstance(raw, DatasetError):
            raise raw
        yield line, raw


def _matching_answer(
    raw: Mapping[str, Any], indices: Mapping[AnswerName, Sequence[int]], answers: GradedAnswers
) -> int:
    key, round_ = text_field(raw, "key"), parse_round(raw)
    if round_ is None and answers.rounds:
        raise FieldError("round", f"is missing; {answers.source} has rounds, and so needs each grade")
    if round_ is not None and not answers.rounds:
        raise FieldError("round", f"{answers.source} has no rounds; leave the field out of all lines")
    matches = indices.get((key, round_), ())
    candidate = record_id(raw, "candidate")
    if candidate is not None:
        matches = [
            index for index in matches if candidate in ((name := answers.answers[index].candidate), name_cell(name))
        ]
    description = preview(key) + (f", round {round_}" if round_ is not None else "")
    if not matches:
        candidate_text = f" by {preview(candidate)}" if candidate is not None else ""
        near = get_close_matches(key, {key_ for key_, _ in indices}, n=1) or [name for name, _ in indices][:1]
        hint = f"; it has {preview(near[0])}" if near and near[0] != key else ""
        raise FieldError("key", f"{answers.source} has no graded answer {description}{candidate_text}{hint}")
    if len(matches) > 1:
        raise FieldError("candidate", f"is missing; {answers.source} has {description} by several candidates")
    return matches[0]


def _parse_grade(raw: Mapping[str, Any], answers: GradedAnswers) -> float | None:
    return _parse_value(raw, "grade", answers.passes, answers.low, answers.high)


def _parse_value(raw: Mapping[str, Any], name: str, passes: bool, low: float, high: float) -> float | None:
    value = raw.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    number = finite_number(value)
    if passes:
        passed = parse_pass(value) if number is None else number
        if passed not in (0.0, 1.0):
            raise FieldError(name, f"expected pass or fail, found {preview(value)}")
        return passed
    if number is None or not low <= number <= high:
        raise FieldError(name, f"expected a number{_range_text(low, high)}, found {preview(value)}")
    return number


def _range_text(low: float, high: float) -> str:
    return f" from {low:g} to {high:g}" if math.isfinite(high - low) else ""


def _parse_probability(raw: Mapping[str, Any]) -> float | None:
    value = raw.get("probability")
    if value is None or value == "":
        return None
    number = finite_number(value)
    if number is None or not 0.0 < number <= 1.0:
        raise FieldError("probability", f"expected a number above 0 and at most 1, found {preview(value)}")
    return number


def _is_excluded(raw: Mapping[str, Any]) -> bool:
    value = raw.get("chosen")
    if value is None or value == "":
        return False
    is_chosen = {"yes": True, "no": False, True: True, False: False}.get(
        value.lower() if isinstance(value, str) else value
    )
    if is_chosen is None:
        raise FieldError("chosen", f"expected yes or no, found {preview(value)}")
    return not is_chosen


def _score_text(value: float, answers: GradedAnswers) -> str:
    if answers.passes:
        return "pass" if value else "fail"
    return repr(int(value)) if value == int(value) else repr(value)


def candidates_of(answers: Iterable[JudgeGrade]) -> list[str]:
    """The candidates in the order in which they are first met."""
    return list(dict.fromkeys(answer.candidate for answer in answers))
