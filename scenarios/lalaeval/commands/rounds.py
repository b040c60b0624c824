"""A round of a project: what was drawn and by which rubric, kept beside the answers, and the grading folder made of it.

What is drawn is written down before the first answer, so the same command goes on with it whatever happened to the bank
since. What never belongs here: the command line, and grades.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from viva.engine import seeds
from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically
from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.orchestration.grading.records import Answer, Label, Question, Said
from viva.orchestration.grading.schema import FILE as GRADES
from viva.orchestration.grading.store import GradeStore
from viva.scenarios.models import label_of

from ..bank import Bank
from ..bank_rows import Pair
from ..drawing import draw, draw_gold
from ..project import Project, digest_of
from ..project_file import Counts
from ..scenario import CANDIDATE

Kind = Literal["evaluation", "trial"]
ANSWERS = "answers"
QUESTIONS = "questions.jsonl"
_GOLD = "gold.jsonl"
_ROUND = "round.json"
_MAKING = "making"  # where the grading folder is made, before it stands whole in its place


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Criteria(_Part):
    """What graders of one dimension went by."""

    weight: float
    grades: dict[int, str]
    principle: str = ""


class Round(_Part):
    """``round.json``: how a round was drawn, and what of the project held then."""

    name: str
    kind: Kind
    title: str
    seed: int
    day: date
    n: int | None = None
    quota: dict[str, Counts] | None = None
    overlap: int
    rubric: dict[str, Any]
    dimensions: dict[str, Criteria]
    priority: dict[str, str]
    graders: list[dict[str, str]]
    rules: dict[str, Any]
    training: dict[str, Any]


@dataclass(slots=True)
class Drawn:
    """A round as it lies on disk: its record, its questions, and those with gold answers."""

    path: Path
    record: Round
    pairs: list[Pair]
    gold: list[Pair] = field(default_factory=list)

    @property
    def answers(self) -> Path:
        """The run folder of the collected answers."""
        return self.path / ANSWERS

    @property
    def questions(self) -> Path:
        """The file of the drawn questions."""
        return self.path / QUESTIONS


def draw_round(
    project: Project,
    bank: Bank,
    name: str,
    *,
    kind: Kind = "evaluation",
    seed: int | None = None,
    n: int | None = None,
    quota: Mapping[str, Counts] | None = None,
    day: date,
) -> Drawn:
    """Draw a new round's questions and write them down. Without ``n`` and ``quota`` the project's quota counts.

    :raises ConfigurationError: there are not enough questions, or the round cannot be written.
    """
    seed = project.file.seed if seed is None else seed
    wanted = dict(quota or {}) or (project.quota() if n is None else {})
    accepted = [entry.pair for entry in bank.entries("accepted")]
    pairs = draw(accepted, seed, day, n=n, quota=wanted)
    gold = draw_gold(accepted, pairs, project.file.gold, seed, day)
    file, rubrics = project.file, bank.rubrics()
    record = Round(
        name=name,
        kind=kind,
        title=file.title,
        seed=seed,
        day=day,
        n=n,
        quota=wanted or None,
        overlap=file.overlap,
        rubric={"digest": rubrics[-1].digest, "version": rubrics[-1].number},
        dimensions={
            path: Criteria(weight=one.weight, grades=dict(one.grades), principle=one.principle)
            for path, one in project.dimensions.items()
        },
        priority={path: priority for path, priority in project.domains.items() if priority},
        graders=[one.model_dump() for one in file.graders],
        rules=file.disputes.model_dump(mode="json"),
        training=file.training.model_dump(mode="json"),
    )
    drawn = Drawn(project.round(name), record, pairs, gold)
    try:
        drawn.path.mkdir(parents=True, exist_ok=True)
        write_atomically(drawn.path / QUESTIONS, _lines(pairs))
        write_atomically(drawn.path / _GOLD, _lines(gold))
        # The last of all: where it stands, the round was drawn.
        written = orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
        write_atomically(drawn.path / _ROUND, written + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{drawn.path}: cannot be written: {error.strerror}") from None
    return drawn


def is_drawn(path: Path) -> bool:
    """Whether a round was drawn here."""
    return (path / _ROUND).is_file()


def open_round(path: Path) -> Drawn:
    """A round that was drawn.

    :raises ConfigurationError: there is none, or its files were changed by hand.
    """
    file = path / _ROUND
    try:
        record = Round.model_validate_json(file.read_bytes())
        pairs, gold = (
            [Pair.from_record(orjson.loads(line)) for line in (path / name).read_bytes().splitlines()]
            for name in (QUESTIONS, _GOLD)
        )
    except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
        said = str(error).splitlines()[0]
        raise ConfigurationError(f"{file}: cannot be read as a round: {said}; restore it from a copy") from None
    return Drawn(path, record, pairs, gold)


def check_same(drawn: Drawn, kind: Kind, seed: int | None, n: int | None, quota: Mapping[str, Counts] | None) -> None:
    """See that a round that goes on was drawn as is asked for now; what is not given is not compared.

    :raises ConfigurationError: it was drawn otherwise.
    """
    record = drawn.record
    compared: list[tuple[str, Any, Any]] = [
        ("--seed", record.seed, seed), ("-n", record.n, n), ("--quota", record.quota, dict(quota or {}) or None)
    ]  # fmt: skip
    different = [f"{name} was {then}" for name, then, now in compared if now is not None and now != then]
    if record.kind != kind:
        different.append(f"it is {'a trial' if record.kind == 'trial' else 'no trial'}")
    if different:
        raise ConfigurationError(
            f"round {record.name} was drawn otherwise ({', '.join(different)}); name another one with --round"
        )


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


def _lines(pairs: Iterable[Pair]) -> bytes:
    return b"".join(orjson.dumps(pair.to_record(), option=orjson.OPT_APPEND_NEWLINE) for pair in pairs)
