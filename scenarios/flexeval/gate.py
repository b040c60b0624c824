"""Gate: thresholds of a suite, checked against the figures of a run and of a baseline run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.engine.run_folder import RunFolder
from viva.reports.page import count_of
from viva.scoring.comparison import adjust_p_values, measure_shortfall

from .metric_figures import decided_tests, meets_bounds, statistic, test_figures
from .metric_values import SystemValues, read_values_by_system
from .scales import TESTS_NAME
from .spec import Bounds, Threshold

# Mean of a metric per conversation.
_ByDialog = dict[tuple[str, str], float | None]


@dataclass(frozen=True, slots=True)
class ThresholdCheck:
    """Check of one threshold for one system.

    `found` is this run's figure, `was` the baseline's, `p` the corrected p-value. `by` is the distance beyond `limit`,
    the broken end of the bound; 0 if the threshold holds. `reason` says why there is no figure. `errors` counts values
    that are errors, which no figure includes.
    """

    system: str
    name: str
    found: float | None
    bound: str
    broken: bool
    by: float = 0.0
    was: float | None = None
    p: float | None = None
    n: int = 0
    reason: str = ""
    limit: float | None = None
    errors: int = 0

    def to_record(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def describe(self) -> str:
        """Return the check as a sentence."""
        prefix = f"{self.name}: {self.system}: "
        if self.found is None:
            return prefix + self.reason
        if self.p is not None:
            change = f"{self.was:.6g} -> {self.found:.6g} ({self.found - (self.was or 0.0):+.6g})"
            return prefix + f"{change}, expected {self.bound}; p = {self.p:.3g} over {self.n} conversations"
        if self.limit is None:
            return prefix + f"{self.found:.6g}, expected {self.bound} ({self._basis})"
        side = "above the maximum" if self.found > self.limit else "below the minimum"
        return prefix + f"{self.found:.6g} is {self.by:.6g} {side} of {self.limit:.6g} ({self._basis})"

    @property
    def _basis(self) -> str:
        return f"n = {self.n:,}" + (f", {count_of(self.errors, 'error')} excluded" if self.errors else "")


def check_gate(
    thresholds: Sequence[Threshold],
    systems: Mapping[str, SystemValues],
    passes: Mapping[str, Bounds],
    failed: Mapping[str, Mapping[str, int]],
    baseline: Mapping[str, SystemValues] | None,
    alpha: float,
) -> list[ThresholdCheck]:
    """Check every threshold for every system.

    Args:
        thresholds: Thresholds of the suite.
        systems: Values by system under test.
        passes: Bounds by metric that a value must meet for its test to pass.
        failed: Number of failed conversations by system, then by dialog.
        baseline: Systems of the baseline run, or None.
        alpha: Family-wise false-alarm rate of all comparisons with the baseline.
    """
    checks: list[ThresholdCheck] = []
    raw: list[float | None] = []
    for label, system in systems.items():
        for threshold in thresholds:
            if threshold.at_least is not None or threshold.at_most is not None:
                checks.append(_check_bounds(label, system, threshold, passes, failed.get(label, {})))
                raw.append(None)
            for direction, margin in (("fall", threshold.fall), ("rise", threshold.rise)):
                if margin is not None:
                    check = _check_against_baseline(label, system, threshold, passes, baseline, direction, margin)
                    checks.append(check)
                    raw.append(check.p)
    corrected = adjust_p_values(raw)
    return [check if p is None else replace(check, p=p, broken=p < alpha, by=check.by if p < alpha else 0.0)
            for check, p in zip(checks, corrected, strict=True)]  # fmt: skip


def _check_bounds(
    label: str, system: SystemValues, threshold: Threshold, passes: Mapping[str, Bounds], failed: Mapping[str, int]
) -> ThresholdCheck:
    bounds = [f"{sign} {bound:g}" for sign, bound in ((">=", threshold.at_least), ("<=", threshold.at_most))
              if bound is not None]  # fmt: skip
    bound_text = " and ".join(bounds)
    value, n = _threshold_figure(system, threshold, passes, failed)
    series = system.series.get(threshold.metric)
    errors = 0
    if series is not None and threshold.statistic != "errors":
        errors = series.error_count(system.matching_tests(threshold.where))
    if value is None:
        reason = _missing_reason(system, threshold, failed)
        return ThresholdCheck(label, threshold.name, None, bound_text, True, n=n, reason=reason, errors=errors)
    shortfall = 0.0 if threshold.at_least is None else max(0.0, threshold.at_least - value)
    excess = 0.0 if threshold.at_most is None else max(0.0, value - threshold.at_most)
    distance = max(shortfall, excess)
    broken = distance > 1e-12
    limit = None if not broken else threshold.at_most if excess > shortfall else threshold.at_least
    return ThresholdCheck(label, threshold.name, value, bound_text, broken, distance, n=n, limit=limit, errors=errors)


def _missing_reason(system: SystemValues, threshold: Threshold, failed: Mapping[str, int]) -> str:
    """Return why a threshold has no figure."""
    if threshold.metric == TESTS_NAME:
        chosen = system.matching_tests(threshold.where)
        tests = len(system.tests) + sum(failed.values()) if chosen is None else int(chosen.sum())
        return f"all {tests:,} tests are undecided: each has an error or a failed conversation" \
            if tests else "there is no test"  # fmt: skip
    series = system.series.get(threshold.metric)
    if series is None:
        return "there are no values"
    values = len(series.select(threshold.role, system.matching_tests(threshold.where)).rows)
    parts = [f"none of {values:,} values can be used"] if values else []
    if error_count := sum(series.errors.values()):
        most_frequent = max(series.errors, key=lambda reason: series.errors[reason])
        parts.append(
            f"{error_count:,} of {error_count + len(series.tests):,} values are errors, such as {most_frequent}"
        )
    parts += [f"{series.empty:,} values are None"] if series.empty else []
    parts += [f"`when` was false {series.skipped:,} times"] if series.skipped else []
    return "; ".join(parts) or "there are no values"


def _threshold_figure(
    system: SystemValues, threshold: Threshold, passes: Mapping[str, Bounds], failed: Mapping[str, int]
) -> tuple[float | None, int]:
    chosen = system.matching_tests(threshold.where)
    if threshold.metric == TESTS_NAME:
        figures = test_figures(system, passes, failed, chosen)
        if figures is None or figures["rate"] is None:
            return None, 0
        if threshold.statistic.startswith("pass^"):
            hat = figures["pass^k"].get(threshold.statistic[5:])
            return (None, 0) if hat is None else (hat["mean"], hat["n"])
        return figures["rate"]["mean"], figures["rate"]["n"]
    series = system.series.get(threshold.metric)
    if series is None:
        return None, 0
    values = series.select(threshold.role, chosen)
    bounds = passes.get(threshold.metric)
    if threshold.statistic.startswith("pass^"):
        figures_of_metric = test_figures(system, {threshold.metric: bounds}, {}, chosen)
        hat = (figures_of_metric or {"pass^k": {}})["pass^k"].get(threshold.statistic[5:])
        return (None, 0) if hat is None else (hat["mean"], hat["n"])
    return statistic(system, values, threshold.statistic, bounds, chosen), len(values.rows)


def _check_against_baseline(
    label: str,
    system: SystemValues,
    threshold: Threshold,
    passes: Mapping[str, Bounds],
    baseline: Mapping[str, SystemValues] | None,
    direction: str,
    margin: float,
) -> ThresholdCheck:
    bound = f"no {direction} by more than {margin:g}" if margin else f"no {direction}"
    if baseline is None:
        reason = "no baseline; give --baseline RUN, or `baseline:` in the suite"
        return ThresholdCheck(label, threshold.name, None, bound, True, reason=reason)
    baseline_values = baseline.get(label) or (next(iter(baseline.values())) if len(baseline) == 1 else None)
    if baseline_values is None:
        reason = f"the baseline has no system '{label}'; it has {', '.join(baseline)}"
        return ThresholdCheck(label, threshold.name, None, bound, True, reason=reason)
    means, baseline_means = (_means_by_dialog(values, threshold, passes) for values in (system, baseline_values))
    pair = (means, baseline_means) if direction == "fall" else (baseline_means, means)
    fall = measure_shortfall(*pair, margin)
    if fall is None:
        reason = f"no conversation has values in both runs: {_missing_reason(system, threshold, {})}"
        return ThresholdCheck(label, threshold.name, None, bound, True, reason=reason)
    value, baseline_mean = (fall.first, fall.second) if direction == "fall" else (fall.second, fall.first)
    excess = fall.second - fall.first - margin
    return ThresholdCheck(label, threshold.name, value, bound, False, max(0.0, excess), baseline_mean, fall.p, fall.n)


def _means_by_dialog(system: SystemValues, threshold: Threshold, passes: Mapping[str, Bounds]) -> _ByDialog:
    """Return the mean of a metric's values per conversation, over units and repeats."""
    chosen = system.matching_tests(threshold.where)
    if threshold.metric == TESTS_NAME:
        means = system.means(*decided_tests(system, passes, chosen)) if passes else {}
        return {(dialog, ""): mean for dialog, mean in means.items()}
    series = system.series.get(threshold.metric)
    if series is None:
        return {}
    values = series.select(threshold.role, chosen)
    if threshold.statistic == "pass_rate":
        passed = [float(meets_bounds(value, passes.get(threshold.metric))) for value in values.values()]
        means = system.means(values.tests, passed)
    else:
        means = system.means(values.number_tests, values.numbers.tolist())
    return {(dialog, ""): mean for dialog, mean in means.items()}


def check_baseline(path: Path) -> None:
    """Check that a folder contains a run of a suite."""
    folder = RunFolder.open(path)
    if "suite" not in folder.manifest or not isinstance(folder.manifest.get("models", {}).get("candidate"), dict):
        raise ConfigurationError(f"baseline {path}: not a run of a suite")


def read_run_values(path: Path) -> dict[str, SystemValues]:
    """Read the values of a recorded run, by system."""
    check_baseline(path)
    folder = RunFolder.open(path)
    return read_values_by_system(folder.journal, folder.manifest["models"]["candidate"])
