"""Grading folder of a round: made from collected answers, read as a graded round; and the gate after trials."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from viva.data.record_files import read_records
from viva.engine import seeds
from viva.engine.errors import ConfigurationError, DatasetError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.grading.disputes import read_grade_table
from viva.grading.records import Answer, Label, Question, Turn
from viva.grading.store import GRADES_FILE, GradeStore
from viva.grading.store import GRADES_FILE as GRADES
from viva.scoring.dispute_criteria import DisputeCriteria
from viva.scoring.graders import GradeTable

from ...models import label_of_key
from ..graded_round import GoldGrade, GradedRound, GraderConsistency, RoundCounts, Versions, grader_consistency
from ..project import Project, short_digest
from ..question_bank import Pair
from ..rounds import Round, RoundRecord, is_round, open_round
from ..scenario import CANDIDATE

_COUNT_GRADES = (
    "select count(*) from grades r join answers a on a.id = r.answer join questions q on q.number = a.question"
)
_COUNT_ANSWERS = "select count(*) from answers a join questions q on q.number = a.question"
_VALID_QUESTIONS = "where q.gold = 0 and q.invalid = ''"
_COUNT_QUERIES = {
    "questions": f"select count(*) from questions q {_VALID_QUESTIONS}",
    "invalid_questions": "select count(*) from questions where gold = 0 and invalid != ''",
    "gold_questions": "select count(*) from questions where gold = 1",
    "answers": f"{_COUNT_ANSWERS} {_VALID_QUESTIONS}",
    "grades": f"{_COUNT_GRADES} {_VALID_QUESTIONS} and r.invalid = '' and r.value is not null",
    "taken_back": f"{_COUNT_GRADES} {_VALID_QUESTIONS} and r.invalid = '' and r.value is null",
    "invalid": f"{_COUNT_GRADES} where q.gold = 0 and (r.invalid != '' or q.invalid != '') and r.value is not null",
    "decided": f"{_COUNT_ANSWERS} join decisions d on d.answer = a.id {_VALID_QUESTIONS}",
}
# Grades that people still owe: for each answer the overlap minus the people who graded it.
_MISSING_GRADES = """
select coalesce(sum(max(0, overlap - people)), 0) from (
    select q.overlap as overlap, (
        select count(*) from grades r join graders g on g.number = r.grader
        where r.answer = a.id and r.value is not null and g.kind = 'person') as people
    from answers a join questions q on q.number = a.question
    where q.gold = 0 and q.invalid = '' and q.overlap is not null)
