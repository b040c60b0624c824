"""Project files: what follows from them, and mistakes with file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest
from grade_projects import PROJECT, project, viva

from viva.engine.errors import ConfigurationError
from viva.scenarios.lalaeval.question_bank import Bank


def test_weights_are_shares_of_the_whole_and_principles_are_put_together(tmp_path: Path) -> None:
    made = project(tmp_path)
    assert {path: round(one.weight, 9) for path, one in made.dimensions.items()} == {
        "facts/dates": 0.25,
        "facts/names": 0.5,
        "talk": 0.25,
    }
    assert made.dimensions["facts/dates"].principle == "One error is a 0.\n\nDates count."
    assert made.dimensions["facts/names"].principle == "Dates count."
    assert made.dimensions["talk"].principle == ""
    assert made.domains == {"a": "P1", "a/b": "P0", "a/c": ""}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("rubric: yes-no", "rubric: yesno", r"project\.yaml:9: dimensions\.talk\.rubric: there is no rubric 'yesno'; "
         r"did you mean 'yes-no'\? there are: scale, yes-no"),
        ("principle: strict", "principle: lax", r"project\.yaml:7: dimensions\.facts\.parts\.dates\.principle: there"),
        ("weight: 3", "weight: -3", r"project\.yaml:5: dimensions\.facts\.weight: Input should be greater than 0, fou"),
        ("weight: 3", "weigth: 3", r"project\.yaml:5: dimensions\.facts\.weigth: unknown field; did you mean 'weight'"),
        ("talk: {rubric: yes-no, timely: false}", "talk: {}",
         r"project\.yaml:9: dimensions\.talk(\.rubric)?: a dimension has either a rubric or parts"),
        ("{0: lost, 1: kept}", "{0: lost}", r"project\.yaml:12: rubrics\.yes-no: expected at least two grades"),
        ("priority: P0", "priority: high", r"project\.yaml:2: domains\.a\.parts\.b\.priority: expected a priority"),
        ("title: Small", "title: Small\ntitle: Big", r"project\.yaml:2:1: cannot be read: the key 'title' is given tw"),
        ("seed: 3", "plan: {facts: {simple: 2}}", r"project\.yaml:16: plan\.facts: there is no such dimension"),
        ("seed: 3", "plan: {talk: {easy: 2}}", r"project\.yaml:16: plan\.talk"),
        ("seed: 3", "disputes: {weights: [1, 1]}", r"project\.yaml:16: disputes\.weights: expected two weights that s"),
        ("[Ada, Ben,", "[Ada, Ada,", r"project\.yaml:15: graders: 'Ada' is listed twice"),
        ("overlap: 2", "overlap: 0", r"project\.yaml:17: overlap: Input should be greater than or equal to 1, found 0"),
        ("{priority: P1, parts: {b: {priority: P0}, c: {}}}", "{}", r"project\.yaml:2: domains: none has a priority"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_file_line_and_field(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in PROJECT
    with pytest.raises(ConfigurationError, match=what):
        project(tmp_path, PROJECT.replace(old, new))


def test_a_folder_without_a_project_says_what_writes_one(tmp_path: Path) -> None:
    _, said = viva("grade", "check", tmp_path, code=2)
    assert f"viva grade init {tmp_path}" in said


def test_each_version_of_the_rubric_is_kept_with_its_time(tmp_path: Path) -> None:
    times = iter([1000.0, 2000.0])
    with Bank.open(project(tmp_path), clock=lambda: next(times)) as bank:
        [first] = bank.rubrics()
    with Bank.open(project(tmp_path, PROJECT.replace("seed: 3", "seed: 4"))) as bank:
        assert bank.rubrics() == [first]  # graders go by the same rubric
    other = PROJECT.replace("1: kept", "1: keeps what was said")
    with Bank.open(project(tmp_path, other), clock=lambda: next(times)) as bank:
        before, after = bank.rubrics()
    assert before == first
    assert (after.number, after.at) == (2, 2000.0)
    assert after.rubric["talk"]["grades"] == {"0": "lost", "1": "keeps what was said"}
    assert before.rubric["talk"]["grades"]["1"] == "kept"
    printed, _ = viva("grade", "check", tmp_path, "--rubrics")
    assert "1: keeps what was said" in next(line for line in printed.splitlines() if "changed" in line)
