"""HTML page of a load test with plots, and its figures as rows of a CSV file; both are made from the record alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.reports.line_plots import Axes, Curve, curve_plot
from viva.reports.page import Page, PageSection, Plot, Record, count_of, join_names
from viva.reports.tables import Table, percent

from .load_sentences import (
    has_same_verdicts,
    headline,
    load_sentence,
    report_notes,
    seconds_text,
    step_sentence,
    work_sentence,
)
from .load_tables import load_tables

CSV_COLUMNS = ("judge", "load", "part", "measure", "aspect", "value", "low", "high", "p", "n")
CSV_TEXTS = ("judge", "load", "part", "measure", "aspect")
_SPEED_TITLES = ("Speed", "Latency components", "Throughput", "Failed requests")


def load_page(report: Record) -> Page:
    """Return the page of a report."""
    plots, no_plots = [], ""
    try:
        plots = list(_plots(report))
    except ConfigurationError as error:
        no_plots = str(error)
    decisive = next((plot for plot in plots if plot.anchor == "drift"), None)
    other_plots = [plot for plot in plots if plot is not decisive]
    tables = [table for table in load_tables(report) if table[2]]
    speed = [table for table in tables if table[0].startswith(_SPEED_TITLES)]
    judgement = [table for table in tables if table not in speed]
    sections = [
        PageSection("judgement", "Judgement", [_step_table(report), *judgement]),
        PageSection("speed", "Speed", speed, plots=bool(other_plots or no_plots)),
    ]
    return Page(
        f"Judges under load: {report['work']['source']}",
        [
            ("Requests", work_sentence(report["work"])),
            ("Judges", join_names(f"{judge['judge']} ({judge['model']})" for judge in report["judges"])),
            *([("Load", load)] if (load := load_sentence(report["settings"])) else []),
            ("Objective", _objective_text(report)),
            *([("Notes", " ".join(f"{note}." for note in notes))] if (notes := report_notes(report)) else []),
        ],
        [],
        [section for section in sections if section.tables or section.plots],
        other_plots,
        no_plots,
        {},
        _methods(report),
        headline(report),
        decisive,
    )


def _step_table(report: Record) -> Table:
    several = len(report["judges"]) > 1
    rows = [
        [judge["judge"] if several else step["load"], step_sentence(step, judge["judgement"])]
        for judge in report["judges"]
        for step in judge["judgement"]["steps"]
    ]
    return "Summary by load", ["judge" if several else "load", "verdicts"], rows


def _objective_text(report: Record) -> str:
    objective = report["objective"]
    return "none" if not objective else str(objective.get("text") or objective)


# -- drawings -------------------------------------------------------------------------------------------------------


def _plots(report: Record) -> Iterator[Plot]:
    yield from _drift_plot(report)
    yield from _throughput_plot(report)
    yield from _latency_plot(report)


def _drift_plot(report: Record) -> Iterator[Plot]:
    lines = []
    for judge in report["judges"]:
        steps = [
            step
            for step in judge["judgement"]["steps"]
            if step["drift"] is not None and step["drift"]["low"] is not None
        ]
        loads = _loads(steps)
        if loads:
            drifts = [step["drift"] for step in steps]
            # If all verdicts are the same, the interval reflects only unseen requests, so no error bar is drawn.
            ends = [(0.0, 0.0) if has_same_verdicts(step) else (step["drift"]["low"], step["drift"]["high"])
                    for step in steps]  # fmt: skip
            lines.append(
                Curve(
                    judge["judge"],
                    loads,
                    [100 * drift["value"] for drift in drifts],
                    [100 * low for low, _ in ends],
                    [100 * high for _, high in ends],
                    [index for index, step in enumerate(steps) if step["flagged"]],
                )
            )
    if lines:
        top = max(high for line in lines for high in line.high)
        axes = Axes(
            _load_axis(report),
            "drift, % of the scale",
            log_x=_needs_log(lines, "xs"),
            bounds=(0.0, 1.08 * top or 1.0),
        )
        svg = curve_plot("Drift against load", lines, axes, "verdicts changed")
        summary = join_names(f"{line.name} {percent(max(line.ys) / 100)} at most" for line in lines)
        yield Plot(
            "drift",
            "Drift against load",
            "Distance of verdicts from the unloaded ones, in percent of the scale, with intervals; crosses mark "
            "loads at which verdicts change by more than the judge's own noise.",
            "",
            [(svg, f"Drift by load: {summary}")],
        )


def _throughput_plot(report: Record) -> Iterator[Plot]:
    lines = []
    for judge in report["judges"]:
        measured = [step for step in judge["steps"] if step["verdicts_per_minute"] and _p95(step) is not None]
        measured.sort(key=lambda step: step["verdicts_per_minute"])
        if measured:
            lines.append(
                Curve(
                    judge["judge"],
                    [step["verdicts_per_minute"] for step in measured],
                    [_p95(step) or 0.0 for step in measured],
                    flagged=[index for index, step in enumerate(measured) if step["judgement"]["flagged"]],
                    texts=[step["judgement"]["load"] for step in measured] if len(report["judges"]) == 1 else (),
                )
            )
    if lines:
        axes = Axes(
            "verdicts per minute", "p95 latency, s", log_x=_needs_log(lines, "xs"), log_y=_needs_log(lines, "ys")
        )
        svg = curve_plot("Latency and throughput", lines, axes, "verdicts changed")
        summary = join_names(f"{line.name} up to {max(line.xs):,.0f} per minute" for line in lines)
        yield Plot(
            "curve",
            "Latency and throughput",
            "Each point is a load: verdicts per minute, and the 95th percentile of latency from the intended start.",
            "",
            [(svg, f"p95 latency by verdicts per minute: {summary}")],
        )


def _latency_plot(report: Record) -> Iterator[Plot]:
    panels = []
    for judge in report["judges"]:
        lines = []
        for step in judge["steps"]:
            points = ((step["speed"] or {}).get("distributions") or {}).get("e2e")
            if points:
                xs, ys = zip(*points, strict=True)
                lines.append(Curve(step["judgement"]["load"], xs, [100 * fraction for fraction in ys]))
        lines = _select_lines(lines)
        if lines:
            axes = Axes(
                "seconds", "% of requests answered", log_x=_needs_log(lines, "xs"), marks=False, bounds=(0.0, 101.0)
            )
            svg = curve_plot(judge["judge"], lines, axes)
            summary = join_names(f"{line.name} all within {seconds_text(max(line.xs))}" for line in lines)
            panels.append((svg, f"Latencies of {judge['judge']}: {summary}"))
    if panels:
        caption = "Share of requests answered within a number of seconds of their intended start."
        yield Plot("distributions", "Distribution of latencies", caption, "", panels)


def _select_lines(lines: Sequence[Curve], limit: int = 6) -> list[Curve]:
    """Return at most `limit` curves, including the first and the last."""
    if len(lines) <= limit:
        return list(lines)
    return [lines[round(at * (len(lines) - 1) / (limit - 1))] for at in range(limit)]


def _p95(step: Record) -> float | None:
    value = step["speed"]["latencies"]["e2e"].get("p95") if step["speed"] else None
    return None if value is None else float(value)


def _loads(steps: Sequence[Record]) -> list[float]:
    """Return the loads as numbers; an empty list if a load is not a number."""
    loads = []
    for step in steps:
        text = step["load"].removesuffix("/s").removesuffix(" in flight")
        try:
            loads.append(float(text))
        except ValueError:
            return []
    return loads


def _load_axis(report: Record) -> str:
    loads = [step["load"] for judge in report["judges"] for step in judge["judgement"]["steps"]]
    return "requests in flight" if loads and all("flight" in load for load in loads) else "requests per second"


def _needs_log(lines: Sequence[Curve], axis: str) -> bool:
    values: list[float] = [value for line in lines for value in getattr(line, axis)]
    return min(values) > 0.0 and max(values) > 12 * min(values)


# -- rows -----------------------------------------------------------------------------------------------------------


def csv_rows(report: Record) -> Iterator[dict[str, Any]]:
    """Yield one row for each figure of judgement, and for each latency and count of speed."""
    for judge in report["judges"]:
        for step in judge["steps"]:
            judgement = step["judgement"]
            keys = {"judge": judge["judge"], "load": judgement["load"]}
            for figure in judgement["figures"]:
                more = {"aspect": figure["aspect"], "p": figure["p"], "n": figure["n"]}
                yield _csv_row(keys, "judgement", figure["figure"], figure["change"], **more)
            if judgement["drift"] is not None:
                yield _csv_row(keys, "judgement", "drift", judgement["drift"], p=judgement["p"])
            for name in ("agreement", "seeds", "reference"):
                if judgement[name] is not None:
                    yield _csv_row(keys, "agreement", name, judgement[name]["same"], n=judgement[name]["n"])
            speed = step["speed"]
            if speed is None:
                continue
            yield _csv_row(keys, "speed", "verdicts_per_minute", {"value": step["verdicts_per_minute"]})
            for name, latency in speed["latencies"].items():
                for statistic, value in latency.items():
                    if statistic != "count":
                        yield _csv_row(keys, "latency", f"{name}.{statistic}", {"value": value}, n=latency["count"])


def _csv_row(keys: Record, part: str, measure: str, figure: Record, **more: Any) -> dict[str, Any]:
    ends = {name: figure.get(name) for name in ("value", "low", "high")}
    return dict.fromkeys(CSV_COLUMNS) | dict(keys) | {"part": part, "measure": measure} | ends | more


def _methods(report: Record) -> list[tuple[str, str]]:
    alpha = report["alpha"]
    return [
        (
            "Test for changes",
            "Each request is answered in two passes with one request in flight, and under load. If load had no effect, "
            "passes could be exchanged request by request; a permutation test over all figures and loads flags "
            f"{percent(alpha)} of unaffected judges at any load.",
        ),
        (
            "Intervals",
            f"{100 * (1 - alpha):g}%, Student's t, clustered by item, each uncorrected; an interval "
            f"contains 0 if its p-value, corrected for all figures and loads, is {alpha:g} or more.",
        ),
        (
            "Drift",
            "In percent of the scale, the larger of two figures: the change of the mean score, and the distance "
            "between loaded and unloaded verdicts less the distance between two unloaded passes. For labels: the share "
            "of verdicts that change under load less the share that changes between unloaded passes.",
        ),
        (
            "Latency",
            "Measured from the intended start of a request, so that neither a slow judge nor a slow client hides its "
            "delay; failed requests are counted separately.",
        ),
        (
            "Verdicts per minute",
            f"Answers with a readable verdict ({count_of(report['work']['requests'], 'request')}).",
        ),
    ]
