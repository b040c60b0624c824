"""Metrics of a suite: resolved by name, ordered by dependency, computed in a worker process.

The annotation of a function's first argument sets its level. All function metrics of a stage are computed together for
a dialog. A failing metric does not affect any other.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
import signal
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.imports import check_defined_here, import_by_name, import_file
from viva.engine.permissions import NotPermitted
from viva.engine.steps import COMPUTED, definition_site, failure_result, result_of_call, result_of_error, to_json_bytes

from .builtin_metrics import BUILTIN, VERSIONS
from .dialog import LEVEL_OF, LEVELS, Dialog, Level, Message, ToolCall, Turn, Unit
from .spec import Condition, Metric, Suite

Function = Callable[..., Any]
# The first argument is a unit, the unit's text, or its messages in OpenAI's format.
_TAKES_TEXT, _TAKES_MESSAGES = "text", "messages"


@dataclass(frozen=True, slots=True)
class MetricFunction:
    """Function of a metric.

    `reference` is `NAME` for a built-in function, else `FILE.py#NAME` or `module:NAME`. `levels` are the levels that
    its annotation allows; `takes` is unit, text or messages. `digest` changes with the code of its file, or is the
    version of a built-in function.
    """

    reference: str
    levels: tuple[Level, ...]
    takes: str
    digest: str


def load_function(reference: str) -> Function:
    """Return the function of a reference.

    Raises:
        ConfigurationError: There is no such function, or its module or file is not permitted.
    """
    file, hash_, name = reference.partition("#")
    if hash_:
        holder = import_file(Path(file))
    elif ":" in reference:
        module, _, name = reference.partition(":")
        try:
            holder = import_by_name(module)
        except NotPermitted:
            raise
        except ConfigurationError as error:
            raise ConfigurationError(f"function '{reference}': {error}") from None
    else:
        if reference not in BUILTIN:
            raise ConfigurationError(f"there is no function '{reference}'; built in: {', '.join(BUILTIN)}")
        return BUILTIN[reference]
    function = _attribute(holder, name)
    if kind := _describe_non_function(function):
        names = ", ".join(_own_functions(holder)) or "none"
        problem = f"there is no function '{name}'" if function is None else f"'{name}' is {kind}, not a function"
        raise ConfigurationError(f"function '{reference}': {problem}; its functions: {names}")
    check_defined_here(holder, function, name)
    return function  # type: ignore[no-any-return]


def _attribute(holder: Any, name: str) -> Any:
    """Return a module's attribute, or None if it is missing or the module's own lookup fails."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _describe_non_function(value: Any) -> str:
    """Describe a value that cannot be a metric; return an empty string for a function."""
    if isinstance(value, type):
        return "a class"
    try:
        if inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value):
            return "a generator"
        routine = inspect.isroutine(value)
    except Exception:  # the object computes its attributes
        routine = False
    return "" if routine else f"an object of type {type(value).__name__}"


def find_function(name: str, files: Sequence[str]) -> MetricFunction:
    """Find the function that a metric names: in its file or module, in the suite's files, or built in.

    Raises:
        ConfigurationError: There is no such function.
    """
    reference = name
    if "#" not in name and ":" not in name:
        holders = [file for file in files if callable(_attribute(import_file(Path(file)), name))]
        if len(holders) > 1:
            raise ConfigurationError(f"function '{name}' is in {' and '.join(holders)}; write FILE.py#{name}")
        if holders:
            reference = f"{holders[0]}#{name}"
        elif name not in BUILTIN:
            raise _unknown_function(name, files)
    function = load_function(reference)
    levels, takes = _levels_and_kind(function, reference)
    return MetricFunction(reference, levels, takes, _source_digest(reference, function))


