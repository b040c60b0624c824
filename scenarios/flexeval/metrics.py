"""Metrics of a suite: found by name, ordered by their dependencies, computed in a worker process.

The annotation of a function's first argument says on which level it is computed. All function metrics of a stage
are computed at once for one dialog; a failure is that metric's own.
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
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.imports import check_defined_here, import_by_name, import_file
from viva.engine.permissions import NotPermitted
from viva.engine.steps import COMPUTED, definition_site, failure_result, result_of_call, result_of_error, to_json_bytes

from .builtin_metrics import BUILTIN, VERSIONS
from .dialog import LEVEL_OF, LEVELS, Dialog, Level, Message, ToolCall, Turn, Unit
from .spec import Condition, Metric, Suite

Function = Callable[..., Any]
# What the first argument may be, besides the classes of ``units``: the unit's text, or its messages in OpenAI's form.
_TAKES_TEXT, _TAKES_MESSAGES = "text", "messages"


@dataclass(frozen=True, slots=True)
class MetricFunction:
    """A function of a metric. ``reference`` finds it again: ``NAME`` of a built-in one, ``FILE.py#NAME`` or
    ``module:NAME``. ``levels``: those that its annotation allows; ``takes``: unit, text or messages. ``digest`` changes
    with the code of its file; a built-in one's is its version.
    """

    reference: str
    levels: tuple[Level, ...]
    takes: str
    digest: str


def load_function(reference: str) -> Function:
    """The function of a reference.

    :raises ConfigurationError: there is none, or nobody has granted its module or file.
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
        raise ConfigurationError(f"function '{reference}': {problem}; functions there: {names}")
    check_defined_here(holder, function, name)
    return function  # type: ignore[no-any-return]


def _attribute(holder: Any, name: str) -> Any:
    """What a module has under a name; None without it, also where the module's own look-up fails."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _describe_non_function(value: Any) -> str:
    """What a value is that cannot be a metric; empty for a function."""
    if isinstance(value, type):
        return "a class"
    try:
        if inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value):
            return "a generator"
        routine = inspect.isroutine(value)
    except Exception:  # it answers for its attributes itself
        routine = False
    return "" if routine else f"an object of type {type(value).__name__}"


def find_function(name: str, files: Sequence[str]) -> MetricFunction:
    """The function that a metric names: with its file or module, or in one of the suite's files, or built in.

    :raises ConfigurationError: there is none.
    """
    reference = name
    if "#" not in name and ":" not in name:
        holders = [file for file in files if callable(_attribute(import_file(Path(file)), name))]
        if len(holders) > 1:
            raise ConfigurationError(f"function '{name}' stands in {' and '.join(holders)}; write FILE.py#{name}")
        if holders:
            reference = f"{holders[0]}#{name}"
        elif name not in BUILTIN:
            raise _unknown_function(name, files)
    function = load_function(reference)
    levels, takes = _levels_and_kind(function, reference)
    return MetricFunction(reference, levels, takes, _source_digest(reference, function))


def _unknown_function(name: str, files: Sequence[str]) -> ConfigurationError:
    own = [function_name for file in files for function_name in _own_functions(import_file(Path(file)))]
    similar = get_close_matches(name, [*own, *BUILTIN], 1)
    hint = f"; did you mean '{similar[0]}'?" if similar else ""
    own_text = f"in the suite's files: {', '.join(own) or 'none'}; " if files else ""
    return ConfigurationError(f"there is no function '{name}'{hint} {own_text}built in: {', '.join(BUILTIN)}")


def _own_functions(holder: Any) -> list[str]:
    """The functions that a module defines itself."""
    return [
        name
        for name, value in vars(holder).items()
        if inspect.isfunction(value) and value.__module__ == holder.__name__
    ]


def check_arguments(function: MetricFunction, arguments: Mapping[str, Any]) -> None:
    """See that a function takes these arguments besides the unit.

    :raises ConfigurationError: it does not; the message names which.
    """
    try:
        signature = inspect.signature(load_function(function.reference))
    except (TypeError, ValueError):  # of C: it says so when it is called
        return
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        problem = str(error).replace("a required argument", "the required argument")
        raise ConfigurationError(f"function '{function.reference}' takes {signature}: {problem}") from None


def _levels_and_kind(function: Function, reference: str) -> tuple[tuple[Level, ...], str]:
    """The levels and the kind of a function's first argument."""
    try:
        inspect.unwrap(function)  # which sees a circle, where ``get_type_hints`` does not end
        hints = get_type_hints(function)
        names = list(inspect.signature(function).parameters)
    except Exception as error:  # annotations are evaluated
        raise ConfigurationError(f"function '{reference}': its annotations cannot be read: {error}") from None
    if not names:
        raise ConfigurationError(f"function '{reference}': takes nothing; its first argument is what it measures")
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
        f"function '{reference}': its first argument is a {getattr(hint, '__name__', hint)}; take str, list (of "
        "messages), or Dialog, Turn, Message or ToolCall of viva.suite"
    )


