"""Scales of metrics: the ends between which values, means and differences lie, and thresholds no value can reach."""

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
TESTS_NAME = "tests"  # the name under which thresholds have all metrics with ``passes`` together
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
# Built-in functions whose values are several by name. One of the suite's own may return a single one, like is_role.
_SEVERAL = ("messages_per_role", "tokens", "tool_call_shape", "tool_calls_by_name")
_SHARES = ("pass_rate", "errors", "f1", "pass^", "share:", "f1:")


def rubric_scales(manifest: Mapping[str, Any]) -> dict[str, Scale]:
    """By metric, ``NAME.expected`` too, the scale of its rubric; ``manifest`` is that of a suite's run."""
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
    """Whether each of them is 0 or 1, and there are any."""
    return len(numbers) > 0 and bool(np.isin(numbers, TRUTH_SCALE).all())


def scale_width(scale: Scale | None, series: Iterable[NDArray[np.float64]]) -> float | None:
    """How far apart two values of a metric can lie, by its scale and the numbers that there are of it; None without
    ends.
    """
    if all(are_truth_values(numbers) for numbers in series):
        return 1.0
    if scale is None:
        return None
    return (scale[1] - scale[0]) * (1 + 1e-12)  # a difference of means may be greater by its rounding


# -- what can never hold ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PossibleValues:
    """What values a metric can have: numbers on a ``scale`` (None: no numbers), and texts, which are ``choices`` (None:
    any; empty: none). ``told`` says so in a sentence about the metric. ``named``: it has several values by name.
    """

    scale: Scale | None = _ANY
    choices: tuple[str, ...] | None = None
    description: str = ""
    is_keyed: bool = False

    def has(self, value: bool | float | str) -> bool:
        """Return True if this can be a value of the metric."""
        if isinstance(value, str):
            return self.choices is None or value in self.choices
        return self.scale is not None and self.scale[0] <= value <= self.scale[1]


def required_repeats(suite: Suite) -> int:
    """Return how often each conversation must be tested for all of a suite's ``pass^k``."""
    return max(
        (int(threshold.statistic[5:]) for threshold in suite.thresholds if threshold.statistic.startswith("pass^")),
        default=1,
    )


def check_attainable(
    suite: Suite, metrics: Sequence[ResolvedMetric], source: str, *, recorded: bool = False, repeats: int | None = None
) -> None:
    """See that every threshold, ``passes`` and condition of a suite can hold for some answers.

    :param repeats: how often each conversation is tested in the run that is to be made.
    :param recorded: the metrics are those of a run that is there: of them nothing but thresholds is checked, and the
        files of their functions are not run.
    :raises ConfigurationError: one can never hold, by what is known of the metric's values.
    """
    values_by_metric = {metric.name: _possible_values(metric, suite, own=not recorded) for metric in metrics}
    references = {metric.name: metric.reference for metric in metrics}
    for index, threshold in enumerate(suite.thresholds):
        name = threshold.metric
        values = values_by_metric.get(name) or values_by_metric.get(name.rpartition(".")[0]) or _PossibleValues()
        if name in values_by_metric and values.is_keyed:
            values = _PossibleValues(None, (), f"'{name}' has several values by name; write {name}.KEY")
        if reason := _unsatisfiable_reason(threshold, values) or _no_figure_reason(
            threshold, values, metrics, own=not recorded
        ):
            raise ConfigurationError(f"{source}: thresholds.{index}: {threshold.name} can never hold: {reason}")
    if repeats is not None and (needed := required_repeats(suite)) > max(repeats, suite.repeats):
        index = next(at for at, threshold in enumerate(suite.thresholds) if threshold.statistic == f"pass^{needed}")
        problem = (
            f"each conversation is tested {count_of(max(repeats, suite.repeats), 'time')}; write `repeats: {needed}`"
        )
        raise ConfigurationError(
            f"{source}: thresholds.{index}: {suite.thresholds[index].name} can never hold: {problem}"
        )
    for metric in [] if recorded else metrics:
        if metric.spec.passes is not None and values_by_metric[metric.name].is_keyed:
            problem = "has several values by name, and `passes` is of one: let a function return that one"
            raise ConfigurationError(f"{source}: metric '{metric.name}' {problem}")
        if metric.spec.passes is not None and (
            reason := _bounds_reason(metric.spec.passes, values_by_metric[metric.name])
        ):
            raise ConfigurationError(f"{source}: metric '{metric.name}': `passes` can never hold: {reason}")
        for condition in metric.spec.when:
            values = values_by_metric[condition.metric]
            if condition.value is None and references[condition.metric] in _SEVERAL:
                reason = "it has several values by name; name one with `value`"
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
        f"rubric '{metric.spec.rubric}' counts from {scale[0]:g} to {scale[1]:g} (choices: {', '.join(choices)})"
    )
    return _PossibleValues(scale, choices, description)


