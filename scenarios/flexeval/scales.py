"""Scales of metrics: the ends of values, means and differences, and thresholds that no value can reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from viva.engine.errors import ConfigurationError, did_you_mean
from viva.reports.page import count_of

from .builtin_metrics import BUILTIN
from .metric_values import ROLES
from .metrics import ResolvedMetric, load_function
from .spec import Bounds, Suite, Threshold

Scale: TypeAlias = tuple[float, float]
TRUTH_SCALE: Scale = (0.0, 1.0)
TESTS_NAME = "tests"  # thresholds use this name for all metrics with `passes` together
_COUNTED: Scale = (0.0, math.inf)
_ANY: Scale = (-math.inf, math.inf)
_NOT_NEGATIVE = (
    "length",
    "words",
    "sentences",
    "matches",
    "is_role",
    "turns",
    "messages_per_role",
    "latency",
    "tokens",
    "tool_calls",
    "tool_calls_by_name",
    "tool_call_arguments",
)
# Built-in functions that return several values by name. A suite's own function may return a dict with a single key, as
# is_role does.
_KEYED = ("messages_per_role", "tokens", "tool_call_shape", "tool_calls_by_name")
_SHARES = ("pass_rate", "errors", "f1", "pass^", "share:", "f1:")


def rubric_scales(manifest: Mapping[str, Any]) -> dict[str, Scale]:
    """Return the rubric scale of each metric, and of `NAME.expected`, from the manifest of a suite's run."""
    rubrics = Suite.model_validate(manifest["suite"]).rubrics
    scales: dict[str, Scale] = {}
    for metric in manifest["metrics"]:
        rubric = rubrics.get(metric["metric"].get("rubric", "")) if isinstance(rubrics, dict) else None
        if rubric is None:
            continue
        scale = (min(rubric.choice_scores.values()), max(rubric.choice_scores.values()))
        if scale[0] < scale[1]:
            scales[metric["name"]] = scales[f"{metric['name']}.expected"] = scale
    return scales


def are_truth_values(numbers: NDArray[np.float64]) -> bool:
    """Return True if there are numbers and each is 0 or 1."""
    return len(numbers) > 0 and bool(np.isin(numbers, TRUTH_SCALE).all())


def scale_width(scale: Scale | None, series: Iterable[NDArray[np.float64]]) -> float | None:
    """Return the maximum distance of two values of a metric, by its scale and its numbers; None if unbounded."""
    if all(are_truth_values(numbers) for numbers in series):
        return 1.0
    if scale is None:
        return None
    return (scale[1] - scale[0]) * (1 + 1e-12)  # allow for rounding of a difference of means


# -- thresholds that can never hold -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PossibleValues:
    """Possible values of a metric.

    Numbers lie on `scale` (None: no numbers); texts are among `choices` (None: any text; empty: no texts).
    `description` describes the values in a sentence. `is_keyed` is True if the metric returns several values by name.
    """

    scale: Scale | None = _ANY
    choices: tuple[str, ...] | None = None
    description: str = ""
    is_keyed: bool = False

    def has(self, value: bool | float | str) -> bool:
        """Return True if the metric can have this value."""
        if isinstance(value, str):
            return self.choices is None or value in self.choices
        return self.scale is not None and self.scale[0] <= value <= self.scale[1]


def required_repeats(suite: Suite) -> int:
    """Return the number of repeats that a suite's `pass^k` thresholds need."""
    return max(
        (int(threshold.statistic[5:]) for threshold in suite.thresholds if threshold.statistic.startswith("pass^")),
        default=1,
    )


