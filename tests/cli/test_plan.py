"""``viva sweep plan`` as users meet it: a pilot, a budget, and what is said when a price is missing."""

from __future__ import annotations

from pathlib import Path

import orjson
from command import viva
from small_sweeps import calls_in, write_file

TALKS = {
    "interactor": "simulated:i",
    "evaluator": "simulated:e?price_in=1&price_out=2&latency=0.001",
    "rounds": 1,
}


def test_a_pilot_is_held_then_the_rest_is_planned_within_a_budget(tmp_path: Path) -> None:
    file = write_file(tmp_path, items=12, interviews=TALKS, concurrency=4)
    out = tmp_path / "out"
    done = viva(
        "sweep", "plan", file, "--out", out, "--pilot", "0.25", "--budget", "100", "--simulations", "3", "--json"
    )
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    assert report["conversations"] == 2 * 9
    assert report["budget"] == {"amount": 100.0, "kept": True}
    assert "resumes" in done.stderr
    assert calls_in(out) > 0
    done = viva("sweep", "plan", file, "--out", out, "--budget", "0.000001", "--simulations", "3")
    assert done.returncode == 1
    assert "the sweep may cost more than the budget of 1e-06" in done.stderr
    for word in ("Plan: 18 conversations", "Bottleneck", "What if", "half of all prices"):
        assert word in done.stdout


def test_exit_code_3_says_that_a_cell_cannot_run_and_nothing_of_the_budget(tmp_path: Path) -> None:
    file = write_file(tmp_path, items=4, candidates=["simulated:a?surprise=1"], interviews=TALKS)
    done = viva("sweep", "plan", file, "--out", tmp_path / "out", "--simulations", "2")
    assert done.returncode == 3
    assert "surprise" in done.stderr


def test_a_budget_with_a_model_without_a_price_is_an_error_before_anything_begins(tmp_path: Path) -> None:
    talks = {**TALKS, "evaluator": "openai:http://127.0.0.1:9/v1#judge"}
    file = write_file(tmp_path, items=4, interviews=talks)
    done = viva("sweep", "plan", file, "--out", tmp_path / "out", "--budget", "5", "--pilot", "0.5", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the price of openai:http://127.0.0.1:9/v1#judge is unknown; give price_in= and price_out=" in done.stderr
    assert not (tmp_path / "out").exists()