def _unknown_function(name: str, files: Sequence[str]) -> ConfigurationError:
    own = [function_name for file in files for function_name in _own_functions(import_file(Path(file)))]
    hint = did_you_mean(name, [*own, *BUILTIN]) or ";"
    own_text = f"in the suite's files: {', '.join(own) or 'none'}; " if files else ""
    return ConfigurationError(f"there is no function '{name}'{hint} {own_text}built in: {', '.join(BUILTIN)}")


def _own_functions(holder: Any) -> list[str]:
    """Return the names of the functions that a module defines itself."""
    own = holder.__name__
    return [name for name, value in vars(holder).items() if inspect.isfunction(value) and value.__module__ == own]


def check_arguments(function: MetricFunction, arguments: Mapping[str, Any]) -> None:
    """Check that a function takes these arguments besides the unit.

    Raises:
        ConfigurationError: An argument does not fit; the message names it.
    """
    try:
        signature = inspect.signature(load_function(function.reference))
    except (TypeError, ValueError):  # a C function has no signature and fails when called
        return
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        problem = str(error).replace("a required argument", "the required argument")
        raise ConfigurationError(f"function '{function.reference}' takes {signature}: {problem}") from None


def _levels_and_kind(function: Function, reference: str) -> tuple[tuple[Level, ...], str]:
    """Return the levels and the kind of a function's first argument."""
    try:
        inspect.unwrap(function)  # raises on a cycle, where get_type_hints does not terminate
        hints = get_type_hints(function)
        names = list(inspect.signature(function).parameters)
    except Exception as error:  # annotations are evaluated
        raise ConfigurationError(f"function '{reference}': its annotations cannot be read: {error}") from None
    if not names:
        raise ConfigurationError(f"function '{reference}': takes no argument; the first one must be the unit")
    hint = hints.get(names[0], str)
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    levels = tuple(LEVEL_OF[part] for part in parts if isinstance(part, type) and part in LEVEL_OF)
    if levels:
        return levels, "unit"
    if hint is str or hint is Any:
        return ("turn", "message", "conversation", "tool_call"), _TAKES_TEXT
    if hint is list or get_origin(hint) in (list, tuple, Sequence):
        return ("conversation", "turn", "message"), _TAKES_MESSAGES
    raise ConfigurationError(
        f"function '{reference}': its first argument is a {getattr(hint, '__name__', hint)}; use str, list (of "
        "messages), or Dialog, Turn, Message or ToolCall from viva.suite"
    )


_FILE_DIGEST = re.compile(r"[0-9a-f]{16}")  # earlier versions recorded the file's digest for built-in functions


def _source_digest(reference: str, function: Function) -> str:
    if reference in BUILTIN:
        return f"version {VERSIONS.get(reference, 1)}"
    try:
        file = reference.partition("#")[0] if "#" in reference else inspect.getsourcefile(inspect.unwrap(function))
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):  # a C function has no file
        return ""


def adopt_digests(metrics: Sequence[dict[str, Any]], recorded: Sequence[Mapping[str, Any]]) -> None:
    """Keep the digests that earlier versions of viva recorded for built-in functions of version 1."""
    earlier = {record["name"]: record for record in recorded}
    for metric in metrics:
        previous = earlier.get(metric["name"], metric)
        is_same = metric["reference"] in BUILTIN and previous["reference"] == metric["reference"]
        if is_same and metric["digest"] == "version 1" and _FILE_DIGEST.fullmatch(previous["digest"]):
            metric["digest"] = previous["digest"]


_DEPTH = {level: depth for depth, level in enumerate(LEVELS)}  # each unit belongs to one unit of every lower depth


