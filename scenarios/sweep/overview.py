"""The cells of a sweep with their state and their score so far: what the command prints at its end.

What never belongs here: comparisons and statistics over cells (a report makes them).
"""

from __future__ import annotations

from typing import Any

from viva.engine.errors import VivaError

from ..launch import recorded_results
from .progress import CellRun
from .standing import recorded_run
from .sweep import Sweep

Table = tuple[str, list[str], list[list[str]]]
_HEADER = ["scenario", "candidate", "dataset", "seed", "evaluator", "state", "done", "score"]


class Overview:
    """Scores are read from the journals, so they are what a report of the cell will say."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._scores = [self._score(run) for run in sweep.runs]

    def report(self) -> dict[str, Any]:
        """Everything as plain data, cells in the file's order."""
        cells = []
        for run, score in zip(self._sweep.runs, self._scores, strict=True):
            cell = run.cell
            cells.append(
                {
                    "name": cell.name,
                    "scenario": cell.scenario,
                    "candidate": cell.candidate,
                    "dataset": cell.dataset,
                    "seed": cell.seed,
                    "evaluator": cell.evaluator,
                    "state": run.state,
                    "planned": run.total,
                    "done": run.done,
                    "failed": run.failed,
                    "score": score or None,
                    "error": None if run.error is None else run.error.to_record(),
                }
            )
        states = [run.state for run in self._sweep.runs]
        return {"sweep": 1, "cells": cells, "states": {state: states.count(state) for state in sorted(set(states))}}

    def tables(self) -> list[Table]:
        """The report as one table."""
        rows = []
        for one in self.report()["cells"]:
            done = f"{one['done']}/{'?' if one['planned'] is None else one['planned']}"
            failed = f" ({one['failed']} failed)" if one["failed"] else ""
            named = [one["scenario"], one["candidate"], one["dataset"], str(one["seed"]), one["evaluator"] or "–"]
            rows.append([*named, one["state"], done + failed, one["score"] or "–"])
        return [(f"{len(rows)} cells", _HEADER, rows)]

    def _score(self, run: CellRun) -> str:
        folder = recorded_run(self._sweep.out, run.cell)
        if folder is None:
            return ""
        try:
            return recorded_results(folder).headline().removeprefix(run.cell.candidate).strip()
        except VivaError:  # a damaged journal: the cell's error says so
            return ""
