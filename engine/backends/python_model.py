"""A model in a Python file: `python:mine.py`, or `python:mine.py#Name` if the file has several.

The file defines a subclass of `Backend`, created without arguments, or a function (`python:mine.py#answer`) that takes
the messages as a list of dicts with `role` and `content` and returns the answer.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from ..clock import Clock
from ..computation import StepExecutor
from ..errors import ConfigurationError, Rejected, TimedOut, VivaError, did_you_mean, user_frame
from ..imports import import_file
from ..messages import Completion, Request
from ..steps import COMPUTED, timeout_result
from .base import Backend, ModelSpec
from .endpoint_answer import estimate_missing_counts


class FunctionBackend(Backend):
    """A function as a backend.

    A coroutine function is awaited in the event loop; any other runs in a thread, at most 40 at once. `timeout` is in
    seconds; a thread that takes longer keeps running, and its result is ignored.
    """

    def __init__(self, function: Callable[..., Any], timeout: float, clock: Clock) -> None:
        self._function, self._timeout, self._clock = function, timeout, clock
        self._computer = StepExecutor(clock)

    async def __aexit__(self, *exc: object) -> None:
        self._computer.close()

    async def generate(self, request: Request) -> Completion:
        """Call the function. Its exceptions become `Rejected`; a timeout becomes `TimedOut`."""
        began = self._clock.now()
        messages = [message.to_openai() for message in request.messages]
        outcome, data = await self._computer.run(self._function, (messages,), self._timeout)
        value = orjson.loads(data)
        name = getattr(self._function, "__name__", type(self._function).__name__)
        if outcome != COMPUTED:
            problem = f"{name}: {value['type']}: {value['message']} (at {value['at']})"
            late = (outcome, data) == timeout_result(self._function, self._timeout)
            raise (TimedOut if late else Rejected)(problem, model=self.label)
        if not isinstance(value, str):
            raise Rejected(f"{name} returned {type(value).__name__}; a model's answer is text", model=self.label)
        completion = Completion(value, latency=self._clock.now() - began)
        estimate_missing_counts(completion, request)
        return completion


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build the backend that the file defines."""
    module = import_file(Path(spec.where))
    named = getattr(module, spec.fragment, None) if spec.fragment else None
    if callable(named) and not inspect.isclass(named):
        return _function_backend(named, spec, clock)
    kinds = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Backend) and value.__module__ == module.__name__
    }
    functions = [name for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"
                 and value.__module__ == module.__name__]  # fmt: skip
    if spec.fragment and not hasattr(module, spec.fragment):
        near = did_you_mean(spec.fragment, [*kinds, *functions], "it has")
        raise ConfigurationError(f"model '{spec.text}': {spec.where} has no '{spec.fragment}'{near}")
    names = [spec.fragment] if spec.fragment else list(kinds)
    if len(names) != 1 or names[0] not in kinds:
        kinds_text = ", ".join(kinds) or "none"
        also = f", and the function{'s' * (len(functions) > 1)} {', '.join(functions)}" if functions else ""
        raise ConfigurationError(
            f"model '{spec.text}': expected a subclass of viva.Backend in {spec.where}, named by #NAME if there are "
            f"several, or a function of the messages, named by #NAME; found {kinds_text}{also}"
        )
    kind = kinds[names[0]]
    if inspect.isabstract(kind):
        raise ConfigurationError(f"model '{spec.text}': {kind.__name__} lacks `async def generate(self, request)`")
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise ConfigurationError(f"model '{spec.text}': {kind.__name__} is made without arguments: {error}") from None
    try:
        return kind()
    except VivaError:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error} (at {user_frame(error)})"
        raise ConfigurationError(f"model '{spec.text}': creating {kind.__name__} raised {message}") from error


def _function_backend(function: Callable[..., Any], spec: ModelSpec, clock: Clock) -> Backend:
    try:
        inspect.signature(function).bind([])
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"model '{spec.text}': {spec.fragment} is called with only the list of messages: {error}"
        ) from None
    return FunctionBackend(function, spec.number("timeout", 120.0, 0.001, threading.TIMEOUT_MAX, "seconds"), clock)
