"""The progress of a run on stderr: one live line in a terminal, a plain line now and then elsewhere.

Reads the run's events and nothing else. It wakes a few times a second and never from inside an event, so that
display cannot slow a run. What never belongs here: results (they go to stdout, elsewhere).
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import anyio

from viva.engine.events import (
    Event,
    LimitHit,
    Retried,
    RunStarted,
)
from viva.orchestration.run_progress import RunProgress
from viva.reports.controls import one_line
from viva.scenarios.contract import Aggregate

if TYPE_CHECKING:
    from rich.live import Live

_TERMINAL_SECONDS = 0.25
_PLAIN_SECONDS = 10.0


class Progress:
    """Listens to a run; ``show`` runs beside it until cancelled."""

    def __init__(self, aggregate: Aggregate) -> None:
        self._aggregate = aggregate
        self._tally = RunProgress(aggregate)
        self._total: int | None = None
        self._throttled = self._retried = 0
        self._began = time.monotonic()
        self.note = ""

    def hear(self, event: Event) -> None:
        """The run's listener."""
        self._tally.hear(event)
        match event:
            case Retried():
                self._retried += 1
                self._throttled += event.error == "Throttled"
            case LimitHit() if not event.conversation:
                self.note = event.detail
            case RunStarted():
                self._total = event.total
                self._began = time.monotonic()

    @property
    def reasons(self) -> dict[str, int]:
        """Why conversations failed, with counts."""
        return self._tally.failures.reasons()

    async def show(self) -> None:
        """Display until cancelled."""
        if not sys.stderr.isatty():
            while True:
                await anyio.sleep(_PLAIN_SECONDS)
                print(self.line(), file=sys.stderr, flush=True)
        from rich.console import Console
        from rich.live import Live

        with Live("", console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            while True:
                self._draw(live)
                await anyio.sleep(_TERMINAL_SECONDS)

    def _draw(self, live: Live) -> None:
        from rich.text import Text

        live.update(Text(self.line()), refresh=True)

    def line(self) -> str:
        """Where the run stands, in one line."""
        tally = self._tally
        elapsed = max(1e-9, time.monotonic() - self._began)
        fresh = tally.done - tally.restored
        rate = fresh / elapsed
        total = "?" if self._total is None else str(self._total)
        parts = [f"{tally.done}/{total} done", f"{tally.in_flight} in flight", f"{rate:.1f}/s"]
        if self._total is not None and fresh and tally.done < self._total:
            parts.append(f"ETA {_duration((self._total - tally.done) / rate)}")
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
        if self.note:
            parts.append(self.note)
        return one_line(" · ".join(parts))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
