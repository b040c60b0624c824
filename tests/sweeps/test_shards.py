"""A sweep held by many processes: cells and shards on their own, killed, joined, and what is refused."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_sweeps import INTERVIEWS, calls_in, dataset, stop_after, swept, write_file
from viva_process import ended, started

from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError, JournalNotice
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.orchestration.completeness import planned_conversations
from viva.orchestration.launch import forked_run, recorded_results, resumed_run
from viva.orchestration.prepared_run import Shard
from viva.sweeps.merge import MergedCell, merge_sweep
from viva.sweeps.recorded_sweep import recorded_cells
from viva.sweeps.shards import SweepSlice
from viva.sweeps.sweep import Sweep, open_sweep
from viva.sweeps.sweep_folder import shards_of

ONE = "kieval/alpha/seed-7/e/a"
_LETTERS = {"shots": 0, "method": ["letter"]}


def _held(file: Path, out: Path, index: int, of: int = 3, cell: str | None = None, **how: Any) -> Sweep:
    return swept(file, out, VirtualClock(), selection=SweepSlice(cell, Shard(index, of)), **how)


def _all_held(file: Path, out: Path, of: int = 3, cell: str | None = None) -> None:
    for index in range(1, of + 1):
        sweep = _held(file, out, index, of, cell)
        assert {run.state for run in sweep.runs} == {"done"}


def _small(tmp_path: Path, **said: Any) -> Path:
    return write_file(tmp_path, items=5, candidates=["simulated:a?knowledge=0.9"], **said)


def _only(out: Path, **how: Any) -> MergedCell:
    [cell] = merge_sweep(out, **how)
    return cell


def _refusal(out: Path, **how: Any) -> str:
    cell = _only(out, **how)
    assert cell.state == "refused"
    assert not (out / cell.cell.name / "manifest.json").exists()
    return "\n".join(cell.problems)


def _reports(out: Path) -> dict[str, Any]:
    found = {}
    for cell in recorded_cells(out):
        assert cell.folder is not None
        with History(cell.folder.journal) as history:
            talks = [(n, [call.completion.text for call in history.calls(n)]) for n in history.numbers()]
        found[cell.name] = (recorded_results(cell.folder).report(), talks)
    return found


@given(st.integers(1, 40), st.integers(0, 200))
def test_shares_hold_every_conversation_once(of: int, total: int) -> None:
    shares = [Shard(index, of) for index in range(1, of + 1)]
    assert sum(share.count(total) for share in shares) == total
    assert all(sum(share.holds(number) for share in shares) == 1 for number in range(total))
    assert all(share.count(total) == sum(map(share.holds, range(total))) for share in shares)


def test_three_processes_one_killed_and_run_again_report_what_one_process_reports(tmp_path: Path) -> None:
    interviews = {**INTERVIEWS, "evaluator": "simulated:e?malformed=0.1&latency=0.05", "rounds": 2}
    said = {"interviews": interviews, "probes": _LETTERS, "concurrency": 20}
    file = write_file(tmp_path, items=24, names=("alpha", "beta"), **said)
    whole, out = tmp_path / "one" / "out", tmp_path / "many" / "out"
    # They begin at one moment in one empty folder; the second is killed while it works.
    several = [started("sweep", file, "--out", out, "--shard", f"{index}/3") for index in (1, 2, 3)]
    while several[1].poll() is None and sum(map(calls_in, out.glob("cells/*/*/*/**/2-of-3.*"))) < 30:
        try:
            several[1].wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            pass
    several[1].send_signal(signal.SIGKILL)
    several[1].communicate()
    assert several[1].returncode == -signal.SIGKILL, "it was killed before its end"
    swept(file, whole, VirtualClock())
    for process in (several[0], several[2]):
        code, _, told = ended(process)
        assert code == 0, told
    assert any("missing: from shard 2/3" in problem for one in merge_sweep(out) for problem in one.problems)

    code, _, told = ended(started("sweep", file, "--out", out, "--shard", "2/3"))
    assert code == 0, told
    assert f"viva sweep merge {out}" in told
    code, printed, told = ended(started("sweep", "merge", out, "--json"))
    assert (code, told) == (0, "")
    cells = orjson.loads(printed)["cells"]
    assert {(cell["shards"], cell["planned"], cell["ended"]) for cell in cells} == {(3, 24, 24)}
    assert "merged" in {cell["state"] for cell in cells} <= {"merged", "whole"}  # some were whole before the kill
    told_of = []
    for folder in (whole, out):
        code, printed, told = ended(started("report", "out", "--csv", "a.csv", "--html", "a.html", cwd=folder.parent))
        assert code == 0, told
        files = [(folder.parent / name).read_bytes() for name in ("a.csv", "a.html")]
        assert min(map(len, files)) > 1000
        told_of.append([printed, *files])
    assert told_of[0] == told_of[1]
    assert _reports(out) == _reports(whole)


def test_a_cell_is_held_in_its_usual_place_by_name_or_number(tmp_path: Path) -> None:
    file = write_file(tmp_path, seeds=[1, 2])
    swept(file, tmp_path / "whole", VirtualClock())
    names = [cell.name for cell in recorded_cells(tmp_path / "whole")]
    for name in ("4", names[0], names[1].removeprefix("cells/"), "3"):
        sweep = swept(file, tmp_path / "out", VirtualClock(), selection=SweepSlice(name))
        assert [run.state for run in sweep.runs] == ["done"]
    assert _reports(tmp_path / "out") == _reports(tmp_path / "whole")
    assert {one.state for one in merge_sweep(tmp_path / "out")} == {"whole"}
    for name in ("0", "5", "kieval/alpha"):
        with pytest.raises(ConfigurationError, match="--cell"):
            open_sweep(file, tmp_path / "out", selection=SweepSlice(name))


def test_a_shard_that_is_stopped_goes_on_in_its_own_journal(tmp_path: Path) -> None:
    said = {"interviews": {**INTERVIEWS, "evaluator": "simulated:e?latency=1", "rounds": 3}}
    file = _small(tmp_path, **said)
    swept(file, tmp_path / "whole", VirtualClock())
    sweep = open_sweep(file, tmp_path / "out", VirtualClock(), selection=SweepSlice(None, Shard(1, 2)))
    stop_after(sweep, 4, "halt")
    assert sweep.interrupted
    [(share, place)] = shards_of(tmp_path / "out" / "cells" / ONE)
    before = calls_in(tmp_path / "out")
    launch = resumed_run(place, VirtualClock())  # as `viva resume` does: it stays a shard
    launch.clock.run(launch.run)
    assert recorded_results(RunFolder.open(place)).report()["candidates"]["a"]["interviews"] == 3
    assert planned_conversations(RunFolder.open(place)) == 3
    fork = forked_run(place, tmp_path / "fork", VirtualClock(), changes={"evaluator": "simulated:other"})
    outcome = fork.clock.run(fork.run)
    assert (outcome.finished, outcome.failed) == (3, 0), "a fork of a shard is of its conversations"
    assert calls_in(tmp_path / "out") > before
    _all_held(file, tmp_path / "out", 2)
    assert shards_of(tmp_path / "out" / "cells" / ONE)[0][0] == share
    assert _only(tmp_path / "out").state == "merged"
    assert calls_in(tmp_path / "out") == 2 * calls_in(tmp_path / "whole"), "each call once in its shard, once merged"
    assert _reports(tmp_path / "out") == _reports(tmp_path / "whole")


def test_missing_conversations_are_named_and_may_be_left_for_later(tmp_path: Path) -> None:
    file, out = _small(tmp_path), tmp_path / "out"
    _held(file, out, 1)
    assert "shard 2/3, which has not begun: 2 conversations: a/" in _refusal(out)
    partly = _only(out, partial=True)
    assert (partly.state, partly.planned, partly.ended) == ("merged", 5, 2)
    assert _only(out, partial=True).state == "part"
    _held(file, out, 2)
    _held(file, out, 3)
    grown = _only(out)
    assert (grown.state, grown.ended) == ("merged", 5)
    assert _only(out).state == "whole"
    swept(file, tmp_path / "whole", VirtualClock())
    assert _reports(out) == _reports(tmp_path / "whole")
    shutil.rmtree(out / "cells" / ONE / "shards")
    assert _only(out).state == "whole", "shards that were merged may go"


def test_shards_held_on_other_disks_are_copied_together(tmp_path: Path) -> None:
    file = write_file(tmp_path, items=7, probes=_LETTERS)
    swept(file, tmp_path / "whole", VirtualClock())
    for index in (1, 2):
        _held(file, tmp_path / f"disk-{index}", index, 2)
        shutil.copytree(tmp_path / f"disk-{index}", tmp_path / "out", dirs_exist_ok=True)
    with pytest.warns(JournalNotice, match="4 of 4 cells are in unmerged shards"):
        assert {cell.folder for cell in recorded_cells(tmp_path / "out")} == {None}
    assert {one.state for one in merge_sweep(tmp_path / "out")} == {"merged"}
    assert _reports(tmp_path / "out") == _reports(tmp_path / "whole")
    again = swept(file, tmp_path / "out", VirtualClock())
    assert {run.state for run in again.runs} == {"done"}
    assert again.models == {}, "merged cells are like any others: nothing is left to be asked"


def test_a_merge_that_was_killed_is_made_again(tmp_path: Path) -> None:
    file, out = _small(tmp_path), tmp_path / "out"
    _all_held(file, out)
    assert _only(out).state == "merged"
    before = _reports(out)
    place = out / "cells" / ONE
    for name in ("manifest.json", "merged.json"):  # they are written last
        (place / name).unlink()
    (place / "journal.sqlite").write_bytes(b"half a")
    (place / "journal.sqlite.part").write_bytes(b"of a journal")
    assert [run.state for run in _held(file, out, 1).runs] == ["done"]
    assert _only(out).state == "merged"
    assert _reports(out) == before
    assert sorted(one.name for one in place.iterdir()) == [
        "journal.sqlite",
        "lock",
        "manifest.json",
        "merged.json",
        "shards",
    ]


def test_a_part_that_went_on_by_itself_is_not_replaced(tmp_path: Path) -> None:
    file, out = _small(tmp_path), tmp_path / "out"
    _held(file, out, 1)
    assert _only(out, partial=True).ended == 2
    shutil.copytree(out, tmp_path / "other")
    assert [run.state for run in swept(file, out, VirtualClock()).runs] == ["done"]
    assert _only(out).state == "whole"
    _held(file, tmp_path / "other", 2)
    shutil.copytree(tmp_path / "other" / "cells" / ONE / "shards", out / "cells" / ONE / "shards", dirs_exist_ok=True)
    cell = _only(out, partial=True)
    assert cell.state == "refused"
    assert "was resumed after a partial merge" in cell.problems[0]


def test_a_shard_run_twice_is_refused_with_its_conversations(tmp_path: Path) -> None:
    file, out = _small(tmp_path), tmp_path / "out"
    _all_held(file, out)
    _held(file, tmp_path / "elsewhere", 2)
    [(share, place)] = shards_of(tmp_path / "elsewhere" / "cells" / ONE)
    shutil.copytree(place, out / "cells" / ONE / "shards" / place.name)
    told = _refusal(out)
    assert "duplicated" in told
    assert "2 conversations: a/" in told
    assert told.count("shard 2/3 (attempt ") == 2
    assert share.attempt in told
    assert "duplicated" in _refusal(out, partial=True)
    [run] = _held(file, out, 2).runs
    assert "started more than once" in str(run.error)
    shutil.rmtree(out / "cells" / ONE / "shards" / place.name)
    assert _only(out).state == "merged"


def test_shards_that_overlap_are_refused(tmp_path: Path) -> None:
    file, out = _small(tmp_path), tmp_path / "out"
    _all_held(file, out, 2)
    [run] = _held(file, out, 1, 3).runs
    assert "is divided into 2 shards" in str(run.error)
    _held(file, tmp_path / "elsewhere", 1, 3)
    [(_, place)] = shards_of(tmp_path / "elsewhere" / "cells" / ONE)
    shutil.copytree(place, out / "cells" / ONE / "shards" / place.name)
    assert "shard 1/2" in _refusal(out)
    assert "shard 1/3" in _refusal(out)


def test_shards_of_other_settings_or_data_are_refused(tmp_path: Path) -> None:
    file, out = _small(tmp_path), tmp_path / "out"
    _held(file, out, 1, 2)
    other = write_file(tmp_path / "o", items=5, candidates=["simulated:a?knowledge=0.9"], interviews=INTERVIEWS)
    dataset(tmp_path / "alpha.jsonl", 6)
    _held(file, out, 2, 2)
    assert "differences: dataset" in _refusal(out, partial=True)
    shards = out / "cells" / ONE / "shards"
    for path in shards.glob("2-of-2.*"):
        shutil.rmtree(path)
    _held(other, tmp_path / "elsewhere", 2, 2)
    [(_, place)] = shards_of(tmp_path / "elsewhere" / "cells" / ONE)
    shutil.copytree(place, shards / place.name)
    assert "rounds was" in _refusal(out, partial=True)


def test_a_shard_that_still_runs_is_refused(tmp_path: Path) -> None:
    file, out = _small(tmp_path), tmp_path / "out"
    _all_held(file, out)
    running = RunFolder.open(shards_of(out / "cells" / ONE)[1][1])
    running.lock()
    assert "shard 2/3" in _refusal(out)
    assert "is running" in _refusal(out)
    [run] = _held(file, out, 2).runs
    assert run.state == "done", "it is at its end, so nothing is written"
    running.unlock()
    assert _only(out).state == "merged"


def test_failed_conversations_are_tried_again_before_the_merge(tmp_path: Path) -> None:
    file, out = write_file(tmp_path, items=8, candidates=["simulated:a?fail=0.4&retries=0"]), tmp_path / "out"
    failed = sum(_held(file, out, index, 2).failures for index in (1, 2))
    assert 0 < failed < 8
    states = []
    for index in (1, 2):
        again = open_sweep(file, out, VirtualClock(), selection=SweepSlice(None, Shard(index, 2)), retry_failed=True)
        again.survey()
        states += [run.state for run in again.runs]
        again.clock.run(again.run)
    assert "part" in states, "there is something to try again"
    merged = _only(out)
    assert (merged.state, merged.ended) == ("merged", 8)
    before = calls_in(out)
    assert [run.state for run in _held(file, out, 1, 2, retry_failed=True).runs] == ["done"]
    assert calls_in(out) == before, "what is merged is not held in shards any more"


def test_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    import sqlite3

    file, out = _small(tmp_path), tmp_path / "out"
    _all_held(file, out)
    connection = sqlite3.connect(shards_of(out / "cells" / ONE)[0][1] / "journal.sqlite")
    connection.execute("update ended set result = replace(result, 'a', 'b') where number = 0")
    connection.commit()
    connection.close()
    assert "damaged: end of conversation 0" in _refusal(out)


def test_one_process_and_shards_do_not_mix(tmp_path: Path) -> None:
    file, out = _small(tmp_path), tmp_path / "out"
    _held(file, out, 1)
    [run] = swept(file, out, VirtualClock()).runs
    assert "run in shards: continue with --shard 1/3 to 3/3" in str(run.error)
    swept(file, tmp_path / "whole", VirtualClock())
    assert [run.state for run in _held(file, tmp_path / "whole", 1).runs] == ["done"]
    shutil.copytree(out / "cells" / ONE / "shards", tmp_path / "whole" / "cells" / ONE / "shards")
    assert "contains a run of one process and shards" in _only(tmp_path / "whole").problems[0]


@pytest.mark.parametrize(
    ("said", "portion", "expected"),
    [
        ({"until": {"half_width": 20.0}}, SweepSlice(None, Shard(1, 2)), "rule under .until. needs all"),
        ({"until": "decided"}, SweepSlice("1"), "compares its candidate with 1 others"),
        ({"interviews": {**INTERVIEWS, "max_cost": 1.0}}, SweepSlice(None, Shard(1, 2)), "max_cost: a budget"),
    ],
)
def test_what_shards_cannot_keep_is_refused_before_anything_begins(
    tmp_path: Path, said: dict[str, Any], portion: SweepSlice, expected: str
) -> None:
    candidates = [f"simulated:{name}?price_in=1&price_out=1" for name in "ab"]
    interviews = {role: f"{model}?price_in=1&price_out=1" for role, model in INTERVIEWS.items()}
    told = {**said, "interviews": {**said.get("interviews", {}), **interviews}}
    file = write_file(tmp_path, candidates=candidates, **told)
    with pytest.raises(ConfigurationError, match=expected):
        open_sweep(file, tmp_path / "out", selection=portion)
    assert not (tmp_path / "out").exists()


def test_a_rule_of_one_cell_and_probes_beside_rules_can_be_held_apart(tmp_path: Path) -> None:
    file = write_file(tmp_path, until={"half_width": 20.0}, probes=_LETTERS)
    for name in ("probe/alpha/seed-7/a", "kieval/alpha/seed-7/e/a"):
        [run] = swept(file, tmp_path / "out", VirtualClock(), selection=SweepSlice(name)).runs
        assert run.state in ("done", "stopped")
    _all_held(file, tmp_path / "out", 2, "probe/alpha/seed-7/b")
    assert [one.state for one in merge_sweep(tmp_path / "out", cell="probe/alpha/seed-7/b")] == ["merged"]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "-1/3", "1/3/5"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected i/n"):
        Shard.parse(text)
