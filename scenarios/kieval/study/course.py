"""The running mean of each cell: how the score settles as interviews end, in their seeded order.

The figures are part of the cells' records. What never belongs here: computing them (``columns``).
"""

from __future__ import annotations

from collections.abc import Iterator

from viva.reports.page import Plot, Record, joined, span
from viva.reports.rows import Row, figure_row
from viva.scoring.plots import running, style

from ...study.sections import Section, Subject
from .drawing import Drawn, datasets, plot, ranking, said_alike, shown_dataset
from .pools import InterviewMaterial


class Course(Section[InterviewMaterial]):
    """The mean of the first n interviews."""

    subject = Subject.COURSE

    def plots(self, report: Record) -> list[Plot]:
        drawn: list[Drawn] = []
        many, shared = False, list[tuple[str, list[str]]]()
        runs = [(cell, run) for cell in report["cells"] if (run := _run(cell.get("running"))) is not None]
        known = {cell["candidate"] for cell, _ in runs}
        order = [candidate for candidate in ranking(report) if candidate in known]
        for name in datasets(report):
            here: dict[str, list[running.Run]] = {candidate: [] for candidate in order}
            for cell, run in runs:
                if cell["dataset"] == name:
                    here[cell["candidate"]].append(run)
            kept = [running.Track(candidate, found) for candidate, found in here.items()]
            if any(here.values()):
                many |= len(kept) > style.LINES
                shared += [(name, group) for group in running.overlapping(kept)]
                n = [run.n[-1] for track in kept for run in track.runs]
                title = f"{shown_dataset(name)} (n = {span(n)} talks a run)"
                last = [f"{track.name} {track.runs[0].mean[-1]:.1f}" for track in kept if track.runs]
                drawn.append((running.running(title, kept), f"{name}: last running mean of {joined(last)}"))
        caption = (
            "The mean score of the first talks, in their seeded order, with its 95% interval at each number of talks; "
            "a line for each seed and evaluator. The intervals hold at a number fixed beforehand, not at one that was "
            "chosen by looking. Bands that have parted and lines that have levelled off say that more talks would "
            "change little."
        )
        caption += said_alike(shared)
        if many:
            caption += (
                f" More than {style.LINES} candidates have a strip each, which shows the mean less its last value, all "
                "at one scale."
            )
        return plot(report, "running", "Running mean", caption, drawn)


def running_rows(place: Row, record: Record) -> Iterator[Row]:
    """A cell's running mean in long form, a row for each n."""
    for index, n in enumerate(record["n"]):
        ends = {name: record[name][index] for name in ("low", "high")}
        yield figure_row(place, "running", value=record["mean"][index], n=n, **ends)


def _run(record: Record | None) -> running.Run | None:
    """The points that have an interval; None of none."""
    if not record:
        return None
    columns = [record[name] for name in ("n", "mean", "low", "high")]
    points = [point for point in zip(*columns, strict=True) if None not in point]
    return running.Run(*(list(column) for column in zip(*points, strict=True))) if points else None
