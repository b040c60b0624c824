"""Rules over clusters of items, what is printed of cells that a rule ended, and that reports of them are byte for byte
the same after kills."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from small_sweeps import INTERVIEWS, refused, states, stop_after, swept, write_file

from viva.data.dataset import open_dataset
from viva.engine.clock import VirtualClock
from viva.engine.journal_reader import History
from viva.reports.studies.page import study_page
from viva.reports.studies.study import Study
from viva.sweeps.overview import SweepOverview
from viva.sweeps.recorded_sweep import recorded_cells
from viva.sweeps.sweep import open_sweep, reopen_sweep
from viva.web.report.html_page import page_html


def items(path: Path, subjects: list[int], field: str = "subject") -> Path:
    """A benchmark in which ``subjects[s]`` items have the subject s; those of subject 0 have none."""
    draw = random.Random(1)
    rows = []
    for subject, count in enumerate(subjects):
        for number in range(count):
            said = {"id": f"{subject}-{number}", "question": f"Which is {draw.random()}?", "answer": draw.randrange(4)}
            rows.append(said | {"choices": [f"n {draw.random()}" for _ in range(4)]})
            rows[-1] |= {field: f"s{subject}"} if subject else {}
    draw.shuffle(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def grid(tmp_path: Path, until: Any, subjects: list[int], **said: Any) -> Path:
    tmp_path.mkdir(exist_ok=True)
    items(tmp_path / "alpha.jsonl", subjects)
    file = tmp_path / "grid.yaml"
    whole: dict[str, Any] = {
        "candidates": ["simulated:a?knowledge=1&latency=1", "simulated:b?knowledge=0&latency=1"],
        "datasets": ["alpha.jsonl"],
        "interviews": {**INTERVIEWS, "rounds": 1},
        "until": until,
        **said,
    }
    file.write_text(yaml.safe_dump({name: value for name, value in whole.items() if value is not None}))
    return file


SUBJECTS = [3, *[4] * 40]


@pytest.mark.parametrize("until", [{"half_width": 14.0}, {"decided": True}], ids=str)
def test_line_6b_a_sweep_moves_cluster_by_cluster_and_says_so(tmp_path: Path, until: dict[str, Any]) -> None:
    file = grid(tmp_path, {**until, "cluster": "subject"}, SUBJECTS, concurrency=3)
    out = tmp_path / "out"
    sweep = swept(file, out, VirtualClock())
    assert set(states(sweep).values()) == {"stopped"}
    whole = [item.subject for item in open_dataset(str(tmp_path / "alpha.jsonl"), seed=7, cluster="subject")]
    ends = {place for place in range(1, 164) if place == 163 or whole[place] != whole[place - 1] or not whole[place]}
    for cell in recorded_cells(out):
        assert cell.until is not None
        assert cell.until["independent"] == "subject"
        assert cell.until["rule"]["cluster"] == "subject"
        assert cell.until["stopped_at"] in ends
        assert cell.folder is not None
        with History(cell.folder.journal) as history:
            asked = [started[1]["subject"] for n in history.numbers() if (started := history.started(n)) is not None]
        assert asked == whole[: len(asked)]
    title, _, _ = SweepOverview(sweep).tables()[0]
    assert "intervals that assume independent subjects" in title
    assert any("if subjects are independent" in note for note in Study([out]).report()["notes"])


def test_line_6b_the_decision_over_clusters_depends_on_no_stop_and_no_concurrency(tmp_path: Path) -> None:
    file = grid(tmp_path, {"half_width": 14.0, "cluster": "subject"}, SUBJECTS)
    records = []
    for concurrency in (1, 50):
        swept(file, tmp_path / f"out{concurrency}", VirtualClock(), concurrency=concurrency)
        records.append([cell.until for cell in recorded_cells(tmp_path / f"out{concurrency}")])
    for _ in range(3):
        stop_after(open_sweep(file, tmp_path / "out", VirtualClock(), concurrency=5), 30, "halt")
    swept(file, tmp_path / "out", VirtualClock(), concurrency=5)
    records.append([cell.until for cell in recorded_cells(tmp_path / "out")])
    assert records[0] == records[1] == records[2]
    assert records[0][0] is not None
    assert 0 < records[0][0]["stopped_at"] < 163


def test_line_6b_without_a_field_the_output_says_that_items_are_taken_to_be_independent(tmp_path: Path) -> None:
    sweep = swept(grid(tmp_path, {"half_width": 14.0}, SUBJECTS), tmp_path / "out", VirtualClock(), concurrency=3)
    title, _, _ = SweepOverview(sweep).tables()[0]
    assert "intervals that assume independent items (otherwise set until: {cluster: subject} or passage)" in title
    assert any("if items are independent" in note for note in Study([tmp_path / "out"]).report()["notes"])


def test_line_6b_a_dataset_may_have_a_field_of_its_own(tmp_path: Path) -> None:
    items(tmp_path / "beta.jsonl", [0, *[3] * 5], field="passage")
    own = {"dataset": "beta.jsonl", "cluster": "passage"}
    file = grid(tmp_path, {"half_width": 14.0, "cluster": "subject"}, SUBJECTS, datasets=["alpha.jsonl", own])
    settings: Any = {run.cell.dataset: run.cell.settings for run in open_sweep(file, tmp_path / "out").runs}
    assert (settings["alpha"].cluster, settings["beta"].cluster) == ("subject", "passage")
    found = open_dataset(str(tmp_path / "beta.jsonl"), seed=3, cluster="passage")
    assert found.clusters is not None
    assert found.clusters.sizes == (3,) * 5
    assert len(open_dataset(str(tmp_path / "beta.jsonl"), limit=7, seed=3, cluster="passage")) == 7


@pytest.mark.parametrize(
    ("subjects", "cluster", "expected"),
    [
        (SUBJECTS, "topic", "until.cluster: 'topic'; allowed is subject or passage"),
        (SUBJECTS, 3, "until.cluster: 3; allowed is the name of a field"),
    ],
)
def test_line_6b_a_wrong_field_is_refused(tmp_path: Path, subjects: list[int], cluster: Any, expected: str) -> None:
    assert expected in refused(grid(tmp_path, {"half_width": 2.0, "cluster": cluster}, subjects))


@pytest.mark.parametrize(
    ("subjects", "expected"), [([20], "no item has a subject"), ([0, 20], "all items have the same subject")]
)
def test_line_6b_a_dataset_without_clusters_fails_by_name(tmp_path: Path, subjects: list[int], expected: str) -> None:
    sweep = swept(grid(tmp_path, {"half_width": 2.0, "cluster": "subject"}, subjects), tmp_path / "out")
    assert set(states(sweep).values()) == {"failed"}
    assert all(expected in str(run.error) for run in sweep.runs)


def test_line_6c_sweep_study_and_page_print_the_rules_interval(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep = swept(grid(tmp_path, {"half_width": 12.0}, SUBJECTS), out, VirtualClock(), concurrency=4)
    overview = {one["candidate"]: one for one in SweepOverview(sweep).report()["cells"]}
    study = Study([out])
    report = study.report()
    tables = {title: rows for title, _, rows in study.tables()}
    cells = next(rows for title, rows in tables.items() if title.endswith("2 cells"))
    page = page_html(study_page(report))
    for cell, shown in zip(recorded_cells(out), cells, strict=True):
        assert cell.until is not None
        told = cell.until["intervals"][cell.candidate]
        text = f"{told['mean']:.1f} ({told['low']:.1f} to {told['high']:.1f})"
        assert 20 < told["high"] - told["low"] <= 24
        assert overview[cell.candidate]["score"] == text
        assert shown[-1] == text
        assert text in page
        [row] = [one for one in report["pooled"] if one["candidate"] == cell.candidate]
        assert (row["score"]["low"], row["score"]["high"]) == (told["low"], told["high"])
        assert row["score"]["mean"] == told["mean"]
    [note] = [note for note in report["notes"] if "stopping rule" in note]
    assert "come from the rule and are valid" in note
    assert "confidence sequences" in page
    # Another scorer's scores were not watched, and nothing says that their intervals hold at the stop.
    other = Study([out], "linear").report()
    assert all(row["score"]["high"] - row["score"]["low"] < 20 for row in other["pooled"])
    [note] = [note for note in other["notes"] if "stopping rule" in note]
    assert "of a scorer other than linear" in note
    assert "hold at the stop" not in note
    assert "confidence sequences" not in page_html(study_page(other))


def test_line_6c_over_seeds_the_rules_intervals_are_averaged(tmp_path: Path) -> None:
    out = tmp_path / "out"
    swept(grid(tmp_path, {"half_width": 12.0}, SUBJECTS, seeds=[1, 2]), out, VirtualClock(), concurrency=4)
    for row in Study([out]).report()["pooled"]:
        parts = [
            one.until["intervals"][row["candidate"]] for one in recorded_cells(out) if one.candidate == row["candidate"]
        ]
        for end in ("low", "high"):
            mean = sum(part["n"] * part[end] for part in parts) / sum(part["n"] for part in parts)
            assert row["score"][end] == pytest.approx(mean, abs=1e-6)


def test_line_28_reports_of_a_rule_are_the_same_bytes_after_kills(tmp_path: Path) -> None:
    file = grid(tmp_path, {"half_width": 12.0}, SUBJECTS)
    whole = swept(file, tmp_path / "one" / "out", VirtualClock(), concurrency=2)
    out = tmp_path / "two" / "out"
    for _ in range(3):
        stop_after(open_sweep(file, out, VirtualClock(), concurrency=40), 12, "halt")
    killed = swept(file, out, VirtualClock(), concurrency=40)
    assert [run.done for run in whole.runs] != [run.done for run in killed.runs]  # one overshoots further
    assert orjson.dumps(Study([tmp_path / "one" / "out"]).report()) == orjson.dumps(Study([out]).report())


def test_a_sweep_of_version_1_is_reported(tmp_path: Path) -> None:
    """It left out what was at its default, and some defaults were others."""
    then = {"candidate_tokens": 512, "interactor_tokens": 256, "evaluator_tokens": 1024, "first_answer": "text"}
    out = tmp_path / "out"
    swept(write_file(tmp_path, interviews={**INTERVIEWS, "rounds": 1, **then}), out)
    record = json.loads((out / "sweep.json").read_text())
    record["sweep"] = 1
    for cell in record["cells"]:
        cell["settings"] = {name: cell["settings"][name] for name in ("dataset", "candidate", *INTERVIEWS, "rounds")}
        manifest = out / cell["name"] / "manifest.json"
        run = json.loads(manifest.read_text())
        for name in ("first_answer", "shots_from", "cluster"):
            del run["settings"][name]
        manifest.write_text(json.dumps(run))
    (out / "sweep.json").write_text(json.dumps(record))
    assert all(cell.folder is not None for cell in recorded_cells(out))
    assert Study([out]).report()["facts"]["states"]["done"] == 2


def test_a_resumed_sweep_keeps_its_cells_whatever_the_defaults_are_now(tmp_path: Path) -> None:
    """As of a time when replies had 512 tokens by default: neither the file nor a manifest of version 1 says so."""
    out = tmp_path / "out"
    swept(write_file(tmp_path, interviews={**INTERVIEWS, "rounds": 1, "candidate_tokens": 512}), out)
    record = json.loads((out / "sweep.json").read_text())
    del record["file"]["interviews"]["candidate_tokens"]
    (out / "sweep.json").write_text(json.dumps(record))
    sweep = reopen_sweep(out)
    sweep.clock.run(sweep.run)
    assert set(states(sweep).values()) == {"done"}
    assert all(cell.folder is not None for cell in recorded_cells(out))
