"""``viva review``: a table goes out, comes back as Excel saves it, and changes the report but not the journal."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import viva
from small_dialogs import write_data

from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_results

Row = dict[str, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("review")
    data = write_data(folder / "data")
    models = ["--candidate", "simulated:c?knowledge=0", "--judge", "simulated:j?noise=0.5", "--repeats", "4"]
    done = viva("run", "functionchat", "--data", data, *models, "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def _export(run: Path, to: Path) -> list[Row]:
    done = viva("review", run, "--out", to)
    assert done.returncode == 0, done.stderr
    data = to.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")
    rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), dialect="excel-tab"))
    assert f"{len(rows)} graded outputs" in done.stdout
    return rows


def _save(rows: list[Row], to: Path) -> None:
    """As Excel saves 'Unicode text' and people rename it: other line ends, quotes where they are needed."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), dialect="excel-tab")
    writer.writeheader()
    writer.writerows(rows)
    to.write_bytes(text.getvalue().encode("utf-16"))


def _report(run: Path) -> dict[str, Any]:
    return recorded_results(RunFolder.open(run)).report()


def test_corrections_go_out_come_back_and_stand_beside_the_judges_verdicts(run: Path, tmp_path: Path) -> None:
    journal = (run / "journal.sqlite").read_bytes()
    before = _report(run)
    assert "corrections" not in before
    rows = _export(run, tmp_path / "out.tsv")
    assert {row["decided by"] for row in rows} == {"rule", "judge"}
    assert len(rows) == before["candidates"]["c"]["turns"]
    passed = [row for row in rows if row["verdict"] == "pass"]
    assert passed
    assert len(passed) < len(rows)
    for row in rows:  # the candidate was always wrong: each pass is the judge's error
        if row["verdict"] == "pass":
            row.update({"corrected verdict": "Fail", "reviewer": "Noor", "reason": "says\nsomething else"})
    _save(rows, tmp_path / "back.tsv")
    done = viva("review", run, "--apply", tmp_path / "back.tsv")
    assert done.returncode == 0, done.stderr
    assert f"{len(passed)} corrections added" in done.stdout
    again = viva("review", run, "--apply", tmp_path / "back.tsv")
    assert "0 corrections added" in again.stdout
    after = _report(run)
    one = after["candidates"]["c"]
    assert {name: one[name] for name in before["candidates"]["c"]} == before["candidates"]["c"]
    assert one["corrected"]["dialog"]["micro"]["mean"] == 0
    assert after["corrections"]["judge_errors"]["all"]["false_positives"] == len(passed)
    assert after["corrections"]["judge_errors"]["all"]["false_negatives"] == 0
    assert orjson.loads(viva("report", run, "--json").stdout) == after
    tables = viva("report", run).stdout
    for title in ("as judged", "as corrected", "Wrong verdicts"):
        assert title in tables
    assert (run / "journal.sqlite").read_bytes() == journal
    assert _report(run) == after


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"corrected verdict": "pass", "reviewer": "Noor"}, [":2:", "reason"]),
        ({"corrected verdict": "maybe", "reviewer": "Noor", "reason": "x"}, [":2:", "corrected verdict"]),
        ({"id": "c/nothing", "corrected verdict": "pass", "reviewer": "Noor", "reason": "x"}, [":2:", "c/nothing"]),
    ],
)
def test_a_wrong_table_changes_nothing(run: Path, tmp_path: Path, change: Row, words: list[str]) -> None:
    rows = _export(run, tmp_path / "out.tsv")
    rows[0].update(change)
    _save(rows, tmp_path / "back.tsv")
    before = _report(run)
    done = viva("review", run, "--apply", tmp_path / "back.tsv")
    assert done.returncode == 2
    for word in ("back.tsv", *words):
        assert word in done.stderr
    assert _report(run) == before


@pytest.mark.parametrize("column", ["reviewer", "reason"])
def test_line_1_a_correction_that_could_not_be_read_again_is_refused(run: Path, tmp_path: Path, column: str) -> None:
    rows = _export(run, tmp_path / "out.tsv")
    rows[0].update({"corrected verdict": "pass", "reviewer": "Noor", "reason": "x"} | {column: "a\0b"})
    _save(rows, tmp_path / "back.tsv")
    before = _report(run)
    done = viva("review", run, "--apply", tmp_path / "back.tsv")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"back.tsv:2: field '{column}': contains a NUL character" in done.stderr
    assert _report(run) == before  # every later report of the run failed


def test_line_27_a_review_outlives_a_reader_that_left_and_says_that_stdout_is_full(run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "viva", "review", str(run), "--out", str(tmp_path / "out.tsv")]
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "w") as full:
        for stdout, code, said in ((write, 0, b""), (full, 2, b"viva: error: cannot write the results to stdout")):
            done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
            assert (done.returncode, done.stderr[: len(said) or None]) == (code, said)
    os.close(write)


def test_one_of_both_ways_has_to_be_chosen_and_only_judged_turns_can_be_reviewed(run: Path, tmp_path: Path) -> None:
    for options in ([], ["--out", tmp_path / "a.tsv", "--apply", tmp_path / "b.tsv"]):
        done = viva("review", run, *options)
        assert done.returncode == 2
        assert "either --out" in done.stderr
    tasks = tmp_path / "tasks.jsonl"
    task = {"id": "a", "says": ["Hello."], "tools": [{"name": "f"}], "forbidden": [{"name": "f"}]}
    tasks.write_bytes(orjson.dumps(task))
    models = ["--candidate", "simulated:c", "--mode", "user"]
    talks = viva("run", "functionchat", "--data", tasks, *models, "--out", tmp_path / "talks")
    assert talks.returncode == 0, talks.stderr
    done = viva("review", tmp_path / "talks", "--out", tmp_path / "a.tsv")
    assert done.returncode == 2
    assert "nothing to review" in done.stderr
