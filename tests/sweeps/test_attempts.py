"""Attempts at parts of a sweep without Ray: what is published, resumed, fenced, and never overwritten; and which parts,
on which machines.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_sweeps import INTERVIEWS, calls_in, journals, refused, swept, write_file

from viva.engine.clock import VirtualClock
from viva.engine.errors import ClusterError
from viva.orchestration.launch import recorded_results
from viva.orchestration.prepared_run import Shard
from viva.sweeps.cluster_attempts import (
    Attempt,
    attempt_numbers,
    commit_attempt,
    has_attempts,
    read_progress,
    request_stop,
    settle_attempts,
)
from viva.sweeps.cluster_sweep import SweepTask, divide_sweep, open_shard_run, sum_shards
from viva.sweeps.cluster_worker import TaskOrder, run_task
from viva.sweeps.merge import merge_sweep
from viva.sweeps.ray_client import total_demand
from viva.sweeps.recorded_sweep import recorded_cells, write_sweep
from viva.sweeps.shards import SweepSlice
from viva.sweeps.sweep import Sweep, open_sweep
from viva.sweeps.sweep_file import ModelResources

_ONE = ["simulated:a?knowledge=0.9"]


def _begun(file: Path, out: Path) -> Sweep:
    sweep = open_sweep(file, out)
    out.mkdir(parents=True, exist_ok=True)
    write_sweep(out, sweep.recorded)
    return sweep


def _parts(sweep: Sweep, shards: int = 1) -> list[SweepTask]:
    return divide_sweep(sweep.recorded, [run.cell for run in sweep.runs], sweep.out, shards)


def _order(out: Path, part: SweepTask, copy_seconds: float = 60.0) -> TaskOrder:
    share = None if part.shard is None else (part.shard.index, part.shard.total)
    return TaskOrder(str(out), part.id, tuple(cell.name for cell in part.cells), share, None, False, copy_seconds)


def _reports(out: Path) -> list[Any]:
    return [recorded_results(cell.folder).report() for cell in recorded_cells(out) if cell.folder is not None]


def test_parts_held_one_by_one_make_the_report_of_one_process(tmp_path: Path) -> None:
    said = {"probes": {"shots": 0, "method": ["letter"]}, "until": {"half_width": 30.0}}
    file, out = write_file(tmp_path, items=5, **said), tmp_path / "out"
    sweep = _begun(file, out)
    parts = _parts(sweep, 2)
    assert [str(part.shard) for part in parts] == ["1/2", "2/2"] * 2 + ["None"] * 2, "rules look at whole cells"
    for part in parts:
        told = run_task(_order(out, part))
        assert (told["attempt"], told["error"]) == (1, None)
        commit_attempt(out, part.id, told["attempt"], tmp_path)
    assert "refused" not in {one.state for one in merge_sweep(out)}
    swept(file, tmp_path / "one", VirtualClock())
    assert len(_reports(out)) == 4
    assert _reports(out) == _reports(tmp_path / "one")
    again = _parts(sweep, 3)
    assert again[0].shard == Shard(1, 2), "a cell goes on in as many shards as it began"
    runs = [open_shard_run(sweep.runs[0], part, out, retry_failed=False) for part in again[:2]]
    sum_shards(sweep.runs[0], runs)
    assert (sweep.runs[0].state, sweep.runs[0].done, sweep.runs[0].total) == ("done", 5, 5)


def test_a_late_attempt_overwrites_nothing(tmp_path: Path) -> None:
    file, out = write_file(tmp_path, candidates=_ONE), tmp_path / "out"
    [part] = _parts(_begun(file, out))
    late = Attempt(out, part.id, tmp_path / "s")  # its worker was given up, and still works
    late.restore([part.cells[0].name], None, tmp_path / "late")
    swept(file, tmp_path / "late", VirtualClock())
    told = run_task(_order(out, part))
    assert told["attempt"] == 2
    assert late.is_fenced, "a later attempt has begun"
    with pytest.raises(ClusterError, match="another attempt"):
        late.publish([part.cells[0].name], None, tmp_path / "late")
    commit_attempt(out, part.id, 2, tmp_path)
    before = journals(out)
    assert late.is_fenced, "its folder is gone"
    # One that has looked before it was fenced, and writes after that, began from what is no longer in the cell's place.
    with pytest.raises(ClusterError, match="published nothing"):
        commit_attempt(out, part.id, 1, tmp_path)
    again = Attempt(out, part.id, tmp_path / "s")
    (again.root / "attempt.json").write_bytes(orjson.dumps({"attempt": 1, "basis": {part.cells[0].name: None}}))
    again.publish([part.cells[0].name], None, tmp_path / "late")
    with pytest.raises(ClusterError, match="left as it is"):
        commit_attempt(out, part.id, again.number, tmp_path)
    assert journals(out) == before
    assert not (out / "attempts" / part.id).exists()


def test_two_attempts_that_begin_at_one_moment_have_two_numbers(tmp_path: Path) -> None:
    made = [Attempt(tmp_path, "x", tmp_path) for _ in range(3)]
    assert [one.number for one in made] == attempt_numbers(tmp_path, "x") == [1, 2, 3]
    assert [one.is_fenced for one in made] == [True, True, False]


def test_a_killed_worker_is_followed_by_one_that_goes_on_from_its_copy(tmp_path: Path) -> None:
    interviews = {**INTERVIEWS, "evaluator": "simulated:e?latency=0.05"}
    file = write_file(tmp_path, items=30, candidates=_ONE, interviews=interviews, concurrency=2)
    out = tmp_path / "out"
    part = _parts(_begun(file, out), 2)[0]
    order = _order(out, part, copy_seconds=0.2)
    code = "import sys, orjson; from viva.sweeps.cluster_worker import TaskOrder, run_task; "
    code += "run_task(TaskOrder(**orjson.loads(sys.argv[1])))"
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    worker = subprocess.Popen([sys.executable, "-c", code, orjson.dumps(asdict(order)).decode()], env=own)
    try:
        while worker.poll() is None and calls_in(out) < 6:
            try:
                worker.wait(timeout=0.02)
            except subprocess.TimeoutExpired:
                pass
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert worker.returncode == -signal.SIGKILL, "it was killed before its end"
    published = calls_in(out)
    assert read_progress(out, part.id, 1)["cells"][part.cells[0].name]["total"] == 15
    told = run_task(order)
    assert told["error"] is None
    [cell] = told["cells"].values()
    assert (told["attempt"], cell["state"], cell["done"]) == (2, "done", 15)
    commit_attempt(out, part.id, 2, tmp_path)
    assert calls_in(out) == published + cell["calls"], "what was published is not asked for again"
    swept(file, tmp_path / "one", VirtualClock(), selection=SweepSlice(shard=part.shard))
    assert calls_in(out) == calls_in(tmp_path / "one")


def test_what_a_driver_has_left_is_taken_over(tmp_path: Path) -> None:
    file, out = write_file(tmp_path), tmp_path / "out"
    sweep = _begun(file, out)
    for part in _parts(sweep):
        run_task(_order(out, part))
    assert not list(out.glob("cells/*"))
    assert has_attempts(out)
    settle_attempts(out, tmp_path)
    assert not has_attempts(out)
    sweep.survey()
    assert [run.state for run in sweep.runs] == ["done", "done"]
    assert not (out / "attempts").exists()


def test_a_part_that_is_told_to_halt_keeps_what_there_is(tmp_path: Path) -> None:
    interviews = {**INTERVIEWS, "evaluator": "simulated:e?latency=600"}
    file, out = write_file(tmp_path, candidates=_ONE, interviews=interviews), tmp_path / "out"
    [part] = _parts(_begun(file, out))
    request_stop(out, "halt")
    told = run_task(_order(out, part))
    [cell] = told["cells"].values()
    assert (told["error"], cell["state"] in ("waiting", "part"), cell["done"]) == (None, True, 0)
    if cell["begun"]:
        commit_attempt(out, part.id, told["attempt"], tmp_path)
    settle_attempts(out, tmp_path)
    assert not (out / "attempts").exists()


def test_a_folder_that_is_not_shared_is_told(tmp_path: Path) -> None:
    [part] = _parts(_begun(write_file(tmp_path, candidates=_ONE), tmp_path / "out"))
    told = run_task(_order(tmp_path / "elsewhere", part))
    assert told["error"]["type"] == "ClusterError"
    assert "storage that all machines share" in told["error"]["message"]


def test_what_is_missing_is_named_with_the_model_that_needs_it() -> None:
    needs = {
        "big": ModelResources(num_gpus=1, memory=8 << 30),
        "judge": ModelResources(num_gpus=0.5, resources={"fast": 1}),
    }
    models = ["llama:models/big?label=big", "simulated:judge", "simulated:other"]
    demand = total_demand(models, needs)
    assert demand.amounts == {"GPU": 2.0, "memory": float(8 << 30), "fast": 1.0, "CPU": 1.0}
    small = {"CPU": 4.0, "GPU": 1.0, "memory": float(16 << 30)}
    said = demand.missing([{"CPU": 8.0}, small]) or ""
    assert "GPU 2 for big, judge, and no machine has more than GPU 1" in said.replace("more than 1", "more than GPU 1")
    assert "resource 'fast' 1 for judge" in said
    assert "memory" not in said
    assert demand.missing([small, {**small, "GPU": 2.0, "fast": 1.0}]) is None
    apart = [{**small, "GPU": 4.0}, {**small, "fast": 2.0}]
    assert "no single machine has all" in (demand.missing(apart) or "")
    assert "0 free" in demand.occupied({"CPU": 4.0})


@given(st.lists(st.dictionaries(st.sampled_from(["CPU", "GPU", "x"]), st.floats(0, 8)), max_size=4))
def test_nothing_is_missing_exactly_where_one_machine_has_all(machines: list[dict[str, float]]) -> None:
    demand = total_demand(["simulated:a"], {"a": ModelResources(num_cpus=2, num_gpus=1, resources={"x": 3})})
    fits = any(m.get("CPU", 0) >= 2 and m.get("GPU", 0) >= 1 and m.get("x", 0) >= 3 for m in machines)
    assert (demand.missing(machines) is None) == fits


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"nobody": {"num_gpus": 1}}, "resources.nobody: no model of this sweep has this label; the labels are"),
        ({"a": {"gpus": 1}}, "resources.a.gpus: unknown setting"),
        ({"a": {"num_gpus": 1.5}}, "resources.a.num_gpus: expected a whole number above 1, found 1.5"),
        ({"a": {"num_cpus": -1}}, "resources.a.num_cpus"),
        ({"a": {"resources": {"GPU": 1}}}, "use num_cpus, num_gpus or memory"),
        ({"a": {"resources": {"x": -1}}}, "expected 0 or more, found -1"),
    ],
)
def test_resources_that_cannot_be_meant_are_refused(tmp_path: Path, resources: dict[str, Any], expected: str) -> None:
    assert expected in refused(write_file(tmp_path, resources=resources))


def test_no_sweep_but_a_clusters_imports_ray(tmp_path: Path) -> None:
    code = "import sys; import viva.cli.sweep, viva.sweeps.cluster_sweep; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_cell_that_is_halted_before_its_first_conversation_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = open_sweep(write_file(tmp_path, candidates=_ONE), tmp_path / "out")

    @asynccontextmanager
    async def halted(*_: object) -> AsyncIterator[None]:
        [cell] = sweep.runs
        cell.opening.cancel()  # as a halt does that comes while the cell's models are opened
        await anyio.lowlevel.checkpoint()
        yield

    async def run() -> None:
        with anyio.fail_after(60):
            await sweep.run()

    monkeypatch.setattr("viva.orchestration.launch.listening", halted)
    sweep.clock.run(run)
    assert [cell.state for cell in sweep.runs] == ["waiting"]
