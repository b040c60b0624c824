"""The grading folder of a round whose answers are collected: questions by their rubrics, answers, graders.

What never belongs here: drawing and asking questions (``rounds``, ``collect``), and grades.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from viva.engine import seeds
from viva.engine.errors import ConfigurationError
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.orchestration.grading.records import Answer, Label, Question, Said
from viva.orchestration.grading.schema import FILE as GRADES
from viva.orchestration.grading.store import GradeStore
from viva.scenarios.models import label_of

from ..bank_rows import Pair
from ..project import digest_of
from ..scenario import CANDIDATE
from .rounds import Drawn, Round

_MAKING = "making"  # where the grading folder is made, before it stands whole in its place


def make_grading_folder(drawn: Drawn, held_back: Mapping[str, str] | None = None) -> int:
    """Make the grading folder of a round whose answers are collected; how many questions lack an answer.

    It stands whole or not at all, also after a kill. Graders that are ``held_back`` are paused, with the reason.

    :raises ConfigurationError: nothing was collected.
    """
    given, labels = _collected(drawn.answers)
    questions = _questions(drawn, given)
    if not questions:
        raise ConfigurationError(f"{drawn.answers}: holds no answer to grade")
    making = drawn.path / _MAKING
    for leftover in making.glob(f"{GRADES}*"):
        leftover.unlink()
    seed = seeds.derive(drawn.record.seed, "round", drawn.record.name)
    title = f"{drawn.record.title}: {drawn.record.name}"
    with GradeStore.create(making, questions, title=title, seed=seed, about=_about(drawn, given)) as store:
        for one in drawn.record.graders:
            role: Any = one["role"]
            grader = store.add_grader(one["name"], role=role)
            if held_back and one["name"] in held_back:
                store.set_state(grader.number, "paused", f"deployment gate: {held_back[one['name']]}")
    with closing(sqlite3.connect(making / GRADES)) as connection:  # one file, without a log beside it
        connection.execute("pragma journal_mode = delete")
    os.replace(making / GRADES, drawn.path / GRADES)
    making.rmdir()
    return sum(len(given.get(pair.id, {})) < len(labels) for pair in drawn.pairs)


def _collected(run: Path) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """The answers of a run by question and candidate, a text for each round; and the candidates."""
    folder = RunFolder.open(run)
    labels = list(folder.manifest["models"][CANDIDATE])
    found: dict[str, dict[str, list[str]]] = {}
    with History(folder.journal) as history:
        for ended in history.ended():
            if not ended.failed and ended.result["answers"]:
                found.setdefault(ended.result["task"], {})[label_of(ended.key, labels)] = ended.result["answers"]
    return found, labels


def _questions(drawn: Drawn, given: Mapping[str, Mapping[str, list[str]]]) -> list[Question]:
    """All questions, gold ones among them, in an order that says nothing."""
    record = drawn.record
    overlap = None if record.kind == "trial" else record.overlap
    found = [
        _question(record, pair, overlap, [Answer(label, _turns(pair, said)) for label, said in given[pair.id].items()])
        for pair in drawn.pairs
        if pair.id in given
    ]
    for pair in drawn.gold:
        answers = [
            Answer(f"gold {number}", [Said("assistant", one.answer)], expected=float(one.grade))
            for number, one in enumerate(pair.gold, 1)
        ]
        question = _question(record, pair, None, answers)
        question.id, question.gold = f"{pair.id} (gold)", True
        found.append(question)
    return sorted(found, key=lambda one: seeds.uniform(record.seed, "order", one.id))


def _question(record: Round, pair: Pair, overlap: int | None, answers: list[Answer]) -> Question:
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


def _turns(pair: Pair, said: Iterable[str]) -> list[Said]:
    """An answer as graders see it: of several rounds the whole conversation behind the first question."""
    turns: list[Said] = []
    for number, text in enumerate(said):
        if number:
            turns.append(Said("user", pair.question[number]))
        turns.append(Said("assistant", text))
    return turns


def _about(drawn: Drawn, given: Mapping[str, Mapping[str, list[str]]]) -> dict[str, Any]:
    """What analyses of the grading folder need to know of the round."""
    record = drawn.record
    return {
        "project": record.title,
        "round": record.name,
        "kind": record.kind,
        "rubric": record.rubric,
        "weights": {path: one.weight for path, one in record.dimensions.items()},
        "priority": record.priority,
        "domains": {pair.id: pair.domain for pair in drawn.pairs if pair.domain},
        "rules": record.rules,
        "training": record.training,
        "versions": {pair.id: pair.version() for pair in drawn.pairs},
        "responses": {
            name: {label: digest_of(said) for label, said in sorted(answers.items())}
            for name, answers in sorted(given.items())
        },
    }
