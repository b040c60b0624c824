"""Sweeps whose cells are adaptive exams: the same items as runs of their own, what is reported, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import command
import orjson
import pytest
import yaml
from case_tables import case_table
from exam_banks import make_bank
from small_sweeps import INTERVIEWS, calls_in, refused, states, stop_after, swept

from viva.engine.clock import RealClock, VirtualClock
from viva.engine.errors import ConfigurationError
from viva.orchestration.completeness import recorded_report
from viva.orchestration.launch import new_run
from viva.orchestration.prepared_run import Shard
from viva.reports.studies.study import Study
from viva.scenarios.probes.probe import ProbeSettings
from viva.sweeps.recorded_sweep import recorded_cells
from viva.sweeps.shards import SweepSlice
from viva.sweeps.sweep import open_sweep

CANDIDATES = ["simulated:a?knowledge=0.8", "simulated:b?knowledge=0.3"]
EXAM = {"method": ["generate"], "shots": 0, "adaptive": "quiz.bank.json", "until": "half_width=9"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset and its bank."""
    folder = tmp_path_factory.mktemp("quiz")
    make_bank(folder)
    return folder


def write(folder: Path, name: str, **more: Any) -> Path:
    contents = {"candidates": CANDIDATES, "datasets": ["quiz.jsonl"], "probes": EXAM} | more
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in contents.items() if value is not None}))
    return file


def reports(out: Path) -> dict[str, Any]:
    return {cell.candidate: recorded_report(cell.folder) for cell in recorded_cells(out) if cell.folder is not None}


def test_a_cell_asks_what_a_run_of_its_own_asks(tmp_path: Path, folder: Path) -> None:
    sweep = swept(write(folder, "grid"), tmp_path / "out", VirtualClock())
    assert set(states(sweep).values()) == {"done"}
    values = EXAM | {"adaptive": str(folder / "quiz.bank.json"), "dataset": str(folder / "quiz.jsonl")}
    for model, label in zip(CANDIDATES, "ab", strict=True):
        launch = new_run("probe", ProbeSettings.model_validate(values | {"candidate": [model]}), tmp_path / label)
        RealClock().run(launch.run)
        assert recorded_report(launch.folder) == reports(tmp_path / "out")[label]
    calls = calls_in(tmp_path / "out")
    assert set(states(swept(write(folder, "grid"), tmp_path / "out")).values()) == {"done"}
    assert calls_in(tmp_path / "out") == calls
    planned = [cell.planned for cell in recorded_cells(tmp_path / "out")]
    assert planned == [
        own["candidates"][label]["adaptive"]["asked"] for label, own in reports(tmp_path / "out").items()
    ]


def test_a_halted_sweep_asks_the_same_items(tmp_path: Path, folder: Path) -> None:
    slow = [f"{model}&latency=1" for model in CANDIDATES]
    file = write(folder, "slow", candidates=slow)
    swept(file, tmp_path / "calm", VirtualClock())
    for calls in (9, 30):
        sweep = open_sweep(file, tmp_path / "out", VirtualClock())
        stop_after(sweep, calls, "halt")
        assert "part" in states(sweep).values()
    swept(file, tmp_path / "out", VirtualClock(), concurrency=3)
    assert orjson.dumps(reports(tmp_path / "out")) == orjson.dumps(reports(tmp_path / "calm"))


def test_the_study_lists_both_estimates_and_means_only_of_other_cells(tmp_path: Path, folder: Path) -> None:
    file = write(folder, "both", interviews={**INTERVIEWS, "rounds": 1, "n": 4})
    out = tmp_path / "out"
    assert command.viva("sweep", file, "--out", out).returncode == 0
    done = command.viva("report", out, "--csv", tmp_path / "out.csv", "--html", tmp_path / "out.html")
    assert done.returncode == 0, done.stderr
    assert "Adaptive exams: mean over all items" in done.stdout
    assert "2 cells" in done.stdout  # the interviews
    report = Study([out]).report()
    assert {cell["scenario"] for cell in report["cells"]} == {"kieval"}
    assert [record["exam"] for record in report["adaptive"]] == [
        recorded_report(cell.folder)["candidates"][cell.candidate]["adaptive"]
        for cell in recorded_cells(out)
        if cell.scenario == "probe" and cell.folder is not None
    ]
    rows = [
        row for row in csv.DictReader((tmp_path / "out.csv").read_text().splitlines()) if row["scenario"] == "probe"
    ]
    assert [(row["candidate"], row["measure"]) for row in rows] == [
        (label, f"adaptive.{name}") for label in "ab" for name in ("model_based", "assumption_free")
    ]
    assert float(rows[0]["low"]) < float(rows[0]["value"]) < float(rows[0]["high"])
    assert "Adaptive exams" in (tmp_path / "out.html").read_text()


def test_a_study_of_exams_alone_says_what_has_not_begun(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "out"
    first = SweepSlice(cell="1")
    swept(write(folder, "one"), out, VirtualClock(), selection=first)
    done = command.viva("report", out)
    assert done.returncode == 0, done.stderr
    assert "not begun" in done.stdout
    report = Study([out]).report()
    assert [record["exam"] is None for record in report["adaptive"]] == [False, True]
    assert report["facts"]["candidates"] == ["a", "b"]
    with pytest.raises(ConfigurationError, match=r"--shard: .*an adaptive exam chooses each item"):
        open_sweep(write(folder, "one"), tmp_path / "shards", selection=SweepSlice(shard=Shard(1, 2)))


def test_banks_that_differ_are_named(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "other").mkdir()
    make_bank(tmp_path / "other", seed=4)
    swept(write(folder, "first", candidates=CANDIDATES[:1]), tmp_path / "one", VirtualClock())
    changed = EXAM | {"adaptive": str(tmp_path / "other" / "quiz.bank.json")}
    swept(write(folder, "second", candidates=CANDIDATES[1:], probes=changed), tmp_path / "two", VirtualClock())
    notes = Study([tmp_path / "one", tmp_path / "two"]).report()["notes"]
    assert any("exams of probe on 'quiz' have 2 different banks" in note for note in notes)


REFUSED = {
    "learning": ({"probes": EXAM | {"adaptive": "learn"}}, "a bank is learned from all candidates of a run"),
    "another rule": (
        {"interviews": {**INTERVIEWS, "n": 4}, "until": {"half_width": 5}},
        "an adaptive exam ends by its own rule",
    ),
}


@case_table("change, message", REFUSED.values(), ids=REFUSED)
def test_what_cells_cannot_do_is_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    assert message in refused(write(folder, "refused", **change))


def test_one_candidate_is_not_compared_with_others(tmp_path: Path, folder: Path) -> None:
    sweep = swept(write(folder, "decided", probes=EXAM | {"until": "decided"}), tmp_path / "out", VirtualClock())
    assert set(states(sweep).values()) == {"failed"}
    assert "until: decided compares candidates, and there is one" in str(sweep.runs[0].error)
