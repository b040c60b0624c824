"""Report of a suite's run: the gate first, then tests, metrics, categories, classes, and errors."""

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
from ..run_aggregate import ModelResults, RunAggregate, common_tables, join_headline, tier_name
from .gate import ThresholdCheck, check_gate, read_run_values
from .metric_figures import class_f1, class_figures, number_figures, pass_rate, statistic, test_figures, tests_passed
from .metric_values import MetricSeries, SeriesValues, SystemValues
from .metrics import ResolvedMetric
from .scales import check_attainable, rubric_scales
from .spec import Bounds, Suite

_MAX_REASONS = 10


class SuiteScoring(Scoring):
    """Scoring options of a suite's report."""

    by: str | None = Field(default=None, description="Split metrics by role, turn (its index), or a metadata key.")
    baseline: str | None = Field(default=None, description="Baseline run folder for the gate.")


class SystemResults(ModelResults):
    """Results of one system under test: values, failures and usage."""

    def __init__(self) -> None:
        super().__init__()
        self.values = SystemValues()
        self.failed: Counter[str] = Counter()  # by dialog

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a conversation's record."""
        if "stopped" in record:
            self.stops.add(f"{record['stopped']['by']}: {record['stopped']['reason']}")
        self.values.add(record)
        self.add_usage(record)


