"""The lab's experiment: that it finds what is known to be there, goes on where it stopped, refuses what is wrong."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import viva as viva_here
from tiny_gguf import make_model

from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.engine.runner import Outcome
from viva.lab.experiment import ExaminedModel, Experiment, Findings, ideal_family, paired_difference


def carried(experiment: Experiment, seed: int = 1) -> list[Outcome]:
    clock = RealClock()
    return [clock.run(launch.run) for launch in experiment.launches(seed, clock)]


@pytest.fixture(scope="module")
def ideal(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    experiment = Experiment(ideal_family(), tmp_path_factory.mktemp("lab") / "run", items=60)
    for seed in (1, 2):
        assert [(outcome.how, outcome.failed) for outcome in carried(experiment, seed)] == [("done", 0)] * 2
    return experiment


def test_of_ideal_examinees_interviews_show_what_they_know_and_the_line_shows_who_cheats(ideal: Experiment) -> None:
    report = Findings(ideal, [1, 2]).report()
    assert report["interviews"] == 2 * 6 * 60
    assert all(found["r"] > 0.95 for found in report["correlation"].values())
    assert report["regression"]["below"] == ["sft-cheater", "pt-cheater"]
    assert report["regression"]["above"] == []
    for label, auc in (("sft-cheater", 0.5), ("pt-cheater", 1.0)):
        one = report["twins"][label]
        assert one["twin"] == "clean-50"
        assert one["gain"]["accuracy"]["mean"] > 25
        gained = one["gain"]["kieval_official"]
        assert gained["mean"] == 0  # twins guess alike, and what a cheater saw helps in no interview
        assert one["auc"]["mean"] == pytest.approx(auc, abs=0.1)
    assert report["candidates"]["clean-100"]["kieval_official"]["mean"] == 100


def test_the_table_has_the_truth_beside_what_was_measured(ideal: Experiment) -> None:
    tables = Findings(ideal, [1]).tables()
    assert all(len(header) <= 8 for _, header, _ in tables)
    title, header, rows = tables[0]
    assert title.startswith("The lab, world 1: 60 items, seed 1; line: interview = ")
    assert [row[header.index("taught")] for row in rows] == ["25%", "50%", "75%", "100%", "50%", "50%"]
    assert [row[header.index("verdict")] for row in rows] == ["on the line"] * 4 + ["below"] * 2
    _, header, rows = tables[2]
    losses = {row[0]: float(row[header.index("difference")]) for row in rows}
    assert losses["pt-cheater"] < -1 < min(loss for label, loss in losses.items() if label != "pt-cheater")


def test_a_second_start_asks_no_model_and_finds_the_same(ideal: Experiment) -> None:
    before = orjson.dumps(Findings(ideal, [1]).report())
    assert all(outcome.restored == outcome.finished > 0 for outcome in carried(ideal))
    assert orjson.dumps(Findings(ideal, [1]).report()) == before


def test_another_experiment_in_the_same_folder_is_refused(ideal: Experiment) -> None:
    with pytest.raises(ConfigurationError, match="rounds was 5, is 2"):
        carried(replace(ideal, rounds=2))
    with pytest.raises(ConfigurationError, match="seed-3"):
        Findings(ideal, [3])


def test_a_model_of_unknown_knowledge_is_on_no_line_of_knowledge(tmp_path: Path) -> None:
    model = make_model(tmp_path / "random.gguf", width=64, layers=1, quantised=True)
    experiment = Experiment(
        [ExaminedModel(f"llama:{model}?label=random")], tmp_path / "run", items=3, rounds=2, probed=4
    )
    assert [(outcome.how, outcome.failed) for outcome in carried(experiment)] == [("done", 0)] * 2
    findings = Findings(experiment, [1])
    report = findings.report()
    assert report["candidates"]["random"]["share"] is None
    assert report["correlation"]["official"] is None
    assert (report["regression"], report["twins"]) == (None, {})
    # Random weights say nothing of this world or any other.
    assert report["candidates"]["random"]["kieval_official"]["mean"] == 10
    assert report["candidates"]["random"]["loss_test"]["mean"] > 1
    assert findings.tables()[0][2][0][:3] == ["random", "–", "–"]


def test_a_difference_has_the_error_of_minerals() -> None:
    one = {
        ("Zumux", "a"): 100.0,
        ("Zumux", "b"): 100.0,
        ("Zumux", "c"): 100.0,
        ("Ledus", "a"): 0.0,
        ("Bidal", "a"): 9.0,
    }
    other = {("Zumux", "a"): 0.0, ("Zumux", "b"): 0.0, ("Zumux", "c"): 0.0, ("Ledus", "a"): 0.0, ("Gabus", "a"): 9.0}
    found = paired_difference([one, one], [other, other])
    assert found is not None
    assert (found.n, found.clusters, found.mean) == (8, 2, 75.0)
    # The residuals of the two minerals sum to 150 and -150; the factor for two clusters is 2.
    assert found.se == pytest.approx((2 * 2 * 150**2) ** 0.5 / 8)


def _viva(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return viva_here("lab", *arguments, cwd=cwd)


def test_the_command_prints_findings_on_stdout_and_says_how_far_it_is_on_stderr(tmp_path: Path) -> None:
    options = [
        "run",
        "--ideal",
        "-n",
        "4",
        "--rounds",
        "2",
        "--probed",
        "9",
        "--seed",
        "5",
        "--candidate",
        "simulated:stranger",
    ]
    done = _viva(*options, "--json", "--out", "lab", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = orjson.loads(done.stdout)
    assert (report["seeds"], report["interviews"]) == ([5], 28)
    assert report["candidates"]["stranger"]["share"] is None
    assert "28 interviews" in done.stderr
    assert "folder: lab" in done.stderr
    again = _viva(*options, "--out", "lab", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    lines = again.stdout.splitlines()
    assert "page: lab/report.html" in lines[:2]
    assert any(line.startswith("The lab, world 1: 4 items, seed 5") for line in lines[2:4])


def test_models_that_are_not_there_are_named(tmp_path: Path) -> None:
    done = _viva("run", "--models", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere/clean-25.gguf" in done.stderr
    assert "viva lab build" in done.stderr
    done = _viva("run", "--ideal", "--models", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert "--ideal and --models exclude each other" in done.stderr
