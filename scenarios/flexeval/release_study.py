"""Study of several suite runs: releases side by side, with each metric compared to the first release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viva.reports.page import Plot, Record
from viva.reports.tables import DASH, Row, Table, mean_and_interval, number, p_value, record_rows, signed
from viva.scoring.clustered_means import clustered_mean
from viva.scoring.comparison import adjust_p_values, compare
from viva.scoring.intervals import Estimate, extend_to_zero

from ..contract import Findings, RankedCandidate
from ..study_cells import ItemNumbers, RunReading
from ..study_sections import Material, RunTables, Section, Subject, SystemStudy
from .metric_values import SystemValues, read_values_by_system
from .scales import Scale, rubric_scales, scale_width

_MAX_PLOTTED = 6  # plotted metrics of each kind


class FlexEvalStudy(SystemStudy):
    """Study of suites."""

    has_plots = True

    def make_sections(self) -> Sequence[Section[Any]]:
        return [ReleaseSection(), RunTables(self.scenario)]

    def read(self, readings: Sequence[RunReading], scoring: Any, items: ItemNumbers) -> None:
        super().read(readings, scoring, items)
        run = readings[0].cell.run
        assert run is not None
        systems = read_values_by_system(run.journal, [reading.cell.candidate for reading in readings])
        for reading in readings:
            reading.columns = systems[reading.cell.candidate]

    def findings(self, report: Record) -> list[Findings]:
        """Return for each suite whether each release passes its gate, and how many of its tests pass."""
        suites: dict[str, list[Record]] = {}
        for cell in report["cells"]:
            if cell["result"]:
                suites.setdefault(cell["dataset"], []).append(cell)
        return [_suite_findings(name, cells) for name, cells in suites.items()]

    def cell_rows(self, cell: Record, prefix: Row) -> Iterator[Row]:
        metrics = (cell["result"] or {}).get("metrics", {})
        for name, metric in metrics.items():
            yield from record_rows(prefix, name, {key: figure for key, figure in metric.items() if key != "errors"})


def _suite_findings(suite: str, cells: Sequence[Record]) -> Findings:
    sentences, standings = [], []
    names = Counter(cell["candidate"] for cell in cells)
    for cell in cells:
        result = cell["result"]
        name = cell["candidate"] if names[cell["candidate"]] == 1 else f"{cell['candidate']} ({cell['name']})"
        broken, tests = result.get("broken") or [], result.get("tests")
        if broken:
            suffix = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
            sentences.append(f"{name} breaks its gate: {', '.join(broken[:3])}{suffix}.")
        else:
            sentences.append(f"{name} breaks no threshold.")
        rate = (tests or {}).get("rate")
        if rate is not None:
            value, low, high = (100 * rate[end] for end in ("mean", "low", "high"))
            standings.append(RankedCandidate(name, value, low, high, rate["n"], bool(broken), ", ".join(broken)))
    sentences.sort(key=lambda sentence: " breaks its gate" not in sentence)
    standings.sort(key=lambda standing: -(standing.value or 0.0))
    return Findings(sentences, "tests passed, percent" if standings else "", standings, suite)


class ReleaseSection(Section[Material]):
    """Section with every metric of every release, and its difference from the first release."""

    key = "releases"
    subject = Subject.RESULTS
    heading = "Releases side by side"
    anchor = "releases"

    def compute(self, material: Material, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return by suite and metric the figures of each release, and paired differences from the first release."""
        suites: dict[str, list[RunReading]] = {}
        for reading in material.readings:
            if reading.result is not None:
                suites.setdefault(reading.cell.dataset, []).append(reading)
        return [
            metric
            for name, readings in suites.items()
            for metric in self._compare_suite(name, readings, len(suites) > 1)
        ]

    def _compare_suite(self, suite: str, readings: Sequence[RunReading], has_suites: bool) -> list[dict[str, Any]]:
        names = list(dict.fromkeys(name for reading in readings for name in reading.result.get("metrics", {})))  # type: ignore[union-attr]
        metrics: list[dict[str, Any]] = []
        scales = rubric_scales(readings[0].cell.manifest)
        for name in names:
            releases = []
            for reading in readings:
                metric = (reading.result or {}).get("metrics", {}).get(name)
                if metric is not None and (metric["n"] or metric["errors_total"]):
                    releases.append({"release": _release_name(reading, readings), **metric})
            if releases:
                prefix = {"suite": suite} if has_suites else {}
                against = self._differences(name, readings, scales.get(name))
                metrics.append(prefix | {"metric": name, "releases": releases, "against": against})
        comparisons = [difference for metric in metrics for difference in metric["against"]]
        corrected = adjust_p_values([difference["p"] for difference in comparisons])
        for difference, p in zip(comparisons, corrected, strict=True):
            difference["p_corrected"] = p
        return metrics

    def _differences(self, name: str, readings: Sequence[RunReading], scale: Scale | None) -> list[dict[str, Any]]:
        first, *later = readings
        base = _means_by_item(first.columns, name)
        differences = []
        for reading in later if base else ():
            own = _means_by_item(reading.columns, name)
            if not own:
                continue
            ends = scale_width(scale, [_numbers(release.columns, name) for release in (first, reading)])
            scores = {"own": {(item, ""): value for item, value in own.items()},
                      "base": {(item, ""): value for item, value in base.items()}}  # fmt: skip
            comparison = compare("own", "base", scores, highest=ends or _beyond_range(base, own))
            if comparison.mean is not None:
                record = {"release": _release_name(reading, readings), "difference": comparison.mean}
                record |= {"p": comparison.p, "n": comparison.n}
                # Without ends of the scale, the interval is Student's, as for each release's mean.
                student = None if ends is not None else _mean_difference(own, base)
                interval = (
                    comparison.difference if ends is not None else student and extend_to_zero(student, comparison.p)
                )
                differences.append(record | {"low": interval and interval.low, "high": interval and interval.high})
        return differences

    def tables(self, report: Record) -> list[Table]:
        rows, differences = [], []
        for metric in report[self.key]:
            name = _metric_name(metric)
            for figures in metric["releases"]:
                rate = figures.get("pass_rate")
                row = [name, figures["release"], f"{figures['n']:,}"]
                row += [mean_and_interval(figures, 3) if "mean" in figures else DASH, number(figures.get("p98"), 3)]
                row += [DASH if rate is None else f"{100 * rate['mean']:.1f}%", f"{figures['errors_total']:,}"]
                rows.append(row)
            for figures in metric["against"]:
                low, high = figures["low"], figures["high"]
                ends = f" ({number(low, 3)} to {number(high, 3)})" if low is not None else ""
                row = [name, figures["release"], f"{signed(figures['difference'], 3)}{ends}"]
                differences.append([*row, p_value(figures["p"]), p_value(figures["p_corrected"]), f"{figures['n']:,}"])
        head = ["metric", "release", "n", "mean", "p98", "pass rate", "errors"]
        against = ["metric", "release", "difference", "p", "p (Holm)", "conversations"]
        firsts = {figures["releases"][0]["release"] for figures in report[self.key]}
        first = firsts.pop() if len(firsts) == 1 else "the first release"
        return [
            ("Releases side by side", head, rows),
            (f"Differences from {first}, paired by conversation (Holm over all rows)", against, differences),
        ]

    def plots(self, report: Record) -> list[Plot]:
        from viva.reports import row_plots

        tails: list[tuple[str, str]] = []
        kinds: list[tuple[str, str]] = []
        classes: list[tuple[str, str]] = []
        for name, rows in _panels(report[self.key]).items():
            bars = {row: row_plots.Bar(record["p98"]) for row, record in rows.items() if _has_percentiles(record)}
            if bars and len(tails) < _MAX_PLOTTED:
                summary = ", ".join(f"{row} {bar.value:.3g}" for row, bar in bars.items())
                tails.append((row_plots.bar_plot(name, bars, "98th percentile"), f"{name}: {summary}"))
            counts = {row: record["counts"] for row, record in rows.items() if record.get("counts")}
            order = sorted({category for record in counts.values() for category in record})
            if counts and len(order) <= row_plots.MAX_CATEGORIES and len(kinds) < _MAX_PLOTTED:
                kinds.append((row_plots.stacked_bar_plot(name, counts, order), f"{name}: {', '.join(order)}"))
            f1 = {row: {kind: figures["f1"] for kind, figures in record["classes"].items()}
                  for row, record in rows.items() if record.get("classes")}  # fmt: skip
            order = sorted({kind for record in f1.values() for kind in record})
            if f1 and len(order) <= row_plots.MAX_CATEGORIES:
                summary = "; ".join(f"{row} {', '.join(f'{kind} {value:.3g}' for kind, value in record.items())}"
                                 for row, record in f1.items())  # fmt: skip
                classes.append((row_plots.grouped_bar_plot(name, f1, order, "F1"), f"{name}: {summary}"))
        origin = f"{len(report['cells'])} releases"
        beyond = "2 of 100 values exceed this figure."
        plots = [
            ("tails", "98th percentile by release", beyond, tails),
            ("categories", "Categories by release", "Number of values per category.", kinds),
            ("classes", "F1 by class", "Agreement with the given labels, each class as the positive one.", classes),
        ]
        return [Plot(anchor, heading, caption, origin, panels) for anchor, heading, caption, panels in plots if panels]


