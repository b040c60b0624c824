"""Reports of a run that did not end: the first line, a field of the JSON and the page say what is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import viva

from viva.engine.clock import VirtualClock
from viva.orchestration.launch import new_run
from viva.scenarios.kieval.kieval_settings import KievalSettings

ITEMS = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
TWO = ["--candidate", "simulated:a", "--candidate", "simulated:b?knowledge=0.3"]
RUNS: dict[str, list[str | Path]] = {
    "kieval": ["--dataset", ITEMS, *TWO, "--interactor", "simulated:i", "--evaluator", "simulated:e"],
    "probe": ["--dataset", ITEMS, *TWO, "--shots", "0", "--method", "generate"],
    "audit": ["--judge", "simulated:a"],
    "rephrase": ["--dataset", ITEMS, "--writer", "simulated:a", "--checker", "simulated:b"],
}


@pytest.mark.parametrize("scenario", RUNS)
def test_a_report_of_part_of_a_run_says_so_first(tmp_path: Path, scenario: str) -> None:
    run = tmp_path / "run"
    began = viva("run", scenario, *RUNS[scenario], "--max-calls", "45", "--concurrency", "3", "--out", run)
    assert began.returncode == 1
    first = began.stdout.splitlines()[0]
    counts, _, advice = first.partition(": ")
    assert advice == f"viva resume {run}"
    counted = re.fullmatch(r"(\d+) of (\d+) conversations; (\d+) not finished", counts)
    assert counted is not None, first
    ended, planned, missing = map(int, counted.groups())
    assert (ended > 0, ended + missing) == (True, planned)
    for command in ("report", "score", "show"):
        assert viva(command, run).stdout.splitlines()[0] == first
    for command in ("report", "score"):
        field = json.loads(viva(command, run, "--json").stdout)["unfinished"]
        assert (field["planned"], field["ended"]) == (planned, ended)
    if scenario == "kieval":
        page = tmp_path / "page.html"
        study = viva("report", run, "--html", page, "--markdown")
        assert counts in page.read_text("utf-8")
        assert counts in study.stderr
    assert json.loads(viva("report", run, run, "--json").stdout)["unfinished"][0]["ended"] == ended
    viva("resume", run, "--max-calls", "100000")
    for command in ("report", "score", "show"):
        assert "not finished" not in viva(command, run).stdout
    assert "unfinished" not in json.loads(viva("report", run, "--json").stdout)


@pytest.mark.parametrize(
    ("changes", "shorter"),
    [({"concurrency": 12, "n": 12, "max_calls": 120}, True), ({"early_stop": False, "concurrency": 1, "n": 6}, False)],
)
def test_the_short_conversations_that_ended_first_are_called_short(
    tmp_path: Path, changes: dict[str, Any], shorter: bool
) -> None:
    """Interviews that all began together end early or are longer; one after the other, only the last is short."""
    models = {"interactor": "simulated:i?latency=1", "evaluator": "simulated:e?latency=1"}
    settings = {"dataset": str(ITEMS), "candidate": ["simulated:a?knowledge=0.1&latency=1"], "max_calls": 90, **models}
    launch = new_run("kieval", KievalSettings(**settings | changes), tmp_path / "run", VirtualClock())
    launch.clock.run(launch.run)  # type: ignore[attr-defined]
    second = viva("report", tmp_path / "run").stdout.splitlines()[1]
    assert second.startswith("finished ones are shorter: ") == shorter
    figures = list(map(float, re.findall(r"\d+\.\d", second)))
    assert figures == sorted(figures)
    assert len(figures) == (2 if shorter else 0)


def test_a_cell_is_resumed_with_its_sweep(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    interviews = {"interactor": "simulated:i", "evaluator": "simulated:e", "max_calls": 40}
    sweep = {"candidates": ["simulated:a"], "datasets": [str(ITEMS)], "interviews": interviews}
    file.write_text(json.dumps(sweep), "utf-8")
    viva("sweep", file, "--out", tmp_path / "sweep")
    [manifest] = (tmp_path / "sweep").rglob("manifest.json")
    assert f"not finished: viva resume {tmp_path / 'sweep'}\n" in viva("report", manifest.parent).stdout