@dataclass(frozen=True, slots=True)
class ResolvedMetric:
    """A resolved metric of a suite.

    `name` is unique. `reference`, `takes` and `digest` come from its `MetricFunction` and are empty for a rubric.
    `stage` counts from 0. `levels` are the levels of the metrics that it depends on.
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
        """True if a function computes the metric, not a grader."""
        return bool(self.reference)

    @property
    def conditions(self) -> list[tuple[Level, Condition]]:
        """Conditions, each with the level of the metric to which it refers."""
        return list(zip(self.levels, self.spec.when, strict=True))

    def to_manifest(self) -> dict[str, Any]:
        """Return plain data for the manifest."""
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
    def from_manifest(cls, record: Mapping[str, Any]) -> ResolvedMetric:
        """Return the metric of a record made by `to_manifest`, without loading its function."""
        fields = {key: value for key, value in record.items() if key not in ("metric", "levels")}
        return cls(spec=Metric.model_validate(record["metric"]), levels=tuple(record["levels"]), **fields)

    def to_record(self) -> dict[str, Any]:
        """Return plain data for a worker process."""
        return {
            "name": self.name,
            "level": self.level,
            "role": self.spec.role,
            "reference": self.reference,
            "takes": self.takes,
            "arguments": self.spec.arguments,
            "seconds": self.spec.seconds,
            "when": [[level, condition.model_dump(exclude_none=True)] for level, condition in self.conditions],
        }


def resolve_metrics(suite: Suite, graders: Sequence[str] = (), source: str = "suite") -> list[ResolvedMetric]:
    """Return a suite's metrics in dependency order; `source` names the suite in errors.

    With several graders, a rubric becomes one metric per grader, `NAME@GRADER`.

    Raises:
        ConfigurationError: A function is missing or takes other arguments, two metrics share a name, or a condition is
            unknown or circular.
    """
    by_name: dict[str, Metric] = {}
    for metric in [copy for spec in suite.metrics for copy in _expand_graders(spec, graders, source)]:
        if metric.name in by_name:
            raise ConfigurationError(
                f"{source}: two metrics are called '{metric.name}'; give one of them another `name`"
            )
        by_name[metric.name] = metric
    order = _topological_order(by_name, source)
    resolved: dict[str, ResolvedMetric] = {}
    for name in order:
        resolved[name] = _resolve_metric(by_name[name], suite, resolved, source)
    return [resolved[name] for name in order]


def _expand_graders(metric: Metric, graders: Sequence[str], source: str) -> list[Metric]:
    """Return a copy of the metric for each of its graders."""
    if metric.grader is not None and metric.grader not in graders:
        raise ConfigurationError(
            f"{source}: metric '{metric.name}': there is no grader '{metric.grader}'"
            f"{did_you_mean(metric.grader, graders, 'known')}"
        )
    if metric.rubric is None or metric.grader is not None or len(graders) < 2:
        return [metric]
    return [metric.model_copy(update={"name": f"{metric.name}@{label}", "grader": label}) for label in graders]


def _topological_order(metrics: Mapping[str, Metric], source: str) -> list[str]:
    """Return the names in dependency order, otherwise in the suite's order."""
    order: list[str] = []
    path: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise ConfigurationError(f"{source}: circular dependency between metrics: {circle}")
        path.append(name)
        for condition in metrics[name].when:
            if condition.metric not in metrics:
                near = did_you_mean(condition.metric, metrics, "known")
                raise ConfigurationError(
                    f"{source}: metric '{name}': `when` names an unknown metric '{condition.metric}'{near}"
                )
            visit(condition.metric)
        path.pop()
        order.append(name)

    for name in metrics:
        visit(name)
    return order


def _resolve_metric(metric: Metric, suite: Suite, earlier: Mapping[str, ResolvedMetric], source: str) -> ResolvedMetric:
    try:
        if metric.function is not None:
            function = find_function(metric.function, suite.functions)
            check_arguments(function, metric.arguments)
            level = _choose_level(metric, function.levels)
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
        raise ConfigurationError(f"{source}: metric '{metric.name}': {error}") from None
    stage = 0
    for condition in metric.when:
        dependency = earlier[condition.metric]
        _check_levels(metric.name, level, dependency, condition, source)
        stage = max(stage, dependency.stage + (0 if dependency.by_function else 1))
    levels = tuple(earlier[condition.metric].level for condition in metric.when)
    return ResolvedMetric(metric.name, metric, level, stage, levels=levels, **parts)


