"""Folders of earlier versions open, report the figures of their day, and go on; those of newer ones are refused."""

from __future__ import annotations

import json
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from earlier_folders import EARLIER, earlier_folder

from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError, JournalError, VivaError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.grading.store import create_file, open_file
from viva.loadtest.load_log import LoadHistory
from viva.orchestration.launch import recorded_results, resumed_run
from viva.reports.studies.study import Study
from viva.sweeps.recorded_sweep import read_sweep
from viva.sweeps.sweep import reopen_sweep

# Recorded calls of unfinished conversations that are asked in other words today: a stale answer is never given.
_ASKED_ANEW = {"first": 12, "sweep-1": 6, "checksums": 6, "contract": 0, "suite": 0}


def _within(then: Any, now: Any, at: str = "") -> list[str]:
    """Where a report of today does not say what the one of that day said; what it says besides does not matter."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [where for name, one in then.items() for where in _within(one, now.get(name), f"{at}.{name}")]
    return [] if then == now else [f"{at}: {then!r} is {now!r}"]


def _report(run: Path) -> dict[str, Any]:
    return recorded_results(RunFolder.open(run)).report()


@pytest.mark.parametrize("name", EARLIER)
def test_a_run_of_an_earlier_version_reports_goes_on_and_ends_as_it_would_have_then(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing of it may be taken for damage
        then = earlier_folder(name, tmp_path)
        run = tmp_path / "part"
        assert _within(then["reports"]["part"], _report(run)) == []
        clock = VirtualClock()
        launch = resumed_run(run, clock, changes={"max_calls": None})
        assert clock.run(launch.run).how == "done"
        assert _within(then["reports"]["whole"], _report(run)) == []
        with History(run / "journal.sqlite") as history:
            assert len(history.ended_numbers()) == 4
            held = sum(len(history.calls(number)) for number in history.numbers())
        assert held == then["calls"] + _ASKED_ANEW[name]


@pytest.mark.parametrize("name", ["sweep-1", "checksums"])
def test_a_sweep_of_an_earlier_version_reports_the_figures_of_its_day_and_is_at_its_end(
    name: str, tmp_path: Path
) -> None:
    then = earlier_folder(name, tmp_path)["reports"]["sweep"]
    study = Study([tmp_path / "sweep"]).report()
    now = {cell["name"]: cell["result"] for cell in study["cells"]}
    assert now.keys() == then.keys()
    for cell, result in then.items():
        # Intervals of means were others then.
        figures = {figure: value for figure, value in result.items() if not isinstance(value, dict)}
        assert _within(figures, now[cell]) == []
        assert result.get("score", {}).get("mean") == now[cell].get("score", {}).get("mean")
    sweep = reopen_sweep(tmp_path / "sweep")
    sweep.survey()
    assert [run.state for run in sweep.runs] == ["done"] * len(then)


def _of_the_future(run: Path) -> list[tuple[Any, type[VivaError], str, str]]:
    """Ways to open what a newer version wrote: how, the error, and what it names."""
    manifest = json.loads((run / "manifest.json").read_text())
    for place, fields in (("manifest", manifest | {"manifest": 9}), ("sweep", {"sweep": 9})):
        (run.parent / place).mkdir()
        (run.parent / place / f"{place}.json").write_text(json.dumps(fields))
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal, journal:
        journal.execute("update meta set value = '9' where key = 'schema'")
    create_file(run.parent / "grades" / "grades.sqlite").close()
    with closing(sqlite3.connect(run.parent / "grades" / "grades.sqlite")) as grades, grades:
        grades.execute("update meta set value = '9'")
    with closing(sqlite3.connect(run.parent / "load.sqlite")) as log, log:
        log.executescript("create table meta (key text, value text); insert into meta values ('schema', '9');")
    return [
        (lambda: RunFolder.open(run.parent / "manifest"), ConfigurationError, "manifest 9", "manifest 1;"),
        (lambda: read_sweep(run.parent / "sweep"), ConfigurationError, "sweep 9", "sweep 1 and 2;"),
        (lambda: History(run / "journal.sqlite"), JournalError, "journal schema 9", "journal schema 1, 2 and 3;"),
        (lambda: open_file(run.parent / "grades" / "grades.sqlite"), ConfigurationError, "version 9", "version 1;"),
        (lambda: LoadHistory(run.parent), JournalError, "schema 9", "schema 1;"),
    ]


def test_what_a_newer_version_wrote_is_refused_with_both_versions_and_what_to_do(tmp_path: Path) -> None:
    earlier_folder("contract", tmp_path)
    for opened, error, found, known in _of_the_future(tmp_path / "part"):
        with pytest.raises(error) as raised:
            opened()
        for said in (found, known, "it was written by a newer viva: use that version"):
            assert said in str(raised.value)
