"""The course of interviews: plots by round, reasons of early stops, and the running mean of each cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from viva.reports import line_plots, plot_style
from viva.reports import row_plots as drawings
from viva.reports.page import Plot, Record, join_names, number_range
from viva.reports.tables import Row, Table, figure_row

from ...study_sections import Section, Subject
from ..interview_report import saved_table
from .interview_pools import InterviewMaterial
from .methods import (
    Drawing,
    dataset_names,
    interval_reach,
    of_interviews,
    overlap_sentence,
    plot_group,
    ranked_candidates,
    rows_by_dataset,
    short_dataset_name,
    title_facts,
)


def round_plots(report: Record) -> list[Plot]:
    survival = (
        "How many of a candidate's interviews reach each round. A curve falls early if the candidate loses track of "
        "the conversation, or if the evaluator stops it."
    )
    scores = (
        "The mean overall score of each round by itself, unweighted, over the interviews that reached it; bars are 95% "
        "intervals, clustered by item. A falling curve shows that later questions exceed the "
        "candidate's knowledge. Later rounds contain only the interviews that got so far, usually the better ones."
    )
    return [
        *_round_plot(
            report, "survival", "Rounds survived", survival, "interviews that reached the last round", _survival
        ),
        *_round_plot(report, "rounds", "Score by round", scores, "score of the last round", _round_scores),
    ]


def _survival(record: Record) -> line_plots.RoundValue | None:
    rate = record.get("share_held")
    return None if rate is None else line_plots.RoundValue(record["round"], 100 * rate, n=record.get("held"))


def _round_scores(record: Record) -> line_plots.RoundValue | None:
    if record.get("mean") is None:
        return None
    return line_plots.RoundValue(record["round"], record["mean"], interval_reach(record), record.get("n"))


def _round_plot(
    report: Record,
    anchor: str,
    heading: str,
    caption: str,
    label: str,
    read: Callable[[Record], line_plots.RoundValue | None],
) -> list[Plot]:
    draw = line_plots.survival_plot if read is _survival else line_plots.round_score_plot
    panels: list[Drawing] = []
    crowded, shared = False, list[tuple[str, list[str]]]()
    everywhere = list(rows_by_dataset(report))
    interviewed = {row["candidate"] for _, pooled in everywhere for row in pooled}
    order = [candidate for candidate in ranked_candidates(report) if candidate in interviewed]
    by_dataset: list[dict[str, list[line_plots.RoundValue]]] = []
    for _, pooled in everywhere:
        by_dataset.append({candidate: [] for candidate in order})
        for row in pooled:
            by_dataset[-1][row["candidate"]] = [
                step for record in row.get("by_round") or () if (step := read(record)) is not None
            ]
    every_curve = [line_plots.RoundCurve(name, values) for steps in by_dataset for name, values in steps.items()]
    for (name, pooled), steps in zip(everywhere, by_dataset, strict=True):
        # Candidates without interviews keep their place, so that colours are the same in every panel.
        curves = [line_plots.RoundCurve(candidate, values) for candidate, values in steps.items()]
        if any(steps.values()):
            crowded |= len(curves) > plot_style.LINES
            shared += [(name, group) for group in line_plots.find_overlaps(curves)]
            n = [row["n_observations"] for row in pooled if steps[row["candidate"]]]
            title = f"{short_dataset_name(name)} (n = {number_range(n)} interviews each)"
            last = [f"{curve.name} {curve.steps[-1].value:.0f}" for curve in curves if curve.steps]
            panels.append((draw(title, curves, every_curve), f"{name}: {label}: {join_names(last)}"))
    caption += overlap_sentence(shared)
    if crowded:
        caption += (
            f" With more than {plot_style.LINES} candidates, rows of numbers replace the curves, without intervals; "
            "stronger tints are higher values."
        )
    return plot_group(report, anchor, heading, caption, panels)


class StopsSection(Section[InterviewMaterial]):
    """Reasons by candidate; the counts are part of the pooled figures."""

    subject, heading, anchor = Subject.ENDS, "Early stops", "reasons"

    def tables(self, report: Record) -> list[Table]:
        by_candidate = {
            row["candidate"]: row["stop_reasons"]
            | {f"failed: {name}": count for name, count in row["failures"].items()}
            for row in of_interviews(report)  # the row over several datasets comes last
        }
        names = sorted({name for counts in by_candidate.values() for name in counts})
        rows = [
            [candidate, *(str(counts.get(name, 0)) for name in names)] for candidate, counts in by_candidate.items()
        ]
        results = [(cell["candidate"], cell["result"]) for cell in report["cells"] if cell["result"]]
        return [
            (f"Early stops: {title_facts(report)}", ["candidate", *names], rows if names else []),
            saved_table(results),
        ]

    def plots(self, report: Record) -> list[Plot]:
        stops_by_dataset = {
            name: [drawings.StopCounts(row["candidate"], row["n_observations"], _stop_reasons(row)) for row in pooled]
            for name, pooled in rows_by_dataset(report)
        }
        reasons = drawings.shown_reasons(candidate for stops in stops_by_dataset.values() for candidate in stops)
        panels: list[Drawing] = []
        for name, stops in stops_by_dataset.items():
            if reasons[0]:
                n = [stop.conversations for stop in stops]
                title = f"{short_dataset_name(name)} (n = {number_range(n)} interviews each)"
                shares = [
                    f"{candidate.name} {100 * sum(candidate.reasons.values()) / candidate.conversations:.0f}%"
                    for candidate in stops
                ]
                label = f"{name}: interviews that stopped early: {join_names(shares)}"
                panels.append((drawings.stop_plot(title, stops, reasons), label))
        caption = (
            "Shares of interviews that completed all rounds or stopped early, by reason. Parts of 9% and more have "
            "numbers. Failed interviews are not counted. A long coloured part means that a score is based on short "
            "interviews; the colour shows why they were short."
        )
        if reasons[1]:
            caption += f" The rarest reasons share a colour: {join_names(reasons[1])}."
        return plot_group(report, "stops", "Early stops by reason", caption, panels)


def _stop_reasons(row: Record) -> dict[str, int]:
    """Return the reasons why interviews ended before their last round: flags, or the end of a fork's recording."""
    ran_out = (row.get("ends") or {}).get("transcript", 0)
    return {**row["stop_reasons"], **({"recording ended": ran_out} if ran_out else {})}


