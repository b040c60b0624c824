"""A judge's scores and people's grades of the same answers: reading them, joining them, listing answers to grade."""

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

# Columns of a file of scores that are no covariates.
_KNOWN_COLUMNS = ("key", "score", "round", "candidate", "item", "question", "answer")
_PASS_WORDS = {"pass": 1.0, "fail": 0.0, "true": 1.0, "false": 0.0}


@dataclass(slots=True, frozen=True)
class GradedAnswers:
    """Answers that a judge was asked about, including unscored ones (score None).

    `low` and `high` are infinite if the scale is unknown. `passes`: scores are 1 (pass) or 0 (fail). `rounds`: each
    answer is one round of an interview.
    """

    source: Path
    answers: list[JudgeGrade]
    low: float
    high: float
    passes: bool
    rounds: bool

    @property
    def unscored(self) -> int:
        """Number of answers without a score."""
        return sum(answer.score is None for answer in self.answers)


def read_graded_answers(
    source: Path,
    *,
    by_round: bool,
    scale: tuple[float, float] | None = None,
    purpose: str = "labels",
    need_scores: bool = True,
) -> GradedAnswers:
    """Return the answers in a run folder, or in a CSV, TSV or JSONL file of scores, with the judge's scores.

    `by_round` selects a run's rounds instead of its conversations; the lines of a file say by themselves what they are.
    `scale` has the ends of the scale for scores that do not have their own, as in a file. `purpose` names the source of
    `by_round` in error messages. Without `need_scores`, a run needs no scored answer, and its judge need not have been
    asked about an answer.

    Raises:
        ConfigurationError: The folder is not a run, its scenario has no grades of this kind, or nothing is graded.
        DatasetError: A line of the file is wrong; the message names it.
    """
    if source.is_file() or source.suffix in DATA_SUFFIXES:
        return _read_score_file(source, scale)
    folder = RunFolder.open(source)
    scenario, settings = recorded_settings(folder)
    grading = grade_reader(scenario, settings, by_round=by_round)
    if grading is None:
        if by_round and grade_reader(scenario, settings) is not None:
            raise ConfigurationError(
                f"{source}: a run of {scenario.name} is graded as a whole; remove 'round' from the {purpose}"
            )
        kind = "rounds" if by_round else "answers"
        raise ConfigurationError(f"{source}: a run of {scenario.name} under these settings has no graded {kind}")
    low, high = grading.low, grading.high
    if scale is not None:
        if math.isfinite(high - low):
            raise ConfigurationError(
                f"--scale: {source} is a run with its own scale, {low:g} to {high:g}; remove the option"
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
        raise ConfigurationError(f"{source}: the judge has scored no answer of this run")
    beyond = next(
        (answer.score for answer in answers if answer.score is not None and not low <= answer.score <= high), None
    )
    if beyond is not None:
        raise ConfigurationError(f"{source}: has a score of {beyond:g}, outside of {low:g} to {high:g}")
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
                raise FieldError("score", "the file mixes pass or fail with numbers; use one of them")
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
        raise DatasetError("contains no score; expected rows of key and score", path=str(path))
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
    """Return (score, True if the score is pass or fail); (None, None) without a score."""
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
    """Return 1 for pass, 0 for fail; None for anything else."""
    if isinstance(value, bool):
        return float(value)
    return _PASS_WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def finite_number(value: Any) -> float | None:
    """Return the finite number in a cell or JSON value; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def parse_round(raw: Mapping[str, Any]) -> int | None:
    """Return the round, counted from 1; None if no round is given.

    Raises:
        FieldError: The round is not a whole number from 1.
    """
    value = raw.get("round")
    if value is None or value == "":
        return None
    number = finite_number(value)
    if number is None or number != int(number) or number < 1:
        raise FieldError("round", f"expected a whole number of at least 1, found {preview(value)}")
    return int(number)


AnswerName = tuple[str, int | None]
# Suffixes that spreadsheet programs use for tables; .txt is UTF-16 text with tabs.
_SHEETS = (".csv", ".tsv", ".txt")
# Spreadsheet programs convert an id to a number if it consists of digits, or of digits around an e.
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
# Beginning of a formula in programs that separate columns by semicolons.
_LATER_FORMULA = re.compile(r"(?<=[\n;])(?=[=+\-@＝＋－＠])")


@dataclass(slots=True)
class HumanGrades:
    """Grades of people by the index of the answer in `GradedAnswers.answers`, in file order.

    `probabilities` has the probability of each answer to be selected for grading, even if it has no grade. It is empty
    if the file has no probabilities; then all are equal. `waiting` counts lines without a grade of answers that are
    selected, `on_unscored` counts grades of answers without a score. `chosen` are the answers selected for grading,
    with or without a grade.
    """

    grades: dict[int, float] = field(default_factory=dict)
    probabilities: dict[int, float] = field(default_factory=dict)
    waiting: int = 0
    on_unscored: int = 0
    chosen: list[int] = field(default_factory=list)


def has_rounds(path: Path) -> bool:
    """Return True if the grades in a file are grades of rounds: its first record has a round."""
    for _, _, raw in _grade_lines(path):
        return raw.get("round") not in (None, "")
    raise DatasetError("contains no grade; expected rows of key and grade", path=str(path))


def read_grades(path: Path, answers: GradedAnswers, *, unfinished: bool = False) -> HumanGrades:
    """Return the grades of a file, joined to answers by key, by round if rounds are graded, and by candidate if given.

    With `unfinished`, grades may be missing.

    Raises:
        DatasetError: A grade matches no answer or several, is duplicated or out of range; only some grades have a
            probability; or a selected answer with a known probability has no grade. The error names file, line and
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
                raise FieldError("chosen", "is no, but there is a grade; grade only chosen answers, or set it to yes")
            if probability is None:
                unweighted = unweighted or line
            if answers.answers[index].score is None:
                grades.on_unscored += 1
                continue
            grades.grades[index] = grade
        except FieldError as error:
            raise DatasetError(str(error), path=str(file), line=line, field=error.field) from None
    if grades.probabilities and unweighted:
        message = "is missing, although other grades have one; give it for all, or for none if all were drawn evenly"
        raise DatasetError(message, path=str(path), line=unweighted, field="probability")
    if grades.probabilities and waiting and not unfinished:
        message = (
            "is empty, although the answer was chosen; probabilities are valid only once all chosen answers are graded"
        )
        message += f": {grades.waiting} still to grade"
        raise DatasetError(message, path=str(path), line=waiting, field="grade")
    if not grades.grades and not unfinished:
        raise DatasetError("contains no grade of an answer with a score", path=str(path))
    return grades


def calibration_pairs(path: Path, passes: bool, low: float, high: float) -> list[tuple[float, float]]:
    """Return the pairs of a calibration: (judge's score, person's grade) of the same answer.

    Raises:
        DatasetError: A score or grade is missing or out of range; the error names the line.
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
        raise DatasetError("contains no pair of score and grade", path=str(path))
    return pairs


def key_file(path: Path) -> Path:
    """Return the path of the key file: the identities of the answers that the file at `path` lists by id."""
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
    """Write the answers to be graded by people, in random order, and next to this file the key file.

    People see an id, question and answer, and an empty grade. Keys, candidates, scores, probabilities and earlier
    grades of all answers are in `key_file`. `texts` has (question, answer) by index; an answer without texts is shown
    by its key.

    Raises:
        ConfigurationError: A file cannot be written.
    """
    secret = repr(
        (seed, [answer.score for answer in answers.answers])
    )  # graders cannot derive the ids from what they know
    ids = {index: _blind_id(answers.answers[index], secret) for index in probabilities}
    order = sorted(chosen, key=ids.__getitem__)
    pages = [[ids[index], *map(_text_cell, _texts_of(answers.answers[index], texts.get(index))), ""] for index in order]
    write_table(path, ["id", "question", "answer", "grade"], pages, mark=True, option="--out ")

    columns = ["id", "key", *(["round"] if answers.rounds else []), "candidate", "score"]
    columns += ["probability", "chosen", "grade"]
    listed_indices = set(order)
    unlisted = [index for index in probabilities if index not in listed_indices and index not in earlier.grades]
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
    """Return an answer's id, made of letters; it reveals nothing about the candidate."""
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
    """Return a key or a name as a cell that no spreadsheet evaluates; files of grades may have the name or the cell."""
    return spreadsheet_cell(text, lines=True)


def _grade_lines(path: Path) -> Iterator[tuple[Path, int, Raw]]:
    """Yield (file, line, record) for each record of a file of grades; the key file resolves ids.

    Raises:
        DatasetError: A line or the key file cannot be read, or an id is not in the key file.
    """
    if not _has_ids_only(path):
        yield from ((path, line, raw) for line, raw in _read_rows(path, ("key", "grade")))
        return
    keys_path = key_file(path)
    if not keys_path.exists():
        message = f"identifies answers by 'id'; the file that resolves them, {keys_path.name}, is missing"
        raise DatasetError(f"{message}: put it in the same folder", path=str(path))
    rows_by_id: dict[str, tuple[int, Raw]] = {}
    for line, raw in _read_rows(keys_path, ("id", "key", "grade")):
        rows_by_id[str(raw.get("id"))] = line, raw
    rows: dict[str, tuple[Path, int, Raw]] = {}
    for line, raw in _read_rows(path, ("id", "grade")):
        id_ = str(raw.get("id")).strip()
        if id_ in rows:
            message = f"{preview(id_)} is graded in line {rows[id_][1]} already; keep one of them"
            raise DatasetError(message, path=str(path), line=line, field="id")
        if id_ not in rows_by_id:
            message = f"{preview(id_)} is not in {keys_path.name}; use the file that was written with it"
            raise DatasetError(message, path=str(path), line=line, field="id")
        rows[id_] = path, line, {**rows_by_id[id_][1], "grade": raw.get("grade")}
    ungraded = [(keys_path, line, raw) for id_, (line, raw) in rows_by_id.items() if id_ not in rows]
    yield from (row for row in ungraded if row[2].get("grade") not in (None, ""))  # it was graded earlier
    yield from rows.values()
    yield from (row for row in ungraded if row[2].get("grade") in (None, ""))


def _has_ids_only(path: Path) -> bool:
    first = next((raw for _, raw in _read_rows(path)), None)
    return first is not None and "id" in first and "key" not in first


def _read_rows(path: Path, required: Sequence[str] = ()) -> Iterator[tuple[int, Raw]]:
    """Yield (line, record) for each record of a file of grades; spreadsheet programs may have saved the file.

    Raises:
        DatasetError: A record or the file cannot be read.
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
        raise FieldError("round", f"is missing; {answers.source} has rounds, so each grade needs one")
    if round_ is not None and not answers.rounds:
        raise FieldError("round", f"{answers.source} has no rounds; remove the field from all lines")
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
    """Return the candidates in order of first appearance."""
    return list(dict.fromkeys(answer.candidate for answer in answers))
