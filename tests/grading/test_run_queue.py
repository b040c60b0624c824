"""Answers of any run as questions for graders, and their grades back in certified figures and meta-evaluation."""

from __future__ import annotations

import csv
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from small_dialogs import write_data

from viva.cli.main import app
from viva.grading.assignments import next_assignment, record_finished
from viva.grading.records import Question
from viva.grading.store import GradeStore

ROOT = Path(__file__).parents[2]


def _viva(*arguments: str | Path, ok: bool = True) -> tuple[str, str]:
    out, err, code = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app([str(one) for one in arguments], standalone_mode=False)
        except SystemExit as left:
            code = int(left.code or 0)
        out.flush()
    assert (code == 0) is ok, err.getvalue()
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue().decode(), err.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interviews") / "run"
    items = ROOT / "scenarios" / "kieval" / "items" / "science.jsonl"
    models = ["--candidate", "simulated:alpha?knowledge=0.4", "--candidate", "simulated:beta?knowledge=0.8"]
    models += ["--interactor", "simulated:i", "--evaluator", "simulated:e"]
    _viva("run", "kieval", "--dataset", items, *models, "-n", "20", "--out", folder)
    return folder


def _grade_all(folder: Path, graders: int = 2) -> None:
    """Every seat is taken, and each grader gives the judge's own score, or the label nearest to it."""
    with GradeStore.open(folder) as store:
        for person in [store.add_grader(f"person {number}") for number in range(graders)]:
            while (seat := next_assignment(store, person)) is not None:
                question = store.question(seat.question)
                for answer in question.answers:
                    value = _nearest(question, answer.score or 0.0)
                    store.grade(person.number, answer.id, value, submission=f"{person.number} {answer.id}")
                assert record_finished(store, person, question.number)


def _nearest(question: Question, score: float) -> float:
    return min((label.value for label in question.labels), key=lambda value: abs(value - score))


def test_rounds_of_a_run_are_graded_and_certify_its_figures(run: Path, tmp_path: Path) -> None:
    queue, grades = tmp_path / "queue", tmp_path / "grades.csv"
    out, _ = _viva("grade", "queue", run, "--rounds", "-n", "60", "--overlap", "2", "--out", queue)
    assert "60 answers on 60 pages, for 2 graders each" in out
    _grade_all(queue)
    out, _ = _viva("grade", "labels", queue, "--out", grades)
    assert "60 graded answers" in out
    assert "still to grade" not in out
    rows = list(csv.DictReader(grades.read_text().splitlines()))
    assert {row["grade"] for row in rows if row["chosen"] == "yes"} <= {"1", "2", "3", "4"}
    assert all(row["grade"] == row["score"] for row in rows if row["chosen"] == "yes")
    record = json.loads(_viva("judge", "certify", run, "--labels", grades, "--json")[0])
    assert record["labels"] == 60
    assert record["graded"] == "rounds"
    assert record["probabilities"] is True


def test_the_list_of_what_to_grade_next_opens_as_a_queue(run: Path, tmp_path: Path) -> None:
    first, queue, grades = tmp_path / "next.csv", tmp_path / "queue", tmp_path / "grades.csv"
    _viva("judge", "certify", run, "--select", "12", "--out", first)
    known = csv.DictReader((tmp_path / "next.key.csv").read_text().splitlines())
    chosen = {row["key"] for row in known if row["chosen"] == "yes"}
    _viva("grade", "queue", run, "--select", first, "--out", queue)
    with GradeStore.open(queue) as store:
        assert {answer.key for one in store.questions() for answer in one.answers} == chosen
    out, _ = _viva("grade", "labels", queue, "--out", grades)
    assert "0 graded answers, 12 still to grade" in out
    _grade_all(queue, 3)
    _viva("grade", "labels", queue, "--out", grades)
    _viva("judge", "certify", run, "--labels", grades)
    # What was graded stays in the next list, and is not asked for again.
    second, later = tmp_path / "second.csv", tmp_path / "later"
    _viva("judge", "certify", run, "--labels", grades, "--select", "6", "--out", second)
    _viva("grade", "queue", run, "--select", second, "--out", later)
    with GradeStore.open(later) as store:
        assert not chosen & {answer.key for one in store.questions() for answer in one.answers}
    _grade_all(later, 3)
    _viva("grade", "labels", later, "--out", grades)
    assert json.loads(_viva("judge", "certify", run, "--labels", grades, "--json")[0])["labels"] == 18
    out, err = _viva("grade", "queue", run, "--select", grades, "--out", tmp_path / "none", ok=False)
    assert "no answers remain to be graded" in err


