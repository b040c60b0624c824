"""A recorded step that is no model call: its identity, its result, and their representation in the journal.

A step is stored in the journal's table of calls under the role `compute:NAME`; its text is the result's JSON. Results
and failures are plain JSON data, so that a replayed step returns exactly what the first one returned. Threads, worker
processes and time limits are in `computation`; this module is imported by worker processes and stays light.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from .errors import ConfigurationError, error_text, replace_surrogates, user_frame
from .messages import Completion

STEP_PREFIX = "compute:"  # roles are names of settings, without colons
COMPUTED, RAISED = "computed", "raised"
Result = tuple[str, bytes]  # COMPUTED or RAISED, and the JSON of the value or the error

_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_MAX_BYTES = 64 * 2**20
_MAX_MESSAGE_CHARACTERS = 10_000  # of an error message


@dataclass(frozen=True, slots=True)
class Computed:
    """Result of a step: `value` as restored from JSON (tuples become lists), or `error`.

    `error` has the keys `type`, `message` and `at` (file, line and function); it is None if the step succeeded.
    """

    value: Any = None
    error: dict[str, str] | None = None

    @property
    def failed(self) -> bool:
        """True if the step failed."""
        return self.error is not None


def step_digest(name: str, arguments: Sequence[Any], key: Any = None) -> bytes:
    """Return 16 bytes that identify a step: its name, and its arguments or the `key` that replaces them.

    Raises:
        ConfigurationError: An argument, or the key, is not plain JSON data.
    """
    for number, argument in enumerate(arguments, 1) if key is None else ((0, key),):
        try:
            to_json_bytes(argument)
        except (TypeError, ValueError) as error:
            subject = f"argument {number} ({type(argument).__name__})" if number else "the key"
            remedy = "; give key=… (JSON data that identifies the arguments)" if number else ""
            raise ConfigurationError(f"step '{name}': {subject} is not JSON data: {error}{remedy}") from error
    data = orjson.dumps([name, list(arguments) if key is None else {"key": key}], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(data, digest_size=16).digest()


def to_json_bytes(value: Any) -> bytes:
    """Return the JSON of plain data: None, booleans, 64-bit integers, finite floats, strings, lists, tuples and dicts.

    Raises:
        TypeError: It contains something else.
        ValueError: It contains a number that is not finite, or its JSON is longer than 64 MiB.
    """
    data = orjson.dumps(value, option=_PLAIN)
    # orjson writes nan and infinities as null
    if b"null" in data and (path := _find_non_finite(value)) is not None:
        raise ValueError(f"a number that is not finite{path and f' at {path}'}")
    if len(data) > _MAX_BYTES:
        raise ValueError(f"{len(data)} bytes of JSON; at most {_MAX_BYTES} are recorded")
    return data


def _find_non_finite(value: Any, path: str = "") -> str | None:
    """Return the path of a number that is not finite; "" is the data itself; None if all are finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, part in parts:
        if (position := _find_non_finite(part, f"{path}[{name!r}]")) is not None:
            return position
    return None


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return True if a call returns a coroutine: `async def`, a partial of one, or an object with such a `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def result_of_call(function: Callable[..., Any], arguments: Sequence[Any]) -> Result:
    """Call a function now; nothing is raised. A coroutine that it returns runs in a new event loop."""
    try:
        value = function(*arguments)
        if inspect.iscoroutine(value):
            import asyncio

            value = asyncio.run(value)
    except BaseException as error:  # SystemExit too: a step cannot end the program
        return result_of_error(error, function)
    return result_of_value(value, function)


def result_of_value(value: Any, function: Callable[..., Any]) -> Result:
    """Return the result of a function that returned `value`."""
    try:
        return COMPUTED, to_json_bytes(value)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the result ({type(value).__name__}) is not JSON data: {error}"
        return failure_result(
            type(error).__name__.replace("JSONEncodeError", "TypeError"), message, definition_site(function)
        )


def result_of_error(error: BaseException, function: Callable[..., Any]) -> Result:
    """Return the result of a function that raised."""
    below = error.__traceback__ is not None and error.__traceback__.tb_next is not None
    return failure_result(
        type(error).__name__, error_text(error), user_frame(error) if below else definition_site(function)
    )


def timeout_result(function: Callable[..., Any], limit: float) -> Result:
    """Return the result of a step that exceeded its time limit, in seconds."""
    return failure_result("TimeoutError", f"no result after {limit:g} s", definition_site(function))


def failure_result(kind: str, message: str, at: str) -> Result:
    """Return the result of a failed step."""
    texts = {"type": kind, "message": message[:_MAX_MESSAGE_CHARACTERS], "at": at}
    plain = {name: replace_surrogates(text) for name, text in texts.items()}
    return RAISED, orjson.dumps(plain)


def definition_site(function: Callable[..., Any]) -> str:
    """Return `FILE:LINE in NAME` of a function's definition, or only its name if it has no Python code."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return name if code is None else f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


def computed_from_record(completion: Completion) -> Computed:
    """Restore a step's result from its row in the journal; raise `ValueError` if the row has no such result."""
    value = orjson.loads(completion.text)
    if completion.finish != RAISED:
        return Computed(value)
    if not (isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("type", "message", "at"))):
        raise ValueError("the record of a failed step has no type, message and at")
    return Computed(error=value)