class SuiteAggregate(RunAggregate[SystemResults]):
    """Results of all systems of a run."""

    def __init__(self, manifest: dict[str, Any], scoring: SuiteScoring) -> None:
        super().__init__(manifest, SystemResults, "candidate")
        self._scoring = scoring
        self.suite = Suite.model_validate(manifest["suite"])
        self._passes = {
            metric["name"]: Bounds.model_validate(metric["metric"]["passes"])
            for metric in manifest["metrics"]
            if "passes" in metric["metric"]
        }
        self._scales = rubric_scales(manifest)
        self._baseline: dict[str, SystemValues] | None = None
        self._order = {metric["name"]: index for index, metric in enumerate(manifest["metrics"])}
        self._labelled = [metric["name"] for metric in manifest["metrics"] if "label" in metric["metric"]]

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
        return join_headline(((label, self.in_brief(results)) for label, results in self.candidates.items()), 3)

    def in_brief(self, results: SystemResults) -> str:
        if self._passes:
            passed, decided = tests_passed(results.values, self._passes)
            return f"{percent(passed / decided)} of tests passed" if decided else ""
        if not results.values.series:
            return ""
        name, series = next(iter(sorted(results.values.series.items(), key=lambda row: self._sort_key(row[0]))))
        mean = statistic(results.values, series.select(None, None), "mean", None)
        return "" if mean is None else f"{name} {number(mean, 3)}"

    def take_thresholds(self, suite: Suite, source: str) -> None:
        """Use another suite's thresholds and `alpha` instead of the run's own, after checking that they can hold."""
        changes = {"thresholds": suite.thresholds, "alpha": suite.alpha}
        self.suite = self.suite.model_copy(update=changes)
        metrics = [ResolvedMetric.from_manifest(metric) for metric in self.manifest["metrics"]]
        check_attainable(self.suite, metrics, source, recorded=True)

    # -- as data ----------------------------------------------------------------------------------------------------

    def gate(self) -> list[ThresholdCheck]:
        """Check every threshold for every system.

        Raises:
            ConfigurationError, JournalError: The baseline cannot be read.
        """
        path = self._scoring.baseline or self.manifest["settings"].get("baseline")
        if (
            path is not None
            and self._baseline is None
            and any(threshold.fall is not None or threshold.rise is not None for threshold in self.suite.thresholds)
        ):
            self._baseline = read_run_values(Path(path))  # cached: reports, gates and files need it
        return check_gate(
            self.suite.thresholds,
            {label: results.values for label, results in self.candidates.items()},
            self._passes,
            {label: results.failed for label, results in self.candidates.items()},
            self._baseline,
            self.suite.alpha,
        )

    def report(self) -> dict[str, Any]:
        manifest = self.manifest
        ended = sum(len(results.values.tests) + results.failures.total for results in self.candidates.values())
        planned = manifest["dataset"]["chosen"] * len(self.candidates) * manifest["settings"]["repeats"]
        if manifest["settings"].get("watched") is not None:  # a watched log has no plan
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
                | self.figures(label, results)
                for label, results in self.candidates.items()
            },
        }

    def figures(self, label: str, results: SystemResults) -> dict[str, Any]:
        system = results.values
        common = results.common_figures(self.prices(label))
        irregular, usage = common.pop("irregular"), common.pop("usage")
        names = sorted(system.series, key=self._sort_key)
        return {
            "conversations": len(system.tests),
            "failed": results.failures.total,
            **common,
            "stopped": results.stops.to_dict(),
            "tests": test_figures(system, self._passes, results.failed),
            "metrics": {name: self._metric(system, name) for name in names},
            "irregular": irregular,
            "usage": usage,
        }

    def _sort_key(self, name: str) -> tuple[int, str]:
        """Return a sort key: the position of the series' metric in the suite, then its name."""
        return self._order.get(name, self._order.get(name.rpartition(".")[0], 0)), name

    def _metric(self, system: SystemValues, name: str) -> dict[str, Any]:
        series = system.series[name]
        values = series.select(None, None)
        figures = self._figures(system, name, values) | {
            "errors": dict(sorted(series.errors.items(), key=lambda item: (-item[1], item[0]))[:_MAX_REASONS]),
            "errors_total": sum(series.errors.values()),
            "skipped": series.skipped,
            "empty": series.empty,
        }
        if name in self._labelled:
            classes = class_figures(values.labelled())
            figures["classes"] = classes
            figures["macro_f1"] = class_f1(classes, "")
        if self._scoring.by is not None:
            figures["by"] = {
                value: self._figures(system, name, part)
                for value, part in _split_series(system, series, self._scoring.by).items()
            }
        return figures

    def _figures(self, system: SystemValues, name: str, values: SeriesValues) -> dict[str, Any]:
        figures = number_figures(system, values, self._scales.get(name))
        if counts := values.counts():
            figures["counts"] = counts
            figures.setdefault("n", 0)
            figures["n"] = len(values.rows)
        if name in self._passes:
            figures["pass_rate"] = pass_rate(system, values, self._passes[name])
        return figures

    # -- as tables --------------------------------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        report = self.report()
        tables = [gate_table(report), self._tests(report), self._main(report), *self._split_tables(report)]
        tables += [_category_table(report), _class_table(report), _error_table(report), _stop_table(report)]
        return [*tables, *common_tables(report)]

    def _tests(self, report: Mapping[str, Any]) -> Table:
        rows = []
        tests_by_label = {label: results["tests"] or {} for label, results in report["candidates"].items()}
        max_tries = max((int(k) for tests in tests_by_label.values() for k in tests.get("pass^k", ())), default=1)
        for label, tests in tests_by_label.items():
            if not tests:
                continue
            row = [label, f"{tests['tests']:,}", f"{tests['passed']:,}", f"{tests['undecided']:,}"]
            row.append(_rate_cell(tests["rate"]))
            hat = tests["pass^k"].get(str(max_tries))
            rows.append([*row, *([percent(hat and hat["mean"])] if max_tries > 1 else [])])
        header = ["candidate", "tests", "passed", "undecided", "pass rate"]
        header += [f"pass^{max_tries}"] if max_tries > 1 else []
        return ("Tests passed (all metrics with `passes`, in every unit)", header, rows)

    def _main(self, report: Mapping[str, Any]) -> Table:
        rows = []
        for label, results in report["candidates"].items():
            for name, metric in results["metrics"].items():
                if not (metric["n"] or metric["errors_total"] or metric["skipped"] or metric["empty"]):
                    continue  # several values by name have their own rows
                row = [label, name, f"{metric['n']:,}", mean_and_interval(metric, 3) if "mean" in metric else DASH]
                row += [number(metric.get(key), 3) for key in ("median", "p98", "min", "max")]
                row += [_rate_cell(metric.get("pass_rate")), f"{metric['errors_total']:,}", f"{metric['skipped']:,}"]
                rows.append(row)
        header = ["candidate", "metric", "n", "mean", "median", "p98", "min", "max", "pass rate", "errors", "skipped"]
        empty = [column for column in range(3, len(header)) if all(row[column] in (DASH, "0") for row in rows)]
        header, rows = _drop_columns(header, empty), [_drop_columns(row, empty) for row in rows]
        tested = max(
            (results["conversations"] + results["failed"] for results in report["candidates"].values()), default=0
        )
        count = report["dataset"]["chosen"] or tested
        title = f"{report['suite']} on {count:,} conversations, seed {report['seed']}, {tier_name(report['tier'])}"
        return (title, header, rows)

    def _split_tables(self, report: Mapping[str, Any]) -> list[Table]:
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
            for label, results in report["candidates"].items()
            for name, metric in results["metrics"].items()
            for value, part in metric["by"].items()
        ]
        return [(f"Metrics by {self._scoring.by}", ["candidate", "metric", self._scoring.by, "n", "mean", "p98"], rows)]


