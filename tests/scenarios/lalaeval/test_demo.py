"""The demo: what was stated of simulated models and people is found again, and two makings are the same."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from grade_projects import viva
from hypothesis import given
from hypothesis import strategies as st

from viva.engine import seeds
from viva.grading.store import GradeStore
from viva.scenarios.lalaeval.commands.grading_folder import barred_graders, trial_results
from viva.scenarios.lalaeval.project import Project
from viva.scenarios.lalaeval.rounds import open_round
from viva.scenarios.lalaeval.scenario import (
    MORE,
    PARTLY,
    RIGHT,
    WRONG,
    answer_level,
    biased_grade,
    expected_biased_grade,
    simulated_answer,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """The demo's folder, what it printed, and its report as JSON (of a second making)."""
    folder = tmp_path_factory.mktemp("demo")
    printed, _ = viva("grade", "demo", "--out", folder / "first")
    told, _ = viva("grade", "demo", "--out", folder / "second", "--json")
    return folder / "first", printed, json.loads(told)


def test_what_was_stated_lies_in_the_intervals_that_are_found(made: tuple[Path, str, dict[str, Any]]) -> None:
    folder, printed, told = made
    known = told["stated_and_found"]
    assert len(known) == 23
    assert all(one["low"] <= one["stated"] <= one["high"] for one in known), known
    assert f"{len(known)} of {len(known)} true values lie within the" in " ".join(printed.split())
    # The intervals say something: a severe and a mild grader, and one candidate that learnt, are told from nothing.
    found = {(one["what"], one["round"], one["name"]): one for one in known}
    assert found["severity", "spring", "Ben"]["low"] > 0 > found["severity", "spring", "Cleo"]["high"]
    assert found["change", "autumn", "branch"]["low"] > 10
    assert abs(found["change", "autumn", "compass"]["value"]) < 5
    assert printed.endswith(f"page: {folder / 'report.html'}\n")
    assert "<table" in (folder / "report.html").read_text()


def test_the_changes_between_the_rounds_are_split_and_sum_up(made: tuple[Path, str, dict[str, Any]]) -> None:
    changes = {one["candidate"]: one for one in made[2]["second"]["fluctuation"]["changes"]
               if one["dimension"] == "overall"}  # fmt: skip
    for one in changes.values():
        assert sum(part["value"] for part in one["parts"].values()) == pytest.approx(one["change"]["value"], abs=1e-4)
        assert one["parts"]["same_grader"]["value"] != 0
        assert one["parts"]["grader"]["value"] != 0  # Eve has left, Gil has come
    assert changes["branch"]["parts"]["response"]["value"] > 10  # it has learnt
    assert changes["branch"]["parts"]["question"]["value"] != 0  # fees and so standard answers have changed
    assert changes["compass"]["parts"]["response"]["value"] == 0


def test_who_fails_the_trial_does_not_grade_until_a_later_one_is_passed(made: tuple[Path, str, dict[str, Any]]) -> None:
    folder = made[0]
    states: dict[str, dict[str, tuple[str, int]]] = {}
    for name in ("spring", "autumn"):
        with GradeStore.open(folder / "rounds" / name) as store:
            states[name] = {one.name: (one.state, len(store.grades(grader=one.number))) for one in store.graders()}
            if name == "spring":
                [said] = [by for _, by, what in store.audit_log() if "paused" in what]
                assert said.startswith("deployment gate: consistency 0.")
    assert states["spring"]["Dan"] == ("paused", 0)
    assert states["autumn"]["Dan"][0] == "active"
    assert states["autumn"]["Dan"][1] > 50
    assert "Eve" not in states["autumn"]
    project = Project.open(folder)
    assert barred_graders(project) == {}
    results = trial_results(project)
    assert results["Dan"][0] == "trial-autumn"
    assert results["Eve"][0] == "trial"


def test_the_same_demo_is_made_twice(made: tuple[Path, str, dict[str, Any]]) -> None:
    first, second = made[0], made[0].parent / "second"
    for name in ("spring", "autumn"):
        folders = [one / "rounds" / name for one in (first, second)]
        assert open_round(folders[0]).pairs == open_round(folders[1]).pairs
        grades = []
        for one in folders:
            with GradeStore.open(one) as store:
                grades.append([(grade.answer, grade.grader, grade.value) for grade in store.grades()])
        assert grades[0] == grades[1]


def test_the_bank_keeps_what_was_returned_and_changed(made: tuple[Path, str, dict[str, Any]]) -> None:
    printed, _ = viva("grade", "check", made[0])
    assert "bank: 0 draft, 0 inspected, 33 accepted, 2 returned" in printed
    printed, _ = viva("grade", "bank", "show", made[0], "card-fee")
    assert "20 euros a year" in printed
    assert [line.split()[2] for line in printed.splitlines() if " by " in line] == [
        "new", "inspected", "accepted", "changed", "inspected", "accepted"
    ]  # fmt: skip
    drawn = {name: {pair.id: pair for pair in open_round(made[0] / "rounds" / name).pairs}
             for name in ("spring", "autumn")}  # fmt: skip
    assert "summer-hours" not in drawn["spring"]  # expired
    assert drawn["autumn"].keys() <= drawn["spring"].keys()  # the new question is one of the second trial
    changed = [name for name, pair in drawn["spring"].items() if pair.version() != drawn["autumn"][name].version()]
    assert sorted(changed) == ["card-fee", "fee-sum"]


@given(
    words=st.lists(st.text("abcdefg", min_size=2, max_size=6), min_size=3, max_size=12, unique=True),
    level=st.sampled_from([WRONG, PARTLY, RIGHT, MORE]),
    chance=st.floats(0, 0.999),
)
def test_how_good_a_simulated_answer_is_can_be_read_back(words: list[str], level: int, chance: float) -> None:
    standard = " ".join(words)
    assert answer_level(simulated_answer(standard, level, chance), standard) == level


@pytest.mark.parametrize(("severity", "noise", "true"), [(0.3, 0.1, 2), (-0.4, 0.2, 1), (0.2, 0.5, 0), (0, 0.3, 3)])
def test_habits_have_the_mean_that_is_stated_of_them(severity: float, noise: float, true: float) -> None:
    grades = [0.0, 1.0, 2.0, 3.0]
    drawn = [biased_grade(true, grades, severity, noise, seeds.draws("habit", n)) for n in range(20_000)]
    mean, error = statistics.fmean(drawn), statistics.pstdev(drawn) / len(drawn) ** 0.5
    assert abs(mean - expected_biased_grade(true, grades, severity, noise)) < 5 * error
