"""Whole runs by the command with the lab's oracles: interviews and probes of examinees whose knowledge is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from command import viva

from viva.lab.world import World, write_benchmark

PACKS = ("kieval", "lab")
WORLD = World(1)


def _viva(*arguments: str | Path) -> dict[str, Any]:
    done = viva(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = orjson.loads(done.stdout)
    return report


def test_interviews_by_the_command_rank_examinees_by_what_they_know_not_by_what_they_saw(tmp_path: Path) -> None:
    test = write_benchmark(WORLD, tmp_path)["test"]
    candidates = ["oracle:all", "oracle:half?knows=0.5", "oracle:none?knows=0", "oracle:cheat?knows=0.25&saw=answers"]
    candidates += ["oracle:quarter?knows=0.25", "simulated:s"]
    named = [part for model in candidates for part in ("--candidate", model)]
    panel = ["--interactor", "oracle:lab", "--evaluator", "oracle:lab", "--strict"]
    reports = [
        _viva("run", "kieval", "--dataset", test, "--pack", pack, *named, *panel, "--out", tmp_path / pack)
        for pack in PACKS
    ]
    assert reports[0]["tier"] == "C"
    for report in reports:
        one = report["candidates"]
        assert all(row["failed"] == row["parse_failures"] == 0 for row in one.values())
        score = {label: row["score"]["mean"] for label, row in one.items()}
        accuracy = {label: row["accuracy"]["mean"] for label, row in one.items()}
        assert score["all"] == accuracy["all"] == accuracy["cheat"] == 100
        assert score["all"] > score["half"] + 20 > score["quarter"] + 20 > score["none"] + 20
        assert abs(score["cheat"] - score["quarter"]) < 5
        assert accuracy["cheat"] > accuracy["quarter"] + 25
        # The simulated candidate speaks of the item's options, never of the mineral: it talks past the questions.
        assert score["s"] == 10
        assert one["s"]["stop_reasons"]["repetition"] > 0
    assert reports[0]["candidates"]["half"]["score"] == reports[1]["candidates"]["half"]["score"]


def test_probes_of_examinees_show_what_they_saw(tmp_path: Path) -> None:
    files = write_benchmark(WORLD, tmp_path)
    candidates = ["oracle:quarter?knows=0.25", "oracle:tuned?knows=0.25&saw=answers", "oracle:fed?knows=0.25&saw=texts"]
    named = [part for model in candidates for part in ("--candidate", model)]
    options = [
        "--method",
        "text",
        "--method",
        "letter",
        "--method",
        "loss",
        "--shots",
        "0",
        "--against",
        files["fresh"],
    ]
    one = _viva("probe", "--dataset", files["test"], *options, *named, "--out", tmp_path / "run")["candidates"]
    for method in ("text", "letter"):
        accuracy = {label: row["accuracy"][method]["value"] for label, row in one.items()}
        assert accuracy["tuned"] == accuracy["fed"] == 100
        assert accuracy["quarter"] < 75
    auc = {label: row["detectors"]["min_k_20"]["value"] for label, row in one.items()}
    assert auc["fed"] > 0.9
    assert abs(auc["tuned"] - 0.5) < 0.1
    assert auc["tuned"] == pytest.approx(auc["quarter"], abs=0.1)