def check_attainable(
    suite: Suite, metrics: Sequence[ResolvedMetric], source: str, *, recorded: bool = False, repeats: int | None = None
) -> None:
    """Check that every threshold, `passes` and condition of a suite can hold for some answers.

    For a `recorded` run only thresholds are checked, and files of functions are not executed. `repeats` is the number
    of repeats of a planned run.

    Raises:
        ConfigurationError: A threshold or condition can never hold, given the metric's possible values.
    """
    values_by_metric = {metric.name: _possible_values(metric, suite, own=not recorded) for metric in metrics}
    references = {metric.name: metric.reference for metric in metrics}
    for index, threshold in enumerate(suite.thresholds):
        name = threshold.metric
        values = values_by_metric.get(name) or values_by_metric.get(name.rpartition(".")[0]) or _PossibleValues()
        if name in values_by_metric and values.is_keyed:
            values = _PossibleValues(None, (), f"'{name}' returns several values by name; write {name}.KEY")
        reason = _unsatisfiable_reason(threshold, values)
        if reason := reason or _no_figure_reason(threshold, values, metrics, own=not recorded):
            raise ConfigurationError(f"{source}: thresholds.{index}: {threshold.name} can never hold: {reason}")
    if repeats is not None and (needed := required_repeats(suite)) > max(repeats, suite.repeats):
        index = next(
            position for position, threshold in enumerate(suite.thresholds) if threshold.statistic == f"pass^{needed}"
        )
        problem = (
            f"each conversation is tested {count_of(max(repeats, suite.repeats), 'time')}; write `repeats: {needed}`"
        )
        raise ConfigurationError(
            f"{source}: thresholds.{index}: {suite.thresholds[index].name} can never hold: {problem}"
        )
    for metric in [] if recorded else metrics:
        if metric.spec.passes is not None and values_by_metric[metric.name].is_keyed:
            problem = "returns several values by name, but `passes` needs a single one; return only that one"
            raise ConfigurationError(f"{source}: metric '{metric.name}' {problem}")
        if metric.spec.passes is not None and (
            reason := _bounds_reason(metric.spec.passes, values_by_metric[metric.name])
        ):
            raise ConfigurationError(f"{source}: metric '{metric.name}': `passes` can never hold: {reason}")
        for condition in metric.spec.when:
            values = values_by_metric[condition.metric]
            if condition.value is None and references[condition.metric] in _KEYED:
                reason = "it returns several values by name; select one with `value`"
            elif not values.is_keyed and condition.value is not None and values.description:
                reason = f"it has no '{condition.value}': {values.description}"
            else:
                reason = _bounds_reason(condition, values)
            if reason:
                problem = f"`when` of '{condition.metric}' can never hold"
                raise ConfigurationError(f"{source}: metric '{metric.name}': {problem}: {reason}")


def _possible_values(metric: ResolvedMetric, suite: Suite, *, own: bool) -> _PossibleValues:
    if metric.by_function:
        return _return_values(metric.reference) if own or metric.reference in BUILTIN else _PossibleValues()
    assert isinstance(suite.rubrics, dict)
    rubric = suite.rubrics.get(metric.spec.rubric or "")
    if rubric is None:
        return _PossibleValues()
    scale = min(rubric.choice_scores.values()), max(rubric.choice_scores.values())
    choices = tuple(rubric.choice_scores)
    description = (
        f"rubric '{metric.spec.rubric}' scores from {scale[0]:g} to {scale[1]:g} (choices: {', '.join(choices)})"
    )
    return _PossibleValues(scale, choices, description)


def _return_values(reference: str) -> _PossibleValues:
    """Return a function's possible values, from its annotation or, for built-in counts, from a list."""
    try:
        hint = get_type_hints(load_function(reference)).get("return")
    except (ConfigurationError, NameError, TypeError):
        return _PossibleValues()
    parts = set(get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)) - {type(None)}
    name = reference.rpartition("#")[2].rpartition(":")[2]
    is_dict = any(get_origin(part) is dict or part is dict for part in parts)
    if parts == {bool}:
        return _PossibleValues(TRUTH_SCALE, (), f"'{name}' returns a boolean, which counts as 0 or 1")
    if parts and parts <= {int, float} and reference not in _NOT_NEGATIVE:
        return _PossibleValues(_ANY, (), f"'{name}' returns a number, not text")
    if parts == {str}:
        return _PossibleValues(None, None, f"'{name}' returns text, not a number; use `share:TEXT`")
    if reference in _NOT_NEGATIVE:
        return _PossibleValues(_COUNTED, (), f"'{name}' is never below 0", is_dict)
    return _PossibleValues(is_keyed=is_dict)


def _unsatisfiable_reason(threshold: Threshold, values: _PossibleValues) -> str:
    """Return why a threshold can never hold, or an empty string if it may hold."""
    scale, description = _figure_scale(threshold, values)
    if scale is None:
        return description
    low, high = threshold.at_least, threshold.at_most
    if (reason := _range_reason(low, high, scale, description)) and scale == TRUTH_SCALE:
        bound = high if low is None or low <= 1.0 else low
        return reason + _percent_hint(bound)
    return reason


def _percent_hint(bound: float | None) -> str:
    return f"; for {bound:g} percent write {bound / 100:g}" if bound is not None and 1.0 < bound <= 100.0 else ""


