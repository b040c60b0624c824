"""``viva report`` over several runs and sweeps, and the forms that only a study has."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import viva
from study_runs import SCIENCE, interviewed, probed

from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_results
from viva.reports.studies.study import Study

CANDIDATES = ("simulated:weak?knowledge=0.2", "simulated:mid?knowledge=0.5", "simulated:good?knowledge=0.9")
SWEEP = f"""
candidates: {list(CANDIDATES)}
datasets: [{SCIENCE}]
seeds: [1, 2]
interviews: {{interactor: 'simulated:i', evaluator: 'simulated:e', n: 5}}
probes: {{method: [letter], shots: 0, n: 5}}
"""


def told(*arguments: str | Path) -> Any:
    """The JSON that a report prints."""
    done = viva("report", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return orjson.loads(done.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    one = [interviewed(root / f"run-{seed}", *CANDIDATES, n=5, seed=seed) for seed in (1, 2)]
    return [*one, probed(root / "probe", *CANDIDATES, n=5, seed=1)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweep")
    (root / "small.yaml").write_text(SWEEP)
    done = viva("sweep", root / "small.yaml", "--out", root / "out")
    assert done.returncode == 0, done.stderr
    return root / "out"


def test_one_run_is_reported_as_ever(runs: list[Path]) -> None:
    assert told(runs[0]) == recorded_results(RunFolder.open(runs[0])).report()
    title = "KIEval on science, scorer official, seed 1, reproducible transcripts\n"
    assert viva("report", runs[0]).stdout.startswith(title)


def test_one_run_ends_with_its_verdicts_only_if_it_compares_candidates(runs: list[Path], tmp_path: Path) -> None:
    shown = viva("report", runs[0], "--html", tmp_path / "page.html")
    sentences = viva("report", *runs[:1], "--scorer", "official").stdout.split("\n\n")[-1]
    assert sentences.startswith("Highest score: good, ")
    assert "Not tested for contamination: good, mid, weak (" in sentences
    assert shown.stdout.endswith(f"\n\n{sentences}")
    assert "comparisons" not in shown.stderr  # a note on tables that are not shown
    alone = interviewed(tmp_path / "alone", CANDIDATES[0], n=5, seed=1)
    assert "score:" not in viva("report", alone).stdout


def test_line_12_files_beside_change_nothing_on_stdout(runs: list[Path], tmp_path: Path) -> None:
    plain = viva("report", runs[0])
    for name in ("csv", "html"):
        assert viva("report", runs[0], f"--{name}", tmp_path / name).stdout == plain.stdout
        assert (tmp_path / name).stat().st_size > 1000


def test_several_runs_make_a_study(runs: list[Path]) -> None:
    assert told(*runs) == Study(runs).report()
    shown = viva("report", *runs)
    assert shown.stdout.startswith("KIEval on science: scorer official, seeds 1, 2, reproducible transcripts")
    assert shown.returncode == 0
    assert shown.stderr.startswith("viva: note: 3 of 3 comparisons have 100 items or fewer")
    assert shown.stderr.count("\n") == 1


def test_groups_of_one_dataset_are_rows_because_their_names_are_long(tmp_path: Path) -> None:
    made = [
        interviewed(tmp_path / judge, f"simulated:of-{judge}", n=2, evaluator=f"simulated:{judge}")
        for judge in ("one", "two")
    ]
    title, header, rows = Study(made).tables()[0]
    assert title.startswith("KIEval on science: scorer official")
    assert header[:3] == ["candidate", "dataset", "accuracy"]
    assert [row[:2] for row in rows] == [[f"of-{judge}", f"science (evaluator {judge})"] for judge in ("one", "two")]


def test_a_sweep_makes_a_study(sweep: Path) -> None:
    report = told(sweep)
    assert report["facts"]["states"] == {"done": 12, "part": 0, "stopped": 0, "not begun": 0}
    assert report["facts"]["candidates"] == ["weak", "mid", "good"]
    assert all((sweep / cell["name"] / "manifest.json").is_file() for cell in report["cells"])
    for cell in report["cells"]:
        own = recorded_results(RunFolder.open(sweep / cell["name"])).report()
        assert cell["result"] == own["candidates"][cell["candidate"]]
    talks = report["cells"][-1]["transcripts"]
    assert len(talks["examples"]) == 3
    for key in talks["examples"]:
        assert viva("show", sweep / talks["folder"], "--conversation", key).returncode == 0
    assert report["correlations"]["accuracy"] == "letter"
    assert str(sweep.parent) not in orjson.dumps(report).decode()


def test_cells_that_have_not_begun_are_told(sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "cells").mkdir(parents=True)
    (tmp_path / "out" / "sweep.json").write_bytes((sweep / "sweep.json").read_bytes())
    page = tmp_path / "page.html"
    report = told(tmp_path / "out", "--html", page, "--csv", tmp_path / "a.csv")
    assert report["facts"]["states"]["not begun"] == len(report["cells"]) == 12
    assert (report["pooled"], report["comparisons"]) == ([], [])
    assert page.read_text().lower().startswith("<!doctype html>")


def test_another_scorer_is_named_and_scores(runs: list[Path]) -> None:
    report = told(runs[0], "--scorer", "corrected")
    own = recorded_results(RunFolder.open(runs[0]), {"scorer": "corrected"}).report()
    assert report["scorer"] == "corrected"
    for cell in report["cells"]:
        assert cell["result"] == own["candidates"][cell["candidate"]]


@pytest.mark.parametrize(
    ("option", "begins"),
    [("--latex", "% \\usepackage{booktabs}"), ("--markdown", "### KIEval on science: scorer official")],
)
def test_tables_as_markup(runs: list[Path], option: str, begins: str) -> None:
    done = viva("report", runs[0], option)
    assert done.returncode == 0
    assert "comparisons have 100 items or fewer" in done.stderr
    assert done.stdout.startswith(begins)
    assert "weak" in done.stdout


def test_files_are_written_beside_what_is_printed(runs: list[Path], tmp_path: Path) -> None:
    files = {name: tmp_path / f"all.{name}" for name in ("csv", "parquet", "html")}
    options = [text for name, file in files.items() for text in (f"--{name}", str(file))]
    assert told(runs[0], *options) == told(runs[0])
    assert len(list(csv.DictReader(files["csv"].read_text().splitlines()))) > 100
    assert files["parquet"].read_bytes().startswith(b"PAR1")
    assert "weak" in files["html"].read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (lambda run: (run, "--latex", "--json"), "exclude each other"),
        (lambda run: (run, "--scorer", "generous"), "unknown scorer 'generous'; known: official, linear, corrected"),
        (lambda run: (run, run.parent / "none"), "not a run folder"),
        (lambda run: (run, "--csv", run / "none" / "a.csv"), "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said(
    runs: list[Path], arguments: Callable[[Path], tuple[str | Path, ...]], says: str
) -> None:
    done = viva("report", *arguments(runs[0]))
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_what_is_mixed_is_noted_on_stderr(tmp_path: Path) -> None:
    made = [interviewed(tmp_path / str(rounds), CANDIDATES[0], n=2, rounds=rounds) for rounds in (1, 2)]
    done = viva("report", *made)
    assert done.returncode == 0
    assert "viva: note: cells differ in rounds: 1, 2" in done.stderr
