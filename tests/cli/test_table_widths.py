"""The tables of real reports at every width of a terminal: no cell with a number is folded, and no line is too long."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from small_suites import TALK, run_suite, write_suite
from small_sweeps import swept, write_file
from study_runs import interviewed, probed

from viva.cli.tables import lay_out
from viva.engine.clock import VirtualClock
from viva.engine.run_folder import RunFolder
from viva.lab.experiment import Experiment, Findings, ideal_family
from viva.orchestration.launch import recorded_results
from viva.reports.studies.study import Study
from viva.reports.tables import Table
from viva.sweeps.overview import SweepOverview

NUMBER = re.compile(r"[(+-]?\d[\d.,:/%e+-]*\)?")


def _tables(folder: Path) -> Iterator[Table]:
    experiment = Experiment(ideal_family(), folder / "lab", items=6, rounds=1, probed=6)
    clock = VirtualClock()
    for launch in experiment.launches(1, clock):
        clock.run(launch.run)
    yield from Findings(experiment, [1]).tables()
    names = [f"simulated:a-candidate-of-some-length-{at}?knowledge=0.{at}" for at in (2, 5, 8)]
    runs = [interviewed(folder / "run", *names, n=4), probed(folder / "probe", *names, n=4)]
    for run in runs:
        yield from recorded_results(RunFolder.open(run)).tables()
    yield from Study(runs).tables()
    sweep = swept(write_file(folder / "grid", names=("alpha", "beta"), seeds=[1, 2]), folder / "sweep", VirtualClock())
    yield from SweepOverview(sweep).tables()
    yield from Study([sweep.out]).tables()
    suite = write_suite(folder / "suite", [TALK] * 3, metrics=[{"function": "length"}])
    run_suite(suite, folder / "suite-run")
    yield from recorded_results(RunFolder.open(folder / "suite-run")).tables()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    """Those of the demo's findings, of runs, of a sweep, of studies and of a suite, that have rows."""
    found = [table for table in _tables(tmp_path_factory.mktemp("reports")) if table[2]]
    assert len(found) > 25
    return found


@settings(max_examples=60)
@given(st.integers(60, 200), st.data())
def test_no_cell_with_a_number_is_folded_at_any_width(tables: list[Table], width: int, data: st.DataObject) -> None:
    title, header, rows = data.draw(st.sampled_from(tables))
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None)
    for part in lay_out(header, rows, width):
        console.print(part)
    lines = buffer.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width, title
    for row in rows:
        for cell in row:
            if len(cell) <= 36 and any(map(NUMBER.fullmatch, cell.split())):
                assert any(cell in line for line in lines), f"{title}, at {width}: {cell!r} is folded"
