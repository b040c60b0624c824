"""The gate: thresholds of a suite, checked against a run's figures and against those of a baseline run."""

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

# By conversation, the values of one metric there.
_ByDialog = dict[tuple[str, str], float | None]


@dataclass(frozen=True, slots=True)
class ThresholdCheck:
    """One threshold of one system. ``found`` is the figure (of a comparison: this run's), ``was`` the baseline's,
    ``p`` corrected; ``by`` is how far it is beyond ``limit``, the end of the bound that it breaks, 0 where it holds.
    ``reason`` says why there is no figure. Values that are ``errors`` stand in none.
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
        """Plain data."""
        return asdict(self)

    def describe(self) -> str:
        """The check in a sentence, as an assertion would put it."""
        prefix = f"{self.name}: {self.system}: "
        if self.found is None:
            return prefix + self.reason
        if self.p is not None:
            change = f"{self.was:.6g} -> {self.found:.6g} ({self.found - (self.was or 0.0):+.6g})"
            return prefix + f"{change}, expected {self.bound}; p = {self.p:.3g} over {self.n} conversations"
        if self.limit is None:
            return prefix + f"found {self.found:.6g}, expected {self.bound} ({self._rests_on})"
        side = "above the maximum" if self.found > self.limit else "below the minimum"
        return prefix + f"{self.found:.6g} is {self.by:.6g} {side} of {self.limit:.6g} ({self._rests_on})"

    @property
    def _rests_on(self) -> str:
        return f"n = {self.n:,}" + (f", {count_of(self.errors, 'error')} left out" if self.errors else "")


def check_gate(
    thresholds: Sequence[Threshold],
    systems: Mapping[str, SystemValues],
    passes: Mapping[str, Bounds],
    failed: Mapping[str, Mapping[str, int]],
    baseline: Mapping[str, SystemValues] | None,
    alpha: float,
) -> list[ThresholdCheck]:
    """Every threshold of every system, in their order.

    :param passes: by metric, what a value must be for its test to pass.
    :param failed: by system, conversations that failed.
    :param baseline: the systems of the run that is compared with; None without one.
    """
    checks: list[ThresholdCheck] = []
    raw: list[float | None] = []
    for label, collected in systems.items():
        for threshold in thresholds:
            if threshold.at_least is not None or threshold.at_most is not None:
                checks.append(_check_bounds(label, collected, threshold, passes, failed.get(label, {})))
                raw.append(None)
            for direction, margin in (("fall", threshold.fall), ("rise", threshold.rise)):
                if margin is not None:
                    check = _check_against_baseline(label, collected, threshold, passes, baseline, direction, margin)
                    checks.append(check)
                    raw.append(check.p)
    corrected = adjust_p_values(raw)
    return [check if p is None else replace(check, p=p, broken=p < alpha, by=check.by if p < alpha else 0.0)
            for check, p in zip(checks, corrected, strict=True)]  # fmt: skip


def _check_bounds(
    label: str, collected: SystemValues, threshold: Threshold, passes: Mapping[str, Bounds], failed: Mapping[str, int]
) -> ThresholdCheck:
    bounds = [f"{sign} {bound:g}" for sign, bound in ((">=", threshold.at_least), ("<=", threshold.at_most))
              if bound is not None]  # fmt: skip
    bound_text = " and ".join(bounds)
    value, n = _threshold_figure(collected, threshold, passes, failed)
    series = collected.series.get(threshold.metric)
    errors = 0
    if series is not None and threshold.statistic != "errors":
        errors = series.error_count(collected.matching_tests(threshold.where))
    if value is None:
        reason = _missing_reason(collected, threshold, failed)
        return ThresholdCheck(label, threshold.name, None, bound_text, True, n=n, reason=reason, errors=errors)
    under = 0.0 if threshold.at_least is None else max(0.0, threshold.at_least - value)
    over = 0.0 if threshold.at_most is None else max(0.0, value - threshold.at_most)
    distance = max(under, over)
    broken = distance > 1e-12
    limit = None if not broken else threshold.at_most if over > under else threshold.at_least
    return ThresholdCheck(label, threshold.name, value, bound_text, broken, distance, n=n, limit=limit, errors=errors)


def _missing_reason(collected: SystemValues, threshold: Threshold, failed: Mapping[str, int]) -> str:
    """Why there is no figure for a threshold."""
    if threshold.metric == TESTS_NAME:
        chosen = collected.matching_tests(threshold.where)
        tests = len(collected.tests) + sum(failed.values()) if chosen is None else int(chosen.sum())
        return f"all {tests:,} tests are undecided: in each a value is an error, or its conversation failed" if tests \
            else "there is no test"  # fmt: skip
    series = collected.series.get(threshold.metric)
    if series is None:
        return "nothing was measured that it could rest on"
    values = len(series.select(threshold.role, collected.matching_tests(threshold.where)).rows)
    parts = [f"{values:,} values are no figures to compute it from"] if values else []
    if error_count := sum(series.errors.values()):
        most_frequent = max(series.errors, key=lambda reason: series.errors[reason])
        parts.append(
            f"{error_count:,} of {error_count + len(series.tests):,} values are errors, such as {most_frequent}"
        )
    parts += [f"{series.empty:,} values are None"] if series.empty else []
    parts += [f"{series.skipped:,} times `when` did not hold"] if series.skipped else []
    return "; ".join(parts) or "nothing was measured that it could rest on"


def _threshold_figure(
    collected: SystemValues, threshold: Threshold, passes: Mapping[str, Bounds], failed: Mapping[str, int]
) -> tuple[float | None, int]:
    chosen = collected.matching_tests(threshold.where)
    if threshold.metric == TESTS_NAME:
        figures = test_figures(collected, passes, failed, chosen)
        if figures is None or figures["rate"] is None:
            return None, 0
        if threshold.statistic.startswith("pass^"):
            hat = figures["pass^k"].get(threshold.statistic[5:])
            return (None, 0) if hat is None else (hat["mean"], hat["n"])
        return figures["rate"]["mean"], figures["rate"]["n"]
    series = collected.series.get(threshold.metric)
    if series is None:
        return None, 0
    values = series.select(threshold.role, chosen)
    bounds = passes.get(threshold.metric)
    if threshold.statistic.startswith("pass^"):
        alone = test_figures(collected, {threshold.metric: bounds}, {}, chosen)
        hat = (alone or {"pass^k": {}})["pass^k"].get(threshold.statistic[5:])
        return (None, 0) if hat is None else (hat["mean"], hat["n"])
    return statistic(collected, values, threshold.statistic, bounds, chosen), len(values.rows)


def _check_against_baseline(
    label: str,
    collected: SystemValues,
    threshold: Threshold,
    passes: Mapping[str, Bounds],
    baseline: Mapping[str, SystemValues] | None,
    direction: str,
    margin: float,
) -> ThresholdCheck:
    bound = f"no {direction} by more than {margin:g}" if margin else f"no {direction}"
    if baseline is None:
        reason = "there is no baseline to compare with; give --baseline RUN, or `baseline:` in the suite"
        return ThresholdCheck(label, threshold.name, None, bound, True, reason=reason)
    baseline_values = baseline.get(label) or (next(iter(baseline.values())) if len(baseline) == 1 else None)
    if baseline_values is None:
        reason = f"the baseline has no system '{label}'; it has {', '.join(baseline)}"
        return ThresholdCheck(label, threshold.name, None, bound, True, reason=reason)
    means, baseline_means = (_means_by_dialog(system, threshold, passes) for system in (collected, baseline_values))
    fall = (
        measure_shortfall(means, baseline_means, margin)
        if direction == "fall"
        else measure_shortfall(baseline_means, means, margin)
    )
    if fall is None:
        reason = f"no conversation was measured in both runs: {_missing_reason(collected, threshold, {})}"
        return ThresholdCheck(label, threshold.name, None, bound, True, reason=reason)
    value, before = (fall.first, fall.second) if direction == "fall" else (fall.second, fall.first)
    excess = fall.second - fall.first - margin
    return ThresholdCheck(label, threshold.name, value, bound, False, max(0.0, excess), before, fall.p, fall.n)


def _means_by_dialog(collected: SystemValues, threshold: Threshold, passes: Mapping[str, Bounds]) -> _ByDialog:
    """The mean of a metric's values in each conversation, over its units and repeats."""
    chosen = collected.matching_tests(threshold.where)
    if threshold.metric == TESTS_NAME:
        means = collected.means(*decided_tests(collected, passes, chosen)) if passes else {}
        return {(dialog, ""): mean for dialog, mean in means.items()}
    series = collected.series.get(threshold.metric)
    if series is None:
        return {}
    values = series.select(threshold.role, chosen)
    if threshold.statistic == "pass_rate":
        passed = [float(meets_bounds(value, passes.get(threshold.metric))) for value in values.values()]
        means = collected.means(values.tests, passed)
    else:
        means = collected.means(values.number_tests, values.numbers.tolist())
    return {(dialog, ""): mean for dialog, mean in means.items()}


def check_baseline(path: Path) -> None:
    """See that a folder holds a run of a suite, or raise ConfigurationError."""
    folder = RunFolder.open(path)
    if "suite" not in folder.manifest or not isinstance(folder.manifest.get("models", {}).get("candidate"), dict):
        raise ConfigurationError(f"baseline {path}: is no run of a suite")


def read_run_values(path: Path) -> dict[str, SystemValues]:
    """Read the values of a recorded run, by system."""
    check_baseline(path)
    folder = RunFolder.open(path)
    return read_values_by_system(folder.journal, folder.manifest["models"]["candidate"])
