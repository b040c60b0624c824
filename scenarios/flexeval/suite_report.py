"""The report of a suite's run: the gate first, then metrics, categories, classes, tests, and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from viva.reports.page import count_of
from viva.reports.tables import DASH, Table, mean_and_interval, number, percent

from ..contract import Scoring
from ..models import label_of_key
from ..run_aggregate import ModelResults, RunAggregate, common_tables, join_headline
from .gate import ThresholdCheck, check_gate, read_run_values
from .metric_figures import class_f1, class_figures, number_figures, pass_rate, statistic, test_figures, tests_passed
from .metric_values import MetricSeries, SeriesValues, SystemValues
from .metrics import ResolvedMetric
from .scales import check_attainable, rubric_scales
from .spec import Bounds, Suite

_MAX_REASONS = 10


class SuiteScoring(Scoring):
    """How a suite's recorded values are reported."""

    by: str | None = Field(default=None, description="Split metrics by role, turn (its index), or a key of metadata.")
    baseline: str | None = Field(default=None, description="Run folder that the gate compares with.")


class SystemResults(ModelResults):
    """One system under test: its values, failures and usage."""

    def __init__(self) -> None:
        super().__init__()
        self.collected = SystemValues()
        self.failed: Counter[str] = Counter()  # by dialog

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one conversation's record."""
        if "stopped" in record:
            self.stops.add(f"{record['stopped']['by']}: {record['stopped']['reason']}")
        self.collected.add(record)
        self.add_usage(record)


