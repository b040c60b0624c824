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
    found: dict[str, Scale] = {}
    for one in manifest["metrics"]:
        rubric = rubrics.get(one["metric"].get("rubric", "")) if isinstance(rubrics, dict) else None
        if rubric is None:
            continue
        scale = (min(rubric.choice_scores.values()), max(rubric.choice_scores.values()))
        if scale[0] < scale[1]:
            found[one["name"]] = found[f"{one['name']}.expected"] = scale
    return found


def are_truth_values(numbers: NDArray[np.float64]) -> bool:
    """Whether each of them is 0 or 1, and there are any."""
    return len(numbers) > 0 and bool(np.isin(numbers, TRUTH_SCALE).all())


def scale_width(scale: Scale | None, series: Iterable[NDArray[np.float64]]) -> float | None:
    """How far apart two values of a metric can lie, by its scale and the numbers that there are of it; None without
    ends.
    """
    if all(are_truth_values(one) for one in series):
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
    told: str = ""
    named: bool = False

    def has(self, value: bool | float | str) -> bool:
        """Return True if this can be a value of the metric."""
        if isinstance(value, str):
            return self.choices is None or value in self.choices
        return self.scale is not None and self.scale[0] <= value <= self.scale[1]


def required_repeats(suite: Suite) -> int:
    """Return how often each conversation must be tested for all of a suite's ``pass^k``."""
    return max((int(one.statistic[5:]) for one in suite.thresholds if one.statistic.startswith("pass^")), default=1)


def check_attainable(
    suite: Suite, metrics: Sequence[ResolvedMetric], where: str, *, recorded: bool = False, repeats: int | None = None
) -> None:
    """See that every threshold, ``passes`` and condition of a suite can hold for some answers.

    :param repeats: how often each conversation is tested in the run that is to be made.
    :param recorded: the metrics are those of a run that is there: of them nothing but thresholds is checked, and the
        files of their functions are not run.
    :raises ConfigurationError: one can never hold, by what is known of the metric's values.
    """
    known = {one.name: _possible_values(one, suite, own=not recorded) for one in metrics}
    references = {one.name: one.reference for one in metrics}
    for place, threshold in enumerate(suite.thresholds):
        name = threshold.metric
        values = known.get(name) or known.get(name.rpartition(".")[0]) or _PossibleValues()
        if name in known and values.named:
            values = _PossibleValues(None, (), f"'{name}' has several values by name; write {name}.KEY")
        if wrong := _why_never_holds(threshold, values) or _why_no_figure(threshold, values, metrics, own=not recorded):
            raise ConfigurationError(f"{where}: thresholds.{place}: {threshold.name} can never hold: {wrong}")
    if repeats is not None and (most := required_repeats(suite)) > max(repeats, suite.repeats):
        place = next(at for at, one in enumerate(suite.thresholds) if one.statistic == f"pass^{most}")
        told = f"each conversation is tested {count_of(max(repeats, suite.repeats), 'time')}; write `repeats: {most}`"
        raise ConfigurationError(f"{where}: thresholds.{place}: {suite.thresholds[place].name} can never hold: {told}")
    for one in [] if recorded else metrics:
        if one.spec.passes is not None and known[one.name].named:
            told = "has several values by name, and `passes` is of one: let a function return that one"
            raise ConfigurationError(f"{where}: metric '{one.name}' {told}")
        if one.spec.passes is not None and (wrong := _why_out_of_bounds(one.spec.passes, known[one.name])):
            raise ConfigurationError(f"{where}: metric '{one.name}': `passes` can never hold: {wrong}")
        for condition in one.spec.when:
            values = known[condition.metric]
            if condition.value is None and references[condition.metric] in _SEVERAL:
                wrong = "it has several values by name; name one with `value`"
            elif not values.named and condition.value is not None and values.told:
                wrong = f"it has no '{condition.value}': {values.told}"
            else:
                wrong = _why_out_of_bounds(condition, values)
            if wrong:
                told = f"`when` of '{condition.metric}' can never hold"
                raise ConfigurationError(f"{where}: metric '{one.name}': {told}: {wrong}")


def _possible_values(metric: ResolvedMetric, suite: Suite, *, own: bool) -> _PossibleValues:
    if metric.by_function:
        return _return_values(metric.reference) if own or metric.reference in BUILTIN else _PossibleValues()
    assert isinstance(suite.rubrics, dict)
    rubric = suite.rubrics.get(metric.spec.rubric or "")
    if rubric is None:
        return _PossibleValues()
    scale = min(rubric.choice_scores.values()), max(rubric.choice_scores.values())
    choices = tuple(rubric.choice_scores)
    told = f"rubric '{metric.spec.rubric}' counts from {scale[0]:g} to {scale[1]:g} (choices: {', '.join(choices)})"
    return _PossibleValues(scale, choices, told)


def _return_values(reference: str) -> _PossibleValues:
    """What a function returns, by its annotation; of built-in ones also that they count."""
    try:
        hint = get_type_hints(load_function(reference)).get("return")
    except (ConfigurationError, NameError, TypeError):
        return _PossibleValues()
    parts = set(get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)) - {type(None)}
    name = reference.rpartition("#")[2].rpartition(":")[2]
    named = any(get_origin(part) is dict or part is dict for part in parts)
    if parts == {bool}:
        return _PossibleValues(TRUTH_SCALE, (), f"'{name}' returns a truth value, which counts 0 or 1")
    if parts and parts <= {int, float} and reference not in _NOT_NEGATIVE:
        return _PossibleValues(_ANY, (), f"'{name}' returns a number, not a text")
    if parts == {str}:
        return _PossibleValues(None, None, f"'{name}' returns a text, not a number; its shares are `share:TEXT`")
    if reference in _NOT_NEGATIVE:
        return _PossibleValues(_COUNTED, (), f"'{name}' is never below 0", named)
    return _PossibleValues(named=named)


