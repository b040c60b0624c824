"""Files of grades, banks, rooms and load tests that are damaged: one line that names the file, never a traceback."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command import viva
from damaged_files import damages
from grade_projects import accepted, pair, project

from viva.engine.backends.human_queue import AnswerQueue, PendingQuestion
from viva.engine.clock import RealClock
from viva.engine.errors import VivaError
from viva.engine.messages import Message
from viva.grading.disputes import read_grade_table
from viva.grading.records import Answer, Label, Question, Turn
from viva.grading.store import GradeStore
from viva.loadtest.load_log import LoadHistory, LoadLog
from viva.loadtest.load_records import LoadStep
from viva.scenarios.lalaeval.question_bank import Bank


def _settled(file: Path) -> Path:
    """The file alone, without a log beside it."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma journal_mode = delete")
    return file


def _graded(folder: Path) -> Path:
    questions = [
        Question(
            id=f"q{number}",
            text=f"Why {number}?",
            labels=[Label(0.0, "wrong"), Label(1.0, "right")],
            answers=[Answer(name, [Turn("assistant", f"For {number}.")]) for name in ("a", "b")],
            dimension="facts",
        )
        for number in range(4)
    ]
    with GradeStore.create(folder, questions, title="Small") as store:
        graders = [store.add_grader("Ada", role="admin").number, store.add_grader("Ben").number]
        for question in store.questions():
            for at, answer in enumerate(question.answers):
                for grader in graders:
                    store.grade(grader, answer.id, float((grader + at) % 2), "well", submission=f"{answer.id} {grader}")
        store.decide(answer.id, graders[0], 1.0, "It is so.")
        store.log("Ada", "looked")
    return _settled(folder / "grades.sqlite")


def _read_grades(file: Path) -> None:
    with GradeStore.open(file.parent) as store:
        read_grade_table(store)
        for read in (store.grades, store.decisions, store.audit_log, store.graders):
            read()


def _bank(folder: Path) -> Path:
    accepted(folder, [pair(f"p{number}") for number in range(3)])
    return _settled(project(folder).bank)


def _read_bank(file: Path) -> None:
    with Bank.open(project(file.parent)) as bank:
        for entry in bank.entries():
            bank.history(entry.pair.id)
        bank.rubrics()


def _room(folder: Path) -> Path:
    with AnswerQueue(folder) as room:
        posed = PendingQuestion("c", "candidate", 0, b"digest", (Message("user", "Why?"),), 5)
        room.ask(posed, "asker")
        room.answer(posed.name, "submission", "So.", [("look", "{}")], "Ada")
    return _settled(folder / "room.sqlite")


def _read_room(file: Path) -> None:
    with AnswerQueue(file.parent) as room:
        for state in ("waiting", "answered"):
            for one in room.standings(state):
                room.request(one.name)
        room.answers_since(0)


def _load_log(folder: Path) -> Path:
    step = LoadStep(index=0, judges=("j",), arrivals="closed", concurrency=1)

    async def write() -> None:
        async with LoadLog(folder / "load.sqlite", RealClock()) as log:
            log.begin_step(step)
            log.begin_part(0, 0)
            log.end_part(0, 0, 1.5, {"cpu": 0.5})
            log.end_step(0, {"j": "all sent"})

    folder.mkdir()
    asyncio.run(write())
    return _settled(folder / "load.sqlite")


def _read_load_log(file: Path) -> None:
    with LoadHistory(file.parent, checked=True) as history:
        history.steps()
        history.count()


def _tried(file: Path, read: Callable[[Path], None]) -> Iterator[tuple[str, str]]:
    """The name of each damage of a file, and what was said of it; empty where all could be read."""
    pristine = file.with_name("pristine")
    shutil.copy(file, pristine)
    for name, damage in damages(pristine):
        for beside in file.parent.glob(f"{file.name}*"):
            beside.unlink()
        shutil.copy(pristine, file)
        damage(file)
        said = ""
        try:
            read(file)
        except VivaError as error:
            said = str(error)
            assert str(file) in said, (name, said)
            assert "\n" not in said, name
        yield name, said


_FILES = [(_graded, _read_grades), (_bank, _read_bank), (_room, _read_room), (_load_log, _read_load_log)]


@pytest.mark.parametrize(("make", "read"), _FILES)
def test_damage_is_named_with_the_file(tmp_path: Path, make: Any, read: Any) -> None:
    said = dict(_tried(make(tmp_path / "folder"), read))
    silent = {name for name, told in said.items() if not told}
    assert len(said) - len(silent) > 60
    # What follows no rule, as a comment or a name that is empty, cannot be told from what was written.
    assert not {name for name in silent if name.startswith(("no ", "wrong", "cut", "text", "garbage", "header"))}
    assert not {name for name in silent if "zeros" in name}


def test_the_three_verbs_of_a_grading_folder_say_what_is_damaged_in_one_line(tmp_path: Path) -> None:
    file = _graded(tmp_path / "folder")
    pristine = tmp_path / "pristine"
    shutil.copy(file, pristine)
    wanted = ("garbage", "page 1 of zeros", "no table answers", "no column grades.value", "wrong answers.position",
              "'[]' as questions.record", "x'ff' as meta.value")  # fmt: skip
    for name, damage in damages(pristine):
        if name not in wanted:
            continue
        for verb in (["report", "F"], ["labels", "F", "--out", tmp_path / "labels.csv"], ["graders", "F", "list"]):
            for beside in file.parent.glob("*"):
                beside.unlink()
            shutil.copy(pristine, file)
            damage(file)
            done = viva("grade", *(file.parent if word == "F" else word for word in verb))
            [line] = done.stderr.splitlines()
            assert (done.returncode, line.startswith(f"viva: error: {file}: ")) == (2, True), (name, verb, line)
            assert "restore the file from a copy" in line or "version" in line
