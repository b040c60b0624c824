"""Running a sweep: what is run, what is left alone, what a failed cell does, and what is read back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from small_sweeps import INTERVIEWS, calls_in, dataset, journals, states, stop_after, swept, write_file

from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.run_folder import RunFolder
from viva.orchestration.launch import recorded_results
from viva.sweeps.recorded_sweep import recorded_cells
from viva.sweeps.sweep import open_sweep, reopen_sweep
from viva.sweeps.sweep_folder import is_sweep


def _reports(out: Path) -> dict[str, Any]:
    return {one.name: recorded_results(one.folder).report() for one in recorded_cells(out) if one.folder is not None}


def test_every_cell_is_a_run_of_one_candidate(tmp_path: Path) -> None:
    file = write_file(tmp_path, names=("alpha", "beta"), seeds=[1, 2], probes={"shots": 0, "method": ["letter"]})
    sweep = swept(file, tmp_path / "out")
    assert set(states(sweep).values()) == {"done"}
    assert len(sweep.runs) == 2 * 2 * 2 * 2
    for cell in recorded_cells(tmp_path / "out"):
        assert cell.folder is not None
        report = recorded_results(cell.folder).report()
        assert list(report["candidates"]) == [cell.candidate]
        assert (report["scenario"], report["seed"], report["dataset"]["name"]) == (
            cell.scenario,
            cell.seed,
            cell.dataset,
        )
        assert cell.planned == 4


def test_a_cell_says_what_a_run_of_its_own_says(tmp_path: Path) -> None:
    from viva.orchestration.launch import new_run
    from viva.scenarios.kieval.kieval_settings import KievalSettings

    swept(write_file(tmp_path, items=10), tmp_path / "out")
    settings = KievalSettings(
        dataset=str(tmp_path / "alpha.jsonl"), candidate=["simulated:b?knowledge=0.2"], rounds=2, **INTERVIEWS
    )
    launch = new_run("kieval", settings, tmp_path / "alone")
    launch.clock.run(launch.run)
    alone = recorded_results(RunFolder.open(tmp_path / "alone")).report()
    assert _reports(tmp_path / "out")["cells/kieval/alpha/seed-7/e/b"] == alone


def test_the_same_again_changes_nothing_and_opens_no_model(tmp_path: Path) -> None:
    file = write_file(tmp_path)
    swept(file, tmp_path / "out")
    before = journals(tmp_path / "out")
    told = (tmp_path / "out" / "sweep.json").read_bytes()
    again = swept(file, tmp_path / "out")
    assert set(states(again).values()) == {"done"}
    assert again.models == {}
    assert journals(tmp_path / "out") == before
    assert (tmp_path / "out" / "sweep.json").read_bytes() == told


def test_what_is_added_is_all_that_runs(tmp_path: Path) -> None:
    swept(write_file(tmp_path), tmp_path / "out")
    before = journals(tmp_path / "out")
    more = ["simulated:a?knowledge=0.9", "simulated:c", "simulated:b?knowledge=0.2"]
    sweep = swept(write_file(tmp_path, names=("alpha", "beta"), candidates=more, seeds=[7, 8]), tmp_path / "out")
    assert set(states(sweep).values()) == {"done"}
    after = journals(tmp_path / "out")
    assert len(after) == 3 * 2 * 2
    assert {name: after[name] for name in before} == before


def test_what_the_file_names_no_longer_stays_and_is_not_reported(tmp_path: Path) -> None:
    swept(write_file(tmp_path), tmp_path / "out")
    before = journals(tmp_path / "out")
    swept(write_file(tmp_path, candidates=["simulated:b?knowledge=0.2"]), tmp_path / "out")
    assert [cell.candidate for cell in recorded_cells(tmp_path / "out")] == ["b"]
    assert journals(tmp_path / "out") == before


def test_other_settings_are_an_error_of_the_cells_they_meet(tmp_path: Path) -> None:
    swept(write_file(tmp_path, names=("alpha", "beta")), tmp_path / "out")
    before = journals(tmp_path / "out")
    changed = write_file(tmp_path, datasets=["alpha.jsonl", {"dataset": "beta.jsonl", "temperature": 0.5}])
    sweep = swept(changed, tmp_path / "out")
    assert list(states(sweep).values()) == ["done", "done", "failed", "failed"]
    assert "temperature was 0.0, is 0.5" in str(sweep.runs[2].error)
    assert journals(tmp_path / "out") == before
    assert [one.folder is None for one in recorded_cells(tmp_path / "out")] == [False, False, True, True]


def test_circumstances_may_change(tmp_path: Path) -> None:
    swept(write_file(tmp_path), tmp_path / "out")
    sweep = swept(write_file(tmp_path, concurrency=3), tmp_path / "out", concurrency=2)
    assert set(states(sweep).values()) == {"done"}


def test_a_changed_dataset_is_an_error_of_its_cells(tmp_path: Path) -> None:
    file = write_file(tmp_path, names=("alpha", "beta"))
    swept(file, tmp_path / "out")
    dataset(tmp_path / "alpha.jsonl", 5)
    sweep = swept(file, tmp_path / "out")
    assert list(states(sweep).values()) == ["failed", "failed", "done", "done"]
    assert "changed since the run began: dataset" in str(sweep.runs[0].error)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "model without file": ({"candidates": ["llama:none.gguf", "simulated:b"]}, "no file"),
    "unknown option": ({"candidates": ["simulated:a?knowlege=1", "simulated:b"]}, "unknown option knowlege"),
    "nobody listens": ({"candidates": ["openai:http://127.0.0.1:9/v1#a?retries=0", "simulated:b"]}, "127.0.0.1:9"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_cell_whose_model_is_wrong_fails_alone_and_is_tried_again(tmp_path: Path, name: str) -> None:
    said, expected = BROKEN[name]
    file = write_file(tmp_path, seeds=[1, 2], **said)
    sweep = swept(file, tmp_path / "out")
    assert list(states(sweep).values()) == ["failed", "done", "failed", "done"]
    assert expected in str(sweep.runs[0].error)
    assert not (tmp_path / "out" / sweep.runs[0].cell.name).exists()
    assert [one.folder is None for one in recorded_cells(tmp_path / "out")] == [True, False, True, False]
    before = journals(tmp_path / "out")
    swept(write_file(tmp_path, seeds=[1, 2], candidates=["simulated:a", "simulated:b"]), tmp_path / "out")
    assert len(journals(tmp_path / "out")) == 4
    assert {name: data for name, data in journals(tmp_path / "out").items() if name in before} == before


def test_a_broken_dataset_fails_its_cells_and_they_run_when_it_is_mended(tmp_path: Path) -> None:
    file = write_file(tmp_path, datasets=["alpha.jsonl", "beta.jsonl", "none.jsonl"], names=("alpha",))
    (tmp_path / "beta.jsonl").write_text('{"question": "?"}\n')
    sweep = swept(file, tmp_path / "out")
    assert list(states(sweep).values()) == ["done"] * 2 + ["failed"] * 4
    assert "beta.jsonl:1" in str(sweep.runs[2].error)
    assert "none.jsonl" in str(sweep.runs[4].error)
    dataset(tmp_path / "beta.jsonl", 3)
    dataset(tmp_path / "none.jsonl", 3)
    assert set(states(swept(file, tmp_path / "out")).values()) == {"done"}


def test_failed_conversations_stay_failed_unless_asked_for(tmp_path: Path) -> None:
    candidates = ["simulated:a?fail=0.4&retries=0"]
    file = write_file(tmp_path, items=12, candidates=candidates)
    first = swept(file, tmp_path / "out")
    assert 0 < first.failures < 12
    assert states(first) == {"cells/kieval/alpha/seed-7/e/a": "done"}
    assert swept(file, tmp_path / "out").failures == first.failures
    # The model is the same by name, and fails the same calls again; but they were made again.
    before = calls_in(tmp_path / "out")
    again = swept(file, tmp_path / "out", retry_failed=True)
    assert again.failures <= first.failures
    assert calls_in(tmp_path / "out") >= before


@pytest.mark.parametrize("how", ["interrupt", "halt"])
def test_stopped_half_way_it_goes_on_without_repeating_a_call(tmp_path: Path, how: str) -> None:
    said: dict[str, Any] = {
        "seeds": [1, 2],
        "candidates": [f"simulated:{name}?latency=1" for name in "abc"],
        "interviews": {**INTERVIEWS, "rounds": 2, "evaluator": "simulated:e?latency=1"},
        "concurrency": 5,
    }
    file = write_file(tmp_path, items=6, **said)
    whole = swept(file, tmp_path / "whole", VirtualClock())
    calls = calls_in(tmp_path / "whole")
    assert set(states(whole).values()) == {"done"}

    made, starts = 0, 0
    while True:
        sweep = open_sweep(file, tmp_path / "out", VirtualClock())
        starts += 1
        stop_after(sweep, calls // 4, how)
        made += sum(run.calls for run in sweep.runs)
        if not sweep.interrupted:
            break
        assert set(states(sweep).values()) <= {"done", "part", "waiting"}
    assert starts > 2
    assert made == calls == calls_in(tmp_path / "out")
    assert _reports(tmp_path / "out") == _reports(tmp_path / "whole")


def test_it_goes_on_from_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_file(tmp_path / "grid", datasets=["alpha.jsonl", "beta.jsonl"])
    swept(file, tmp_path / "out")
    dataset(tmp_path / "grid" / "beta.jsonl", 3)
    file.unlink()
    monkeypatch.chdir(tmp_path)
    sweep = reopen_sweep(Path("out"))
    sweep.clock.run(sweep.run)
    assert set(states(sweep).values()) == {"done"}


def test_it_is_read_back_without_file_and_datasets(tmp_path: Path) -> None:
    file = write_file(tmp_path / "grid", names=("alpha", "beta"))
    swept(file, tmp_path / "out")
    before = _reports(tmp_path / "out")
    for one in (tmp_path / "grid").iterdir():
        one.unlink()
    (tmp_path / "grid").rmdir()
    assert is_sweep(tmp_path / "out")
    assert _reports(tmp_path / "out") == before
    assert [cell.dataset for cell in recorded_cells(tmp_path / "out")] == ["alpha"] * 2 + ["beta"] * 2


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    file = write_file(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not a sweep"):
        swept(file, tmp_path / "out")
    with pytest.raises(ConfigurationError, match="not the folder of a sweep"):
        recorded_cells(tmp_path / "out")
    swept(file, tmp_path / "other")
    run = next((tmp_path / "other").rglob("manifest.json")).parent
    with pytest.raises(ConfigurationError, match="contains a run, not a sweep"):
        swept(file, run)


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    file = write_file(tmp_path)
    (tmp_path / "out").mkdir()
    other = RunFolder(tmp_path / "out", {})
    other.lock()
    with pytest.raises(ConfigurationError, match="another process"):
        swept(file, tmp_path / "out")
    other.unlock()
    swept(file, tmp_path / "out")


def test_a_kill_before_the_journals_tables_is_no_loss(tmp_path: Path) -> None:
    file = write_file(tmp_path)
    swept(file, tmp_path / "out")
    before = _reports(tmp_path / "out")
    for journal in (tmp_path / "out").rglob("journal.sqlite*"):
        journal.unlink()
    for manifest in (tmp_path / "out").rglob("manifest.json"):
        (manifest.parent / "journal.sqlite").touch()
        # Earlier versions wrote the manifest before the journal, so that a kill could come between them.
        old = {name: value for name, value in orjson.loads(manifest.read_bytes()).items() if name != "journal"}
        manifest.write_bytes(orjson.dumps(old))
    assert [cell.folder for cell in recorded_cells(tmp_path / "out")] == [None, None]
    swept(file, tmp_path / "out")
    assert _reports(tmp_path / "out") == before


_IN_LITTLE_ROOM = """
import resource, sys
from pathlib import Path
from viva.engine.clock import VirtualClock
from viva.sweeps.sweep import open_sweep

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
sweep = open_sweep(Path(sys.argv[1]), Path(sys.argv[2]), VirtualClock())
sweep.clock.run(sweep.run)
print([(run.state, str(run.error)) for run in sweep.runs if run.state != "done"])
"""


def test_line_20_cells_wait_where_few_files_may_be_open(tmp_path: Path) -> None:
    slow = [f"simulated:{name}?latency=60" for name in "abcd"]  # all could be open before the first has ended
    file = write_file(tmp_path, items=1, candidates=slow, seeds=[1, 2, 3, 4])
    command = [sys.executable, "-c", _IN_LITTLE_ROOM, file, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stdout + done.stderr
