"""The progress of a load test on stderr: a live table of its steps in a terminal, a plain line now and then elsewhere.

Drawing takes some milliseconds in which no request is sent, and is done so seldom that 99% of them never meet it. What
never belongs here: results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from viva.reports.controls import one_line

from .live import show_live

if TYPE_CHECKING:
    from rich.console import RenderableType

    from viva.orchestration.load.launch import LoadLaunch
    from viva.orchestration.load.live import LiveJudge, LiveStep
    from viva.orchestration.load.planning import StepResult

_TERMINAL_SECONDS = 1.0
_HEADER = ("judge", "load", "answered", "per s", "p50", "p95", "failed", "state")
_LONGEST_NAME, _SHORTEST_NAME = 16, 6
Row = tuple[str, ...]


class BenchProgress:
    """``show`` displays a load test until cancelled; ``line`` is its state in one line."""

    def __init__(self, launch: LoadLaunch) -> None:
        self._launch = launch
        self.note = ""

    async def show(self) -> None:
        """Display until cancelled."""
        from viva.study.load import judged, sentences  # noqa: F401 - later it would hold up requests

        await show_live(self.line, lambda console: self.table(console.width, console.height), _TERMINAL_SECONDS)

    def line(self, *, latencies: bool = True) -> str:
        """Where the test stands, in one line."""
        test = self._launch.test
        if test is None or test.live is None:
            return one_line(" · ".join(["opening judges", *[self.note] * bool(self.note)]))
        live = test.live
        ended = sum(judge.ended for judge in live.judges.values())
        streams = [judge.stream for judge in live.judges.values() if judge.stream is not None]
        parts = [f"{', '.join(map(_name, live.judges))}: {_load(live.step)}"]
        parts.append(f"{ended:,}/{'?' if live.planned is None else format(live.planned, ',')} ended")
        parts.append(f"{sum(one.in_flight for one in streams):,} in flight")
        for label, judge in live.judges.items() if latencies else ():
            name = f"{_name(label)} " if len(live.judges) > 1 else ""
            parts.append(f"{name}p50 {_seconds(judge.e2e.quantile(0.5))} p95 {_seconds(judge.e2e.quantile(0.95))}")
        failed = sum(sum(judge.errors.values()) for judge in live.judges.values())
        parts += [f"{failed:,} failed"] if failed else []
        late = max((judge.dispatch.quantile(0.99) or 0.0 for judge in live.judges.values()), default=0.0)
        parts += [f"dispatch delay p99 {_seconds(late)}"] if late > 0.005 else []
        return one_line(" · ".join(parts + [self.note] * bool(self.note)))

    def table(self, width: int, height: int) -> RenderableType:
        """The steps so far, the latest ones where not all have room; names are cut where 80 columns are too few."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows = self.rows()
        room = max(1, height - 6)
        columns = list(zip(_HEADER, *rows[-room:], strict=True))
        taken = sum(max(map(len, column)) + 2 for column in columns[1:]) + 3  # by all but names
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for place, title in enumerate(_HEADER):
            table.add_column(title, justify="right" if 2 <= place <= 6 else "left", no_wrap=True)
        for row in rows[-room:]:
            table.add_row(*(Text(cell) for cell in (_cut(row[0], width - taken), *row[1:])))
        hidden = [Text(f"  … and {len(rows) - room} steps before")] if len(rows) > room else []
        return Group(*hidden, table, Text(self.line(latencies=False)))

    def rows(self) -> list[Row]:
        """One row for each judge in each step, the one that runs last."""
        test = self._launch.test
        if test is None:
            return []
        rows = [_ended(label, result) for (_, label), result in test.results.items()]
        live = test.live
        if live is not None:
            rows += [
                _running(live, judge)
                for label, judge in live.judges.items()
                if (live.step.index, label) not in test.results
            ]
        return rows


def _ended(label: str, result: StepResult) -> Row:
    record = result.measured.record
    e2e = record["latencies"]["e2e"]
    failed = sum(record["errors"].values())
    state = "saturated" if result.measured.saturated else "missed" if result.missed else "done"
    rate = "–" if record["throughput"] is None else f"{record['throughput']:.4g}"
    return (
        one_line(label),
        _load(result.measured.step),
        f"{record['answered']:,}",
        rate,
        _seconds(e2e.get("p50")),
        _seconds(e2e.get("p95")),
        f"{failed:,}" if failed else "",
        state,
    )


def _running(live: LiveStep, judge: LiveJudge) -> Row:
    failed = sum(judge.errors.values())
    seconds = live.part.seconds if live.part is not None else 0.0
    stream = judge.stream
    waits = stream is not None and stream.end
    return (
        one_line(judge.label),
        _load(live.step),
        f"{len(judge.e2e):,}",
        f"{len(judge.e2e) / seconds:.4g}" if seconds > 0 else "–",
        _seconds(judge.e2e.quantile(0.5)),
        _seconds(judge.e2e.quantile(0.95)),
        f"{failed:,}" if failed else "",
        "last ones" if waits else "running",
    )


def _load(step: object) -> str:
    from viva.orchestration.load.records import LoadStep
    from viva.study.load.judged import load_name

    assert isinstance(step, LoadStep)
    return f"unloaded {-step.index}" if step.unloaded else load_name(step)


def _name(label: str) -> str:
    return _cut(one_line(label), _LONGEST_NAME)


def _cut(name: str, longest: int) -> str:
    longest = max(_SHORTEST_NAME, longest)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _seconds(value: float | None) -> str:
    from viva.study.load.sentences import seconds

    return "–" if value is None else seconds(value)
