"""``viva validate``: the items that every named model answers correctly, as a file for ``--ids``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from case_tables import case_table
from command import viva

from viva.engine.journal_reader import History

if TYPE_CHECKING:
    from tests.servers.process import Server

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
Chaos = Callable[[dict[str, Any]], "Server"]
_PANEL = ["--model", "simulated:asks?knowledge=0.7", "--model", "simulated:judges?knowledge=0.6"]


def _answers(run: Path) -> dict[str, list[bool]]:
    """By item in the order of the dataset: whether each model's answer was right."""
    answers: dict[str, list[bool]] = {}
    with History(run / "journal.sqlite") as history:
        for one in history.ended():
            answers.setdefault(one.item["id"], []).append(not one.failed and one.result["generate"]["right"])
    return answers


def test_what_every_model_answers_correctly_is_listed_and_can_be_interviewed(tmp_path: Path) -> None:
    done = viva("validate", "--dataset", ITEMS, *_PANEL, "--out", "ids.txt", "--run", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = _answers(tmp_path / "run")
    listed = (tmp_path / "ids.txt").read_text().splitlines()
    assert listed == [name for name, right in answers.items() if right == [True, True]]
    assert 0 < len(listed) < min(sum(right[n] for right in answers.values()) for n in (0, 1))
    assert f"{len(listed)} of 40 items were answered correctly by every model (2); their ids are in ids.txt" in (
        done.stdout
    )
    for name, place in (("asks", 0), ("judges", 1)):
        row = next(line.split() for line in done.stdout.splitlines() if line.startswith(f"  {name} "))
        right = sum(one[place] for one in answers.values())
        assert row[:3] == [name, "40", f"{100 * right / 40:.1f}"]

    models = ["--candidate", "simulated:c", "--interactor", "simulated:asks", "--evaluator", "simulated:judges"]
    talks = viva("run", "kieval", "--dataset", ITEMS, *models, "--ids", tmp_path / "ids.txt", "--json", cwd=tmp_path)
    assert orjson.loads(talks.stdout)["candidates"]["c"]["interviews"] == len(listed)


def test_unanswered_items_are_counted_by_model_and_not_listed(chaos: Chaos, tmp_path: Path) -> None:
    right = {orjson.loads(line)["id"]: orjson.loads(line)["answer"] for line in ITEMS.read_bytes().splitlines()}
    scripts = {"silent": {"default": {"do": "ok", "say": "Who knows?"}}, "a": {"default": {"do": "ok", "say": "A"}}}
    server = chaos({"by_model": scripts})
    options = ["validate", "--dataset", ITEMS, "--json", "--out", tmp_path / "ids.txt"]
    one = viva(*options, "--model", server.model("a"), "--run", tmp_path / "one")
    report = orjson.loads(one.stdout)
    listed = (tmp_path / "ids.txt").read_text().split()
    assert listed == [name for name, answer in right.items() if answer in ("A", 0)]
    assert report["validated"] == {"items": 40, "correct": len(listed), "file": str(tmp_path / "ids.txt")}
    assert report["candidates"]["a"]["accuracy"]["generate"]["unanswered"] == 0

    both = viva(*options, "--model", server.model("a"), "--model", server.model("silent"), "--run", tmp_path / "both")
    report = orjson.loads(both.stdout)
    assert report["candidates"]["silent"]["accuracy"]["generate"]["unanswered"] == 40
    assert (report["validated"]["correct"], (tmp_path / "ids.txt").read_text()) == (0, "")


def test_a_run_that_was_cut_is_gone_on_with_and_only_then_the_list_is_written(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({})
    options = ["validate", "--dataset", ITEMS, "-n", "12", "--model", server.model("a"), "--model", server.model("b")]
    options += ["--out", tmp_path / "ids.txt", "--concurrency", "3"]
    cut = viva(*options, "--run", tmp_path / "run", "--max-calls", "10")
    assert cut.returncode == 1
    assert "budget of 10 calls is used up" in cut.stderr
    assert f"no list was written; resume with --run {tmp_path / 'run'}" in cut.stderr
    assert not (tmp_path / "ids.txt").exists()

    made = len(server.log())
    again = viva(*options, "--run", tmp_path / "run")
    assert again.returncode == 0, again.stderr
    assert len(server.log()) == 24
    assert made >= 10
    listed = (tmp_path / "ids.txt").read_text()

    (tmp_path / "ids.txt").unlink()
    assert viva(*options, "--run", tmp_path / "run").returncode == 0
    assert len(server.log()) == 24  # all is recorded: nobody is asked
    assert (tmp_path / "ids.txt").read_text() == listed

    other = viva(*options, "--run", tmp_path / "run", "--model", server.model("c"), "--seed", "8")
    assert other.returncode == 2
    assert f"--run {tmp_path / 'run'}: contains a run with other settings (seed, model)" in other.stderr


def test_what_failed_is_not_listed_and_asked_again_when_gone_on_with(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({"schedule": {"2": "400", "5": "400"}, "default": {"do": "ok", "say": "A"}})
    options = ["validate", "--dataset", ITEMS, "-n", "8", "--model", server.model("m"), "--run", tmp_path / "run"]
    options += ["--concurrency", "1", "--out", tmp_path / "ids.txt"]
    first = viva(*options)
    assert first.returncode == 3
    assert next(line.split()[-1] for line in first.stdout.splitlines() if line.startswith("  m ")) == "2"
    before = (tmp_path / "ids.txt").read_text().split()
    assert viva(*options).returncode == 0
    assert len(server.log()) == 10
    assert set(before) <= set((tmp_path / "ids.txt").read_text().split())
    assert all(len(right) == 1 for right in _answers(tmp_path / "run").values())


def test_ids_that_no_line_can_hold_are_written_as_json(tmp_path: Path) -> None:
    names = ["[1]", " two ", "three\nlines", "第四"]
    items = [{"id": name, "question": f"Is it {name}?", "choices": ["yes", "no"], "answer": 0} for name in names]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    model = ["--model", "simulated:m?knowledge=1"]
    options = ["--dataset", tmp_path / "items.jsonl", *model, "--out", tmp_path / "ids"]
    assert viva("validate", *options, cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "ids").read_text()) == names
    again = viva("validate", *options, "--ids", tmp_path / "ids", "--json", cwd=tmp_path)
    assert orjson.loads(again.stdout)["dataset"]["chosen"] == 4


@case_table(
    ("options", "words"),
    [
        (["--out", "ids"], ["--model"]),
        (["--model", "simulated:m"], ["--out"]),
        (["--model", "simulated:m", "--out", "."], ["--out .", "cannot be written"]),
        (["--model", "simulated:m", "--out", "none/ids"], ["--out none/ids", "cannot be written"]),
        (["--model", "augur:m", "--out", "ids"], ["unknown kind 'augur'"]),
        (["--model", "simulated:m", "--model", "simulated:m", "--out", "ids"], ["two models", "label="]),
        (["--model", "simulated:m", "--out", "ids", "--shots", "5"], ["--shots"]),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_asked(tmp_path: Path, options: list[str], words: list[str]) -> None:
    done = viva("validate", "--dataset", ITEMS, *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["", "generic:"])
def test_line_25_the_ids_are_not_written_over_the_dataset(tmp_path: Path, form: str) -> None:
    items = tmp_path / "items.jsonl"
    items.write_bytes(ITEMS.read_bytes())
    done = viva("validate", "--dataset", f"{form}{items}", *_PANEL, "--out", items, "--run", tmp_path / "run")
    assert (done.returncode, "this command reads that file; name another one" in done.stderr) == (2, True)
    assert items.read_bytes() == ITEMS.read_bytes()
    assert not (tmp_path / "run").exists()


def test_line_25_ids_that_cannot_be_written_leave_the_answers_to_go_on_with(tmp_path: Path) -> None:
    options = ["--dataset", ITEMS, "-n", "9", "--model", "simulated:m?knowledge=1", "--run", tmp_path / "run"]
    full = viva("validate", *options, "--out", "/dev/full")
    assert full.returncode == 2
    assert f"The answers are recorded: name another file, with --run {tmp_path / 'run'}" in full.stderr
    again = viva("validate", *options, "--out", tmp_path / "ids")
    assert (again.returncode, " 0 calls" in again.stderr) == (0, True)