_FILE_DIGEST = re.compile(r"[0-9a-f]{16}")  # of a built-in function's file, which said nothing of the function


def _source_digest(reference: str, function: Function) -> str:
    if reference in BUILTIN:
        return f"version {VERSIONS.get(reference, 1)}"
    try:
        file = reference.partition("#")[0] if "#" in reference else inspect.getsourcefile(inspect.unwrap(function))
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):  # of C: it has no file
        return ""


def adopt_digests(metrics: Sequence[dict[str, Any]], recorded: Sequence[Mapping[str, Any]]) -> None:
    """Let built-in functions of version 1 keep the digests that earlier versions of this program recorded for them."""
    earlier = {record["name"]: record for record in recorded}
    for metric in metrics:
        previous = earlier.get(metric["name"], metric)
        is_same = metric["reference"] in BUILTIN and previous["reference"] == metric["reference"]
        if is_same and metric["digest"] == "version 1" and _FILE_DIGEST.fullmatch(previous["digest"]):
            metric["digest"] = previous["digest"]


_DEPTH = {level: depth for depth, level in enumerate(LEVELS)}  # a unit lies within one of each level above it


@dataclass(frozen=True, slots=True)
class ResolvedMetric:
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
    def from_manifest(cls, record: Mapping[str, Any]) -> ResolvedMetric:
        """The metric of a record that ``to_manifest`` made; its function is not looked for."""
        fields = {key: value for key, value in record.items() if key not in ("metric", "levels")}
        return cls(spec=Metric.model_validate(record["metric"]), levels=tuple(record["levels"]), **fields)

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
            "when": [[level, condition.model_dump(exclude_none=True)] for level, condition in self.conditions],
        }


def resolve_metrics(suite: Suite, graders: Sequence[str] = (), source: str = "suite") -> list[ResolvedMetric]:
    """The metrics of a suite in an order in which they can be computed. A rubric that several graders grade is a metric
    for each of them, ``NAME@GRADER``. ``where`` names the suite in errors.

    :raises ConfigurationError: a function is not there or takes other arguments, two metrics have one name, a
        condition names none, or conditions go round in a circle.
    """
    by_name: dict[str, Metric] = {}
    for metric in [copy for spec in suite.metrics for copy in _expand_graders(spec, graders, source)]:
        if metric.name in by_name:
            raise ConfigurationError(
                f"{source}: two metrics are called '{metric.name}'; give one of them a `name` of its own"
            )
        by_name[metric.name] = metric
    order = _topological_order(by_name, source)
    resolved: dict[str, ResolvedMetric] = {}
    for name in order:
        resolved[name] = _resolve_metric(by_name[name], suite, resolved, source)
    return [resolved[name] for name in order]


def _expand_graders(metric: Metric, graders: Sequence[str], source: str) -> list[Metric]:
    """A metric once for each of its graders."""
    if metric.grader is not None and metric.grader not in graders:
        raise ConfigurationError(
            f"{source}: metric '{metric.name}': there is no grader '{metric.grader}'; known: "
            f"{', '.join(graders) or 'none'}"
        )
    if metric.rubric is None or metric.grader is not None or len(graders) < 2:
        return [metric]
    return [metric.model_copy(update={"name": f"{metric.name}@{label}", "grader": label}) for label in graders]


