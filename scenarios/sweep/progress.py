"""A cell of a sweep while it runs: its state, its counts, its score so far.

What never belongs here: display, and the decision to run or stop.
"""

from __future__ import annotations

import anyio

from viva.engine.errors import VivaError
from viva.engine.events import (
    CallFinished,
    ConversationFailed,
    ConversationFinished,
    ConversationInterrupted,
    ConversationStarted,
    Event,
)
from viva.engine.runner import Outcome, Runner

from ..scenario import Aggregate
from .cells import Cell
from .standing import Standing, State


class CellRun:
    """``total``, ``done`` (failed ones among them), ``failed`` and ``in_flight`` count conversations; ``calls`` and
    ``tokens`` what this start has cost. ``error`` says why a cell failed.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.state: State = "waiting"
        self.total: int | None = None
        self.done = self.failed = self.in_flight = self.calls = self.tokens = 0
        self.cost = 0.0
        self.error: VivaError | None = None
        self.aggregate: Aggregate | None = None
        self.runner: Runner | None = None
        self._headline = ""

    @property
    def headline(self) -> str:
        """The score so far; empty where there is none, or where it has not been read."""
        if self.aggregate is None:
            return self._headline
        return self.aggregate.headline().removeprefix(self.cell.candidate).strip()

    def take(self, found: Standing) -> None:
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

    def hear(self, event: Event) -> None:
        """The listener of its run."""
        match event:
            case CallFinished():
                if not event.replayed:
                    self.calls += 1
                    self.tokens += event.prompt_tokens + event.completion_tokens
                    self.cost += event.cost
            case ConversationStarted():
                self.in_flight += 1
            case ConversationFinished():
                self._end(event.restored)
                if self.aggregate is not None:
                    self.aggregate.add(event.conversation, event.result)
            case ConversationFailed():
                self.failed += 1
                self._end(event.restored)
                if self.aggregate is not None:
                    self.aggregate.add_failure(event.conversation, event.error)
            case ConversationInterrupted():
                self.in_flight -= 1

    def _end(self, restored: bool) -> None:
        self.done += 1
        if not restored:
            self.in_flight -= 1
