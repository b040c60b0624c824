"""A cell of a sweep while it runs: its state, its counts, its score so far.

What never belongs here: display, and the decision to run or stop.
"""

from __future__ import annotations

from pathlib import Path

import anyio

from viva.engine.errors import VivaError
from viva.engine.runner import Outcome, Runner

from ..run_progress import RunProgress
from ..share import Share
from .cell_state import CellState, State
from .cells import Cell


class CellRun(RunProgress):
    """``total``: how many conversations it is to have. ``error``: why it failed. ``folder``: where its run lies;
    ``share``: what of the cell this process holds, None for all of it.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        super().__init__()
        self.cell, self.folder = cell, folder
        self.share: Share | None = None
        self.state: State = "waiting"
        self.total: int | None = None
        self.error: VivaError | None = None
        self.runner: Runner | None = None
        self._headline = ""
        self._before = 0, 0

    @property
    def headline(self) -> str:
        """The score so far; empty where there is none, or where it has not been read."""
        if self.aggregate is None:
            return self._headline
        return self.aggregate.headline().removeprefix(self.cell.candidate).strip()

    def take(self, found: CellState) -> None:
        """As its folder has it."""
        self.state, self.total, self.error = found.state, found.planned, found.error
        self.done, self.failed = found.finished + found.failed, found.failed

    def stopped_by_rule(self) -> None:
        """Its rule has ended it, unless everything was held or it cannot be used."""
        if self.state in ("waiting", "part"):
            self.state = "stopped"

    def begins(self) -> None:
        """It is opened: its dataset, its models."""
        self.state = "running"
        self._before = self.done, self.failed
        self.done = self.failed = 0  # told again by its run
        self.opening = anyio.CancelScope()
        self.begun = anyio.Event()

    def carried_by(self, runner: Runner) -> None:
        """Its conversations begin."""
        self.runner = runner
        self.begun.set()

    def ended(self, outcome: Outcome | None, error: VivaError | None, *, stopped: bool) -> None:
        """It has ended: with an outcome, an error, or (neither) interrupted before it began."""
        self._headline, self.aggregate = self.headline, None
        if self.runner is None:  # it never came to tell them
            self.done, self.failed = self._before
        self.runner, self.in_flight = None, 0
        self.begun.set()
        if outcome is not None:
            error = outcome.error
        if error is not None:
            self.state, self.error = "failed", error
        elif outcome is not None and (outcome.how == "done" or self.done == self.total):
            self.state = "done"
        else:
            self.state = "stopped" if stopped else "part" if outcome is not None or self.done else "waiting"