class SuiteAggregate(RunAggregate[SystemResults]):
    """All systems of a run."""

    def __init__(self, manifest: dict[str, Any], scoring: SuiteScoring) -> None:
        super().__init__(manifest, SystemResults, "candidate")
        self._scoring = scoring
        self.suite = Suite.model_validate(manifest["suite"])
        self._passes = {
            one["name"]: Bounds.model_validate(one["metric"]["passes"])
            for one in manifest["metrics"]
            if "passes" in one["metric"]
        }
        self._scales = rubric_scales(manifest)
        self._baseline: dict[str, SystemValues] | None = None
        self._order = {one["name"]: place for place, one in enumerate(manifest["metrics"])}
        self._labelled = [one["name"] for one in manifest["metrics"] if "label" in one["metric"]]

    def add(self, key: str, result: Any) -> None:
        if "dialog" not in result:  # stopped before it began
            self.model_of(key).stops.add(f"{result['stopped']['by']}: {result['stopped']['reason']}")
            return
        self.model_of(key).add(result)

    def add_failure(self, key: str, error: dict[str, Any]) -> None:
        super().add_failure(key, error)
        label = label_of_key(key, list(self.candidates))
        dialog, _, repeat = key.removeprefix(f"{label}/").rpartition("#")
        self.candidates[label].failed[dialog if dialog and repeat.isdecimal() else key.removeprefix(f"{label}/")] += 1

    def headline(self) -> str:
        return join_headline(((label, self.in_brief(one)) for label, one in self.candidates.items()), 3)

    def in_brief(self, one: SystemResults) -> str:
        if self._passes:
            passed, decided = tests_passed(one.collected, self._passes)
            return f"{percent(passed / decided)} of tests passed" if decided else ""
        if not one.collected.series:
            return ""
        name, series = next(iter(sorted(one.collected.series.items(), key=lambda row: self._place(row[0]))))
        mean = statistic(one.collected, series.taken(None, None), "mean", None)
        return "" if mean is None else f"{name} {number(mean, 3)}"

    def take_thresholds(self, suite: Suite, where: str) -> None:
        """Have another suite's thresholds and ``alpha`` count in place of the run's own, if they can hold."""
        changes = {"thresholds": suite.thresholds, "alpha": suite.alpha}
        self.suite = self.suite.model_copy(update=changes)
        metrics = [ResolvedMetric.from_manifest(one) for one in self.manifest["metrics"]]
        check_attainable(self.suite, metrics, where, recorded=True)

    # -- as data ----------------------------------------------------------------------------------------------------

    def gate(self) -> list[ThresholdCheck]:
        """Every threshold of every system.

        :raises ConfigurationError, JournalError: the baseline cannot be read.
        """
        path = self._scoring.baseline or self.manifest["settings"].get("baseline")
        if (
            path is not None
            and self._baseline is None
            and any(one.fall is not None or one.rise is not None for one in self.suite.thresholds)
        ):
            self._baseline = read_run_values(Path(path))  # once: reports, gates and files ask for it
        return check_gate(
            self.suite.thresholds,
            {label: one.collected for label, one in self.candidates.items()},
            self._passes,
            {label: one.failed for label, one in self.candidates.items()},
            self._baseline,
            self.suite.alpha,
        )

    def report(self) -> dict[str, Any]:
        manifest = self.manifest
        ended = sum(len(one.collected.tests) + one.failures.total for one in self.candidates.values())
        planned = manifest["dataset"]["chosen"] * len(self.candidates) * manifest["settings"]["repeats"]
        if manifest["settings"].get("watched") is not None:  # whatever comes is tested
            planned = ended
        return {
            "scenario": manifest["scenario"],
            "suite": self.suite.name,
            "seed": manifest["seed"],
            "tier": manifest["tier"],
            "models": manifest["models"],
            "dataset": manifest["dataset"],
            "pack": manifest["pack"],
            "repeats": manifest["settings"]["repeats"],
            "untested": planned - ended,
            "gate": (gate := [check.to_record() for check in self.gate()]),
            "candidates": {
                label: {"broken": [check["name"] for check in gate if check["broken"] and check["system"] == label]}
                | self.figures(label, one)
                for label, one in self.candidates.items()
            },
        }

    def figures(self, label: str, one: SystemResults) -> dict[str, Any]:
        collected = one.collected
        common = one.common_figures(self.prices(label))
        irregular, usage = common.pop("irregular"), common.pop("usage")
        names = sorted(collected.series, key=self._place)
        return {
            "conversations": len(collected.tests),
            "failed": one.failures.total,
            **common,
            "stopped": one.stops.to_dict(),
            "tests": test_figures(collected, self._passes, one.failed),
            "metrics": {name: self._metric(collected, name) for name in names},
            "irregular": irregular,
            "usage": usage,
        }

    def _place(self, name: str) -> tuple[int, str]:
        """Where a series stands: as its metric does in the suite, its values by name."""
        return self._order.get(name, self._order.get(name.rpartition(".")[0], 0)), name

    def _metric(self, collected: SystemValues, name: str) -> dict[str, Any]:
        series = collected.series[name]
        values = series.taken(None, None)
        found = self._figures(collected, name, values) | {
            "errors": dict(sorted(series.errors.items(), key=lambda one: (-one[1], one[0]))[:_MAX_REASONS]),
            "errors_total": sum(series.errors.values()),
            "skipped": series.skipped,
            "empty": series.empty,
        }
        if name in self._labelled:
            classes = class_figures(values.labelled())
            found["classes"] = classes
            found["macro_f1"] = class_f1(classes, "")
        if self._scoring.by is not None:
            found["by"] = {
                value: self._figures(collected, name, part)
                for value, part in _split_series(collected, series, self._scoring.by).items()
            }
        return found

    def _figures(self, collected: SystemValues, name: str, values: SeriesValues) -> dict[str, Any]:
        found = number_figures(collected, values, self._scales.get(name))
        if counts := values.counts():
            found["counts"] = counts
            found.setdefault("n", 0)
            found["n"] = len(values.rows)
        if name in self._passes:
            found["pass_rate"] = pass_rate(collected, values, self._passes[name])
        return found

    # -- as tables --------------------------------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        report = self.report()
        tables = [gate_table(report), self._tests(report), self._main(report), *self._by(report)]
        tables += [_category_table(report), _class_table(report), _error_table(report), _stop_table(report)]
        return [*tables, *common_tables(report)]

    def _tests(self, report: Mapping[str, Any]) -> Table:
        rows = []
        tries = [int(k) for one in report["candidates"].values() for k in (one["tests"] or {}).get("pass^k", ())]
        most = max(tries, default=1)
        for label, one in report["candidates"].items():
            if (tests := one["tests"]) is None:
                continue
            row = [label, f"{tests['tests']:,}", f"{tests['passed']:,}", f"{tests['undecided']:,}"]
            row.append(_rate_cell(tests["rate"]))
            hat = tests["pass^k"].get(str(most))
            rows.append([*row, *([percent(hat and hat["mean"])] if most > 1 else [])])
        header = ["candidate", "tests", "passed", "undecided", "pass rate", *([f"pass^{most}"] if most > 1 else [])]
        return ("Tests passed: every metric with `passes` in every unit", header, rows)

    def _main(self, report: Mapping[str, Any]) -> Table:
        rows = []
        for label, one in report["candidates"].items():
            for name, metric in one["metrics"].items():
                if not (metric["n"] or metric["errors_total"] or metric["skipped"] or metric["empty"]):
                    continue  # of several values by name each has a row of its own
                row = [label, name, f"{metric['n']:,}", mean_and_interval(metric, 3) if "mean" in metric else DASH]
                row += [number(metric.get(key), 3) for key in ("median", "p98", "min", "max")]
                row += [_rate_cell(metric.get("pass_rate")), f"{metric['errors_total']:,}", f"{metric['skipped']:,}"]
                rows.append(row)
        header = ["candidate", "metric", "n", "mean", "median", "p98", "min", "max", "passed", "errors", "skipped"]
        empty = [place for place in range(3, len(header)) if all(row[place] in (DASH, "0") for row in rows)]
        header, rows = _drop_columns(header, empty), [_drop_columns(row, empty) for row in rows]
        held = max((one["conversations"] + one["failed"] for one in report["candidates"].values()), default=0)
        count = report["dataset"]["chosen"] or held
        return (f"{report['suite']} on {count:,} conversations, seed {report['seed']}, tier "
                f"{report['tier']}", header, rows)  # fmt: skip

    def _by(self, report: Mapping[str, Any]) -> list[Table]:
        if self._scoring.by is None:
            return []
        rows = [
            [
                label,
                name,
                value,
                f"{part['n']:,}",
                mean_and_interval(part, 3) if "mean" in part else DASH,
                number(part.get("p98"), 3),
            ]
            for label, one in report["candidates"].items()
            for name, metric in one["metrics"].items()
            for value, part in metric["by"].items()
        ]
        return [(f"Metrics by {self._scoring.by}", ["candidate", "metric", self._scoring.by, "n", "mean", "p98"], rows)]