def _why_never_holds(threshold: Threshold, values: _PossibleValues) -> str:
    """Why a threshold can never hold; empty if it can, for all that is known."""
    scale, told = _figure_scale(threshold, values)
    if scale is None:
        return told
    least, most = threshold.at_least, threshold.at_most
    if (wrong := _why_out_of_range(least, most, scale, told)) and scale == TRUTH_SCALE:
        bound = most if least is None or least <= 1.0 else least
        return wrong + _percent_hint(bound)
    return wrong


def _percent_hint(bound: float | None) -> str:
    return f"; for {bound:g} per cent write {bound / 100:g}" if bound is not None and 1.0 < bound <= 100.0 else ""


def _why_no_figure(
    threshold: Threshold, values: _PossibleValues, metrics: Sequence[ResolvedMetric], *, own: bool
) -> str:
    """Return why a threshold never has a figure, whatever its bounds are; empty if it may have one."""
    name = threshold.statistic
    if threshold.metric == TESTS_NAME:
        if name not in ("mean", "pass_rate") and not name.startswith("pass^"):
            return f"of tests there is no {name}; write pass_rate, or pass^5"
        if threshold.role is not None:
            return "a test is of all roles; leave `role` out"
        return "" if not own or any(one.spec.passes for one in metrics) else "no metric has `passes`"
    if threshold.role is not None and threshold.role not in ROLES[1:]:
        near = did_you_mean(threshold.role, ROLES[1:])
        return f"there is no role '{threshold.role}'; known: {', '.join(ROLES[1:])}{near}"
    metric = next((one for one in metrics if threshold.metric in (one.name, f"{one.name}.expected")), None)
    if metric is None:
        return ""
    if threshold.role is not None and metric.spec.role not in (None, threshold.role):
        return f"'{metric.name}' is measured of the {metric.spec.role} alone"
    if name.startswith("f1") and metric.spec.label is None:
        return f"f1 compares with right answers: '{metric.name}' needs `label`"
    if name.startswith("pass") and values.scale is None and metric.spec.passes is None:
        return f"{values.told}; say with `passes` which of them pass"
    return ""


def unbreakable_notes(suite: Suite, metrics: Sequence[ResolvedMetric]) -> Iterator[str]:
    """Return a note on each threshold that no figure can break, as where a share is given in per cent."""
    known = {one.name: _possible_values(one, suite, own=True) for one in metrics}
    for place, threshold in enumerate(suite.thresholds):
        scale, told = _figure_scale(threshold, known.get(threshold.metric) or _PossibleValues())
        least, most = threshold.at_least, threshold.at_most
        if scale is None or (least is not None and least > scale[0]):
            continue
        width = scale[1] - scale[0]
        moved = [one for one in (threshold.fall, threshold.rise) if one is not None]
        bound = max((one for one in (most, *moved) if one is not None), default=None)
        absolute = most is None or most > scale[1]
        if bound is not None and math.isfinite(width) and absolute and all(one >= width for one in moved):
            hint = _percent_hint(bound) if scale == TRUTH_SCALE else ""
            yield f"thresholds.{place}: {threshold.name} can never be broken by any figure: {told}{hint}"


def _figure_scale(threshold: Threshold, values: _PossibleValues) -> tuple[Scale | None, str]:
    """Between which ends a threshold's figure lies, and why; None if there never is a figure."""
    name = threshold.statistic
    if values.told and values.scale is None and values.choices == ():
        return None, values.told
    if threshold.metric == TESTS_NAME or name.startswith(_SHARES):
        if name.startswith("share:") and threshold.metric != TESTS_NAME and not values.has(name[6:]):
            near = did_you_mean(name[6:], values.choices or ())
            return (0.0, 0.0) if values.choices else None, f"'{name[6:]}' never has a share: {values.told}{near}"
        what = "the share of tests that pass" if threshold.metric == TESTS_NAME else name
        return TRUTH_SCALE, f"{what} lies between 0 and 1"
    if name == "count":
        return _COUNTED, "a count is never below 0"
    if values.scale is None or name != "sum":
        return values.scale, values.told
    low, high = values.scale
    return (low if low >= 0 else -math.inf, high if high <= 0 else math.inf), values.told


def _why_out_of_bounds(bounds: Bounds, values: _PossibleValues) -> str:
    """Why no value of a metric keeps these bounds; empty if one may."""
    if bounds.at_least is not None or bounds.at_most is not None:
        if values.scale is None:
            return values.told
        if wrong := _why_out_of_range(bounds.at_least, bounds.at_most, values.scale, values.told):
            return wrong
    for wanted in ([bounds.equals] if bounds.equals is not None else None, bounds.among):
        if wanted is not None and not any(values.has(one) for one in wanted):
            told = f"no value is {' or '.join(map(repr, wanted))}" if wanted else "`among` names no value"
            return told + (f": {values.told}" if values.told else "")
    return ""


def _why_out_of_range(least: float | None, most: float | None, scale: Scale, told: str) -> str:
    if any(bound is not None and math.isnan(bound) for bound in (least, most)):
        return "no figure can be compared with nan"
    if least == math.inf or most == -math.inf:
        return "no figure is infinite"
    if least is not None and most is not None and least > most:
        return f"nothing is at least {least:g} and at most {most:g}"
    above = least is not None and least > scale[1]
    return told if above or (most is not None and most < scale[0]) else ""