def _return_values(reference: str) -> _PossibleValues:
    """What a function returns, by its annotation; of built-in ones also that they count."""
    try:
        hint = get_type_hints(load_function(reference)).get("return")
    except (ConfigurationError, NameError, TypeError):
        return _PossibleValues()
    parts = set(get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)) - {type(None)}
    name = reference.rpartition("#")[2].rpartition(":")[2]
    is_dict = any(get_origin(part) is dict or part is dict for part in parts)
    if parts == {bool}:
        return _PossibleValues(TRUTH_SCALE, (), f"'{name}' returns a truth value, which counts 0 or 1")
    if parts and parts <= {int, float} and reference not in _NOT_NEGATIVE:
        return _PossibleValues(_ANY, (), f"'{name}' returns a number, not a text")
    if parts == {str}:
        return _PossibleValues(None, None, f"'{name}' returns a text, not a number; its shares are `share:TEXT`")
    if reference in _NOT_NEGATIVE:
        return _PossibleValues(_COUNTED, (), f"'{name}' is never below 0", is_dict)
    return _PossibleValues(is_keyed=is_dict)


def _unsatisfiable_reason(threshold: Threshold, values: _PossibleValues) -> str:
    """Why a threshold can never hold; empty if it can, for all that is known."""
    scale, description = _figure_scale(threshold, values)
    if scale is None:
        return description
    low, high = threshold.at_least, threshold.at_most
    if (reason := _range_reason(low, high, scale, description)) and scale == TRUTH_SCALE:
        bound = high if low is None or low <= 1.0 else low
        return reason + _percent_hint(bound)
    return reason


def _percent_hint(bound: float | None) -> str:
    return f"; for {bound:g} per cent write {bound / 100:g}" if bound is not None and 1.0 < bound <= 100.0 else ""


def _no_figure_reason(
    threshold: Threshold, values: _PossibleValues, metrics: Sequence[ResolvedMetric], *, own: bool
) -> str:
    """Return why a threshold never has a figure, whatever its bounds are; empty if it may have one."""
    name = threshold.statistic
    if threshold.metric == TESTS_NAME:
        if name not in ("mean", "pass_rate") and not name.startswith("pass^"):
            return f"of tests there is no {name}; write pass_rate, or pass^5"
        if threshold.role is not None:
            return "a test is of all roles; leave `role` out"
        return "" if not own or any(entry.spec.passes for entry in metrics) else "no metric has `passes`"
    if threshold.role is not None and threshold.role not in ROLES[1:]:
        near = did_you_mean(threshold.role, ROLES[1:])
        return f"there is no role '{threshold.role}'; known: {', '.join(ROLES[1:])}{near}"
    metric = next((entry for entry in metrics if threshold.metric in (entry.name, f"{entry.name}.expected")), None)
    if metric is None:
        return ""
    if threshold.role is not None and metric.spec.role not in (None, threshold.role):
        return f"'{metric.name}' is measured of the {metric.spec.role} alone"
    if name.startswith("f1") and metric.spec.label is None:
        return f"f1 compares with right answers: '{metric.name}' needs `label`"
    if name.startswith("pass") and values.scale is None and metric.spec.passes is None:
        return f"{values.description}; say with `passes` which of them pass"
    return ""


def unbreakable_notes(suite: Suite, metrics: Sequence[ResolvedMetric]) -> Iterator[str]:
    """Return a note on each threshold that no figure can break, as where a share is given in per cent."""
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
            yield f"thresholds.{index}: {threshold.name} can never be broken by any figure: {description}{hint}"


def _figure_scale(threshold: Threshold, values: _PossibleValues) -> tuple[Scale | None, str]:
    """Between which ends a threshold's figure lies, and why; None if there never is a figure."""
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
    """Why no value of a metric keeps these bounds; empty if one may."""
    if bounds.at_least is not None or bounds.at_most is not None:
        if values.scale is None:
            return values.description
        if reason := _range_reason(bounds.at_least, bounds.at_most, values.scale, values.description):
            return reason
    for values_wanted in ([bounds.equals] if bounds.equals is not None else None, bounds.among):
        if values_wanted is not None and not any(values.has(value) for value in values_wanted):
            problem = (
                f"no value is {' or '.join(map(repr, values_wanted))}" if values_wanted else "`among` names no value"
            )
            return problem + (f": {values.description}" if values.description else "")
    return ""


def _range_reason(low: float | None, high: float | None, scale: Scale, description: str) -> str:
    if any(bound is not None and math.isnan(bound) for bound in (low, high)):
        return "no figure can be compared with nan"
    if low == math.inf or high == -math.inf:
        return "no figure is infinite"
    if low is not None and high is not None and low > high:
        return f"nothing is at least {low:g} and at most {high:g}"
    is_above = low is not None and low > scale[1]
    return description if is_above or (high is not None and high < scale[0]) else ""
