"""Overview of a sweep's cells with state and score so far: the tables that `viva sweep` prints at the end."""

from __future__ import annotations

from typing import Any

from viva.engine.errors import VivaError
from viva.orchestration.launch import recorded_results
from viva.reports.run_tables import FAILURES_TITLE
from viva.reports.tables import DASH, Table
from viva.scoring.aggregates import merge_reasons

from .cell_run import CellRun, open_recorded_run
from .recorded_sweep import recorded_cells
from .sweep import Sweep

_CELL_FIELDS = ("name", "scenario", "candidate", "dataset", "seed", "evaluator")
_HEADER = ["scenario", "candidate", "dataset", "seed", "evaluator", "state", "done", "score"]


class SweepOverview:
    """Overview of a sweep. Scores are read from the journals, so they equal those in a report of the cell.

    The score of a cell that was stopped early covers the conversations before the decision and has the interval
    of the confidence sequence; every other score has a standard error.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._watched = self._watches()
        readings = [self._read(run) for run in sweep.runs]
        self._scores, self._reasons = [score for score, _ in readings], [reasons for _, reasons in readings]

    @property
    def reasons(self) -> dict[str, int]:
        """Failure reasons with counts, over all cells."""
        return merge_reasons(self._reasons)

    def report(self) -> dict[str, Any]:
        """Return the whole overview as plain data, with the cells in the file's order."""
        cells = []
        for run, score, reasons in zip(self._sweep.runs, self._scores, self._reasons, strict=True):
            record = {field: getattr(run.cell, field) for field in _CELL_FIELDS} | run.progress_record()
            record |= {"failed": run.failed, "score": score or None, "until": self._watched.get(run.cell.name)}
            record |= {"error": None if run.error is None else run.error.to_record()}
            cells.append(record | ({"failure_reasons": reasons} if reasons else {}))
        states = [run.state for run in self._sweep.runs]
        return {"sweep": 1, "cells": cells, "states": {state: states.count(state) for state in sorted(set(states))}}

    def tables(self) -> list[Table]:
        """Return the tables of cells and failures; the title says what early stopping assumes to be independent."""
        rows, failures = [], []
        for record in self.report()["cells"]:
            failures += [
                [record["name"], str(count), reason] for reason, count in record.get("failure_reasons", {}).items()
            ]
            done = f"{record['done']}/{'?' if record['planned'] is None else record['planned']}"
            failed = f" ({record['failed']} failed)" if record["failed"] else ""
            labels = [
                record["scenario"],
                record["candidate"],
                record["dataset"],
                str(record["seed"]),
                record["evaluator"] or DASH,
            ]
            rows.append([*labels, record["state"], done + failed, record["score"] or DASH])
        shard = self._sweep.selection.shard
        title = f"{len(rows)} cells" + (f", shard {shard} of each" if shard is not None else "")
        if ruled := [run.cell for run in self._sweep.runs if run.state == "stopped"]:
            units = dict.fromkeys(watch["independent"] for cell in ruled if (watch := self._watched.get(cell.name)))
            units_text = " and ".join(f"{unit}s" for unit in units)
            title += f"; {len(ruled)} stopped early, with intervals that assume independent {units_text}"
            title += " (otherwise set until: {cluster: subject} or passage)" * ("item" in units)
        return [(title, _HEADER, rows), (FAILURES_TITLE, ["cell", "failed", "reason"], failures)]

    def _watches(self) -> dict[str, dict[str, Any]]:
        """Return the record of the stopping rule for each cell that it watches."""
        if self._sweep.recorded.until is None:
            return {}
        try:
            return {cell.name: cell.until for cell in recorded_cells(self._sweep.out) if cell.until is not None}
        except VivaError:  # a damaged journal: the cell's error says so
            return {}

    def _read(self, run: CellRun) -> tuple[str, dict[str, int]]:
        """Return a cell's score so far, and its failure reasons."""
        folder = open_recorded_run(run.folder, run.cell)
        if folder is None:
            return "", {}
        try:
            results = recorded_results(folder)
        except VivaError:  # a damaged journal: the cell's error says so
            return "", {}
        candidates = results.report()["candidates"].values() if run.failed else ()
        reasons = merge_reasons(candidate.get("failure_reasons", {}) for candidate in candidates)
        watch = self._watched.get(run.cell.name)
        if watch is not None and watch["stopped_at"] is not None:
            interval = watch["intervals"][run.cell.candidate]
            text = (
                ""
                if interval["mean"] is None
                else f"{interval['mean']:.1f} ({interval['low']:.1f} to {interval['high']:.1f})"
            )
            return text, reasons
        return results.headline().removeprefix(run.cell.candidate).strip(), reasons
