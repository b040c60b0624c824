"""Benchmarks by name: from folders in their published form, and from a hub."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from case_tables import case_table
from data_files import items, lines, written
from fake_hub import fake_hub

from viva.data.benchmark import Benchmark, benchmark_names, canonical_split, load_benchmark
from viva.data.dataset import open_dataset
from viva.data.forms import form_by_name
from viva.data.items import FREE_ANSWER, Item, content_id
from viva.data.sources import absolute_source, development_source, hub_name
from viva.data.statistics import DatasetStatistics
from viva.engine.errors import ConfigurationError, DatasetError

# -- the data files --------------------------------------------------------------------------------------------------


@case_table("name", benchmark_names())
def test_a_data_file_is_whole(name: str) -> None:
    of = load_benchmark(name)
    assert of.evaluated in of.splits
    assert of.examples is None or of.examples in of.splits
    assert {canonical_split(split) for split in of.listed} <= {canonical_split(split) for split in of.splits}
    assert form_by_name(name).name in (name, of.form)
    assert all((of.title, of.summary, of.licence, of.citation, of.url.startswith("https://"), of.language))
    for split, records in of.splits.items():
        sizes = [sizes[split] for sizes in of.subjects.values() if split in sizes]
        assert len(sizes) in (0, len(of.subjects)), "of all subjects or of none"
        assert not sizes or sum(sizes) == records


def test_a_name_in_the_data_file_of_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Benchmark.model_validate(load_benchmark("mmlu").model_dump() | {"licens": "MIT"})


# -- published forms -------------------------------------------------------------------------------------------------


@pytest.fixture
def cmmlu(tmp_path: Path) -> Path:
    """Tables as published: the first column is a number without a name."""
    header = ",Question,A,B,C,D,Answer\n"
    written(
        tmp_path / "test" / "agronomy.csv", header + "0,水稻属于？,禾本科,豆科,菊科,蔷薇科,A\n1,“豆”？,一,二,三,四,D\n"
    )
    written(tmp_path / "test" / "virology.csv", header + "0,病毒？,一,二,三,四,B\n1,病毒？,一,二,三,四,B\n")
    written(tmp_path / "dev" / "agronomy.csv", header + "0,土壤？,砂,黏土,石,水,B\n")
    return tmp_path


def test_cmmlu_is_read_as_published(cmmlu: Path) -> None:
    dataset = open_dataset(f"cmmlu:{cmmlu}:test")
    assert [(item.subject, item.answer) for item in dataset] == [("agronomy", 0), ("agronomy", 3), ("virology", 1)]
    assert dataset.repeats == 1
    first = next(iter(dataset))
    assert first.choices == ["禾本科", "豆科", "菊科", "蔷薇科"]
    assert first.id == content_id("水稻属于？", first.choices, 0, None)
    assert development_source(f"cmmlu:{cmmlu}:test") == f"cmmlu:{cmmlu}:dev"


def test_a_subject_is_a_part_of_its_benchmark(cmmlu: Path) -> None:
    for named in ("virology", "Virology"):
        part = open_dataset(f"cmmlu/{named}:{cmmlu}:test")
        assert ([item.subject for item in part], part.repeats) == (["virology"], 1)
    record = part.to_record()
    assert {name: record[name] for name in ("form", "items", "chosen", "benchmark", "licence")} == {
        "form": "cmmlu",
        "items": 1,
        "chosen": 1,
        "benchmark": "cmmlu",
        "licence": "CC BY-NC 4.0",
    }
    assert development_source(f"cmmlu/agronomy:{cmmlu}:test") == f"cmmlu/agronomy:{cmmlu}:dev"
    assert absolute_source("cmmlu/agronomy:data:test", cmmlu.parent) == "cmmlu/agronomy:data:test"
    with pytest.raises(ConfigurationError, match=r"'cmmlu/viralogy': CMMLU has no such part; its subjects: virology"):
        open_dataset(f"cmmlu/viralogy:{cmmlu}:test")
    with pytest.raises(ConfigurationError, match="GSM8K has no such part; it has no subjects"):
        open_dataset(f"gsm8k/algebra:{cmmlu}:test")


PRO: dict[str, Any] = {
    "question_id": 70,
    "question": "Which tax?",
    "options": list("abcdefghij"),
    "answer": "I",
    "answer_index": 8,
    "cot_content": "",
    "category": "computer science",
    "src": "ori",
}


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_mmlu_pro_has_up_to_ten_choices_and_its_own_ids(tmp_path: Path, ending: str) -> None:
    rows = [PRO, PRO | {"question_id": 71, "options": ["a", "b", "c"], "answer": "B", "category": "law"}]
    path = tmp_path / f"test-00000-of-00001.{ending}"
    if ending == "parquet":
        path.write_bytes(parquet(rows))
    else:
        written(path, lines(*rows) if ending == "jsonl" else json.dumps(rows, indent=1))
    found = items(f"mmlu_pro:{tmp_path}:test")
    assert [(item.id, item.answer, len(item.choices), item.subject) for item in found] == [
        ("70", 8, 10, "computer science"),
        ("71", 1, 3, "law"),
    ]
    assert items(f"mmlu_pro/computer_science:{tmp_path}:test") == found[:1]


GSM: dict[str, str] = {"question": "Tom has 3 pens and buys 4. How many?", "answer": "3+4=<<3+4=7>>7 pens.\n#### 7"}


def test_gsm8k_has_free_answers(tmp_path: Path) -> None:
    written(tmp_path / "test.jsonl", lines(GSM))
    written(tmp_path / "train.jsonl", lines(GSM | {"question": "Two and two?"}))
    dataset = open_dataset(f"gsm8k:{tmp_path}:test")
    (item,) = dataset
    # In the authors' lists such a question has its answer, as it is published, for a single choice.
    identity = content_id(GSM["question"], [GSM["answer"]], 0, {})
    assert item == Item(identity, GSM["question"], [], FREE_ANSWER, reference="3+4=7 pens.\n#### 7")
    assert Item(**item.to_record()) == item
    assert (item.free, item.right_text, item.labelled_answer()) == (True, item.reference, item.reference)
    assert dataset.to_record()["free"] == 1


def test_own_questions_without_choices_are_named_qa(tmp_path: Path) -> None:
    rows = [{"Question": "Capital of Peru?", "ANSWER": "Lima", "Id": "p"}, {"question": "2+2?", "answer": 4}]
    path = written(tmp_path / "own.json", json.dumps(rows))
    first, second = items(f"qa:{path}")
    assert (first.id, first.reference, first.choices) == ("p", "Lima", [])
    assert second.reference == "4"
    with pytest.raises(DatasetError, match="questions without choices are named qa:FILE"):
        items(str(path))
    report = DatasetStatistics(f"qa:{path}").report()
    assert report["choices"] == {"0": 2}
    assert report["answers"] == {}
    assert report["characters"]["answer"]["max"] == 4


def test_fields_are_found_in_upper_and_lower_case(tmp_path: Path) -> None:
    row = {"ID": "a", "Question": "Why?", "Choices": ["yes", "no"], "Answer": "B", "Subject": "law"}
    (item,) = items(str(written(tmp_path / "own.jsonl", lines(row))))
    assert item == Item("a", "Why?", ["yes", "no"], 1, "law")
    swag = {"Ctx": "A man", "Endings": ["runs.", "eats.", "sits.", "naps."], "LABEL": "1"}
    assert open_dataset(str(written(tmp_path / "swag.jsonl", lines(swag)))).form == "hellaswag"
    # The field of exactly the name goes first; of two others neither is taken.
    both = row | {"answer": "A"}
    assert items(str(written(tmp_path / "both.jsonl", lines(both))))[0].answer == 0
    twice = written(tmp_path / "twice.jsonl", lines({**row, "ANSWER": "A"}))
    with pytest.raises(DatasetError, match="is given more than once: Answer, ANSWER"):
        items(str(twice))


def test_what_is_published_stands_beside_what_was_found(cmmlu: Path) -> None:
    found = DatasetStatistics(f"cmmlu:{cmmlu}:test").report()["benchmark"]
    assert (found["title"], found["licence"], found["records"]) == ("CMMLU", "CC BY-NC 4.0", 11_582)
    assert "benchmark" not in DatasetStatistics(str(cmmlu / "test" / "agronomy.csv")).report(), (
        "a file's look proves no origin"
    )


# -- the hub ---------------------------------------------------------------------------------------------------------


def test_a_name_alone_is_the_hubs_and_known_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = {
        "mmlu": "mmlu-test",
        "mmlu/Anatomy:validation": "mmlu-anatomy-val",
        "hellaswag": "hellaswag-val",
        "hf:owner/name/config:validation": "name-config-val",
        "items.jsonl": None,
        "arc:folder:test": None,
    }
    assert {source: hub_name(source) for source in expected} == expected
    assert development_source("mmlu/anatomy") == "mmlu/anatomy:dev"
    assert development_source("arc_challenge") == "arc_challenge:validation"
    assert development_source("mmlu:dev") is None
    assert absolute_source("mmlu:test") == "mmlu:test"
    # What lies in the folder goes first: such names have always been files.
    written(tmp_path / "test" / "anatomy_test.csv", "Bone?,femur,liver,skin,lung,A\n")
    assert len(items("mmlu:test")) == 1


def parquet(rows: list[dict[str, Any]]) -> bytes:
    arrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    content = io.BytesIO()
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), content)
    return content.getvalue()


def configured(configs: dict[str, list[str]], files: dict[str, list[dict[str, Any]]]) -> dict[str, bytes]:
    """The files of a dataset on the hub: a card that says which configuration has which splits, and Parquet."""
    card = "---\nconfigs:\n"
    for config, splits in configs.items():
        card += f"- config_name: {config}\n  data_files:\n"
        card += "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
    return {"README.md": f"{card}---\n".encode()} | {
        f"{place}-00000-of-00001.parquet": parquet(rows) for place, rows in files.items()
    }


def mmlu_row(number: int, subject: str) -> dict[str, Any]:
    return {"question": f"Q{number}?", "subject": subject, "choices": list("abcd"), "answer": number % 4}


def ceval_row(number: int) -> dict[str, Any]:
    return {"id": number, "question": f"问{number}？", **dict.fromkeys("ABCD", "甲"), "answer": "C", "explanation": ""}


_ASKED = """
import json, sys
from viva.data.dataset import open_dataset
from viva.engine.errors import ConfigurationError
for source in sys.argv[1:]:
    try:
        dataset = open_dataset(source)
        shown = [[item.id, item.question, item.subject, item.answer, item.reference] for item in dataset]
        print(json.dumps([dataset.to_record(), shown]))
    except ConfigurationError as error:
        print(json.dumps([str(error), []]), flush=True)
