"""The progress of a run on stderr: a bar in a terminal, a plain line now and then elsewhere.

It wakes a few times a second and never from inside an event, so that display cannot slow a run. Where no call ends any
more it says which roles are waited for. What never belongs here: results (they go to stdout, elsewhere).
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from viva.engine.events import (
    CallFinished,
    Event,
    LimitHit,
    Retried,
    RunStarted,
)
from viva.orchestration.estimate import Estimate
from viva.orchestration.run_progress import RunProgress
from viva.orchestration.waits import Waits
from viva.reports.controls import one_line
from viva.scenarios.contract import Aggregate

from .live import show_live

if TYPE_CHECKING:
    from rich.console import RenderableType

STALLED_SECONDS = 5.0  # without the end of any call; from then on it is said what is waited for
_TERMINAL_SECONDS = 0.25
_WIDEST_BAR = 80


class Progress:
    """Listens to a run; ``show`` runs beside it until cancelled."""

    def __init__(self, aggregate: Aggregate, waits: Waits | None = None) -> None:
        self._aggregate, self._waits = aggregate, waits
        self._estimate = Estimate()
        self._tally = RunProgress(aggregate)
        self._total: int | None = None
        self._throttled = self._retried = 0
        self._began = self._moved = time.monotonic()
        self.note = ""

    def hear(self, event: Event) -> None:
        """The run's listener."""
        self._tally.hear(event)
        self._estimate.hear(event)
        if self._waits is not None:
            self._waits.hear(event)
        match event:
            case CallFinished():
                self._moved = time.monotonic()
            case Retried():
                self._retried += 1
                self._throttled += event.error == "Throttled"
            case LimitHit() if not event.conversation:
                self.note = event.detail
            case RunStarted():
                self._total = event.total
                self._began = self._moved = time.monotonic()

    @property
    def reasons(self) -> dict[str, int]:
        """Why conversations failed, with counts."""
        return self._tally.failures.reasons()

    async def show(self) -> None:
        """Display until cancelled."""
        await show_live(self.line, lambda console: self.drawing(console.width), _TERMINAL_SECONDS)

    def drawing(self, width: int) -> RenderableType:
        """A bar over the same figures as in ``line``; lines break between figures, never within one."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        share = self._estimate.share()
        bar = Table.grid()  # which ends the bar's line
        bar.add_row(ProgressBar(total=1.0, completed=share or 0.0, width=min(width, _WIDEST_BAR)))
        return Group(bar, Text(fitted(self.line(), width)))

    def line(self) -> str:
        """Where the run stands, in one line."""
        return one_line(" · ".join(self._parts()))

    def _parts(self) -> list[str]:
        tally = self._tally
        elapsed = max(1e-9, time.monotonic() - self._began)
        fresh = tally.done - tally.restored
        total = "?" if self._total is None else str(self._total)
        parts = [f"{tally.done}/{total} done", f"{tally.in_flight} in flight"]
        parts += [speed(fresh, elapsed)] if fresh else []
        if tally.done != self._total and (left := self._estimate.seconds(elapsed)) is not None:
            parts.append(f"ETA {_duration(left)}")
        headline = self._aggregate.headline()
        if headline:
            parts.append(headline)
        parts.append(f"{tally.calls:,} calls, {tally.tokens:,} tokens")
        if tally.cost:
            parts.append(f"cost {tally.cost:.2f}")
        if tally.failed:
            parts.append(f"{tally.failed} failed")
        if self._retried:
            parts.append(f"{self._retried} retries ({self._throttled} throttled)")
        if self._waits is not None and (paused := self._waits.paused()):
            parts.append(paused)
        elif self._waits is not None and tally.in_flight and time.monotonic() - self._moved >= STALLED_SECONDS:
            parts += filter(None, [self._waits.describe()])
        if self.note:
            parts.append(self.note)
        return parts


def speed(conversations: int, seconds: float) -> str:
    """Return how fast conversations end, in the unit that says most: ``3.4/s``, ``12 s each`` or ``2.5 min each``."""
    each = seconds / conversations
    if each < 2:
        return f"{1 / each:.1f}/s"
    return f"{each:.0f} s each" if each < 120 else f"{each / 60:.1f} min each"


def fitted(line: str, width: int) -> str:
    """The line broken for a terminal between its figures, which ``·`` parts, and never within one that fits."""
    from rich.cells import cell_len

    lines: list[str] = []
    for part in line.split(" · "):
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def print_progress(line: str) -> None:
    """A line of progress that stays, on stderr."""
    if sys.stderr.isatty():
        line = fitted(line, os.get_terminal_size(sys.stderr.fileno()).columns)
    print(line, file=sys.stderr)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
