"""Progress of runs, sweeps and load tests on stderr: live in a terminal, else a plain line at intervals.

A display wakes a few times a second and never while an event is handled, so that it does not slow the run. If no call
finishes for a while, its line names the roles that the run waits for. While a load test is drawn, for milliseconds, no
request is sent; it is drawn so rarely that this does not affect 99% of the requests.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NoReturn

import anyio

from viva.engine.events import (
    CallFinished,
    Controlled,
    ConversationsAdded,
    EndpointBack,
    EndpointLost,
    Event,
    LimitHit,
    Retried,
    RunStarted,
)
from viva.orchestration.run_progress import RemainingTime, RunProgress, WaitStatus
from viva.reports.tables import escape_controls, money, one_line
from viva.scenarios.contract import Aggregate

from .exit_codes import terminal_width

if TYPE_CHECKING:
    from rich.console import RenderableType

    from viva.loadtest.run_load_test import LiveJudge, LiveStep, LoadLaunch, StepResult
    from viva.sweeps.cell_run import CellRun
    from viva.sweeps.sweep import Sweep

_PLAIN_SECONDS = 10.0
STALLED_SECONDS = 5.0  # after which, if no call has finished, the line says what the run waits for
_WIDEST_BAR = 80
_ENDINGS = {"drain": "finishing the conversations in flight", "stop": "finishing the calls in flight"}
_PLAIN_WIDTH = 80  # of lines that are not printed in a terminal


class Display(ABC):
    """A progress display: `drawing` in a terminal, else `line` at intervals."""

    refresh_seconds = 0.25

    def __init__(self, waits: WaitStatus | None = None) -> None:
        self.note = ""
        self._waits = waits
        self._began = self._moved = time.monotonic()
        self._calls = self._retried = self._throttled = 0

    async def show(self) -> NoReturn:
        """Display on stderr until cancelled."""
        if not sys.stderr.isatty():
            while True:
                await anyio.sleep(_PLAIN_SECONDS)
                print(fit_line(self.line(), _PLAIN_WIDTH), file=sys.stderr, flush=True)
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        with Live("", console=console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self.drawing(console.width, console.height), refresh=True)
                await anyio.sleep(self.refresh_seconds)

    def hear(self, event: Event) -> None:
        """Process an event of the work."""
        if self._waits is not None:
            self._waits.hear(event)
        if isinstance(event, Retried):
            self._retried += 1
            self._throttled += event.error == "Throttled"

    def line(self) -> str:
        """Return the progress as one line."""
        return self._line(self.parts())

    def _line(self, parts: list[str]) -> str:
        return one_line(" · ".join([*parts, *[self.note] * bool(self.note)]))

    @abstractmethod
    def parts(self) -> list[str]: ...

    @abstractmethod
    def drawing(self, width: int, height: int) -> RenderableType: ...

    def _elapsed(self) -> float:
        return max(1e-9, time.monotonic() - self._began)

    def _trouble(self, calls: int, in_flight: int) -> list[str]:
        """Return what was retried and, if no call has finished for a while, what the run waits for."""
        if calls != self._calls:
            self._calls, self._moved = calls, time.monotonic()
        parts = [f"{self._retried} retries ({self._throttled} throttled)"] if self._retried else []
        if self._waits is None:
            return parts
        parts += self._waits.requested_pauses()
        if paused := self._waits.paused():
            return [*parts, paused]
        stalled = in_flight and time.monotonic() - self._moved >= STALLED_SECONDS
        return [*parts, *filter(None, [self._waits.describe() if stalled else None])]


class Progress(Display):
    """Progress of a run."""

    def __init__(self, aggregate: Aggregate, waits: WaitStatus | None = None) -> None:
        super().__init__(waits)
        self._aggregate = aggregate
        self._estimate = RemainingTime()
        self._tally = RunProgress(aggregate)
        self._total: int | None = None

    def hear(self, event: Event) -> None:
        """Process an event of the run."""
        super().hear(event)
        self._tally.hear(event)
        self._estimate.hear(event)
        match event:
            case LimitHit() if not event.conversation:
                self.note = event.detail
            case ConversationsAdded() if self._total is not None:
                self._total += event.count
            case Controlled():
                self.note = _ENDINGS.get(event.request["do"], self.note)
            case RunStarted():
                self._total = event.total
                self._began = self._moved = time.monotonic()
            case CallFinished():
                self._calls, self._moved = self._tally.calls, time.monotonic()

    @property
    def reopened(self) -> bool:
        """True if failed conversations went on, so that the aggregate has to be read again from the journal."""
        return self._tally.reopened > 0

    @property
    def reasons(self) -> dict[str, int]:
        return self._tally.failures.reasons()

    def drawing(self, width: int, height: int = 0) -> RenderableType:
        """Draw a bar and the figures of `line`; lines break only between figures."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        fraction = self._estimate.fraction_done()
        bar = Table.grid()  # puts the bar on its own line
        bar.add_row(ProgressBar(total=1.0, completed=fraction or 0.0, width=min(width, _WIDEST_BAR)))
        return Group(bar, Text(fit_line(self.line(), width)))

    def parts(self) -> list[str]:
        if self._total is None and not self._tally.done:
            return ["starting: models are loaded, and tested if they are new"]
        tally, elapsed = self._tally, self._elapsed()
        fresh = tally.done - tally.restored
        total = "?" if self._total is None else str(self._total)
        parts, is_over = [f"{tally.done}/{total} done"], tally.done == self._total
        parts += [] if is_over else [f"{tally.in_flight} in flight"]
        parts += [speed(fresh, elapsed)] if fresh else []
        if not is_over and (seconds := self._estimate.seconds(elapsed)) is not None:
            parts.append(f"{_duration(seconds)} left")
        parts += [f"{tally.calls:,} calls", f"{tally.tokens:,} tokens"]
        parts += [f"cost {money(tally.cost)}"] if tally.cost else []
        parts += [f"{tally.failed} failed"] if tally.failed else []
        parts += self._trouble(tally.calls, tally.in_flight)
        # When a run has ended, its report follows at once, so the line needs no scores.
        headline = "" if is_over else self._aggregate.headline()
        return [*parts, f"scores so far: {headline}"] if headline else parts


