"""A repeated report reads and computes only what has changed, and says the same bytes as a fresh one."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import orjson
import pytest
from study_runs import dataset, interviewed, probed

from viva.engine.clock import VirtualClock
from viva.orchestration.launch import resumed_run
from viva.reports.studies.cache import ReportCache
from viva.reports.studies.study import Study


def _settle(*runs: Path) -> None:
    """As if the runs' files had been written some time ago."""
    for run in runs:
        for file in run.iterdir():
            os.utime(file, (1_600_000_000, 1_600_000_000 + file.stat().st_size))


def _bytes(study: Study) -> bytes:
    return orjson.dumps(study.report(), option=orjson.OPT_NON_STR_KEYS)


def _fresh(runs: list[Path], scorer: str | None = None) -> bytes:
    return _bytes(Study(runs, scorer))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    items = dataset(folder / "items.jsonl", 30)
    for name in ("a", "b"):
        interviewed(folder / name, f"simulated:{name}", dataset=str(items), rounds=2)
    probed(folder / "p", "simulated:a", "simulated:b", dataset=str(items))
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> list[Path]:
    copies = [Path(shutil.copytree(made / name, tmp_path / name)) for name in ("a", "b", "p")]
    _settle(*copies)
    return copies


def _asked(folder: Path, runs: list[Path], scorer: str | None = None) -> tuple[bytes, tuple[int, int]]:
    """The report with the cache, and what of it came from there: hits and misses."""
    cache = ReportCache(folder)
    return _bytes(Study(runs, scorer, cache)), (cache.hits, cache.misses)


def test_the_second_report_reads_nothing_and_says_the_same(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _fresh(runs)
    assert _asked(tmp_path / "cache", runs) == (expected, (0, 4))  # the whole, and three runs

    def unread(*_: Any) -> None:
        raise AssertionError("a journal was read")

    monkeypatch.setattr("viva.engine.journal_reader.History.__init__", unread)
    assert _asked(tmp_path / "cache", runs) == (expected, (1, 0))


def test_of_a_changed_cell_alone_the_journal_is_read(runs: list[Path], tmp_path: Path) -> None:
    _asked(tmp_path / "cache", runs)
    before = _fresh(runs)
    journal = runs[1] / "journal.sqlite"
    with sqlite3.connect(journal) as connection:
        connection.execute("delete from ended where number >= 20")
    connection.close()
    clock = VirtualClock()
    _settle(runs[1])
    after = _fresh(runs)
    assert after != before
    assert _asked(tmp_path / "cache", runs) == (after, (2, 2))  # neither the whole nor this run
    launch = resumed_run(runs[1], clock)  # what was deleted is held again, from the recorded calls
    assert clock.run(launch.run).how == "done"
    assert _asked(tmp_path / "cache", runs)[0] == before
    assert _asked(tmp_path / "cache", runs) == (before, (2, 2)), "files that were written just now are not trusted"


def test_another_scorer_reads_the_interviews_anew_and_not_the_probes(runs: list[Path], tmp_path: Path) -> None:
    _asked(tmp_path / "cache", runs)
    assert _asked(tmp_path / "cache", runs, "linear") == (_fresh(runs, "linear"), (1, 3))
    assert _asked(tmp_path / "cache", runs, "linear") == (_fresh(runs, "linear"), (1, 0))
    assert _asked(tmp_path / "cache", runs)[1] == (1, 0)


def test_other_runs_beside_them_are_numbered_as_in_a_fresh_report(runs: list[Path], tmp_path: Path) -> None:
    _asked(tmp_path / "cache", runs)
    for chosen in (runs[::-1], runs[1:], [runs[1], runs[0]]):
        for _ in range(2):
            assert _asked(tmp_path / "cache", chosen)[0] == _fresh(chosen)


def test_damaged_entries_are_made_anew(runs: list[Path], tmp_path: Path) -> None:
    expected, _ = _asked(tmp_path / "cache", runs)
    for number, entry in enumerate(sorted((tmp_path / "cache").iterdir())):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 1
        entry.write_bytes(data[: len(data) // (1 + number % 2)])
    assert _asked(tmp_path / "cache", runs) == (expected, (0, 4))
    assert _asked(tmp_path / "cache", runs) == (expected, (1, 0))


def test_a_folder_that_others_can_write_is_not_used(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    for _ in range(2):
        assert _asked(tmp_path / "cache", runs) == (_fresh(runs), (0, 4))
    assert list((tmp_path / "cache").iterdir()) == []
