"""The progress of a sweep on stderr: a live table of its cells in a terminal, a plain line now and then elsewhere.

It looks at the cells a few times a second; nothing is drawn from inside an event. What never belongs here: results.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from viva.engine.events import Event, Retried
from viva.orchestration.waits import Waits
from viva.reports.controls import harmless

from .live import show_live
from .progress_line import STALLED_SECONDS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from viva.orchestration.sweep.progress import CellRun
    from viva.orchestration.sweep.sweep import Sweep

_TERMINAL_SECONDS = 0.5
_MOST_ROWS = 40
# Which cells are shown where not all can be: those that say most first.
_RANK = {"running": 0, "failed": 1, "part": 2, "waiting": 3, "stopped": 4, "done": 5}
_HEADER = ("cell", "state", "done", "in flight", "score")
_LEAST = (12, 5, 4, 6, 5)  # the narrowest that columns may be
_FRAME = 16  # what the box takes of a line of five columns
_STYLE = {"running": "cyan", "failed": "red", "stopped": "green", "done": "green"}


class SweepProgress:
    """``show`` displays a sweep until cancelled; ``line`` is its state in one line."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._began = time.monotonic()
        self._retried = self._throttled = 0
        self._calls, self._moved = 0, self._began  # how many had ended, and when that was last seen to grow
        roles: dict[str, dict[str, None]] = {}
        for run in sweep.runs:
            for role, model in run.cell.roles.items():
                roles.setdefault(role, {})[model] = None
        played = [(role, list(models)) for role, models in roles.items()]
        self._waits = Waits(played, sweep.model_counters, sweep.clock.wall)
        self.note = ""

    def hear(self, event: Event) -> None:
        """The listener of the sweep's own events."""
        self._waits.hear(event)
        if isinstance(event, Retried):
            self._retried += 1
            self._throttled += event.error == "Throttled"

    async def show(self) -> None:
        """Display until cancelled."""
        await show_live(self.line, lambda console: self.table(console.height, console.width), _TERMINAL_SECONDS)

    def line(self) -> str:
        """Where the sweep stands, in one line."""
        runs = self._sweep.runs
        states = [run.state for run in runs]
        ended = sum(state in ("done", "stopped", "failed") for state in states)
        parts = [f"{ended}/{len(runs)} cells"]
        parts += [f"{states.count(state)} {state}" for state in ("failed", "stopped") if state in states]
        done, total = sum(run.done for run in runs), sum(run.total or 0 for run in runs)
        elapsed = max(1e-9, time.monotonic() - self._began)
        parts += [f"{done}/{total} conversations", f"{sum(run.in_flight for run in runs)} in flight"]
        calls, tokens = sum(run.calls for run in runs), sum(run.tokens for run in runs)
        parts.append(f"{calls:,} calls ({calls / elapsed:.0f}/s), {tokens:,} tokens")
        cost = sum(run.cost for run in runs)
        parts += [f"cost {cost:.2f}"] if cost else []
        failed = sum(run.failed for run in runs)
        parts += [f"{failed} conversations failed"] if failed else []
        parts += [f"{self._retried} retries ({self._throttled} throttled)"] if self._retried else []
        if paused := self._waits.paused():
            parts.append(paused)
        elif calls != self._calls:
            self._calls, self._moved = calls, time.monotonic()
        elif any(run.in_flight for run in runs) and time.monotonic() - self._moved >= STALLED_SECONDS:
            parts += filter(None, [self._waits.describe()])
        return " · ".join(parts + [self.note] * bool(self.note))

    def table(self, height: int, width: int) -> RenderableType:
        """The cells, at most as many as there is room for; what is left out is counted. Of a line that is too long
        names and errors are cut, numbers are not.
        """
        from rich.box import SIMPLE_HEAD
        from rich.cells import cell_len
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        runs = self._sweep.runs
        room = max(1, min(_MOST_ROWS, height - 6))
        shown = runs if len(runs) <= room else self._worth_showing(room)
        rows = [self._row(run) for run in shown]
        scored = [row for run, row in zip(shown, rows, strict=True) if run.error is None]
        widths = [max([least, *(cell_len(row[at]) for row in rows)]) for at, least in enumerate(_LEAST[:4])]
        names, counts = widths[0], widths[1:]
        scores = max([_LEAST[4], *(cell_len(row[4]) for row in scored)])
        room = width - sum(counts) - _FRAME
        names = max(_LEAST[0], min(names, room - scores))  # what is left of a line is for names, then for errors
        scores = max(scores, room - names)
        table = Table(box=SIMPLE_HEAD)
        for at, (title, taken) in enumerate(zip(_HEADER, (names, *counts, scores), strict=True)):
            table.add_column(title, justify="right" if at in (2, 3) else "left", width=taken)
        for cell, state, done, flight, score in rows:
            coloured = Text(state, style=_STYLE.get(state, ""))
            table.add_row(Text(_cut(cell, names)), coloured, done, flight, Text(_cut(score, scores)))
        hidden = [run.state for run in runs if run not in shown]
        others = ", ".join(f"{hidden.count(state)} {state}" for state in _RANK if state in hidden)
        parts = [Text(f"  … and {others}")] if others else []
        return Group(table, *parts, Text(self.line()))

    @staticmethod
    def _row(run: CellRun) -> tuple[str, str, str, str, str]:
        done = f"{run.done}/{'?' if run.total is None else run.total}"
        flight = str(run.in_flight) if run.state == "running" else ""
        score = str(run.error) if run.error is not None else run.headline
        return harmless(run.cell.name.removeprefix("cells/")), run.state, done, flight, harmless(score)

    def _worth_showing(self, room: int) -> list[CellRun]:
        """As many as there is room for, in their own order."""
        places = {run: place for place, run in enumerate(self._sweep.runs)}
        chosen = sorted(self._sweep.runs, key=lambda run: (_RANK[run.state], places[run]))[:room]
        return sorted(chosen, key=places.__getitem__)


def _cut(text: str, width: int) -> str:
    """The text in at most so many cells of a terminal, its middle left out if it is longer."""
    from rich.cells import set_cell_size

    line = " ".join(text.split())
    half = width // 2
    if len(line) <= half or set_cell_size(line, width).rstrip() == line:
        return line
    return f"{set_cell_size(line, width - half - 1)}…{line[len(line) - half :]}"