def speed(conversations: int, seconds: float) -> str:
    """Return the speed of conversations: `3.4/s`, `12 s each` or `2.5 min each`."""
    each = seconds / conversations
    if each < 2:
        return f"{1 / each:.1f}/s"
    return f"{each:.0f} s each" if each < 120 else f"{each / 60:.1f} min each"


def fit_line(line: str, width: int) -> str:
    """Break a line at its `·` separators; indent further lines. A figure wider than `width` is not broken."""
    from rich.cells import cell_len

    first, *others = line.split(" · ")
    lines = [first]
    for part in others:
        longer = f"{lines[-1]} · {part}"
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"  {part}")
    return "\n".join(lines)


def print_progress(line: str) -> None:
    """Print a permanent line of progress on stderr."""
    width = terminal_width(sys.stderr.fileno()) if sys.stderr.isatty() else _PLAIN_WIDTH
    print(fit_line(line, width), file=sys.stderr)


def _duration(seconds: float) -> str:
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{remainder:02}s" if minutes else f"{remainder}s"


_MAX_ROWS = 40
# Which cells are shown first if there is no room for all.
_RANK = {"running": 0, "failed": 1, "part": 2, "waiting": 3, "stopped": 4, "done": 5}
_SWEEP_HEADER = ("cell", "state", "done", "in flight", "score")
_MIN_WIDTHS = (12, 5, 4, 6, 5)  # of columns
_FRAME_WIDTH = 16  # of the box around five columns
_STYLE = {"running": "cyan", "failed": "red", "stopped": "green", "done": "green"}


