"""Benchmark files: every form is read, every bad line is named, and sampling depends on seed and items alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from data_files import GOOD, ids, items, jsonl, numbered, written

from viva.data.dataset import open_dataset
from viva.data.items import Item, content_id
from viva.engine.errors import ConfigurationError, DatasetError


def test_generic_jsonl(tmp_path: Path) -> None:
    second = {
        "id": 7,
        "question": "水在几度结冰？",
        "choices": ["0 °C", "9 °C", "99 °C"],
        "answer": 0,
        "subject": "物理",
    }
    source = jsonl(tmp_path, "\ufeff" + json.dumps(GOOD), "", second)
    dataset = open_dataset(source)
    assert (dataset.name, dataset.form, dataset.total, len(dataset)) == ("items", "generic", 2, 2)
    hashed = content_id("Which is a metal?", ["tin", "fog"], 0, None)
    assert list(dataset) == [
        Item(hashed, "Which is a metal?", ["tin", "fog"], 0),
        Item("7", "水在几度结冰？", ["0 °C", "9 °C", "99 °C"], 0, "物理"),
    ]


@pytest.mark.parametrize(("name", "mark"), [("items.csv", ","), ("items.tsv", "\t")])
def test_generic_csv(tmp_path: Path, name: str, mark: str) -> None:
    rows = [
        ["id", "question", "A", "B", "C", "answer", "subject"],
        ["1", '"Who said ""eureka"", and where?"', "Archimedes", '"Newton, Isaac"', "Euler", "A", ""],
        ["2", "哪一个是金属？", "雾", "锡", "", "B", "化学"],
        ["3", '"Two\nlines?"', "yes", "no", "", "A", ""],
    ]
    source = str(written(tmp_path / name, "\ufeff" + "".join(mark.join(row) + "\r\n" for row in rows)))
    assert items(source) == [
        Item("1", 'Who said "eureka", and where?', ["Archimedes", "Newton, Isaac", "Euler"], 0),
        Item("2", "哪一个是金属？", ["雾", "锡"], 1, "化学"),
        Item("3", "Two\nlines?", ["yes", "no"], 0),
    ]


@case_table("schema", ["hugging face", "ai2"])
@case_table(("labels", "key", "answer"), [("ABCD", "C", 2), ("ABCDE", "E", 4), ("123", "3", 2)])
def test_arc_in_both_of_its_schemas(tmp_path: Path, schema: str, labels: str, key: str, answer: int) -> None:
    texts = [f"choice {label}" for label in labels]
    if schema == "ai2":
        pairs = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        record: dict[str, Any] = {"id": "X_1", "question": {"stem": "Why?", "choices": pairs}, "answerKey": key}
    else:
        record = {"id": "X_1", "question": "Why?", "choices": {"text": texts, "label": [*labels]}, "answerKey": key}
    source = jsonl(tmp_path, record)
    assert items(source) == items(f"arc:{source}")
    assert items(source) == [Item(content_id("Why?", texts, answer, {"id": "X_1"}), "Why?", texts, answer)]


def test_an_unknown_form_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown form 'arcc'; did you mean 'arc"):
        open_dataset(f"arcc:{jsonl(tmp_path, GOOD)}")


def test_a_sample_depends_on_the_seed_and_not_on_the_files_order(tmp_path: Path) -> None:
    source = jsonl(tmp_path, *numbered(range(200)))
    turned = jsonl(tmp_path, *numbered(reversed(range(200))), name="turned.jsonl")
    chosen = ids(source, limit=50, seed=1)
    assert len(set(chosen)) == 50
    assert ids(source, limit=50, seed=1) == chosen
    assert ids(turned, limit=50, seed=1) == chosen[::-1]
    assert set(ids(source, limit=50, seed=2)) != set(chosen)
    assert set(ids(source, limit=20, seed=1)) < set(chosen)


def test_a_sample_comes_in_the_files_order(tmp_path: Path) -> None:
    source = jsonl(tmp_path, *numbered(range(60)))
    dataset = open_dataset(source, limit=9)
    assert (dataset.total, len(dataset)) == (60, 9)
    chosen = [item.id for item in dataset]
    assert chosen == [name for name in ids(source) if name in chosen]
    assert chosen == [item.id for item in dataset]


@pytest.mark.parametrize("limit", [3, 4, 1000, None])
def test_no_less_than_all_is_all(tmp_path: Path, limit: int | None) -> None:
    source = jsonl(tmp_path, *numbered(range(3)))
    assert ids(source, limit=limit, seed=5) == ["item-0", "item-1", "item-2"]


def test_skipped_lines_do_not_shift_the_sample(tmp_path: Path) -> None:
    clean = jsonl(tmp_path, *numbered(range(40)))
    spoiled = jsonl(tmp_path, "{", *numbered(range(40)), "{}", GOOD | {"id": "item-3"}, name="spoiled.jsonl")
    dataset = open_dataset(spoiled, limit=10, skip_bad=True)
    assert [item.id for item in dataset] == ids(clean, limit=10)
    assert [error.line for error in dataset.bad] == [1, 42, 43]


def test_pretty_printed_objects_are_read_one_after_the_other(tmp_path: Path) -> None:
    lines = [json.dumps(GOOD | {"id": name}, indent=2) for name in ("a", "b")]
    for name in ("items.json", "items.jsonl"):
        assert [item.id for item in open_dataset(str(written(tmp_path / name, "\n".join(lines))))] == ["a", "b"]
    wrapped = written(tmp_path / "wrapped.json", json.dumps({"items": [GOOD, GOOD]}, indent=2))
    with pytest.raises(DatasetError, match="'items' of 2 objects: save only that list as the file"):
        open_dataset(str(wrapped))
    for value, said in (
        ({"train": [GOOD], "test": [GOOD]}, "several lists of objects \\(train, test\\): save only one of them"),
        ({"1": GOOD, "2": GOOD}, "2 named objects: save them as a list"),
    ):
        with pytest.raises(DatasetError, match=said):
            open_dataset(str(written(tmp_path / "wrapped.json", json.dumps(value, indent=2))))


@pytest.mark.parametrize(
    ("separator", "name", "said"),
    [(";", "a.csv", "semicolons; save the file with commas"), ("\t", "a.csv", "tabs; save .* or name it .tsv"),
     ("|", "a.csv", "bars"), (";", "a.tsv", "semicolons; save the file with tabs")],
)  # fmt: skip
def test_a_table_with_another_separator_is_told(tmp_path: Path, separator: str, name: str, said: str) -> None:
    rows = [["question", "A", "B", "answer", "source, if any"], ["Why, then?", "tin", "fog", "A", "x"]]
    with pytest.raises(DatasetError, match=f"the columns are separated by {said}"):
        open_dataset(str(written(tmp_path / name, "\n".join(map(separator.join, rows)))))


def test_rows_of_empty_cells_are_passed_over(tmp_path: Path) -> None:
    text = "question,A,B,answer\nWhy?,tin,fog,A\n,,,\n , ,,\n"
    [item] = open_dataset(str(written(tmp_path / "items.csv", text)))
    assert item.right_text == "tin"


@case_table(
    ("choices", "bare"),
    [
        (["A. Moon", "B. Mars"], ["Moon", "Mars"]),
        (["(A) Moon", "(B) Mars"], ["Moon", "Mars"]),
        (["A) Moon", "B: Mars"], ["Moon", "Mars"]),
        (["(a) Moon", "b. Mars"], ["Moon", "Mars"]),
        (["A、月", "B．火星"], ["月", "火星"]),
        (["A - Moon", "B - Mars"], ["Moon", "Mars"]),
        (["A-level", "B-level"], None),
        (["B. Moon", "A. Mars"], None),  # not their own letters
        (["A. Moon", "Mars"], None),
        (["A.", "B."], None),  # nothing would be left
        (["A. Lincoln", "G. Washington"], None),
    ],
)
def test_letters_before_choices_are_taken_off_and_said(
    tmp_path: Path, choices: list[str], bare: list[str] | None
) -> None:
    dataset = open_dataset(jsonl(tmp_path, {"question": "Why?", "choices": choices, "answer": "A"}))
    [item] = dataset
    assert item.choices == (bare or choices)
    assert len([note for note in dataset.notes if "begin with their letters" in note]) == (bare is not None)
    assert item.id == content_id("Why?", choices, 0, None)  # the file's, for lists of ids
