"""Grades of a queue as the files that other commands read: human grades of a run's answers, and ratings by grader.

What never belongs here: reading such files (``human_grades``), statistics.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically

from ..graded_answers import GradedAnswers
from ..human_grades import name_cell, read_grades
from .from_run import Chosen, Place, What, place_of, run_questions
from .records import Answer, Question
from .store import GradeStore

_ROWS = "rows"


def chosen_by(path: Path, answers: GradedAnswers) -> Chosen:
    """The answers that a list of ``viva judge certify --next`` asks to have graded, with all probabilities.

    :raises DatasetError: a line of the list is wrong; the message names it.
    :raises ConfigurationError: everything that was chosen has a grade.
    """
    grades = read_grades(path, answers, unfinished=True)
    named = {place: place_of(one) for place, one in enumerate(answers.answers)}
    places = {named[place] for place in grades.chosen if place not in grades.grades}
    if not places:
        raise ConfigurationError(f"{path}: no answer is left to grade; draw more with viva judge certify --next")
    return Chosen(
        places,
        {named[place]: probability for place, probability in grades.probabilities.items()},
        {named[place]: grade for place, grade in grades.grades.items()},
    )


def texts_of(answers: GradedAnswers, places: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Return question and answer of these answers of a run, as graders may see them; nothing of a file of scores.

    :raises ConfigurationError: a conversation cannot be shown, with the reason.
    """
    if not answers.source.is_dir():
        return {}
    named = {place_of(answers.answers[place]): place for place in places}
    what: What = "rounds" if answers.rounds else "conversations"
    found: dict[int, tuple[str, str]] = {}
    for question in run_questions(answers.source, answers, what, Chosen(set(named)), overlap=1, labels=()):
        asked = "\n\n".join([*(f"{said.role}: {said.text}" for said in question.context), question.text])
        for answer in question.answers:
            turns = [said.text if len(answer.turns) == 1 else f"{said.role}: {said.text}" for said in answer.turns]
            found[named[answer.candidate, answer.key, answer.round]] = asked, "\n\n".join(turns)
    return found


def remember(store: GradeStore, answers: GradedAnswers, chosen: Chosen | None) -> None:
    """Keep in a grading folder what is needed to write its grades for the run that its answers are of."""
    rows = []
    for one in answers.answers:
        place = place_of(one)
        asked = chosen is None or place in chosen.places
        probability = None if chosen is None else chosen.probabilities.get(place)
        rows.append([*place, one.score, probability, asked, None if chosen is None else chosen.grades.get(place)])
    store.set_meta(_ROWS, {"passes": answers.passes, "rounds": answers.rounds, "rows": rows})


def write_labels(store: GradeStore, path: Path) -> tuple[int, int]:
    """Write the people's grades for ``viva judge certify``: how many there are, and how many answers have none yet.

    An answer's grade is the adjudicator's, else the mean of its graders'; of pass and fail the majority, none where
    they tie.

    :raises ConfigurationError: the folder's questions are of no run, or the file cannot be written.
    """
    kept = store.meta(_ROWS)
    if kept is None:
        raise ConfigurationError(f"{store.folder}: its questions are of no run, so there is nothing to certify")
    given = _given(store)
    columns = ["key", *(["round"] if kept["rounds"] else []), "candidate", "score", "probability", "chosen", "grade"]
    lines: list[list[str]] = []
    graded = waiting = 0
    for candidate, key, round_, score, probability, asked, before in kept["rows"]:
        grade = before if before is not None else _grade(given.get((candidate, key, round_), []), kept["passes"])
        graded += grade is not None
        waiting += asked and grade is None
        if probability is None and grade is None:
            continue
        cells = [
            name_cell(key),
            *([str(round_)] if kept["rounds"] else []),
            name_cell(candidate),
            _cell(score, kept["passes"]),
        ]
        said = "yes" if asked or before is not None else "no"
        lines.append([*cells, "" if probability is None else repr(probability), said, _cell(grade, kept["passes"])])
    _write(path, columns, lines)
    return graded, waiting


def write_ratings(store: GradeStore, path: Path) -> int:
    """Write each grader's grades as a column, for ``viva meta``: how many rows there are.

    :raises ConfigurationError: nobody has graded, or the file cannot be written.
    """
    kept = store.meta(_ROWS)
    people = [one for one in store.graders() if one.kind == "person"]
    said: dict[tuple[str, int], float] = {
        (grade.answer, grade.grader): grade.value
        for grade in store.grades()
        if grade.value is not None and not grade.invalid
    }
    voices = [one for one in people if any(grader == one.number for _, grader in said)]
    if not voices:
        raise ConfigurationError(f"{store.folder}: nobody has graded yet")
    rounds = kept is not None and kept["rounds"]
    columns = ["item", "system", *(["turn"] if rounds else []), *(f"grader {one.number}" for one in voices)]
    lines: list[list[str]] = []
    for question, answer in _answers(store):
        cells = [_shown(said.get((answer.id, one.number))) for one in voices]
        if any(cells):
            item = answer.key.removeprefix(f"{answer.candidate}/") if answer.key else question.id
            lines.append(
                [name_cell(item), name_cell(answer.candidate), *([str(answer.round)] if rounds else []), *cells]
            )
    _write(path, columns, lines)
    return len(lines)


def _answers(store: GradeStore) -> Sequence[tuple[Question, Answer]]:
    return [(one, answer) for one in store.questions() if not one.invalid for answer in one.answers]


def _given(store: GradeStore) -> dict[Place, list[float]]:
    """The people's grades of each answer; an adjudicator's alone where there is one."""
    people = {one.number for one in store.graders() if one.kind == "person"}
    by_answer: dict[str, list[float]] = {}
    for grade in store.grades():
        if grade.grader in people and grade.value is not None and not grade.invalid:
            by_answer.setdefault(grade.answer, []).append(grade.value)
    by_answer |= {name: [decision.value] for name, decision in store.decisions().items()}
    return {(answer.candidate, answer.key, answer.round): by_answer.get(answer.id, []) for _, answer in _answers(store)}


def _grade(values: Sequence[float], passes: bool) -> float | None:
    if not values:
        return None
    mean = sum(values) / len(values)
    if not passes:
        return mean
    return None if mean == 0.5 else float(mean > 0.5)


def _cell(value: Any, passes: bool) -> str:
    if value is None:
        return ""
    return ("pass" if value else "fail") if passes else _shown(value)


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return repr(int(value)) if value == int(value) else repr(value)


def _write(path: Path, columns: list[str], lines: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *lines])
    try:
        write_atomically(path, text.getvalue().encode())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None
