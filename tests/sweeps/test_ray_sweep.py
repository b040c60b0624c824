"""Two raylets on this machine hold a sweep: a worker is killed in the middle, a GPU is missing, a key is planted."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from planted_keys import KEYS, leaking_files, leaks
from ray_cluster import RayCluster, ray_cluster
from small_sweeps import INTERVIEWS, swept, write_file
from viva_process import ended

from viva.engine.clock import VirtualClock
from viva.orchestration.prepared_run import Shard
from viva.sweeps.cluster_worker import TaskOrder, run_task
from viva.sweeps.shards import SweepSlice
from viva.sweeps.sweep_folder import shards_of

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server


pytestmark = pytest.mark.skipif("VIVA_CLUSTER" not in os.environ, reason="starts a Ray cluster; see `make cluster`")


@pytest.fixture(scope="module")
def planted(_one_chaos: Server) -> dict[str, str]:
    """What stands in the environment of the machines, and of whoever starts a sweep."""
    return {**KEYS, "OPENAI_BASE_URL": _one_chaos.url}


@pytest.fixture(scope="module")
def cluster(planted: dict[str, str]) -> Iterator[RayCluster]:
    with ray_cluster([{"num_cpus": 1}, {"num_cpus": 1}], planted) as made:
        yield made


def _started(cluster: RayCluster, *arguments: str | Path) -> subprocess.Popen[bytes]:
    own = {**os.environ, **cluster.environment, "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-m", "viva", "sweep", *map(str, arguments), "--ray", cluster.address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=own)


def _worker(cluster: RayCluster, title: str) -> int | None:
    """The process that holds a part; Ray shows a task's name as the title of its worker."""
    return next((pid for pid, line in cluster.processes().items() if title.encode() in line), None)


def _some_done(out: Path) -> bool:
    """Whether an attempt has told of conversations that have ended, and of others that have not."""
    for file in out.glob("attempts/*/1/progress.json"):
        for cell in orjson.loads(file.read_bytes())["cells"].values():
            if 0 < cell["done"] < (cell["total"] or 0):
                return True
    return False


def _reported(folder: Path) -> list[bytes]:
    command = [sys.executable, "-m", "viva", "report", "out", "--csv", "a.csv", "--html", "a.html"]
    printed = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    return [printed, *((folder / name).read_bytes() for name in ("a.csv", "a.html"))]


def test_two_raylets_hold_a_sweep_and_lose_a_worker(
    cluster: RayCluster, replanned: Callable[[Plan], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = replanned({"cycle": [{"do": "ok", "say": "You sent {key} to me."}]})
    interviews = {**INTERVIEWS, "evaluator": "simulated:e?latency=0.1", "rounds": 2}
    candidates = ["simulated:a?knowledge=0.9", "openai:echo"]
    said = {"candidates": candidates, "interviews": interviews, "probes": None, "concurrency": 2}
    file = write_file(tmp_path, items=8, **said)
    many, one = tmp_path / "many" / "out", tmp_path / "one" / "out"
    seen: set[bytes] = set()
    driver = _started(cluster, file, "--out", many, "--ray-shards", "2")
    killed = None
    try:
        while driver.poll() is None and killed is None:
            seen.update(cluster.processes().values())
            killed = _worker(cluster, "ray::cells/kieval/alpha/seed-7/e/a, shard 1/2") if _some_done(many) else None
            try:
                driver.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
        assert killed is not None, driver.communicate()
        os.kill(killed, signal.SIGKILL)
        seen.update(cluster.processes().values())
        code, _, told = ended(driver)
    finally:
        driver.kill()
    assert code == 0, told
    assert not leaks(told.encode())
    assert not (many / "attempts").exists()
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    swept(file, one)
    assert _reported(many.parent) == _reported(one.parent)
    assert b"You sent *** to me" in b"".join(path.read_bytes() for path in many.rglob("journal.sqlite"))

    # No part of a key is in what Ray was given, in the logs of its processes, on a command line or in a file.
    assert {entry["key"] for entry in server.log()} == {KEYS["OPENAI_API_KEY"]}
    order = TaskOrder(str(many), "part", ("cell",), (1, 2), 2, False, 10.0)
    assert not leaks(_as_ray_pickles_it((run_task, order)))
    logs = {path for path in cluster.folder.rglob("*") if path.is_file()}
    assert any(path.name.startswith("worker-") for path in logs)
    assert leaking_files({*logs, *many.rglob("*")}) == []
    assert [line for line in seen if leaks(line)] == []

    # A shard that somebody has held besides is refused.
    swept(file, tmp_path / "elsewhere", VirtualClock(), selection=SweepSlice("kieval/alpha/seed-7/e/a", Shard(2, 2)))
    cell = Path("cells/kieval/alpha/seed-7/e/a")
    [(_, place)] = shards_of(tmp_path / "elsewhere" / cell)
    place.rename(many / cell / "shards" / place.name)
    merged = subprocess.run([sys.executable, "-m", "viva", "sweep", "merge", many], capture_output=True, check=False)
    assert merged.returncode == 3
    assert b"duplicated: in shard 2/2" in merged.stderr


def test_a_part_that_no_machine_can_hold_ends_in_a_timeout_that_names_what_is_missing(
    cluster: RayCluster, tmp_path: Path
) -> None:
    file = write_file(tmp_path, items=2, resources={"b": {"num_gpus": 1}})
    code, printed, told = ended(_started(cluster, file, "--out", tmp_path / "out", "--ray-timeout", "0.5", "--json"))
    assert code == 3
    cells: dict[str, Any] = {cell["candidate"]: cell for cell in orjson.loads(printed)["cells"]}
    assert (cells["a"]["state"], cells["b"]["state"]) == ("done", "failed")
    assert cells["b"]["error"]["type"] == "NotScheduled"
    assert "no machine in the cluster can run it: GPU 1 for b, and no machine has more than 0" in told


def _as_ray_pickles_it(given: object) -> bytes:
    code = "import sys, pickle; from ray import cloudpickle; "
    code += "sys.stdout.buffer.write(cloudpickle.dumps(pickle.loads(sys.stdin.buffer.read())))"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(given), check=True, capture_output=True)
    assert b"Order" in done.stdout
    return done.stdout