class SweepProgress(Display):
    """Progress of a sweep."""

    refresh_seconds = 0.5

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        roles: dict[str, dict[str, None]] = {}
        for run in sweep.runs:
            for role, model in run.cell.roles.items():
                roles.setdefault(role, {})[model] = None
        played = [(role, list(models)) for role, models in roles.items()]
        super().__init__(WaitStatus(played, sweep.model_counters, sweep.clock.wall))

    def parts(self) -> list[str]:
        runs = self._sweep.runs
        states = [run.state for run in runs]
        ended = sum(state in ("done", "stopped", "failed") for state in states)
        parts = [f"{ended}/{len(runs)} cells"]
        parts += [f"{states.count(state)} {state}" for state in ("failed", "stopped") if state in states]
        finished, total = sum(run.done for run in runs), sum(run.total or 0 for run in runs)
        in_flight = sum(run.in_flight for run in runs)
        parts += [f"{finished}/{total} conversations", f"{in_flight} in flight"]
        calls, tokens = sum(run.calls for run in runs), sum(run.tokens for run in runs)
        parts.append(f"{calls:,} calls ({calls / self._elapsed():.0f}/s) · {tokens:,} tokens")
        cost = sum(run.cost for run in runs)
        parts += [f"cost {money(cost)}"] if cost else []
        failed = sum(run.failed for run in runs)
        parts += [f"{failed} conversations failed"] if failed else []
        return parts + self._trouble(calls, in_flight)

    def drawing(self, width: int, height: int) -> RenderableType:
        """Draw as many cells as fit, and count the rest. In a long line, names and errors are cut, never numbers."""
        from rich.box import SIMPLE_HEAD
        from rich.cells import cell_len
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        runs = self._sweep.runs
        room = max(1, min(_MAX_ROWS, height - 6))
        visible = runs if len(runs) <= room else self._most_relevant(room)
        rows = [self._row(run) for run in visible]
        scored = [row for run, row in zip(visible, rows, strict=True) if run.error is None]
        widths = [
            max([minimum, *(cell_len(row[column]) for row in rows)]) for column, minimum in enumerate(_MIN_WIDTHS[:4])
        ]
        names, counts = widths[0], widths[1:]
        scores = max([_MIN_WIDTHS[4], *(cell_len(row[4]) for row in scored)])
        room = width - sum(counts) - _FRAME_WIDTH
        names = max(_MIN_WIDTHS[0], min(names, room - scores))  # names get the remaining width first, then errors
        scores = max(scores, room - names)
        table = Table(box=SIMPLE_HEAD)
        for column, (title, column_width) in enumerate(zip(_SWEEP_HEADER, (names, *counts, scores), strict=True)):
            table.add_column(title, justify="right" if column in (2, 3) else "left", width=column_width)
        for cell, state, progress, flight, score in rows:
            coloured = Text(state, style=_STYLE.get(state, ""))
            table.add_row(Text(_cut_middle(cell, names)), coloured, progress, flight, Text(_cut_middle(score, scores)))
        hidden = [run.state for run in runs if run not in visible]
        counts_hidden = ", ".join(f"{hidden.count(state)} {state}" for state in _RANK if state in hidden)
        parts = [Text(f"  … and {counts_hidden}")] if counts_hidden else []
        return Group(table, *parts, Text(fit_line(self.line(), width)))

    @staticmethod
    def _row(run: CellRun) -> tuple[str, str, str, str, str]:
        progress = f"{run.done}/{'?' if run.total is None else run.total}"
        flight = str(run.in_flight) if run.state == "running" else ""
        score = str(run.error) if run.error is not None else run.headline
        return (
            escape_controls(run.cell.name.removeprefix("cells/")),
            run.state,
            progress,
            flight,
            escape_controls(score),
        )

    def _most_relevant(self, room: int) -> list[CellRun]:
        """Return the most relevant cells that fit, in the sweep's order."""
        positions = {run: position for position, run in enumerate(self._sweep.runs)}
        chosen = sorted(self._sweep.runs, key=lambda run: (_RANK[run.state], positions[run]))[:room]
        return sorted(chosen, key=positions.__getitem__)


def _cut_middle(text: str, width: int) -> str:
    """Return a text in at most `width` terminal cells; the middle of a longer text is left out."""
    from rich.cells import set_cell_size

    line = " ".join(text.split())
    half = width // 2
    if len(line) <= half or set_cell_size(line, width).rstrip() == line:
        return line
    return f"{set_cell_size(line, width - half - 1)}…{line[len(line) - half :]}"


_LOAD_HEADER = ("judge", "load", "answered", "per s", "p50", "p95", "failed", "state")
_LONGEST_NAME, _SHORTEST_NAME = 16, 6
LoadRow = tuple[str, ...]


class CallProgress(Display):
    """Progress of `total` calls of one model."""

    def __init__(self, label: str, total: int) -> None:
        super().__init__()
        self._label, self._total = label, total

    def count(self) -> None:
        """Count an answer."""
        self._calls += 1

    def hear(self, event: Event) -> None:
        """Process an event of the model."""
        super().hear(event)
        if isinstance(event, EndpointLost):
            self.note = f"waiting for the endpoint: {event.reason}"
        elif isinstance(event, EndpointBack):
            self.note = ""

    def parts(self) -> list[str]:
        retried = [f"{self._retried:,} retried"] if self._retried else []
        return [f"{self._label}: {self._calls}/{self._total} answers", *retried]

    def drawing(self, width: int, height: int) -> RenderableType:
        from rich.text import Text

        return Text(fit_line(self.line(), width))


