"""Collecting a round's answers: what is asked, what graders get to see, and going on after a kill."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from grade_projects import PROJECT, accepted, lines, pair, viva
from viva_process import ended, started

from viva.grading.store import GradeStore
from viva.scenarios.lalaeval.rounds import open_round

if TYPE_CHECKING:
    from tests.servers.process import Server

Chaos = Callable[[dict[str, Any]], "Server"]
GOLD = [{"answer": "1900, as everybody knows", "grade": 2}, {"answer": "never", "grade": 0}]
TWO = ["--candidate", "simulated:good?knowledge=1", "--candidate", "simulated:bad?knowledge=0"]


def _rows(count: int = 6) -> list[dict[str, Any]]:
    rows = [pair(f"q{number}", dimension=["facts/dates", "facts/names"][number % 2]) for number in range(count)]
    return [*rows, pair("talk", dimension="talk", question=["My name is Ada.", "What is my name?"])]


def _contents(folder: Path) -> Any:
    """Everything in a grading folder but the times."""
    with GradeStore.open(folder) as store:
        questions = [one.to_record() | {"answers": one.answers} for one in store.questions()]
        graders = store.graders()
        return orjson.dumps([questions, graders, store.meta("about"), store.meta("title"), store.meta("seed")])


def test_answers_stand_in_blind_positions_under_the_rubric_of_their_dimension(tmp_path: Path) -> None:
    accepted(tmp_path, [*_rows(), pair("golden", gold=GOLD)], PROJECT + "gold: 0.2\n")
    printed, _ = viva("grade", "collect", tmp_path, *TWO, "--round", "june", "-n", "7")
    assert "7 questions and 1 gold question, 2 candidates, ready to grade" in printed
    with GradeStore.open(tmp_path / "rounds" / "june") as store:
        questions = list(store.questions())
        about = store.meta("about")
        assert [(one.name, one.role) for one in store.graders()] == [
            ("Ada", "grader"), ("Ben", "grader"), ("Cleo", "adjudicator")
        ]  # fmt: skip
    by_id = {one.id: one for one in questions if not one.gold}
    for question in by_id.values():
        assert sorted(answer.candidate for answer in question.answers) == ["bad", "good"]
        assert question.overlap == 2
    dates = next(one for one in by_id.values() if one.dimension == "facts/dates")
    assert dates.principle == "One error is a 0.\n\nDates count."
    assert [label.value for label in dates.labels] == [0, 1, 2, 3]
    [gold] = [one for one in questions if one.gold]
    assert sorted((answer.expected, answer.turns[0].text) for answer in gold.answers) == [
        (0, "never"), (2, "1900, as everybody knows")
    ]  # fmt: skip
    assert gold.overlap is None
    assert {tuple(answer.candidate for answer in one.answers) for one in by_id.values()} == {
        ("good", "bad"), ("bad", "good")
    }  # fmt: skip
    assert about["weights"] == {"facts/dates": 0.25, "facts/names": 0.5, "talk": 0.25}
    assert (about["kind"], about["rubric"]["version"], about["rules"]["grader"]) == ("evaluation", 1, "alone")
    assert about["versions"].keys() == about["responses"].keys() == by_id.keys()


def test_trials_and_evaluations_share_no_question_unless_asked(tmp_path: Path) -> None:
    accepted(tmp_path, _rows(7), PROJECT)
    viva("grade", "collect", tmp_path, *TWO, "--round", "trial", "--trial", "-n", "4")
    viva("grade", "collect", tmp_path, *TWO, "--round", "june", "-n", "4")
    drawn = {name: {one.id for one in open_round(tmp_path / "rounds" / name).pairs} for name in ("trial", "june")}
    assert not drawn["trial"] & drawn["june"]
    viva("grade", "collect", tmp_path, *TWO, "--round", "july", "-n", "4")
    assert {one.id for one in open_round(tmp_path / "rounds" / "july").pairs} == drawn["june"]  # comparable
    _, said = viva("grade", "collect", tmp_path, *TWO, "--round", "all", "-n", "5", code=2)
    assert "-n 5: only 4 accepted questions are valid" in said
    assert "4 more were in round trial; --reuse-questions includes them" in said
    viva("grade", "collect", tmp_path, *TWO, "--round", "all", "-n", "5", "--reuse-questions")


def test_of_several_rounds_each_answer_is_the_whole_conversation(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "ok", "say": "Your name is Ada."}, "record": True})
    accepted(tmp_path, _rows(0))
    viva("grade", "collect", tmp_path, "--candidate", server.model("m"), "--round", "1")
    asked = [[(one["role"], one["content"]) for one in entry["body"]["messages"]] for entry in server.log()
             if "messages" in (entry.get("body") or {})]  # fmt: skip
    assert asked[-1] == [
        ("user", "My name is Ada."),
        ("assistant", "Your name is Ada."),
        ("user", "What is my name?"),
    ]
    with GradeStore.open(tmp_path / "rounds" / "1") as store:
        [question] = store.questions()
    assert question.text == "My name is Ada."
    assert [(turn.role, turn.text) for turn in question.answers[0].turns] == [
        ("assistant", "Your name is Ada."),
        ("user", "What is my name?"),
        ("assistant", "Your name is Ada."),
    ]


def test_killed_and_started_again_the_grading_folder_is_the_same(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "slow", "delay": 0.02, "say": "an answer"}})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    accepted(whole, _rows(18))
    shutil.copytree(whole, killed)
    command = ["--candidate", server.model("m"), "--concurrency", "2", "--round", "1"]
    viva("grade", "collect", whole, *command)
    calls = len(server.log())
    process = started("grade", "collect", killed, *command)
    server.log(requests=calls + calls // 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (killed / "rounds" / "1" / "grades.sqlite").exists()
    code, printed, _ = ended(started("grade", "collect", killed))  # the round under way, with its candidates
    assert code == 0
    assert b"ready to grade" in printed
    assert len(server.log()) < 2 * calls + 6  # what was recorded was not asked again
    assert _contents(killed / "rounds" / "1") == _contents(whole / "rounds" / "1")


def test_what_was_drawn_stays_whatever_happens_to_the_bank(tmp_path: Path) -> None:
    accepted(tmp_path, _rows())
    viva("grade", "collect", tmp_path, *TWO, "--round", "1", "-n", "4")
    drawn = open_round(tmp_path / "rounds" / "1")
    more = lines(tmp_path / "more.jsonl", [pair(f"new{number}") for number in range(20)])
    viva("grade", "bank", "import", tmp_path, more)
    viva("grade", "bank", "inspect", tmp_path, "--all")
    viva("grade", "bank", "accept", tmp_path, "--all")
    viva("grade", "bank", "return", tmp_path, drawn.pairs[0].id, "--reason", "wrong")
    before = _contents(drawn.path)
    viva("grade", "collect", tmp_path, *TWO, "--round", "1", "-n", "4")
    assert _contents(drawn.path) == before
    _, said = viva("grade", "collect", tmp_path, *TWO, "--round", "1", "-n", "5", code=2)
    assert "round 1 was drawn with other options (-n was 4); choose another --round" in said
    _, said = viva("grade", "collect", tmp_path, *TWO, "--round", "1", "--trial", code=2)
    assert "it is not a trial" in said
    viva("grade", "collect", tmp_path, *TWO, "-n", "4", "--seed", "99")
    assert (tmp_path / "rounds" / "2" / "grades.sqlite").exists()  # the next number


def test_a_trial_is_for_every_grader_and_a_quota_that_cannot_be_met_makes_no_round(tmp_path: Path) -> None:
    accepted(tmp_path, _rows())
    viva("grade", "collect", tmp_path, *TWO, "--trial", "-n", "3", "--round", "trial")
    with GradeStore.open(tmp_path / "rounds" / "trial") as store:
        assert {one.overlap for one in store.questions()} == {None}
        assert store.meta("about")["kind"] == "trial"
    _, said = viva("grade", "collect", tmp_path, *TWO, "--quota", "simple=1,difficult=2", "--round", "2", code=2)
    assert "the quota cannot be met" in said
    assert "facts/dates, difficult: 2 needed, 0 available" in said
    assert not (tmp_path / "rounds" / "2").exists()
    _, said = viva("grade", "collect", tmp_path, *TWO, "--quota", "hard=1", code=2)
    assert "expected some of simple=N, intermediate=N, difficult=N, found 'hard=1'" in said
    _, said = viva("grade", "collect", tmp_path, "-n", "3", "--round", "3", code=2)
    assert "give the models that answer" in said


def test_without_some_answers_graders_begin_only_where_that_is_said(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "ok", "say": "yes"}, "schedule": {2: "400"}})
    accepted(tmp_path, _rows())
    command = ["grade", "collect", tmp_path, "--candidate", server.model("m"), "--round", "1", "--concurrency", "1"]
    _, said = viva(*command, code=3)
    assert "missing answers: 1; retry with --retry-failed, or begin without them with --max-failures 1" in said
    assert not (tmp_path / "rounds" / "1" / "grades.sqlite").exists()
    _, said = viva(*command, "--max-failures", "1")
    assert "1 question without an answer" in said
    with GradeStore.open(tmp_path / "rounds" / "1") as store:
        assert len(list(store.questions())) == 6


def test_collected_answers_are_a_run_like_any_other(tmp_path: Path) -> None:
    file = lines(tmp_path / "questions.jsonl", _rows(2))
    viva("run", "lalaeval", "--questions", file, *TWO, "--out", tmp_path / "run")
    printed, _ = viva("report", tmp_path / "run", "--json")
    assert json.loads(printed)["candidates"]["good"]["conversations"] == 3
