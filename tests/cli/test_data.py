"""``viva data check``: what a dataset is like, and what is wrong with it; and ``--ids`` in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import viva

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
GOOD: dict[str, Any] = {"id": "a", "question": "Which is a metal?", "choices": ["tin", "fog"], "answer": "A"}


def _lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in records))
    return path


def test_a_sound_dataset(tmp_path: Path) -> None:
    (tmp_path / "law_test.csv").write_text("Who?,judge,b,c,d,A\nWhy?,a,b,c,d,D\nWho?,judge,b,c,d,A\n")
    (tmp_path / "art_test.csv").write_text("When?,a,b,c,d,D\n")
    done = viva("data", "check", f"mmlu:{tmp_path}", "--json")
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    assert report["characters"] == {
        "question": {"min": 4, "median": 4, "mean": 4.33, "max": 5},
        "choice": {"min": 1, "median": 1, "mean": 1.33, "max": 5},
    }
    assert (report["form"], report["files"], report["items"]) == ("mmlu", 2, 3)
    assert report["answers"] == {"A": 1, "D": 2}
    assert report["choices"] == {"4": 3}
    assert report["subjects"] == {"art": 1, "law": 2}
    assert report["bad"] == {"count": 0, "first": []}
    assert report["repeats"]["count"] == 1
    assert report["repeats"]["first"][0]["line"] == 3


def test_what_is_wrong_is_printed_with_its_place(tmp_path: Path) -> None:
    path = _lines(tmp_path / "items.jsonl", GOOD, "{", *[GOOD | {"id": n, "answer": "Q"} for n in range(30)])
    done = viva("data", "check", path)
    assert done.returncode == 1
    assert "31 bad lines, the first 20" in done.stdout
    assert f"{path}:2: not valid JSON" in done.stdout
    assert f"{path}:3: field 'answer': the answer 'Q' is not among the choices (A, B)" in done.stdout
    assert f"{path}:22: " not in done.stdout
    report = orjson.loads(viva("data", "check", path, "--json").stdout)
    assert (report["items"], report["bad"]["count"], len(report["bad"]["first"])) == (1, 31, 20)
    assert report["bad"]["first"][1] == {
        "path": str(path),
        "line": 3,
        "field": "answer",
        "message": "the answer 'Q' is not among the choices (A, B)",
    }


def test_an_empty_file_is_not_sound(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text("")
    done = viva("data", "check", path)
    assert done.returncode == 1
    assert f"{path}: contains no record" in done.stdout


@pytest.mark.parametrize("source", ["none.jsonl", "mmlu:none:test", "nope:none", "hf:nothing"])
def test_what_is_not_there_is_a_usage_error(tmp_path: Path, source: str) -> None:
    done = viva("data", "check", source, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("viva: error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_run_takes_only_listed_items_and_can_be_resumed_from_elsewhere(tmp_path: Path) -> None:
    names = [orjson.loads(line)["id"] for line in ITEMS.read_bytes().splitlines()]
    (tmp_path / "ids.txt").write_text("\n".join([names[2], names[5], "of another benchmark"]))
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    done = viva(
        "run", "kieval", "--dataset", ITEMS, *models, "--ids", "ids.txt", "--out", "run", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    assert report["candidates"]["c"]["interviews"] == 2
    dataset = report["dataset"]
    assert (dataset["items"], dataset["chosen"], dataset["ids"]["listed"]) == (len(names), 2, 3)
    assert dataset["ids"]["matched"] == 2
    keys = {line["key"] for line in map(orjson.loads, viva("show", tmp_path / "run", "--json").stdout.splitlines())}
    assert keys == {f"c/{names[2]}", f"c/{names[5]}"}

    assert viva("resume", tmp_path / "run", "--json").returncode == 0
    (tmp_path / "ids.txt").write_text(names[2])
    changed = viva("resume", tmp_path / "run")
    assert changed.returncode == 2
    assert "changed since the run began: dataset" in changed.stderr


def test_a_split_of_a_folder_is_run_and_resumed_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "data" / "test").mkdir(parents=True)
    (tmp_path / "data" / "test" / "law_test.csv").write_text("Who?,judge,b,c,d,A\nWho?,judge,b,c,d,A\n")
    models = ["--candidate", "simulated:c", "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    done = viva("run", "kieval", "--dataset", "mmlu:data:test", *models, "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    dataset = orjson.loads(done.stdout)["dataset"]
    assert (dataset["name"], dataset["form"], dataset["items"], dataset["repeats"]) == ("data-test", "mmlu", 1, 1)
    assert viva("resume", tmp_path / "run").returncode == 0
