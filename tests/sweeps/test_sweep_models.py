"""Models over all cells: one limit for each endpoint, local weights loaded once and put away in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from small_sweeps import INTERVIEWS, states, swept, write_file
from tiny_gguf import SHORT_PACK, make_model

from viva.engine.backends.llama import backend as loaded
from viva.engine.backends.llama.native import NativeModel
from viva.engine.clock import VirtualClock
from viva.sweeps.cell_run import CellRun

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]


def test_the_limit_of_an_endpoint_holds_over_all_cells(chaos: StartChaos, tmp_path: Path) -> None:
    server = chaos({"default": {"do": "slow", "delay": 0.02}})
    limited = server.model("judge", concurrency=3)
    said = {
        "candidates": [server.model(name) for name in ("one", "two", "three")],
        "seeds": [1, 2],
        "interviews": {"interactor": limited, "evaluator": limited, "rounds": 1},
    }
    sweep = swept(write_file(tmp_path, items=3, **said), tmp_path / "out")
    assert set(states(sweep).values()) == {"done"}
    log = server.log()
    counts = sweep.models[limited]
    assert counts["most_in_flight"] == 3
    assert counts["granted"] == sum(entry["model"] == "judge" for entry in log) >= 6 * 3 * 2
    assert {entry["model"] for entry in log} == {"one", "two", "three", "judge"}


def test_conversations_in_flight_are_bounded_over_all_cells_and_reach_the_bound(tmp_path: Path) -> None:
    most = 0
    original = CellRun.hear
    runs: list[CellRun] = []

    def hear(run: CellRun, event: Any) -> None:
        nonlocal most
        original(run, event)
        if run not in runs:
            runs.append(run)
        most = max(most, sum(one.in_flight for one in runs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CellRun, "hear", hear)
        slow = [f"simulated:{name}?latency=1" for name in "ab"]
        file = write_file(tmp_path, items=4, seeds=[1, 2, 3], concurrency=6, candidates=slow)
        sweep = swept(file, tmp_path / "out", VirtualClock())
    assert set(states(sweep).values()) == {"done"}
    assert most == 6


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is loaded (+name) and freed (-name), in order."""
    told: list[str] = []
    load, close = NativeModel.__init__, NativeModel.close

    def loading(self: NativeModel, path: Path, **how: Any) -> None:
        told.append(f"+{path.stem}")
        load(self, path, **how)

    def closing(self: NativeModel) -> None:
        told.append(f"-{self.path.stem}")
        close(self)

    monkeypatch.setattr(NativeModel, "__init__", loading)
    monkeypatch.setattr(NativeModel, "close", closing)
    return told


def _local(tmp_path: Path, names: str, **said: Any) -> Path:
    for seed, name in enumerate(names):
        make_model(tmp_path / f"{name}.gguf", seed=seed, quote_bias=4.0)
    (tmp_path / "short.yaml").write_text(SHORT_PACK)
    limits = {"rounds": 1, "pack": "short.yaml", "candidate_tokens": 4, "interactor_tokens": 4, "evaluator_tokens": 8}
    interviews = {**INTERVIEWS, **limits, **said.pop("examiners", {})}
    probes = said.pop("probes", {"method": ["letter"], "shots": 0})
    return write_file(
        tmp_path,
        items=2,
        names=("alpha", "beta"),
        candidates=[f"llama:{name}.gguf?lanes=2&threads=1&ctx=1024&label={name}" for name in names[:2]],
        interviews=interviews,
        probes=probes,
        **said,
    )


def test_each_local_model_is_loaded_once_for_all_its_cells(tmp_path: Path, loads: list[str]) -> None:
    sweep = swept(_local(tmp_path, "ab", seeds=[1, 2]), tmp_path / "out")
    assert len(sweep.runs) == 2 * 2 * 2 * 2
    assert set(states(sweep).values()) == {"done"}
    assert loads == ["+a", "-a", "+b", "-b"]
    assert not loaded._ENGINES


def test_what_is_finished_loads_no_weights(tmp_path: Path, loads: list[str]) -> None:
    file = _local(tmp_path, "ab")
    swept(file, tmp_path / "out")
    loads.clear()
    assert set(states(swept(file, tmp_path / "out")).values()) == {"done"}
    assert loads == []


def test_more_may_be_in_memory_where_the_file_says_so(tmp_path: Path, loads: list[str]) -> None:
    sweep = swept(_local(tmp_path, "ab", local_models=2), tmp_path / "out")
    assert set(states(sweep).values()) == {"done"}
    assert sorted(loads) == ["+a", "+b", "-a", "-b"]


def test_the_examiner_that_all_cells_share_stays(tmp_path: Path, loads: list[str]) -> None:
    judge = "llama:e.gguf?lanes=2&threads=1&ctx=1024"
    sweep = swept(_local(tmp_path, "abe", probes=None, examiners={"evaluator": judge}), tmp_path / "out")
    assert set(states(sweep).values()) == {"done"}
    assert [one for one in loads if one[1] != "e"] == ["+a", "-a", "+b", "-b"]
    assert loads[-1] == "-e" or loads[-2] == "-e"
    assert loads.count("+e") == 1
