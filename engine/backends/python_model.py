"""A model in a Python file: `python:mine.py`, or `python:mine.py#Name` if the file has several.

The file defines a subclass of `Backend`, created without arguments, or a function (`python:mine.py#answer`) that takes
the messages as a list of dicts with `role` and `content`, and the option `arguments` by name. It returns the answer: a
text, or a chat completion in OpenAI's form.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import partial
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
    """A function of the messages as a backend.

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
        inner = self._function.func if isinstance(self._function, partial) else self._function
        name = getattr(inner, "__name__", type(inner).__name__)
        if outcome != COMPUTED:
            problem = f"{name}: {value['type']}: {value['message']} (at {value['at']})"
            late = (outcome, data) == timeout_result(self._function, self._timeout)
            raise (TimedOut if late else Rejected)(problem, model=self.label)
        text = value if isinstance(value, str) else _completion_text(value)
        if text is None:
            kind = "an object that is no chat completion" if isinstance(value, dict) else type(value).__name__
            message = "a model's answer is text, or a chat completion in OpenAI's form"
            raise Rejected(f"{name} returned {kind}; {message}", model=self.label)
        completion = Completion(text, latency=self._clock.now() - began)
        if isinstance(value, dict):
            completion.prompt_tokens = _token_count(value, "prompt_tokens")
            completion.completion_tokens = _token_count(value, "completion_tokens")
        estimate_missing_counts(completion, request)
        return completion


def _completion_text(value: Any) -> str | None:
    """Return the text of the first choice of a chat completion in OpenAI's form; None for anything else."""
    try:
        text = value["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        return None
    return text if isinstance(text, str) else None


def _token_count(value: dict[str, Any], name: str) -> int:
    usage = value.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else 0


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
    arguments = _parse_arguments(spec)
    try:
        inspect.signature(function).bind([], **arguments)
    except (TypeError, ValueError) as error:
        names = f"the list of messages and {', '.join(arguments)}" if arguments else "only the list of messages"
        raise ConfigurationError(f"model '{spec.text}': {spec.fragment} is called with {names}: {error}") from None
    if arguments:
        function = partial(function, **arguments)
    return FunctionBackend(function, spec.number("timeout", 120.0, 0.001, threading.TIMEOUT_MAX, "seconds"), clock)


def _parse_arguments(spec: ModelSpec) -> dict[str, Any]:
    text = spec.take("arguments", "{}") or ""
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"model '{spec.text}': arguments: expected a JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise ConfigurationError(f"model '{spec.text}': arguments: expected a JSON object, found {text[:60]}")
    return arguments
