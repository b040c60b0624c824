"""Rules that end interviews early: what they end, and that neither concurrency nor a resume enters the decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_sweeps import INTERVIEWS, dataset, journals, states, stop_after, swept, write_file

from viva.data.dataset import open_dataset
from viva.engine.clock import VirtualClock
from viva.engine.journal_reader import History
from viva.sweeps.recorded_sweep import recorded_cells
from viva.sweeps.sweep import open_sweep

ITEMS = 120


def _file(tmp_path: Path, until: Any, **said: Any) -> Path:
    candidates = ["simulated:a?knowledge=1&latency=1", "simulated:b?knowledge=0&latency=1"]
    interviews = {**INTERVIEWS, "rounds": 1}
    return write_file(
        tmp_path, items=ITEMS, **{"candidates": candidates, "interviews": interviews, "until": until, **said}
    )


def _until(out: Path) -> list[dict[str, Any]]:
    return [cell.until for cell in recorded_cells(out) if cell.until is not None]


@pytest.mark.parametrize("until", [{"half_width": 12.0}, "decided"], ids=str)
def test_a_rule_ends_cells_early_and_the_same_again_leaves_them_so(tmp_path: Path, until: Any) -> None:
    file = _file(tmp_path, until, concurrency=4)
    sweep = swept(file, tmp_path / "out", VirtualClock())
    assert set(states(sweep).values()) == {"stopped"}
    records = _until(tmp_path / "out")
    assert len(records) == 2
    for record, run in zip(records, sweep.runs, strict=True):
        assert 0 < record["stopped_at"] < ITEMS
        assert run.done >= record["stopped_at"]
        assert run.done < ITEMS
    if until == "decided":
        assert records[0] == records[1]
        assert [(one["better"], one["worse"]) for one in records[0]["better"]] == [("a", "b")]
    before = journals(tmp_path / "out")
    again = swept(file, tmp_path / "out", VirtualClock())
    assert states(again) == states(sweep)
    assert journals(tmp_path / "out") == before


@pytest.mark.parametrize("until", [{"half_width": 12.0}, "decided"], ids=str)
def test_the_decision_depends_on_no_concurrency(tmp_path: Path, until: Any) -> None:
    decisions = []
    for concurrency in (1, 7, 500):
        out = tmp_path / f"out{concurrency}"
        swept(_file(tmp_path, until), out, VirtualClock(), concurrency=concurrency)
        timing = ("overshoot", "saved")
        decisions.append([{k: v for k, v in record.items() if k not in timing} for record in _until(out)])
    assert decisions[0] == decisions[1] == decisions[2]
    assert decisions[0][0]["stopped_at"] is not None


@pytest.mark.parametrize("until", [{"half_width": 12.0}, "decided"], ids=str)
def test_the_decision_depends_on_no_stop_on_the_way(tmp_path: Path, until: Any) -> None:
    file = _file(tmp_path, until, concurrency=6)
    swept(file, tmp_path / "whole", VirtualClock())
    out = tmp_path / "out"
    for _ in range(3):
        stop_after(open_sweep(file, out, VirtualClock()), 12, "halt")
    assert all(record["stopped_at"] is None for record in _until(out))
    swept(file, out, VirtualClock())
    assert [record["stopped_at"] for record in _until(out)] == [r["stopped_at"] for r in _until(tmp_path / "whole")]
    assert [record["better"] for record in _until(out)] == [r["better"] for r in _until(tmp_path / "whole")]


def test_candidates_that_are_decided_about_go_side_by_side(tmp_path: Path) -> None:
    sweep = swept(_file(tmp_path, "decided", concurrency=4), tmp_path / "out", VirtualClock())
    one, other = (run.done for run in sweep.runs)
    assert abs(one - other) <= 2 * 4  # slots go to both in turn; the first has those of the beginning
    assert min(one, other) > 4


def test_items_come_in_the_seeds_order_the_same_for_all(tmp_path: Path) -> None:
    swept(_file(tmp_path, {"half_width": 12.0}, seeds=[1, 2]), tmp_path / "out", VirtualClock(), concurrency=3)
    asked: dict[int, list[list[str]]] = {1: [], 2: []}
    for cell in recorded_cells(tmp_path / "out"):
        assert cell.folder is not None
        with History(cell.folder.journal) as history:
            started = [history.started(number) for number in history.numbers()]
        asked[cell.seed].append([one[1]["id"] for one in started if one is not None])
    for seed, orders in asked.items():
        whole = [item.id for item in open_dataset(str(tmp_path / "alpha.jsonl"), seed=seed, shuffled=True)]
        assert all(order == whole[: len(order)] for order in orders)
        assert whole != sorted(whole, key=lambda name: int(name.rpartition("-")[2]))
    assert asked[1][0][:10] != asked[2][0][:10]


def test_fewer_items_are_the_beginning_of_the_same_order(tmp_path: Path) -> None:
    source = str(dataset(tmp_path / "alpha.jsonl", 50))
    whole = [item.id for item in open_dataset(source, seed=3, shuffled=True)]
    assert sorted(whole) == sorted(item.id for item in open_dataset(source))
    assert [item.id for item in open_dataset(source, limit=20, seed=3, shuffled=True)] == whole[:20]


def test_a_cell_that_fails_leaves_the_others_their_whole_way(tmp_path: Path) -> None:
    candidates = ["simulated:a?latency=1", "llama:none.gguf"]
    sweep = swept(_file(tmp_path, "decided", candidates=candidates), tmp_path / "out", VirtualClock())
    assert list(states(sweep).values()) == ["done", "failed"]


def test_a_rule_that_never_holds_ends_nothing(tmp_path: Path) -> None:
    twins = ["simulated:a?knowledge=0.5&latency=1", "simulated:b?knowledge=0.5&latency=1"]
    sweep = swept(_file(tmp_path, "decided", candidates=twins), tmp_path / "out", VirtualClock())
    assert set(states(sweep).values()) == {"done"}
    assert [record["stopped_at"] for record in _until(tmp_path / "out")] == [None, None]