def _choose_level(metric: Metric, allowed: Sequence[Level]) -> Level:
    if metric.level is None:
        return allowed[0]
    if metric.level not in allowed:
        raise ConfigurationError(f"its function takes a {' or a '.join(allowed)}, not a {metric.level}")
    return metric.level


def _check_levels(name: str, level: Level, dependency: ResolvedMetric, condition: Condition, source: str) -> None:
    if _DEPTH[dependency.level] > _DEPTH[level]:
        raise ConfigurationError(
            f"{source}: metric '{name}' is computed on each {level} and cannot depend on '{dependency.name}', which is "
            f"computed on each {dependency.level}: one {level} may have several; compute both on the same level"
        )


# By metric: {"values": [[unit, value]], "errors": [[unit, type, message, location]], "skipped": count}. Units are
# counted from 0 on the metric's level.
MetricRecords = dict[str, dict[str, Any]]
UnitValues = dict[str, dict[int, Any]]


def measure(
    dialog: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], all_: bool, earlier: MetricRecords
) -> MetricRecords:
    """Compute metrics on a dialog.

    Args:
        dialog: Record made by `Dialog.to_record`.
        metrics: Records made by `ResolvedMetric.to_record`.
        all_: Include messages from before this run.
        earlier: Values of metrics of earlier stages.
    """
    full_dialog = Dialog.from_record(dialog)
    records: MetricRecords = {}
    values = unit_values(earlier)
    shared: dict[bytes, list[Any]] = {}
    with _alarm_handler():
        for metric in metrics:
            records[metric["name"]] = record = _compute_metric(full_dialog, metric, all_, values, shared)
            values |= unit_values({metric["name"]: record})
    return records


def unit_values(records: MetricRecords) -> UnitValues:
    """Return the values by metric and unit."""
    return {name: dict(record["values"]) for name, record in records.items()}


def _compute_metric(
    dialog: Dialog, metric: Mapping[str, Any], all_: bool, earlier: UnitValues, shared: dict[bytes, list[Any]]
) -> dict[str, Any]:
    record: dict[str, Any] = {"values": [], "errors": [], "skipped": 0}
    conditions = [(level, Condition.model_validate(when)) for level, when in metric["when"]]
    function = load_function(metric["reference"])
    call_key = orjson.dumps([metric["reference"], metric["arguments"]], option=orjson.OPT_SORT_KEYS)
    level = metric["level"]
    for unit in select_units(dialog, level, metric["role"], all_):
        if not conditions_hold(dialog, unit, level, conditions, earlier):
            record["skipped"] += 1
            continue
        key = b"%b %b %d" % (call_key, level.encode(), unit.index)
        if key not in shared:  # two metrics may make the same call
            shared[key] = _call_function(
                function, _function_argument(unit, metric["takes"]), metric["arguments"], metric["seconds"]
            )
        value, error = shared[key]
        if error is None:
            record["values"].append([unit.index, value])
        else:
            record["errors"].append([unit.index, error["type"], error["message"][:2000], error["at"]])
    return record


def select_units(dialog: Dialog, level: Level, role: str | None, all_: bool) -> Iterator[Unit]:
    """Yield the units for a metric; without `all_`, only conversations and units that are new in this run."""
    for unit in dialog.units(level):
        if (all_ or level == "conversation" or _is_new(dialog, unit)) and role in (None, unit.role):
            yield unit


def _is_new(dialog: Dialog, unit: Unit) -> bool:
    return dialog.messages[unit.message].new if isinstance(unit, ToolCall) else unit.new


def conditions_hold(
    dialog: Dialog, unit: Unit, level: Level, conditions: Sequence[tuple[Level, Condition]], values: UnitValues
) -> bool:
    """Return True if all conditions hold for a unit; a condition on a missing value does not hold."""
    for other_level, condition in conditions:
        index = _containing_index(dialog, unit, level, other_level) + condition.position
        value = values[condition.metric].get(index)
        if isinstance(value, dict):
            value = _condition_value(value, condition)
        if value is None or not condition.allow(value):
            return False
    return True