class RunningMeans(Section[InterviewMaterial]):
    """The mean of the first n interviews."""

    subject = Subject.COURSE

    def plots(self, report: Record) -> list[Plot]:
        panels: list[Drawing] = []
        crowded, shared = False, list[tuple[str, list[str]]]()
        runs = [(cell, run) for cell in report["cells"] if (run := _running_points(cell.get("running"))) is not None]
        candidates = {cell["candidate"] for cell, _ in runs}
        order = [candidate for candidate in ranked_candidates(report) if candidate in candidates]
        for name in dataset_names(report):
            runs_of: dict[str, list[line_plots.RunningMean]] = {candidate: [] for candidate in order}
            for cell, run in runs:
                if cell["dataset"] == name:
                    runs_of[cell["candidate"]].append(run)
            tracks = [
                line_plots.CandidateRuns(candidate, candidate_runs) for candidate, candidate_runs in runs_of.items()
            ]
            if any(runs_of.values()):
                crowded |= len(tracks) > plot_style.LINES
                shared += [(name, group) for group in line_plots.find_overlaps(tracks)]
                n = [run.n[-1] for track in tracks for run in track.runs]
                title = f"{short_dataset_name(name)} (n = {number_range(n)} interviews per run)"
                last = [f"{track.name} {track.runs[0].mean[-1]:.1f}" for track in tracks if track.runs]
                panels.append(
                    (line_plots.running_mean_plot(title, tracks), f"{name}: last running mean of {join_names(last)}")
                )
        caption = (
            "The mean score of the first n interviews in seeded order, with its 95% interval; one line per seed and "
            "evaluator. The intervals are valid only if the number of interviews was fixed beforehand. If bands are "
            "apart and lines are level, more interviews would change little."
        )
        caption += overlap_sentence(shared)
        if crowded:
            caption += (
                f" With more than {plot_style.LINES} candidates, each has a strip that shows the mean minus its last "
                "value; all strips have the same scale."
            )
        return plot_group(report, "running", "Running mean", caption, panels)


def running_rows(prefix: Row, record: Record) -> Iterator[Row]:
    """Yield a cell's running mean in long form, a row for each n."""
    for index, n in enumerate(record["n"]):
        ends = {name: record[name][index] for name in ("low", "high")}
        yield figure_row(prefix, "running", value=record["mean"][index], n=n, **ends)


def _running_points(record: Record | None) -> line_plots.RunningMean | None:
    """Return the points that have an interval; None if there are none."""
    if not record:
        return None
    columns = [record[name] for name in ("n", "mean", "low", "high")]
    points = [point for point in zip(*columns, strict=True) if None not in point]
    return line_plots.RunningMean(*(list(column) for column in zip(*points, strict=True))) if points else None