def test_grades_by_grader_feed_the_meta_evaluation(run: Path, tmp_path: Path) -> None:
    queue, ratings = tmp_path / "queue", tmp_path / "ratings.csv"
    _viva("grade", "queue", run, "--out", queue)
    _grade_all(queue, 3)
    _viva("grade", "labels", queue, "--ratings", ratings)
    report = json.loads(_viva("judge", "compare", run, "--ratings", ratings, "--json")[0])
    assert "spearman" in json.dumps(report)
    with ratings.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert all(row["grader 1"] == row["grader 2"] == row["grader 3"] for row in rows)


def test_graders_see_neither_the_judges_words_nor_whose_answer_it_is(run: Path, tmp_path: Path) -> None:
    for option, folder in (("--rounds", tmp_path / "rounds"), ("--seed=3", tmp_path / "wholes")):
        _viva("grade", "queue", run, option, "--out", folder)
        with GradeStore.open(folder) as store:
            for question in store.questions():
                shown = [question.id, question.text, *(said.text for said in question.context)]
                shown += [f"{said.role} {said.text}" for answer in question.answers for said in answer.turns]
                assert not any(name in text for text in shown for name in ("alpha", "beta", "evaluator", "level"))


def test_the_order_of_answers_says_nothing_of_whose_they_are(run: Path, tmp_path: Path) -> None:
    _viva("grade", "queue", run, "--seed", "5", "--out", tmp_path / "queue")
    with GradeStore.open(tmp_path / "queue") as store:
        first = [question.answers[0].candidate for question in store.questions()]
    assert len(first) == 20
    assert {first.count("alpha"), first.count("beta")} == {first.count("alpha"), 20 - first.count("alpha")}
    assert 3 <= first.count("alpha") <= 17


def test_a_run_is_told_from_a_grading_folder(run: Path) -> None:
    _, err = _viva("grade", "report", run, ok=False)
    assert f"it is a run: create one from it with `viva grade queue {run} --out FOLDER`" in err


def test_verdicts_are_graded_with_what_they_are_about(run: Path, tmp_path: Path) -> None:
    _viva("grade", "queue", run, "--verdicts", "-n", "10", "--out", tmp_path / "queue")
    with GradeStore.open(tmp_path / "queue") as store:
        for question in store.questions():
            [answer] = question.answers
            assert "accuracy: " in answer.turns[0].text
            assert [label.value for label in question.labels] == [0, 1]


def test_wrong_choices_are_named(run: Path, tmp_path: Path) -> None:
    for options, said in (
        (["-n", "9999"], "ask for 1 to 40"),
        (["--labels", "good,bad"], "expected NUMBER=MEANING"),
        (["--rounds", "--verdicts"], "give only one of them"),
    ):
        _, err = _viva("grade", "queue", run, *options, "--out", tmp_path / "queue", ok=False)
        assert said in err
        assert not (tmp_path / "queue").exists()
    _viva("grade", "queue", run, "-n", "2", "--out", tmp_path / "queue")
    _, err = _viva("grade", "queue", run, "-n", "2", "--out", tmp_path / "queue", ok=False)
    assert "exists already" in err


def test_runs_that_nobody_judged_are_graded_all_the_same(tmp_path: Path) -> None:
    silent, items = tmp_path / "silent.py", ROOT / "scenarios" / "kieval" / "items" / "science.jsonl"
    silent.write_text('def said(messages):\n    return "I would rather not say."\n')
    models = ["--candidate", "simulated:a", "--interactor", "simulated:i", "--evaluator", f"python:{silent}#said"]
    _viva("run", "kieval", "--dataset", items, *models, "-n", "2", "--out", tmp_path / "unread")
    out, _ = _viva("grade", "queue", tmp_path / "unread", "--rounds", "--overlap", "1", "--out", tmp_path / "rounds")
    assert "10 answers on 10 pages" in out
    with GradeStore.open(tmp_path / "rounds") as store:
        assert {label.value for one in store.questions() for label in one.labels} == {0, 1, 2, 3}
    _grade_all(tmp_path / "rounds", 1)
    out, _ = _viva("grade", "labels", tmp_path / "rounds", "--out", tmp_path / "grades.csv")
    assert "10 graded answers" in out
    _, err = _viva("grade", "queue", tmp_path / "unread", "--verdicts", "--out", tmp_path / "verdicts", ok=False)
    assert "the judge has scored no answer of this run" in err
    # Here rules decide everything, and no judge is asked.
    data, asked = write_data(tmp_path / "data"), ["--judge", "simulated:j", "--candidate", "simulated:c?knowledge=1"]
    _viva("run", "functionchat", "--data", data, *asked, "--out", tmp_path / "exact")
    _viva("grade", "queue", tmp_path / "exact", "--out", tmp_path / "exact-queue")
    with GradeStore.open(tmp_path / "exact-queue") as store:
        questions = list(store.questions())
    assert len(questions) == 45
    assert all(answer.turns[0].text for one in questions for answer in one.answers)
