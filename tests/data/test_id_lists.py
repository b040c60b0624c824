"""Choosing items by a list of ids, and counting what a dataset is like."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from data_files import GOOD, ids, jsonl, numbered

from viva.data.dataset import open_dataset
from viva.data.statistics import DatasetStatistics
from viva.engine.errors import DatasetError


def listed(folder: Path, content: Any, name: str = "ids.txt") -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_bytes(text.encode())
    return str(folder / name)


LISTS: dict[str, Any] = {
    "one a line": "\ufeffitem-3\r\n\n  item-8 \nunknown\nitem-3",
    "list": ["item-8", "unknown", "item-3"],
    "object": {"ids": ["item-8", "item-3"], "other": ["item-1"]},
    "as the KIEval authors have it": {"valid_uuids": ["item-3", "item-8", "x"], "invalid_uuids": ["item-1"]},
}


@pytest.mark.parametrize("content", LISTS.values(), ids=LISTS.keys())
def test_only_listed_items_are_chosen(tmp_path: Path, content: Any) -> None:
    source = jsonl(tmp_path, *numbered(range(10)))
    dataset = open_dataset(source, ids=listed(tmp_path, content))
    assert [item.id for item in dataset] == ["item-3", "item-8"]
    assert (len(dataset), dataset.total, dataset.matched) == (2, 10, 2)
    record = dataset.to_record()
    assert (record["items"], record["chosen"], record["ids"]["matched"]) == (10, 2, 2)


def test_ids_may_be_numbers(tmp_path: Path) -> None:
    source = jsonl(tmp_path, *(GOOD | {"id": number} for number in range(5)))
    assert ids(source, ids=listed(tmp_path, [4, "2"])) == ["2", "4"]


def test_a_sample_is_drawn_from_the_listed_items(tmp_path: Path) -> None:
    source = jsonl(tmp_path, *numbered(range(100)))
    names = [f"item-{number}" for number in range(0, 100, 2)]
    chosen = ids(source, ids=listed(tmp_path, names), limit=10, seed=3)
    assert len(chosen) == 10
    assert set(chosen) < set(names)
    only = jsonl(tmp_path, *numbered(range(0, 100, 2)), name="only.jsonl")
    assert chosen == ids(only, limit=10, seed=3)


def test_a_list_that_names_the_whole_dataset_is_no_choice(tmp_path: Path) -> None:
    source = jsonl(tmp_path, *numbered(range(4)))
    assert len(open_dataset(source, ids=listed(tmp_path, [f"item-{number}" for number in range(9)]))) == 4


BAD_LISTS: dict[str, tuple[Any, str]] = {
    "no match": (["a", "b"], "none of its 2 ids is an id of the 3 items of "),
    "empty": ("\n", "lists no id"),
    "empty list": ([], "lists no id"),
    "cut off": ('["a", ', "not valid JSON"),
    "other names": ({"uuids": ["a"]}, "expected the ids under one of ids, valid_uuids; found uuids"),
    "no list": ({"ids": "item-1"}, "field 'ids': expected a list of ids, found str"),
    "no ids": ([["item-1"]], "expected ids as text"),
}


@case_table(("content", "message"), BAD_LISTS.values(), ids=BAD_LISTS.keys())
def test_a_list_that_is_none_is_named(tmp_path: Path, content: Any, message: str) -> None:
    source = jsonl(tmp_path, *numbered(range(3)))
    path = listed(tmp_path, content)
    with pytest.raises(DatasetError) as caught:
        open_dataset(source, ids=path)
    assert str(caught.value).startswith(path)
    assert message in str(caught.value)


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    source = jsonl(tmp_path, GOOD)
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        open_dataset(source, ids=str(tmp_path / "none.txt"))
    path = tmp_path / "ids.txt"
    path.write_text("item-1\n", encoding="utf-16")
    with pytest.raises(DatasetError, match="is UTF-16 text"):
        open_dataset(source, ids=str(path))


@pytest.mark.parametrize("grown", [1, 50])
def test_statistics_do_not_depend_on_how_they_are_counted(tmp_path: Path, grown: int) -> None:
    records = [
        GOOD | {"id": n, "question": "?" * (n * n % 17 + 1), "choices": ["x" * (n % 5 + 1)] * (n % 3 + 2)}
        for n in range(grown)
    ]
    check = DatasetStatistics(jsonl(tmp_path, *records))
    report = check.report()
    lengths = [len(record["question"]) for record in records]
    assert report["characters"]["question"] == {
        "min": min(lengths),
        "median": statistics.median(lengths),
        "mean": round(statistics.mean(lengths), 2),
        "max": max(lengths),
    }
    choices = [len(choice) for record in records for choice in record["choices"]]
    assert report["characters"]["choice"]["median"] == statistics.median(choices)
    assert report["choices"] == {str(n): sum(len(r["choices"]) == n for r in records) for n in (2, 3, 4)[:grown]}
    assert report["answers"] == {"A": grown}
    assert check.sound
