"""Answers of benchmark items that could be read in two ways, and choices that are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from viva_process import ended, started

from viva.data.dataset import open_dataset
from viva.engine.errors import DatasetError

NUMBERS = ["1", "2", "3", "4"]


def _jsonl(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def _item(answer: Any, choices: list[str] = NUMBERS, number: int = 1) -> dict[str, Any]:
    return {"id": f"item-{number}", "question": "How many?", "choices": choices, "answer": answer}


def test_line_5_digits_that_are_a_place_and_another_choice_are_refused_with_what_to_write(tmp_path: Path) -> None:
    source = _jsonl(tmp_path, _item("C"), _item("3", number=2))
    with pytest.raises(DatasetError) as caught:
        open_dataset(source)
    assert (caught.value.line, caught.value.field) == (2, "answer")
    assert "'3' may mean the choice C or, counted from 0, the choice D ('4'): write the letter" in str(caught.value)
    assert len(open_dataset(source, skip_bad=True)) == 1


@pytest.mark.parametrize("form", ["generic", "mmlu"])
def test_line_5_so_they_are_in_tables(tmp_path: Path, form: str) -> None:
    header = "question,A,B,C,D,answer\n" if form == "generic" else ""
    (tmp_path / "items.csv").write_text(header + "How many?,1,2,3,4,3\n")
    with pytest.raises(DatasetError, match="'3' may mean the choice C or, counted from 0, the choice D"):
        open_dataset(f"{form}:{tmp_path / 'items.csv'}")


@pytest.mark.parametrize(
    ("answer", "choices", "says"),
    [
        ("4", NUMBERS, "'4' is the text of the choice D: write the letter"),
        (" 2", [" 7", "2 ", "2"], "'2' may mean the choice B or C, which are equal: write the letter"),
        ("1", ["2", "3", "1", "1"], "'1' may mean the choice C or D or, counted from 0, the choice B"),
    ],
)
def test_line_5_what_the_digits_may_mean_is_named(tmp_path: Path, answer: str, choices: list[str], says: str) -> None:
    with pytest.raises(DatasetError) as caught:
        open_dataset(_jsonl(tmp_path, _item(answer, choices)))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "choices", "index"),
    [
        (3, NUMBERS, 3),
        ("D", NUMBERS, 3),
        ("3", ["0", "1", "2", "3"], 3),
        ("3", ["tin", "fog", "ice", "3 grams"], 3),
        ("0", ["tin", "fog"], 0),
    ],
)
def test_line_5_answers_that_can_be_read_in_one_way_are_read(
    tmp_path: Path, answer: Any, choices: list[str], index: int
) -> None:
    assert [item.answer for item in open_dataset(_jsonl(tmp_path, _item(answer, choices)))] == [index]


def test_line_5_equal_choices_are_pointed_out(tmp_path: Path) -> None:
    records = [
        _item("A", ["tin", "fog", "tin "]),
        _item("B", ["tin", "fog", "tin", "fog"], 2),
        _item("B", ["tin", "fog", "tin"], 3),
        _item("B", ["tin", "Tin"], 4),
    ]
    source = _jsonl(tmp_path, *records)
    code, printed, _ = ended(started("data", "check", source, "--json"))
    assert code == 0
    found = json.loads(printed)["equal_choices"]
    assert (found["count"], found["answers"]) == (3, 2)
    assert found["first"][0]["message"] == "the choices A, C are equal ('item-1'); the right answer is A"
    assert found["first"][1]["message"].startswith("the choices A, C are equal; the choices B, D are equal")
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    code, _, said = ended(
        started("run", "kieval", "--dataset", source, *models, "--rounds", "1", "--out", tmp_path / "run")
    )
    assert code == 0
    assert f"viva: note: 3 items of {source} have equal choices, in 2 of them the right answer is one of the" in said
    assert f"viva data check {source}" in said


def test_line_5_nothing_is_said_of_choices_that_differ(tmp_path: Path) -> None:
    assert open_dataset(_jsonl(tmp_path, _item("B"))).notes == []