def _condition_value(value: Mapping[str, Any], condition: Condition) -> Any:
    """Return the value that a condition refers to: a function's value by name, or a rubric's score or choice."""
    if condition.value is not None:
        return value.get(condition.value)
    if "choice" in value:
        by_choice = any(isinstance(option, str) for option in (condition.equals, *(condition.among or ())))
        return value["choice"] if by_choice else value["score"]
    return next(iter(value.values()), None) if len(value) == 1 else None


def _containing_index(dialog: Dialog, unit: Unit, level: Level, other_level: Level) -> int:
    """Return the index of the unit on another level that contains this unit."""
    if other_level == level:
        return unit.index
    if other_level == "conversation":
        return 0
    if isinstance(unit, ToolCall):
        message = dialog.messages[unit.message]
        return message.index if other_level == "message" else message.turn if message.turn is not None else -1
    return unit.turn if isinstance(unit, Message) and unit.turn is not None else -1


def _function_argument(unit: Unit, takes: str) -> Any:
    if takes == "unit":
        return unit
    if takes == "text":
        return unit.text
    messages = unit.messages if isinstance(unit, Dialog | Turn) else (unit,)
    return [
        {"role": message.role, "content": message.text, **({"name": message.name} if message.name else {})}
        for message in messages
    ]


def _call_function(
    function: Callable[..., Any], argument: Any, arguments: Mapping[str, Any], seconds: float
) -> list[Any]:
    """Call a metric function; return `[value, None]` or `[None, error]`."""
    try:
        with _time_limit(seconds):
            value = function(argument, **arguments)
        if hasattr(value, "__await__"):
            kind, data = result_of_call(lambda: value, ())  # a hanging step is killed
            if kind != COMPUTED:
                return [None, orjson.loads(data)]
            value = orjson.loads(data)
    except BaseException as error:  # SystemExit too: a metric cannot end the process
        return [None, orjson.loads(result_of_error(error, function)[1])]
    try:
        return [normalize_value(value), None]
    except (TypeError, ValueError, RecursionError) as error:
        return [None, orjson.loads(failure_result(type(error).__name__, str(error), definition_site(function))[1])]


_VALUE_NAMES = ("name", "metric", "role")  # keys of a value's name in a list of values


def normalize_value(value: Any) -> Any:
    """Return a function's value in its recorded form; a list of `{name, value}` becomes a dict.

    Raises:
        TypeError: The value is not a number, boolean, text, None, or flat dict of these.
        ValueError: A number is not finite, or a text is too long.
    """
    if value is None or isinstance(value, bool) or (type(value) is float and math.isfinite(value)):
        return value  # fast path for most values
    if isinstance(value, list | tuple) and all(map(_is_named_value, value)):
        value = {str(next(entry[key] for key in _VALUE_NAMES if key in entry)): entry["value"] for entry in value}
    is_dict = isinstance(value, dict)
    value = {str(key): _plain_value(part) for key, part in value.items()} if is_dict else _plain_value(value)
    to_json_bytes(value)  # rejects numbers that are not finite and texts that are too long
    return value


def _is_named_value(entry: Any) -> bool:
    return isinstance(entry, dict) and "value" in entry and any(key in entry for key in _VALUE_NAMES)


def _plain_value(value: Any) -> Any:
    """Return a number, boolean, text or None, converting numpy scalars."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise TypeError(
            f"returned a {type(value).__name__}; return a number, a boolean, text, None, or a dict of these"
        )
    return value


@contextmanager
def _alarm_handler() -> Iterator[None]:
    """Make the alarm signal raise TimeoutError; only possible in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError("no result within its time limit (`seconds`)")

    previous = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt Python code after `seconds` seconds. Other code is killed later, with its process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