def _drop_columns(row: list[str], places: list[int]) -> list[str]:
    return [cell for place, cell in enumerate(row) if place not in places]


def gate_table(report: Mapping[str, Any]) -> Table:
    """The gate, what is broken first."""
    rows = []
    for check in sorted(report["gate"], key=lambda one: not one["broken"]):
        found = check["reason"] if check["found"] is None else f"{check['found']:.6g}"
        if check["found"] is not None and check["errors"]:
            found += f" ({count_of(check['errors'], 'error')} left out)"
        was = "" if check["was"] is None else f"{check['was']:.6g}"
        by = f"{check['by']:.4g}" if check["broken"] and check["by"] else ""
        p = "" if check["p"] is None else f"{check['p']:.3g}"
        rows.append(["BROKEN" if check["broken"] else "ok", check["system"], check["name"], found, was, by, p])
    header = ["", "candidate", "threshold", "found", "before", "beyond by", "p"]
    empty = [place for place in range(4, 7) if not any(row[place] for row in rows)]
    header, rows = _drop_columns(header, empty), [[cell or DASH for cell in _drop_columns(row, empty)] for row in rows]
    broken = sum(check["broken"] for check in report["gate"])
    title = f"Gate: {broken} of {len(report['gate'])} thresholds broken" if broken else "Gate: every threshold holds"
    if report["untested"]:
        title += f"; {report['untested']:,} tests were not made"
    return (title, header, rows)


def _rate_cell(rate: Mapping[str, Any] | None) -> str:
    if rate is None:
        return DASH
    return f"{percent(rate['mean'])} ({percent(rate['low'])} to {percent(rate['high'])})"


def _category_table(report: Mapping[str, Any]) -> Table:
    rows = []
    for label, one in report["candidates"].items():
        for name, metric in one["metrics"].items():
            counts = metric.get("counts", {})
            whole = sum(counts.values())
            rows += [[label, name, value, f"{count:,}", percent(count / whole)] for value, count in counts.items()]
    return ("How often each category was given", ["candidate", "metric", "category", "n", "share"], rows)


def _class_table(report: Mapping[str, Any]) -> Table:
    rows = []
    for label, one in report["candidates"].items():
        for name, metric in one["metrics"].items():
            for value, figures in metric.get("classes", {}).items():
                row = [label, name, value, number(figures["f1"], 3), number(figures["precision"], 3)]
                rows.append([*row, number(figures["recall"], 3), f"{figures['labels']:,}", f"{figures['answers']:,}"])
            if metric.get("classes"):
                rows.append([label, name, "(mean)", number(metric["macro_f1"], 3), DASH, DASH, DASH, DASH])
    header = ["candidate", "metric", "class", "F1", "precision", "recall", "labels", "answers"]
    return ("Against the given labels, each class as the positive one", header, rows)


def _error_table(report: Mapping[str, Any]) -> Table:
    rows = [
        [label, name, f"{count:,}", reason]
        for label, one in report["candidates"].items()
        for name, metric in one["metrics"].items()
        for reason, count in metric["errors"].items()
    ]
    return ("Why metrics have no value", ["candidate", "metric", "errors", "reason"], rows)


def _stop_table(report: Mapping[str, Any]) -> Table:
    rows = [
        [label, reason, f"{count:,}"]
        for label, one in report["candidates"].items()
        for reason, count in one["stopped"].items()
    ]
    return ("Why conversations ended early", ["candidate", "reason", "conversations"], rows)


def _split_series(collected: SystemValues, series: MetricSeries, by: str) -> dict[str, SeriesValues]:
    """The values of a series by role, by the index of their unit, or by a key of their conversations' metadata."""
    values = series.taken(None, None)
    if by == "role":
        keys = values.roles
    elif by == "turn":
        keys = [str(unit) for unit in values.units]
    else:
        keys = [str(collected.tests[test].metadata.get(by, DASH)) for test in values.tests]
    import numpy as np

    told = np.array(keys, dtype=object)
    names = sorted(set(keys), key=lambda name: (0, int(name), "") if by == "turn" else (1, 0, name))
    return {name: values.where(told == name) for name in names}
