"""A suite's metrics as a checked graph: each resolved to its function or rubric, in an order that dependencies allow.

Function metrics of one stage are computed together; rubrics follow; what depends on a rubric stands in a later stage.
What never belongs here: computing anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viva.engine.errors import ConfigurationError

from .functions import check_arguments, find
from .spec import Condition, Metric, Suite
from .units import LEVELS, Level

_DEPTH = {level: depth for depth, level in enumerate(LEVELS)}  # a unit lies within one of each level above it


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of a suite, resolved. ``name`` is unique; ``level`` on what it is computed; ``reference``, ``takes`` and
    ``digest`` are of its function (``functions.Found``), empty for a rubric. ``stage`` counts from 0; ``levels`` are
    those of the metrics that it depends on.
    """

    name: str
    spec: Metric
    level: Level
    stage: int
    reference: str = ""
    takes: str = ""
    digest: str = ""
    levels: tuple[Level, ...] = ()

    @property
    def by_function(self) -> bool:
        """Whether a function computes it, not a grader."""
        return bool(self.reference)

    @property
    def conditions(self) -> list[tuple[Level, Condition]]:
        """What it depends on, each with the level of the other metric."""
        return list(zip(self.levels, self.spec.when, strict=True))

    def to_manifest(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "name": self.name,
            "level": self.level,
            "stage": self.stage,
            "reference": self.reference,
            "takes": self.takes,
            "digest": self.digest,
            "levels": list(self.levels),
            "metric": self.spec.model_dump(mode="json", exclude_none=True),
        }

    @classmethod
    def from_manifest(cls, record: Mapping[str, Any]) -> Measured:
        """The metric of a record that ``to_manifest`` made; its function is not looked for."""
        rest = {key: value for key, value in record.items() if key not in ("metric", "levels")}
        return cls(spec=Metric.model_validate(record["metric"]), levels=tuple(record["levels"]), **rest)

    def to_record(self) -> dict[str, Any]:
        """What a worker process needs, as plain data."""
        return {
            "name": self.name,
            "level": self.level,
            "role": self.spec.role,
            "reference": self.reference,
            "takes": self.takes,
            "arguments": self.spec.arguments,
            "seconds": self.spec.seconds,
            "when": [[level, one.model_dump(exclude_none=True)] for level, one in self.conditions],
        }


def measured(suite: Suite, graders: Sequence[str] = (), where: str = "suite") -> list[Measured]:
    """The metrics of a suite in an order in which they can be computed. A rubric that several graders grade is a metric
    for each of them, ``NAME@GRADER``. ``where`` names the suite in errors.

    :raises ConfigurationError: a function is not there or takes other arguments, two metrics have one name, a
        condition names none, or conditions go round in a circle.
    """
    by_name: dict[str, Metric] = {}
    for metric in [one for every in suite.metrics for one in _by_grader(every, graders, where)]:
        if metric.name in by_name:
            raise ConfigurationError(
                f"{where}: two metrics are called '{metric.name}'; give one of them a `name` of its own"
            )
        by_name[metric.name] = metric
    order = _ordered(by_name, where)
    found: dict[str, Measured] = {}
    for name in order:
        found[name] = _resolved(by_name[name], suite, found, where)
    return [found[name] for name in order]


def _by_grader(metric: Metric, graders: Sequence[str], where: str) -> list[Metric]:
    """A metric once for each of its graders."""
    if metric.grader is not None and metric.grader not in graders:
        raise ConfigurationError(
            f"{where}: metric '{metric.name}': there is no grader '{metric.grader}'; known: "
            f"{', '.join(graders) or 'none'}"
        )
    if metric.rubric is None or metric.grader is not None or len(graders) < 2:
        return [metric]
    return [metric.model_copy(update={"name": f"{metric.name}@{label}", "grader": label}) for label in graders]


def _ordered(metrics: Mapping[str, Metric], where: str) -> list[str]:
    """The names, each behind those that it depends on; otherwise as they stand in the suite."""
    done: list[str] = []
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise ConfigurationError(f"{where}: metrics depend on each other in a circle: {circle}")
        path.append(name)
        for condition in metrics[name].when:
            if condition.metric not in metrics:
                known = ", ".join(metrics)
                raise ConfigurationError(
                    f"{where}: metric '{name}': `when` names the metric '{condition.metric}', which is not there; "
                    f"there are: {known}"
                )
            visit(condition.metric)
        path.pop()
        done.append(name)

    for name in metrics:
        visit(name)
    return done


def _resolved(metric: Metric, suite: Suite, earlier: Mapping[str, Measured], where: str) -> Measured:
    try:
        if metric.function is not None:
            function = find(metric.function, suite.functions)
            check_arguments(function, metric.arguments)
            level = _level(metric, function.levels)
            parts: dict[str, Any] = {
                "reference": function.reference,
                "takes": function.takes,
                "digest": function.digest,
            }
        else:
            rubrics = suite.rubrics
            assert isinstance(rubrics, dict)
            assert metric.rubric is not None
            level, parts = metric.level or rubrics[metric.rubric].level, {}
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: metric '{metric.name}': {error}") from None
    stage = 0
    for condition in metric.when:
        other = earlier[condition.metric]
        _check_levels(metric.name, level, other, condition, where)
        stage = max(stage, other.stage + (0 if other.by_function else 1))
    return Measured(
        metric.name, metric, level, stage, levels=tuple(earlier[one.metric].level for one in metric.when), **parts
    )


def _level(metric: Metric, allowed: Sequence[Level]) -> Level:
    if metric.level is None:
        return allowed[0]
    if metric.level not in allowed:
        raise ConfigurationError(f"its function measures a {' or a '.join(allowed)}, not a {metric.level}")
    return metric.level


def _check_levels(name: str, level: Level, other: Measured, condition: Condition, where: str) -> None:
    if _DEPTH[other.level] > _DEPTH[level]:
        raise ConfigurationError(
            f"{where}: metric '{name}' of each {level} cannot depend on '{other.name}', which each {other.level} has: "
            f"there may be several in one {level}; measure both on one level"
        )