def _no_figure_reason(
    threshold: Threshold, values: _PossibleValues, metrics: Sequence[ResolvedMetric], *, own: bool
) -> str:
    """Return why a threshold never has a figure, whatever its bounds; empty if it may have one."""
    name = threshold.statistic
    if threshold.metric == TESTS_NAME:
        if name not in ("mean", "pass_rate") and not name.startswith("pass^"):
            return f"tests have no {name}; write pass_rate, or pass^5"
        if threshold.role is not None:
            return "a test covers all roles; omit `role`"
        return "" if not own or any(entry.spec.passes for entry in metrics) else "no metric has `passes`"
    if threshold.role is not None and threshold.role not in ROLES[1:]:
        return f"there is no role '{threshold.role}'{did_you_mean(threshold.role, ROLES[1:], 'known')}"
    metric = next((entry for entry in metrics if threshold.metric in (entry.name, f"{entry.name}.expected")), None)
    if metric is None:
        return ""
    if threshold.role is not None and metric.spec.role not in (None, threshold.role):
        return f"'{metric.name}' is only computed for the {metric.spec.role}"
    if name.startswith("f1") and metric.spec.label is None:
        return f"f1 needs right answers: give '{metric.name}' a `label`"
    if name.startswith("pass") and values.scale is None and metric.spec.passes is None:
        return f"{values.description}; give `passes` to say which values pass"
    return ""


def unbreakable_notes(suite: Suite, metrics: Sequence[ResolvedMetric]) -> Iterator[str]:
    """Yield a note on each threshold that no figure can break, such as a share given in percent."""
    values_by_metric = {metric.name: _possible_values(metric, suite, own=True) for metric in metrics}
    for index, threshold in enumerate(suite.thresholds):
        scale, description = _figure_scale(threshold, values_by_metric.get(threshold.metric) or _PossibleValues())
        low, high = threshold.at_least, threshold.at_most
        if scale is None or (low is not None and low > scale[0]):
            continue
        width = scale[1] - scale[0]
        margins = [margin for margin in (threshold.fall, threshold.rise) if margin is not None]
        bound = max((limit for limit in (high, *margins) if limit is not None), default=None)
        absolute = high is None or high > scale[1]
        if bound is not None and math.isfinite(width) and absolute and all(margin >= width for margin in margins):
            hint = _percent_hint(bound) if scale == TRUTH_SCALE else ""
            yield f"thresholds.{index}: no figure can break {threshold.name}: {description}{hint}"


def _figure_scale(threshold: Threshold, values: _PossibleValues) -> tuple[Scale | None, str]:
    """Return the scale of a threshold's figure, and the reason; the scale is None if there is never a figure."""
    name = threshold.statistic
    if values.description and values.scale is None and values.choices == ():
        return None, values.description
    if threshold.metric == TESTS_NAME or name.startswith(_SHARES):
        if name.startswith("share:") and threshold.metric != TESTS_NAME and not values.has(name[6:]):
            near = did_you_mean(name[6:], values.choices or ())
            return (0.0, 0.0) if values.choices else None, f"'{name[6:]}' never has a share: {values.description}{near}"
        figure = "the share of tests that pass" if threshold.metric == TESTS_NAME else name
        return TRUTH_SCALE, f"{figure} lies between 0 and 1"
    if name == "count":
        return _COUNTED, "a count is never below 0"
    if values.scale is None or name != "sum":
        return values.scale, values.description
    low, high = values.scale
    return (low if low >= 0 else -math.inf, high if high <= 0 else math.inf), values.description


def _bounds_reason(bounds: Bounds, values: _PossibleValues) -> str:
    """Return why no value of a metric meets these bounds; empty if one may."""
    if bounds.at_least is not None or bounds.at_most is not None:
        if values.scale is None:
            return values.description
        if reason := _range_reason(bounds.at_least, bounds.at_most, values.scale, values.description):
            return reason
    for values_wanted in ([bounds.equals] if bounds.equals is not None else None, bounds.among):
        if values_wanted is not None and not any(values.has(value) for value in values_wanted):
            problem = f"no value is {' or '.join(map(repr, values_wanted))}" if values_wanted else "`among` is empty"
            return problem + (f": {values.description}" if values.description else "")
    return ""


def _range_reason(low: float | None, high: float | None, scale: Scale, description: str) -> str:
    if any(bound is not None and math.isnan(bound) for bound in (low, high)):
        return "nan cannot be compared"
    if low == math.inf or high == -math.inf:
        return "no figure is infinite"
    if low is not None and high is not None and low > high:
        return f"nothing is at least {low:g} and at most {high:g}"
    is_above = low is not None and low > scale[1]
    return description if is_above or (high is not None and high < scale[0]) else ""