def _drop_columns(row: list[str], columns: list[int]) -> list[str]:
    return [cell for column, cell in enumerate(row) if column not in columns]


def gate_table(report: Mapping[str, Any]) -> Table:
    """Return the gate as a table, broken thresholds first."""
    rows = []
    for check in sorted(report["gate"], key=lambda row: not row["broken"]):
        value = check["reason"] if check["found"] is None else f"{check['found']:.6g}"
        if check["found"] is not None and check["errors"]:
            value += f" ({count_of(check['errors'], 'error')} excluded)"
        baseline = "" if check["was"] is None else f"{check['was']:.6g}"
        distance = f"{check['by']:.4g}" if check["broken"] and check["by"] else ""
        p = "" if check["p"] is None else f"{check['p']:.3g}"
        status = "BROKEN" if check["broken"] else "ok"
        rows.append([status, check["system"], check["name"], value, baseline, distance, p])
    header = ["", "candidate", "threshold", "value", "baseline", "missed by", "p"]
    empty = [column for column in range(4, 7) if not any(row[column] for row in rows)]
    header, rows = _drop_columns(header, empty), [[cell or DASH for cell in _drop_columns(row, empty)] for row in rows]
    broken = sum(check["broken"] for check in report["gate"])
    title = f"Gate: {broken} of {len(report['gate'])} thresholds broken" if broken else "Gate: every threshold holds"
    if report["untested"]:
        title += f"; {report['untested']:,} tests did not run"
    return (title, header, rows)


def _rate_cell(rate: Mapping[str, Any] | None) -> str:
    if rate is None:
        return DASH
    return f"{percent(rate['mean'])} ({percent(rate['low'])} to {percent(rate['high'])})"


def _category_table(report: Mapping[str, Any]) -> Table:
    rows = []
    for label, results in report["candidates"].items():
        for name, metric in results["metrics"].items():
            counts = metric.get("counts", {})
            total = sum(counts.values())
            rows += [[label, name, value, f"{count:,}", percent(count / total)] for value, count in counts.items()]
    return ("Values per category", ["candidate", "metric", "category", "n", "share"], rows)


def _class_table(report: Mapping[str, Any]) -> Table:
    rows = []
    for label, results in report["candidates"].items():
        for name, metric in results["metrics"].items():
            for value, figures in metric.get("classes", {}).items():
                row = [label, name, value, number(figures["f1"], 3), number(figures["precision"], 3)]
                rows.append([*row, number(figures["recall"], 3), f"{figures['labels']:,}", f"{figures['answers']:,}"])
            if metric.get("classes"):
                rows.append([label, name, "(mean)", number(metric["macro_f1"], 3), DASH, DASH, DASH, DASH])
    header = ["candidate", "metric", "class", "F1", "precision", "recall", "labels", "answers"]
    return ("Agreement with labels, each class as the positive one", header, rows)


def _error_table(report: Mapping[str, Any]) -> Table:
    rows = [
        [label, name, f"{count:,}", reason]
        for label, results in report["candidates"].items()
        for name, metric in results["metrics"].items()
        for reason, count in metric["errors"].items()
    ]
    return ("Metric errors", ["candidate", "metric", "errors", "reason"], rows)


def _stop_table(report: Mapping[str, Any]) -> Table:
    rows = [
        [label, reason, f"{count:,}"]
        for label, results in report["candidates"].items()
        for reason, count in results["stopped"].items()
    ]
    return ("Early stops", ["candidate", "reason", "conversations"], rows)


def _split_series(system: SystemValues, series: MetricSeries, key: str) -> dict[str, SeriesValues]:
    """Split a series by role, by the index of the unit, or by a metadata key of the conversation."""
    values = series.select(None, None)
    if key == "role":
        keys = values.roles
    elif key == "turn":
        keys = [str(unit) for unit in values.units]
    else:
        keys = [str(system.tests[test].metadata.get(key, DASH)) for test in values.tests]
    import numpy as np

    names_of_rows = np.array(keys, dtype=object)
    names = sorted(set(keys), key=lambda name: (0, int(name), "") if key == "turn" else (1, 0, name))
    return {name: values.select_rows(names_of_rows == name) for name in names}
