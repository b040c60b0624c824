"""Computes function metrics of one dialog, in a worker process: all of a stage at once, each failure that metric's own.

The process may be killed; so whatever is here takes and gives plain JSON data. A function that raises, runs out of time
or returns what cannot be recorded gives an error in place of its value, and the rest goes on. What never belongs here:
rubrics, and adding values up.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from viva.engine.steps import COMPUTED, defined_at, encoded, failure, result_of_call, result_of_error

from .functions import load
from .spec import Condition
from .units import Dialog, Level, Message, ToolCall, Turn, Unit

# By metric, what each of its units has: {"values": [[unit, value]], "errors": [[unit, type, message, place]],
# "skipped": count}. Units are counted from 0 on the metric's level.
Found = dict[str, dict[str, Any]]
Values = dict[str, dict[int, Any]]


def measure(dialog: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], all_: bool, known: Found) -> Found:
    """The values of metrics (``Measured.to_record``) on a dialog (``Dialog.to_record``).

    :param all_: whether also of what was said before this run.
    :param known: what metrics of earlier stages have given.
    """
    whole = Dialog.from_record(dialog)
    found: Found = {}
    values = values_of(known)
    shared: dict[bytes, list[Any]] = {}
    with _alarm():
        for metric in metrics:
            found[metric["name"]] = one = _measured(whole, metric, all_, values, shared)
            values |= values_of({metric["name"]: one})
    return found


def values_of(found: Found) -> Values:
    """The values by metric and unit."""
    return {name: dict(one["values"]) for name, one in found.items()}


def _measured(
    dialog: Dialog, metric: Mapping[str, Any], all_: bool, known: Values, shared: dict[bytes, list[Any]]
) -> dict[str, Any]:
    one: dict[str, Any] = {"values": [], "errors": [], "skipped": 0}
    conditions = [(level, Condition.model_validate(when)) for level, when in metric["when"]]
    function = load(metric["reference"])
    same = orjson.dumps([metric["reference"], metric["arguments"]], option=orjson.OPT_SORT_KEYS)
    level = metric["level"]
    for unit in units_of(dialog, level, metric["role"], all_):
        if not holds(dialog, unit, level, conditions, known):
            one["skipped"] += 1
            continue
        key = b"%b %b %d" % (same, level.encode(), unit.index)
        if key not in shared:  # another metric may ask the same of it
            shared[key] = _value(function, _argument(unit, metric["takes"]), metric["arguments"], metric["seconds"])
        value, error = shared[key]
        if error is None:
            one["values"].append([unit.index, value])
        else:
            one["errors"].append([unit.index, error["type"], error["message"][:2000], error["at"]])
    return one


def units_of(dialog: Dialog, level: Level, role: str | None, all_: bool) -> Iterator[Unit]:
    """What a metric is computed on. Where not ``all_``, a conversation counts whole, and of the rest what is new."""
    for unit in dialog.units(level):
        if (all_ or level == "conversation" or _new(dialog, unit)) and role in (None, unit.role):
            yield unit


def _new(dialog: Dialog, unit: Unit) -> bool:
    return dialog.messages[unit.message].new if isinstance(unit, ToolCall) else unit.new


def holds(
    dialog: Dialog, unit: Unit, level: Level, conditions: Sequence[tuple[Level, Condition]], known: Values
) -> bool:
    """Whether all conditions, each with the level of its metric, hold for a unit of ``level``. Where the other metric
    has no value, its condition does not.
    """
    for other, condition in conditions:
        value = known[condition.metric].get(_place(dialog, unit, level, other) + condition.position)
        if isinstance(value, dict):
            value = _part(value, condition)
        if value is None or not condition.hold(value):
            return False
    return True


def _part(value: Mapping[str, Any], condition: Condition) -> Any:
    """The value that a condition means, of a function's several or a rubric's score and choice."""
    if condition.value is not None:
        return value.get(condition.value)
    if "choice" in value:
        by_choice = isinstance(condition.equals, str) or any(isinstance(one, str) for one in condition.among or ())
        return value["choice"] if by_choice else value["score"]
    return next(iter(value.values()), None) if len(value) == 1 else None


def _place(dialog: Dialog, unit: Unit, level: Level, other: Level) -> int:
    """The index, on another level, of what holds a unit."""
    if other == level:
        return unit.index
    if other == "conversation":
        return 0
    if isinstance(unit, ToolCall):
        message = dialog.messages[unit.message]
        return message.index if other == "message" else message.turn if message.turn is not None else -1
    return unit.turn if isinstance(unit, Message) and unit.turn is not None else -1


def _argument(unit: Unit, takes: str) -> Any:
    if takes == "unit":
        return unit
    if takes == "text":
        return unit.text
    messages = unit.messages if isinstance(unit, Dialog | Turn) else (unit,)
    return [{"role": one.role, "content": one.text} for one in messages]


def _value(function: Callable[..., Any], argument: Any, arguments: Mapping[str, Any], seconds: float) -> list[Any]:
    """``[value, None]`` or ``[None, error]``."""
    try:
        with _within(seconds):
            value = function(argument, **arguments)
        if hasattr(value, "__await__"):
            kind, data = result_of_call(lambda: value, ())  # a whole step that hangs is killed
            if kind != COMPUTED:
                return [None, orjson.loads(data)]
            value = orjson.loads(data)
    except BaseException as error:  # SystemExit too: a metric cannot end the process
        return [None, orjson.loads(result_of_error(error, function)[1])]
    try:
        return [named(value), None]
    except (TypeError, ValueError, RecursionError) as error:
        return [None, orjson.loads(failure(type(error).__name__, str(error), defined_at(function))[1])]


def named(value: Any) -> Any:
    """A function's value as it is recorded: a list of ``{name, value}`` is several values by name.

    :raises TypeError: it is neither a number, truth value, text, None, nor a flat dict of these.
    :raises ValueError: a number is not finite, or a text without end.
    """
    if value is None or isinstance(value, bool) or (type(value) is float and math.isfinite(value)):
        return value  # most values by far
    if isinstance(value, list | tuple) and value and all(isinstance(one, dict) and {"name", "value"} <= one.keys()
                                                          for one in value):  # fmt: skip
        value = {str(one["name"]): one["value"] for one in value}
    value = {str(key): _plain(one) for key, one in value.items()} if isinstance(value, dict) else _plain(value)
    encoded(value)  # numbers that are not finite, texts without end
    return value


def _plain(value: Any) -> Any:
    """A number, truth value, text or None, numpy's made Python's."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise TypeError(
            f"returned a {type(value).__name__}; return a number, a truth value, a text, None, or a dict of these"
        )
    return value


@contextmanager
def _alarm() -> Iterator[None]:
    """Have the alarm raise in Python code, where that can be: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError("no result within its time limit (`seconds`)")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Interrupt Python code that takes longer. Code that cannot be interrupted is killed with its process later."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
