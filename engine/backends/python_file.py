"""A model that stands in a Python file: ``python:mine.py``, or ``python:mine.py#Name`` where the file has several.

The file defines a subclass of ``Backend``, which is made without arguments. What never belongs here: running the file.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from ..blame import place_of
from ..clock import Clock
from ..errors import ConfigurationError, VivaError
from ..pyfile import module_of
from .base import Backend, ModelSpec


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """The backend of the file.

    :raises ConfigurationError: the file cannot be run, or has no such class, or several.
    """
    module = module_of(Path(spec.where))
    kinds = {
        name: one
        for name, one in vars(module).items()
        if inspect.isclass(one) and issubclass(one, Backend) and one.__module__ == module.__name__
    }
    wanted = [spec.fragment] if spec.fragment else list(kinds)
    if len(wanted) != 1 or wanted[0] not in kinds:
        found = ", ".join(kinds) or "none"
        raise ConfigurationError(
            f"model '{spec.text}': expected a subclass of viva.Backend in {spec.where}, named by #NAME where there are "
            f"several; found {found}"
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
