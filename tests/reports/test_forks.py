"""Forks beside their source, letter probes beside loss probes, datasets without a score: what is counted, and how."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_runs import dataset, interviewed, probed, with_manifest_alone, written

from viva import VirtualClock
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import forked_run
from viva.reports.studies.cells import find_cells
from viva.reports.studies.page import study_page
from viva.reports.studies.study import Study
from viva.scenarios.kieval.score import Interview, Round


def _forked(source: Path, path: Path, judge: str) -> Path:
    clock = VirtualClock()
    launch = forked_run(source, path, clock, changes={"evaluator": judge})
    assert clock.run(launch.run).how == "done"
    return path


def test_what_a_fork_repeats_is_counted_where_it_was_used(tmp_path: Path) -> None:
    source = interviewed(tmp_path / "run", "simulated:one", rounds=2, early_stop=False)
    fork = _forked(source, tmp_path / "fork", "simulated:other?noise=0.5")
    alone, both = (Study(folders).report() for folders in ([source], [source, fork]))
    once, twice = (report["costs"]["overall"] for report in (alone, both))
    for role in ("candidate", "interactor"):
        assert twice[role] == once[role]
    assert twice["evaluator"]["calls"] == 2 * once["evaluator"]["calls"]
    [told] = [one for one in both["agreement"] if one["over"] == "evaluators"]
    assert told["n"] == once["evaluator"]["calls"]
    assert 0 < told["unanimous"] <= told["decided"] < 1
    assert told["fleiss"] == pytest.approx(told["kappa"], abs=0.1)  # of two raters they are nearly the same
    cells = find_cells([fork])
    assert [cell.label(role) for cell in cells for role in ("interactor", "evaluator")] == [None, "other"]


def test_letter_probes_beside_loss_probes_change_no_signal(tmp_path: Path) -> None:
    other = dataset(tmp_path / "fresh.jsonl", 12)
    losses = probed(
        tmp_path / "losses", "simulated:one?memorisation=0.5", method=["loss"], against=str(other), members="against"
    )
    letters = probed(tmp_path / "letters", "simulated:one?memorisation=0.5", method=["letter"])
    [alone] = [row for row in Study([losses]).report()["pooled"] if row["dataset"]]
    [both] = [row for row in Study([letters, losses]).report()["pooled"] if row["dataset"]]
    assert alone["probe"]["loss_gap"] is not None
    for name in ("loss", "loss_against", "loss_gap", "detectors"):
        assert both["probe"][name] == alone["probe"][name]
    assert both["probe"]["accuracy"]["letter"]["n"] > 0


def test_a_dataset_without_a_score_leaves_no_overall_figure(tmp_path: Path) -> None:
    items = dataset(tmp_path / "quiz.jsonl", 4)
    held = interviewed(tmp_path / "held", "simulated:one", rounds=1)
    failed = written(tmp_path / "failed", items, [{"type": "TimedOut"}] * 4, "simulated:one")
    [[_, *row]] = next(rows for title, _, rows in Study([held, failed]).tables() if title.startswith("KIEval on"))
    assert row[6:10] == ["–"] * 4


def test_a_talk_that_ran_out_was_not_held_in_full(tmp_path: Path) -> None:
    items = dataset(tmp_path / "quiz.jsonl", 2)
    talk = Interview("one", "quiz-0", 3, choice=0, right=True, rounds=[Round([4] * 6)])
    talk.ended_by, talk.usage = "transcript", {"candidate": [2, 10, 5]}
    pytest.importorskip("matplotlib")
    study = Study([written(tmp_path / "run", items, [talk], "simulated:one", rounds=3)])
    page = study_page(study.report())
    plots = [*page.plots, *([page.decisive] if page.decisive else [])]
    [drawn] = [panel for one in plots if one.anchor == "stops" for panel, _ in one.panels]
    assert "recording ended" in drawn


def test_a_run_whose_journal_has_no_tables_has_not_begun(tmp_path: Path) -> None:
    run = interviewed(tmp_path / "run", "simulated:one", n=2)
    other = interviewed(tmp_path / "other", "simulated:two", n=2)
    with_manifest_alone(run)
    RunFolder.open(run).journal.write_bytes(b"")  # as a kill leaves it, just before
    assert [cell["state"] for cell in Study([run, other]).report()["cells"]] == ["not begun", "done"]