"""


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="the extra 'hf' is not installed")
def test_benchmarks_come_from_the_hub_at_their_pinned_commit(tmp_path: Path) -> None:
    mmlu = configured(
        {"all": ["test", "dev"], "anatomy": ["test"]},
        {
            "all/test": [mmlu_row(n, "anatomy" if n < 2 else "virology") for n in range(5)],
            "all/dev": [mmlu_row(9, "virology")],
            "anatomy/test": [mmlu_row(n, "anatomy") for n in range(2)],
        },
    )
    two = ("law", "logic")
    ceval = configured({one: ["val"] for one in two}, {f"{one}/val": [ceval_row(0)] for one in two})
    gsm8k = configured({"main": ["test"]}, {"main/test": [GSM]})
    sources = ["mmlu/anatomy", "mmlu", "mmlu:dev", "ceval/law", "gsm8k", "hf:cais/mmlu/all:test", "hellaswag"]
    with fake_hub({"cais/mmlu": mmlu, "ceval/ceval-exam": ceval, "openai/gsm8k": gsm8k}) as hub:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HF_", "http", "all_"))
        }
        environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            [sys.executable, "-c", _ASKED, *sources], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(zip(sources, map(json.loads, done.stdout.splitlines()), strict=True))
    record, shown = found["mmlu/anatomy"]
    pinned = load_benchmark("mmlu").hub.revision
    assert (record["name"], record["benchmark"], record["licence"]) == ("mmlu-anatomy-test", "mmlu", "MIT")
    assert record["revision"] == pinned
    assert shown == [
        [content_id("Q0?", list("abcd"), 0, None), "Q0?", "anatomy", 0, ""],
        [content_id("Q1?", list("abcd"), 1, None), "Q1?", "anatomy", 1, ""],
    ]
    assert [one[2] for one in found["mmlu"][1]] == ["anatomy"] * 2 + ["virology"] * 3
    assert [one[1] for one in found["mmlu:dev"][1]] == ["Q9?"]
    law = content_id("问0？", ["甲"] * 4, 2, {"id": 769})  # law begins at row 769
    assert [(one[0], one[2]) for one in found["ceval/law"][1]] == [(law, "law")]
    assert found["gsm8k"][1][0][4] == "3+4=7 pens.\n#### 7"
    assert found["gsm8k"][0]["free"] == 1
    # Named as a dataset of the hub it is known by its place there, at the newest commit.
    assert found["hf:cais/mmlu/all:test"][1] == found["mmlu"][1]
    assert "revision" not in found["hf:cais/mmlu/all:test"][0]
    refused = found["hellaswag"][0]
    assert "cannot be loaded" in refused
    assert "for your own files write hellaswag:FOLDER:split" in refused
    files = [path for path in hub.asked if path.endswith("anatomy/test-00000-of-00001.parquet")]
    assert files
    assert all(f"/resolve/{pinned}/" in path for path in files)