"""
_GOLD_GRADES = """
select q.id, a.id, g.name, r.value, a.record
from grades r join answers a on a.id = r.answer join questions q on q.number = a.question
join graders g on g.number = r.grader
where q.gold = 1 and q.invalid = '' and r.invalid = '' and r.value is not null
order by q.number, a.id, g.number
"""
_DECISIONS = """
select q.id, a.candidate, d.value from decisions d join answers a on a.id = d.answer
join questions q on q.number = a.question where q.gold = 0 and q.invalid = '' order by q.number, a.candidate
"""


def read_round(folder: Path, rules: Path | None = None, tags: Path | None = None) -> GradedRound:
    """Read the round of a grading folder.

    `rules` is a Python file whose functions decide what is in dispute; `tags` is a file with the columns question,
    candidate and same.

    Raises:
        ConfigurationError: It is not a grading folder, its rules are invalid, or the file of rules cannot be used.
        DatasetError: A row of the tags cannot be read.
    """
    with GradeStore.open(folder) as store:
        about = store.meta("about") or {}
        criteria = DisputeCriteria.from_rules(about.get("rules"))
        connection = store.connection
        counts = {name: int(connection.execute(sql).fetchone()[0]) for name, sql in _COUNT_QUERIES.items()}
        original = read_grade_table(store, decided=False)
        decided = {(question, candidate): float(value) for question, candidate, value in connection.execute(_DECISIONS)}
        return GradedRound(
            title=store.meta("title") or folder.name,
            table=_apply_decisions(original, decided),
            original=original,
            name=about.get("round", ""),
            kind=about.get("kind", "evaluation"),
            decided=decided,
            gold=[
                GoldGrade(row[0], row[1], row[2], row[3], float(expected))
                for row in connection.execute(_GOLD_GRADES)
                if (expected := orjson.loads(row[4])["expected"]) is not None
            ],
            weights=about.get("weights") or {},
            rules=about.get("rules") or {},
            criteria=criteria if rules is None else criteria.with_file(rules),
            training=about.get("training") or {},
            rubric=about.get("rubric") or {},
            versions=Versions(about.get("versions") or {}, about.get("responses") or {}, read_tags(tags)),
            texts={
                name: orjson.loads(record)["text"]
                for name, record in connection.execute("select id, record from questions where gold = 0")
            },
            counts=RoundCounts(**counts, missing=int(connection.execute(_MISSING_GRADES).fetchone()[0])),
        )


def _apply_decisions(original: GradeTable, decided: Mapping[tuple[str, str], float]) -> GradeTable:
    """Return the table with every grade of a decided answer replaced by the decision, as `read_grade_table` does."""
    table = original.select(np.ones(len(original), dtype=np.bool_))
    questions = {name: at for at, name in enumerate(table.questions)}
    candidates = {name: at for at, name in enumerate(table.candidates)}
    decisions = {
        questions[question] * len(candidates) + candidates[candidate]: value
        for (question, candidate), value in decided.items()
        if question in questions and candidate in candidates
    }
    if decisions:
        keys, values = np.array(sorted(decisions)), np.array([decisions[key] for key in sorted(decisions)])
        own = table.question * len(candidates) + table.candidate
        at = np.searchsorted(keys, own).clip(max=len(keys) - 1)
        table.values = np.where(keys[at] == own, values[at], table.values)
    return table


def read_tags(file: Path | None) -> dict[tuple[str, str], bool]:
    """Return by (question, candidate) if a response is the same, and by (question, "") if the question is the same.

    Raises:
        DatasetError: A row has no question, or its `same` is neither yes nor no.
    """
    tags: dict[tuple[str, str], bool] = {}
    if file is None:
        return tags
    for line, record in read_records(file):
        if isinstance(record, DatasetError):
            raise record
        question, same = str(record.get("question") or "").strip(), str(record.get("same") or "").strip().lower()
        if not question or same not in ("yes", "no", "true", "false"):
            raise DatasetError("expected a question, and yes or no under 'same'", path=str(file), line=line)
        tags[question, str(record.get("candidate") or "").strip()] = same in ("yes", "true")
    return tags


def trial_results(project: Project) -> dict[str, tuple[str, GraderConsistency]]:
    """Return by grader the name of the last trial round with comparable grades of theirs, and their consistency in it.

    Raises:
        ConfigurationError: A trial round's files were changed by hand.
    """
    trials: list[RoundRecord] = []
    for path in filter(is_round, project.rounds()):
        record = open_round(path).record
        if record.kind == "trial" and (path / GRADES_FILE).is_file():
            trials.append(record)
    results: dict[str, tuple[str, GraderConsistency]] = {}
    for record in sorted(trials, key=lambda trial: trial.at):
        for result in grader_consistency(read_round(project.round(record.name)), project.file.training.threshold):
            if result.consistency is not None:
                results[result.grader] = record.name, result
    return results


def barred_graders(project: Project) -> dict[str, str]:
    """Return the graders who may not grade in evaluations, each with the reason.

    Adjudicators and admins need no trial.

    Raises:
        ConfigurationError: As `trial_results`.
    """
    results = trial_results(project)
    if not results:
        return {}
    threshold, reasons = project.file.training.threshold, {}
    for grader in project.file.graders:
        if grader.role != "grader":
            continue
        if grader.name not in results:
            reasons[grader.name] = "has not graded in a trial round"
            continue
        name, result = results[grader.name]
        assert result.consistency is not None
        if result.gate == "too few":
            reasons[grader.name] = f"only {result.answers} answers in round {name} can be compared"
        elif result.gate == "retrain":
            consistency = f"{result.consistency.value:.2f}"
            reasons[grader.name] = f"consistency {consistency} in round {name}, below the threshold {threshold:.2f}"
    return reasons


_UNFINISHED_FOLDER = "making"  # the grading folder is built here, then moved to its place


def make_grading_folder(round_: Round, held_back: Mapping[str, str] | None = None) -> int:
    """Make the grading folder of a collected round; return the number of questions that lack an answer.

    It is created completely or not at all, even after a kill. Graders that are `held_back` are paused, with the reason.

    Raises:
        ConfigurationError: Nothing was collected.
    """
    answers, labels = _read_answers(round_.answers)
    questions = _make_questions(round_, answers)
    if not questions:
        raise ConfigurationError(f"{round_.answers}: contains no answer to grade")
    making = round_.path / _UNFINISHED_FOLDER
    for leftover in making.glob(f"{GRADES}*"):
        leftover.unlink()
    seed = seeds.derive(round_.record.seed, "round", round_.record.name)
    title = f"{round_.record.title}: {round_.record.name}"
    with GradeStore.create(making, questions, title=title, seed=seed, about=_about_record(round_, answers)) as store:
        for entry in round_.record.graders:
            role: Any = entry["role"]
            grader = store.add_grader(entry["name"], role=role)
            if held_back and entry["name"] in held_back:
                store.set_state(grader.number, "paused", f"deployment gate: {held_back[entry['name']]}")
    with closing(sqlite3.connect(making / GRADES)) as connection:  # a single file without a write-ahead log
        connection.execute("pragma journal_mode = delete")
    os.replace(making / GRADES, round_.path / GRADES)
    making.rmdir()
    return sum(len(answers.get(pair.id, {})) < len(labels) for pair in round_.pairs)


def _read_answers(run: Path) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """Return the answers of a run by question and candidate, one text per round; and the candidates."""
    folder = RunFolder.open(run)
    labels = list(folder.manifest["models"][CANDIDATE])
    answers: dict[str, dict[str, list[str]]] = {}
    with History(folder.journal) as history:
        for ended in history.ended():
            if not ended.failed and ended.result["answers"]:
                answers.setdefault(ended.result["task"], {})[label_of_key(ended.key, labels)] = ended.result["answers"]
    return answers, labels


def _make_questions(round_: Round, answers_by_question: Mapping[str, Mapping[str, list[str]]]) -> list[Question]:
    """Return all questions, including gold ones, in random order."""
    record = round_.record
    overlap = None if record.kind == "trial" else record.overlap
    questions = [
        _make_question(
            record,
            pair,
            overlap,
            [Answer(label, _answer_turns(pair, texts)) for label, texts in answers_by_question[pair.id].items()],
        )
        for pair in round_.pairs
        if pair.id in answers_by_question
    ]
    for pair in round_.gold:
        answers = [
            Answer(f"gold {number}", [Turn("assistant", item.answer)], expected=float(item.grade))
            for number, item in enumerate(pair.gold, 1)
        ]
        question = _make_question(record, pair, None, answers)
        question.id, question.gold = f"{pair.id} (gold)", True
        questions.append(question)
    return sorted(questions, key=lambda question: seeds.uniform(record.seed, "order", question.id))


def _make_question(record: RoundRecord, pair: Pair, overlap: int | None, answers: list[Answer]) -> Question:
    criteria = record.dimensions[pair.dimension]
    return Question(
        id=pair.id,
        text=pair.question[0],
        labels=[Label(float(grade), meaning) for grade, meaning in sorted(criteria.grades.items())],
        answers=answers,
        dimension=pair.dimension,
        standard_answer=pair.standard_answer,
        principle=criteria.principle,
        difficulty=pair.difficulty,
        source=pair.source,
        overlap=overlap,
    )


def _answer_turns(pair: Pair, texts: Iterable[str]) -> list[Turn]:
    """Return an answer as graders see it: with several rounds, the whole conversation after the first question."""
    turns: list[Turn] = []
    for number, text in enumerate(texts):
        if number:
            turns.append(Turn("user", pair.question[number]))
        turns.append(Turn("assistant", text))
    return turns


def _about_record(round_: Round, answers_by_question: Mapping[str, Mapping[str, list[str]]]) -> dict[str, Any]:
    """Return what analyses of the grading folder need to know about the round."""
    record = round_.record
    return {
        "project": record.title,
        "round": record.name,
        "kind": record.kind,
        "rubric": record.rubric,
        "weights": {path: criteria.weight for path, criteria in record.dimensions.items()},
        "priority": record.priority,
        "domains": {pair.id: pair.domain for pair in round_.pairs if pair.domain},
        "rules": record.rules,
        "training": record.training,
        "versions": {pair.id: pair.version() for pair in round_.pairs},
        "responses": {
            name: {label: short_digest(texts) for label, texts in sorted(answers.items())}
            for name, answers in sorted(answers_by_question.items())
        },
    }
