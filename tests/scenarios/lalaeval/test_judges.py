"""Judge models in a grader's chair: what they see, how their grades are kept, and verdicts that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from grade_projects import PROJECT, accepted, pair, viva

from viva.grading.assignments import next_assignment
from viva.grading.disputes import read_grade_table
from viva.grading.records import Answer, Question
from viva.grading.store import GradeStore
from viva.scenarios.lalaeval.commands.simulated_rounds import deserved_grade

if TYPE_CHECKING:
    from tests.servers.process import Server

Chaos = Callable[[dict[str, Any]], "Server"]
CANDIDATES = ["--candidate", "simulated:tall-one?knowledge=0.9", "--candidate", "simulated:low-one?knowledge=0.2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A round of eight questions with the answers of two candidates."""
    rows = [pair(f"q{number}", dimension=["facts/dates", "facts/names", "talk"][number % 3]) for number in range(8)]
    accepted(tmp_path, rows, PROJECT)
    viva("grade", "collect", tmp_path, *CANDIDATES, "--round", "1")
    return tmp_path / "rounds" / "1"


def _answers(store: GradeStore) -> dict[str, tuple[Question, Answer]]:
    return {answer.id: (question, answer) for question in store.questions() for answer in question.answers}


@pytest.mark.parametrize("shown", ["one", "all"])
def test_a_judge_without_noise_gives_what_each_answer_deserves(folder: Path, shown: str) -> None:
    printed, _ = viva("grade", "judge", folder, "--grader", "simulated:judge?noise=0", "--shown", shown)
    assert printed == "judge: 16 grades, 0 verdicts could not be read\n"
    with GradeStore.open(folder) as store:
        judge = store.grader("judge")
        grades = {one.answer: one.value for one in store.grades(grader=judge.number)}
        assert grades == {name: deserved_grade(*both) for name, both in _answers(store).items()}
        assert (judge.kind, judge.model) == ("model", "simulated:judge?noise=0")
        assert all(one.comment for one in store.grades())  # its reasons
        assert read_grade_table(store).models == {"judge"}
        for person in ("Ada", "Ben"):  # the overlap of two counts people
            assert next_assignment(store, store.grader(person)) is not None
    assert len(set(grades.values())) > 2


def test_verdicts_that_cannot_be_read_are_missing_grades_and_a_second_start_changes_nothing(folder: Path) -> None:
    command = ["grade", "judge", folder, "--grader", "simulated:judge?noise=0&malformed=0.8"]
    printed, _ = viva(*command)
    with GradeStore.open(folder) as store:
        before = store.grades()
        missing = [one for one in before if one.value is None]
        assert printed == f"judge: {16 - len(missing)} grades, {len(missing)} verdicts could not be read\n"
        assert 0 < len(missing) < 16
        assert {one.comment for one in missing} == {"the verdict could not be read"}
    assert viva(*command)[0] == printed
    with GradeStore.open(folder) as store:
        assert [(one.answer, one.value) for one in store.grades()] == [(one.answer, one.value) for one in before]


def test_a_judge_sees_what_graders_see_and_not_whose_answer_it_is(chaos: Chaos, folder: Path) -> None:
    verdict = json.dumps({f"answer_{place}": {"reasoning": "so it is", "score": 1} for place in (1, 2)})
    server = chaos({"default": {"do": "ok", "say": verdict}, "record": True})
    viva("grade", "judge", folder, "--grader", server.model("j", label="judge"), "--shown", "all")
    asked = [entry["body"]["messages"][-1]["content"] for entry in server.log() if "messages" in entry.get("body", {})]
    assert len(asked) == 8
    with GradeStore.open(folder) as store:
        questions = list(store.questions())
        assert {one.value for one in store.grades()} == {1.0}
    for question in questions:
        [text] = [one for one in asked if question.text in one]
        assert question.standard_answer in text
        assert question.principle in text
        places = [text.index(f"[Answer {answer.position}]\n{answer.turns[0].text}") for answer in question.answers]
        assert places == sorted(places)
        assert all(f"{label.value:g}: {label.meaning}" in text for label in question.labels)
        assert not any(name in text for name in ("tall-one", "low-one", "simulated"))


def test_a_judge_cannot_take_a_persons_name(folder: Path) -> None:
    _, said = viva("grade", "judge", folder, "--grader", "simulated:Ada", code=2)
    assert "a person is called 'Ada'; give the judge another name with ?label=NAME" in said
    with GradeStore.open(folder) as store:
        assert store.grades() == []
