"""The real benchmark files, where they are there: counts, and ids as in the KIEval authors' lists."""

from __future__ import annotations

import hashlib
import json
import os
from base64 import urlsafe_b64decode
from pathlib import Path

import pytest
from case_tables import case_table

from viva.data.benchmark import load_benchmark
from viva.data.dataset import open_dataset, read_ids
from viva.data.items import Item, content_id
from viva.data.sources import development_source, open_source
from viva.data.statistics import DatasetStatistics

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve()
LISTS = DATA / "kieval" / "validated_items_gpt-4-1106-preview.json"
HELLASWAG_ROWS = 10_042


def real(source: str) -> str:
    """``source`` with the data folder put in for ``@``; skips where the data is not there."""
    place = DATA / source.partition("@/")[2].partition(":")[0]
    if not place.exists():
        pytest.skip(f"{place} is missing (set VIVA_DATA to the folder with the benchmark data)")
    return source.replace("@", str(DATA))


@pytest.fixture(scope="module")
def lists() -> dict[str, set[str]]:
    if not LISTS.exists():
        pytest.skip(f"{LISTS} is missing (set VIVA_DATA to the folder with the benchmark data)")
    return {name: set(ids) for name, ids in json.loads(LISTS.read_text()).items()}


@case_table(
    ("source", "total", "repeats"),
    [
        ("arc:@/arc/ARC-Challenge:test", 1172, 0),
        ("arc:@/arc/ARC-Easy:train", 2251, 0),
        ("mmlu:@/mmlu:test", 13_937, 105),
        ("mmlu:@/mmlu:val", 1529, 2),
        ("mmlu:@/mmlu:dev", 284, 1),
        ("hellaswag:@/hellaswag/validation_sample.jsonl", 1000, 0),
        ("ceval:@/ceval:val", 1346, 0),
        ("ceval:@/ceval:dev", 260, 0),
    ],
)
def test_every_item_is_read(source: str, total: int, repeats: int) -> None:
    dataset = open_dataset(real(source))
    assert (dataset.total, dataset.repeats, dataset.skipped) == (total, repeats, 0)
    subjects = {item.subject for item in dataset}
    expected = {"arc": 1, "mmlu": 57, "hellaswag": 192, "ceval": 52}
    assert len(subjects) == expected[dataset.form]


@pytest.mark.parametrize(
    "source",
    ["arc_challenge:@/arc/ARC-Challenge:test", "arc_easy:@/arc/ARC-Easy:test", "mmlu:@/mmlu:test", "ceval:@/ceval:val"],
)
def test_the_authors_know_every_id(source: str, lists: dict[str, set[str]]) -> None:
    valid, invalid = load_benchmark(source.partition(":")[0]).listed[source.rpartition(":")[2]]
    ids = [item.id for item in open_dataset(real(source))]
    assert len(ids) == len(set(ids)) == valid + invalid
    assert len(lists["valid_uuids"].intersection(ids)) == valid
    assert len(lists["invalid_uuids"].intersection(ids)) == invalid


def row_known(item: Item, rows: int, known: set[bytes]) -> int | None:
    """The first row number under which the authors know an item's content, None if there is none.

    The id's formula once more, taken apart: millions of ids are tried, and they differ in the row alone.
    """
    head = f"{item.question}$choices${';'.join(item.choices)}$ans${item.answer}$perm$None$ex$"
    begun = hashlib.md5(head.encode(), usedforsecurity=False)
    for row in range(rows):
        whole = begun.copy()
        whole.update(b'{"id": %d}' % row)
        if whole.digest() in known:
            return row
    return None


def digests(lists: dict[str, set[str]]) -> set[bytes]:
    return {urlsafe_b64decode(name + "==") for ids in lists.values() for name in ids}


def test_the_authors_know_the_content_of_the_hellaswag_sample(lists: dict[str, set[str]]) -> None:
    items = list(open_dataset(real("hellaswag:@/hellaswag/validation_sample.jsonl")))
    known = digests(lists)
    rows = [row for item in items if (row := row_known(item, HELLASWAG_ROWS, known)) is not None]
    assert len(rows) == len(set(rows)) == 1000
    listed = set.union(*lists.values())
    assert all(
        content_id(item.question, item.choices, item.answer, {"id": row}) in listed
        for item, row in zip(items, rows, strict=True)
    )


def test_the_authors_know_ceval_by_the_very_rows_that_we_give(lists: dict[str, set[str]]) -> None:
    items = list(open_dataset(real("ceval:@/ceval:val")))
    known = digests(lists)
    rows = [row_known(item, 1346, known) for item in items]
    assert sorted(row for row in rows if row is not None) == list(range(1346))
    assert [item.id for item in items] == [
        content_id(item.question, item.choices, item.answer, {"id": row}) for item, row in zip(items, rows, strict=True)
    ]


@case_table(
    ("source", "subject"),
    [
        *[(f"arc_challenge:@/arc/ARC-Challenge:{split}", "") for split in ("train", "test", "dev")],
        *[(f"arc_easy:@/arc/ARC-Easy:{split}", "") for split in ("train", "test", "dev")],
        *[(f"mmlu:@/mmlu:{split}", "") for split in ("test", "val", "dev")],
        *[(f"ceval:@/ceval:{split}", "") for split in ("val", "dev")],
        ("mmlu/anatomy:@/mmlu:test", "anatomy"),
        ("ceval/law:@/ceval:val", "law"),
    ],
)
def test_data_files_say_how_many_records_are_published(source: str, subject: str) -> None:
    report = DatasetStatistics(real(source)).report()
    split = "validation" if source.startswith("arc") and source.endswith("dev") else source.rpartition(":")[2]
    name = source.partition(":")[0].partition("/")[0]
    assert report["items"] + report["repeats"]["count"] == load_benchmark(name).records(split, subject)


@pytest.mark.parametrize(
    ("source", "matched"),
    [("arc:@/arc/ARC-Challenge:test", 1057), ("mmlu:@/mmlu:test", 9976), ("ceval:@/ceval:val", 886)],
)
def test_the_authors_list_chooses_its_valid_items(source: str, matched: int, lists: dict[str, set[str]]) -> None:
    dataset = open_dataset(real(source), ids=str(LISTS))
    assert len(dataset) == dataset.matched == matched
    assert {item.id for item in dataset} <= lists["valid_uuids"]
    assert len(read_ids(LISTS).ids) == 22_597


@pytest.mark.parametrize(
    ("source", "items"),
    [("arc:@/arc/ARC-Easy:test", 570), ("mmlu:@/mmlu:test", 284), ("ceval:@/ceval/val/law_val.csv", 5)],
)
def test_the_development_split_is_found(source: str, items: int) -> None:
    beside = development_source(real(source))
    assert beside is not None
    assert open_dataset(beside).total == items
    assert open_source(beside).form.name == source.partition(":")[0]