class BenchProgress(Display):
    """Progress of a load test."""

    refresh_seconds = 1.0

    def __init__(self, launch: LoadLaunch) -> None:
        super().__init__()
        self._launch = launch

    async def show(self) -> NoReturn:
        """Display until cancelled."""
        from viva.loadtest import load_sentences, step_judgement  # noqa: F401 - a later import would delay requests

        await super().show()

    def parts(self, *, latencies: bool = True) -> list[str]:
        test = self._launch.test
        if test is None or test.live is None:
            return ["opening judges"]
        live = test.live
        ended = sum(judge.ended for judge in live.judges.values())
        streams = [judge.stream for judge in live.judges.values() if judge.stream is not None]
        parts = [f"{', '.join(map(_short_name, live.judges))}: {_load_name(live.step)}"]
        parts.append(f"{ended:,}/{'?' if live.planned is None else format(live.planned, ',')} ended")
        parts.append(f"{sum(stream.in_flight for stream in streams):,} in flight")
        for label, judge in live.judges.items() if latencies else ():
            name = f"{_short_name(label)} " if len(live.judges) > 1 else ""
            parts.append(f"{name}p50 {_seconds(judge.e2e.quantile(0.5))} p95 {_seconds(judge.e2e.quantile(0.95))}")
        failed = sum(sum(judge.errors.values()) for judge in live.judges.values())
        parts += [f"{failed:,} failed"] if failed else []
        late = max((judge.dispatch.quantile(0.99) or 0.0 for judge in live.judges.values()), default=0.0)
        return parts + ([f"dispatch delay p99 {_seconds(late)}"] if late > 0.005 else [])

    def drawing(self, width: int, height: int) -> RenderableType:
        """Draw the latest steps that fit; names are cut on narrow terminals."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows = self.rows()
        room = max(1, height - 6)
        columns = list(zip(_LOAD_HEADER, *rows[-room:], strict=True))
        used = sum(max(map(len, column)) + 2 for column in columns[1:]) + 3  # width of all columns except names
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for number, title in enumerate(_LOAD_HEADER):
            table.add_column(title, justify="right" if 2 <= number <= 6 else "left", no_wrap=True)
        for row in rows[-room:]:
            table.add_row(*(Text(cell) for cell in (_cut_end(row[0], width - used), *row[1:])))
        hidden = [Text(f"  … and {len(rows) - room} earlier steps")] if len(rows) > room else []
        return Group(*hidden, table, Text(fit_line(self._line(self.parts(latencies=False)), width)))

    def rows(self) -> list[LoadRow]:
        """Return one row for each judge in each step, running ones last."""
        test = self._launch.test
        if test is None:
            return []
        rows = [_ended_row(label, result) for (_, label), result in test.results.items()]
        live = test.live
        if live is not None:
            rows += [
                _running_row(live, judge)
                for label, judge in live.judges.items()
                if (live.step.index, label) not in test.results
            ]
        return rows


def _ended_row(label: str, result: StepResult) -> LoadRow:
    record = result.measured.record
    e2e = record["latencies"]["e2e"]
    failed = sum(record["errors"].values())
    state = "saturated" if result.measured.saturated else "missed" if result.missed else "done"
    rate = "–" if record["throughput"] is None else f"{record['throughput']:.4g}"
    return (
        one_line(label),
        _load_name(result.measured.step),
        f"{record['answered']:,}",
        rate,
        _seconds(e2e.get("p50")),
        _seconds(e2e.get("p95")),
        f"{failed:,}" if failed else "",
        state,
    )


def _running_row(live: LiveStep, judge: LiveJudge) -> LoadRow:
    failed = sum(judge.errors.values())
    seconds = live.part.seconds if live.part is not None else 0.0
    stream = judge.stream
    waits = stream is not None and stream.end
    return (
        one_line(judge.label),
        _load_name(live.step),
        f"{len(judge.e2e):,}",
        f"{len(judge.e2e) / seconds:.4g}" if seconds > 0 else "–",
        _seconds(judge.e2e.quantile(0.5)),
        _seconds(judge.e2e.quantile(0.95)),
        f"{failed:,}" if failed else "",
        "ending" if waits else "running",
    )


def _load_name(step: object) -> str:
    from viva.loadtest.load_records import LoadStep
    from viva.loadtest.step_judgement import load_name

    assert isinstance(step, LoadStep)
    return f"unloaded {-step.index}" if step.unloaded else load_name(step)


def _short_name(label: str) -> str:
    return _cut_end(one_line(label), _LONGEST_NAME)


def _cut_end(name: str, longest: int) -> str:
    longest = max(_SHORTEST_NAME, longest)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _seconds(value: float | None) -> str:
    from viva.loadtest.load_sentences import seconds_text

    return "–" if value is None else seconds_text(value)
