"""A model that stands in a Python file: ``python:mine.py``, or ``python:mine.py#Name`` where the file has several.

The file defines a subclass of ``Backend``, which is made without arguments; or a function of the messages, which is
named: ``python:mine.py#answer``. What never belongs here: running the file.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..blame import place_of
from ..clock import Clock
from ..errors import ConfigurationError, VivaError
from ..pyfile import module_of
from .base import Backend, ModelSpec
from .python_function import FunctionBackend


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """The backend of the file.

    :raises ConfigurationError: the file cannot be run, or has no such class or function, or several classes.
    """
    module = module_of(Path(spec.where))
    named = getattr(module, spec.fragment, None) if spec.fragment else None
    if callable(named) and not inspect.isclass(named):
        return _function_backend(named, spec, clock)
    kinds = {
        name: one
        for name, one in vars(module).items()
        if inspect.isclass(one) and issubclass(one, Backend) and one.__module__ == module.__name__
    }
    wanted = [spec.fragment] if spec.fragment else list(kinds)
    if len(wanted) != 1 or wanted[0] not in kinds:
        functions = [name for name, one in vars(module).items() if inspect.isfunction(one) and name[0] != "_"
                     and one.__module__ == module.__name__]  # fmt: skip
        found = ", ".join(kinds) or "none"
        also = f", and the function{'s' * (len(functions) > 1)} {', '.join(functions)}" if functions else ""
        raise ConfigurationError(
            f"model '{spec.text}': expected a subclass of viva.Backend in {spec.where}, named by #NAME where there are "
            f"several, or a function of the messages named by #NAME; found {found}{also}"
        )
    kind = kinds[wanted[0]]
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
        said = f"{type(error).__name__}: {error} (at {place_of(error)})"
        raise ConfigurationError(f"model '{spec.text}': making {kind.__name__} raised {said}") from error


def _function_backend(function: Callable[..., Any], spec: ModelSpec, clock: Clock) -> Backend:
    try:
        inspect.signature(function).bind([])
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"model '{spec.text}': {spec.fragment} is called with the list of messages alone: {error}"
        ) from None
    return FunctionBackend(function, spec.number("timeout", 120.0, 0.001, threading.TIMEOUT_MAX, "seconds"), clock)