def _metric_name(metric: Mapping[str, Any]) -> str:
    """Return the metric's name, with its suite if there are several suites."""
    return f"{metric['suite']}: {metric['metric']}" if "suite" in metric else str(metric["metric"])


def _panels(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the rows by panel: a metric's releases, or for `NAME@GRADER` each release by each grader."""
    panels: dict[str, dict[str, Any]] = {}
    for metric in metrics:
        name, _, grader = _metric_name(metric).partition("@")
        for release in metric["releases"]:
            row = release["release"]
            if grader:
                row = grader if len(metric["releases"]) == 1 else f"{row}, {grader}"
            panels.setdefault(name, {})[row] = release
    return panels


def _has_percentiles(figures: Mapping[str, Any]) -> bool:
    """Return True if a percentile is informative: not for categories, nor for values that are only 0 or 1."""
    ends = {figures.get(key) for key in ("min", "median", "p98", "max")}
    return figures.get("p98") is not None and not figures.get("counts") and not ends <= {0, 1}


def _release_name(reading: RunReading, readings: Sequence[RunReading]) -> str:
    """Return the system's label if it is unique, else the name of its cell."""
    alike = sum(other_reading.cell.candidate == reading.cell.candidate for other_reading in readings)
    return reading.cell.candidate if alike == 1 else reading.cell.name


def _numbers(system: SystemValues, name: str) -> NDArray[np.float64]:
    """Return a metric's numbers over all conversations and units."""
    return system.series[name].select(None, None).numbers


def _beyond_range(*means: Mapping[str, float]) -> float:
    """Return an upper bound on the distance between two means."""
    return 2 * max(abs(value) for values in means for value in values.values()) or 1.0


def _mean_difference(own: Mapping[str, float], base: Mapping[str, float]) -> Estimate | None:
    """Return the mean difference over shared conversations with Student's interval; None for fewer than five."""
    shared = [item for item in own if item in base]
    mean = clustered_mean([own[item] - base[item] for item in shared], shared)
    return None if mean is None else mean.ends()


def _means_by_item(system: SystemValues, name: str) -> dict[str, float]:
    """Return the mean of a metric's numbers per conversation."""
    series = system.series.get(name)
    if series is None:
        return {}
    values = series.select(None, None)
    return system.means(values.number_tests, values.numbers.tolist())
