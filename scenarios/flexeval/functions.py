"""Functions of metrics: found by name, and on what level each is computed, by the annotation of its first argument.

A reference is plain text, so that a manifest can hold it and a worker process can find the function again. What never
belongs here: calling them (``measuring``), and the functions that are built in (``builtin``).
"""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from viva.engine.errors import ConfigurationError
from viva.engine.permissions import NotPermitted
from viva.engine.pyfile import check_own, module_named, module_of

from .builtin import BUILTIN
from .units import LEVEL_OF, Level

Function = Callable[..., Any]
# What the first argument may be, besides the classes of ``units``: the unit's text, or its messages in OpenAI's form.
_TEXT, _MESSAGES = "text", "messages"


@dataclass(frozen=True, slots=True)
class Found:
    """A function of a metric. ``reference`` finds it again: ``NAME`` of a built-in one, ``FILE.py#NAME`` or
    ``module:NAME``. ``levels``: those that its annotation allows; ``takes``: unit, text or messages. ``digest`` changes
    with the code of its file.
    """

    reference: str
    levels: tuple[Level, ...]
    takes: str
    digest: str


def load(reference: str) -> Function:
    """The function of a reference.

    :raises ConfigurationError: there is none, or nobody has granted its module or file.
    """
    file, hash_, name = reference.partition("#")
    if hash_:
        holder = module_of(Path(file))
    elif ":" in reference:
        module, _, name = reference.partition(":")
        try:
            holder = module_named(module)
        except NotPermitted:
            raise
        except ConfigurationError as error:
            raise ConfigurationError(f"function '{reference}': {error}") from None
    else:
        if reference not in BUILTIN:
            raise ConfigurationError(f"there is no function '{reference}'; built in: {', '.join(BUILTIN)}")
        return BUILTIN[reference]
    function = _attribute(holder, name)
    if wrong := _wrong_kind(function):
        there = ", ".join(_defined(holder)) or "none"
        told = f"there is no function '{name}'" if function is None else f"'{name}' is {wrong}, not a function"
        raise ConfigurationError(f"function '{reference}': {told}; functions there: {there}")
    check_own(holder, function, name)
    return function  # type: ignore[no-any-return]


def _attribute(holder: Any, name: str) -> Any:
    """What a module has under a name; None without it, also where the module's own look-up fails."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _wrong_kind(value: Any) -> str:
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


def find(name: str, files: Sequence[str]) -> Found:
    """The function that a metric names: with its file or module, or in one of the suite's files, or built in.

    :raises ConfigurationError: there is none.
    """
    reference = name
    if "#" not in name and ":" not in name:
        holders = [file for file in files if callable(_attribute(module_of(Path(file)), name))]
        if len(holders) > 1:
            raise ConfigurationError(f"function '{name}' stands in {' and '.join(holders)}; write FILE.py#{name}")
        if holders:
            reference = f"{holders[0]}#{name}"
        elif name not in BUILTIN:
            raise _unknown(name, files)
    function = load(reference)
    levels, takes = _taken(function, reference)
    return Found(reference, levels, takes, _digest(reference, function))


def _unknown(name: str, files: Sequence[str]) -> ConfigurationError:
    own = [one for file in files for one in _defined(module_of(Path(file)))]
    alike = get_close_matches(name, [*own, *BUILTIN], 1)
    hint = f"; did you mean '{alike[0]}'?" if alike else ""
    there = f"in the suite's files: {', '.join(own) or 'none'}; " if files else ""
    return ConfigurationError(f"there is no function '{name}'{hint} {there}built in: {', '.join(BUILTIN)}")


def _defined(holder: Any) -> list[str]:
    """The functions that a module defines itself."""
    return [
        one for one, value in vars(holder).items() if inspect.isfunction(value) and value.__module__ == holder.__name__
    ]


def check_arguments(found: Found, arguments: Mapping[str, Any]) -> None:
    """See that a function takes these arguments besides the unit.

    :raises ConfigurationError: it does not; the message names which.
    """
    try:
        signature = inspect.signature(load(found.reference))
    except (TypeError, ValueError):  # of C: it says so when it is called
        return
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        told = str(error).replace("a required argument", "the required argument")
        raise ConfigurationError(f"function '{found.reference}' takes {signature}: {told}") from None


def _taken(function: Function, reference: str) -> tuple[tuple[Level, ...], str]:
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
        return ("turn", "message", "conversation", "tool_call"), _TEXT
    if hint is list or get_origin(hint) in (list, tuple, Sequence):
        return ("conversation", "turn", "message"), _MESSAGES
    raise ConfigurationError(
        f"function '{reference}': its first argument is a {getattr(hint, '__name__', hint)}; take str, list (of "
        "messages), or Dialog, Turn, Message or ToolCall of viva.suite"
    )


def _digest(reference: str, function: Function) -> str:
    try:
        file = reference.partition("#")[0] if "#" in reference else inspect.getsourcefile(inspect.unwrap(function))
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):  # of C: it has no file
        return ""
