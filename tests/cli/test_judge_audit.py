"""``viva judge audit`` as a user types it: the answer first, a killed run resumed, another run's answers as cases."""

from __future__ import annotations

from pathlib import Path

import orjson
from command import viva
from viva_process import killed, started

JUDGES = ["--judge", "simulated:aster-x?traits=position:0.9", "--judge", "simulated:fair?noise=0.05"]


def test_shipped_cases_at_once(tmp_path: Path) -> None:
    plot = tmp_path / "audit.svg"
    done = viva("judge", "audit", *JUDGES, "--retests", "2", "--out", tmp_path / "run", "--plot", plot)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[0], " ".join(done.stdout.split("\n\n")[0].split())
    assert first.startswith("aster-x prefers the answer shown first (+")
    assert "fair: no effect found (position, verbosity, format, labels, retest)." in second
    assert "family of fair is unknown" in done.stderr
    assert plot.read_text().startswith("<?xml")


def test_a_killed_audit_is_resumed_to_the_same_report(tmp_path: Path) -> None:
    slow = ["--judge", "simulated:aster-x?latency=0.02&sigma=0&traits=position:0.9", "-n", "6", "--concurrency", "3"]
    whole = viva("judge", "audit", *slow, "--out", tmp_path / "whole", "--json")
    assert whole.returncode == 0, whole.stderr
    killed(started("judge", "audit", *slow, "--out", tmp_path / "killed"), tmp_path / "killed", 20)
    resumed = viva("resume", tmp_path / "killed", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == whole.stdout


def test_the_answers_of_a_run_as_cases(tmp_path: Path) -> None:
    items = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
    models = ["--candidate", "simulated:aster", "--candidate", "simulated:birch?knowledge=0.2"]
    models += ["--interactor", "simulated:i", "--evaluator", "simulated:e", "--rounds", "1"]
    assert viva("run", "kieval", "--dataset", items, "-n", "6", *models, "--out", tmp_path / "run").returncode == 0
    audit = ["judge", "audit", *JUDGES, "--run", tmp_path / "run", "--audit", "position", "--audit", "self"]
    done = viva(*audit, "--out", tmp_path / "audit", "--json")
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    assert report["dataset"]["cases"] >= 6
    assert report["families"] == {"aster-x": "aster"}
    assert [(one["judge"], one["audit"]) for one in report["findings"]] == [
        ("aster-x", "position"),
        ("aster-x", "self"),
        ("fair", "position"),
    ]
    again = viva("report", tmp_path / "audit", "--json")  # from the folder alone, its cases included
    assert again.stdout == done.stdout