def _topological_order(metrics: Mapping[str, Metric], source: str) -> list[str]:
    """The names, each behind those that it depends on; otherwise as they stand in the suite."""
    order: list[str] = []
    path: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise ConfigurationError(f"{source}: metrics depend on each other in a circle: {circle}")
        path.append(name)
        for condition in metrics[name].when:
            if condition.metric not in metrics:
                names = ", ".join(metrics)
                raise ConfigurationError(
                    f"{source}: metric '{name}': `when` names the metric '{condition.metric}', which is not there; "
                    f"there are: {names}"
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
    return ResolvedMetric(
        metric.name,
        metric,
        level,
        stage,
        levels=tuple(earlier[condition.metric].level for condition in metric.when),
        **parts,
    )


def _choose_level(metric: Metric, allowed: Sequence[Level]) -> Level:
    if metric.level is None:
        return allowed[0]
    if metric.level not in allowed:
        raise ConfigurationError(f"its function measures a {' or a '.join(allowed)}, not a {metric.level}")
    return metric.level


def _check_levels(name: str, level: Level, dependency: ResolvedMetric, condition: Condition, source: str) -> None:
    if _DEPTH[dependency.level] > _DEPTH[level]:
        raise ConfigurationError(
            f"{source}: metric '{name}' is computed on each {level} and cannot depend on '{dependency.name}', which is "
            f"computed on each {dependency.level}: one {level} may have several; compute both on the same level"
        )


# By metric, what each of its units has: {"values": [[unit, value]], "errors": [[unit, type, message, place]],
# "skipped": count}. Units are counted from 0 on the metric's level.
MetricRecords = dict[str, dict[str, Any]]
UnitValues = dict[str, dict[int, Any]]


def measure(
    dialog: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], all_: bool, earlier: MetricRecords
) -> MetricRecords:
    """The values of metrics (``Measured.to_record``) on a dialog (``Dialog.to_record``).

    :param all_: whether also of what was said before this run.
    :param known: what metrics of earlier stages have given.
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
    """The values by metric and unit."""
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
        if key not in shared:  # another metric may ask the same of it
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
    """What a metric is computed on. Where not ``all_``, a conversation counts whole, and of the rest what is new."""
    for unit in dialog.units(level):
        if (all_ or level == "conversation" or _is_new(dialog, unit)) and role in (None, unit.role):
            yield unit


def _is_new(dialog: Dialog, unit: Unit) -> bool:
    return dialog.messages[unit.message].new if isinstance(unit, ToolCall) else unit.new


def conditions_hold(
    dialog: Dialog,
    unit: Unit,
    level: Level,
    conditions: Sequence[tuple[Level, Condition]],
    values_by_metric: UnitValues,
) -> bool:
    """Whether all conditions, each with the level of its metric, hold for a unit of ``level``. Where the other metric
    has no value, its condition does not.
    """
    for other_level, condition in conditions:
        value = values_by_metric[condition.metric].get(
            _containing_index(dialog, unit, level, other_level) + condition.position
        )
        if isinstance(value, dict):
            value = _condition_value(value, condition)
        if value is None or not condition.allow(value):
            return False
    return True


def _condition_value(value: Mapping[str, Any], condition: Condition) -> Any:
    """The value that a condition means, of a function's several or a rubric's score and choice."""
    if condition.value is not None:
        return value.get(condition.value)
    if "choice" in value:
        by_choice = isinstance(condition.equals, str) or any(
            isinstance(option, str) for option in condition.among or ()
        )
        return value["choice"] if by_choice else value["score"]
    return next(iter(value.values()), None) if len(value) == 1 else None


def _containing_index(dialog: Dialog, unit: Unit, level: Level, other_level: Level) -> int:
    """The index, on another level, of what holds a unit."""
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
    return [{"role": message.role, "content": message.text} for message in messages]


def _call_function(
    function: Callable[..., Any], argument: Any, arguments: Mapping[str, Any], seconds: float
) -> list[Any]:
    """``[value, None]`` or ``[None, error]``."""
    try:
        with _time_limit(seconds):
            value = function(argument, **arguments)
        if hasattr(value, "__await__"):
            kind, data = result_of_call(lambda: value, ())  # a whole step that hangs is killed
            if kind != COMPUTED:
                return [None, orjson.loads(data)]
            value = orjson.loads(data)
    except BaseException as error:  # SystemExit too: a metric cannot end the process
        return [None, orjson.loads(result_of_error(error, function)[1])]
    try:
        return [normalize_value(value), None]
    except (TypeError, ValueError, RecursionError) as error:
        return [None, orjson.loads(failure_result(type(error).__name__, str(error), definition_site(function))[1])]


def normalize_value(value: Any) -> Any:
    """A function's value as it is recorded: a list of ``{name, value}`` is several values by name.

    :raises TypeError: it is neither a number, truth value, text, None, nor a flat dict of these.
    :raises ValueError: a number is not finite, or a text without end.
    """
    if value is None or isinstance(value, bool) or (type(value) is float and math.isfinite(value)):
        return value  # most values by far
    if isinstance(value, list | tuple) and value and all(isinstance(entry, dict) and {"name", "value"} <= entry.keys()
                                                          for entry in value):  # fmt: skip
        value = {str(entry["name"]): entry["value"] for entry in value}
    value = (
        {str(key): _plain_value(part) for key, part in value.items()}
        if isinstance(value, dict)
        else _plain_value(value)
    )
    to_json_bytes(value)  # numbers that are not finite, texts without end
    return value


def _plain_value(value: Any) -> Any:
    """A number, truth value, text or None, numpy's made Python's."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise TypeError(
            f"returned a {type(value).__name__}; return a number, a truth value, a text, None, or a dict of these"
        )
    return value


@contextmanager
def _alarm_handler() -> Iterator[None]:
    """Have the alarm raise in Python code, where that can be: in the main thread."""
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
    """Interrupt Python code that takes longer. Code that cannot be interrupted is killed with its process later."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
