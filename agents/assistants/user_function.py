"""Assistant that calls a user's function: `FILE.py#NAME?low=0&high=5`, run in its own process.

The function takes one dict (`Example.to_record`) and returns a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from viva.engine.conversation import Conversation
from viva.engine.errors import ConfigurationError
from viva.engine.imports import find_function, import_file

from .assistant import Assistant, Example, number_from_step

_OPTIONS = {"low": 0.0, "high": 1.0, "limit": 10.0}


@dataclass(frozen=True, kw_only=True)
class FunctionAssistant(Assistant):
    """A user's function. `limit`: seconds after which the process of an unfinished call is killed."""

    file: Path
    function: str
    limit: float

    @classmethod
    def from_name(cls, spec: str) -> FunctionAssistant:
        """Return the assistant for a name.

        Options: `low`, `high` (its range, default 0 and 1), `better` (high or low), `limit` (seconds, default 10),
        `compares` (in words, for the judge).

        Raises:
            ConfigurationError: An option is unknown or invalid.
        """
        head, _, query = spec.partition("?")
        file, _, function = head.partition("#")
        options = dict(parse_qsl(query, keep_blank_values=True))
        unknown = sorted(options.keys() - {*_OPTIONS, "better", "compares"})
        if unknown or not function.isidentifier():
            problem = f"unknown option {unknown[0]}" if unknown else "names no function"
            raise ConfigurationError(
                f"assistant '{spec}': {problem}; write FILE.py#NAME?low=0&high=1&better=high&limit=10"
            )
        numbers = {key: _number_option(spec, key, options.get(key), default) for key, default in _OPTIONS.items()}
        better = options.get("better", "high")
        if not numbers["low"] < numbers["high"] or numbers["limit"] <= 0:
            raise ConfigurationError(f"assistant '{spec}': expected low below high, and a limit above 0")
        if better not in ("high", "low"):
            raise ConfigurationError(f"assistant '{spec}': better={better}: expected high or low")
        return cls(
            name=function,
            spec=spec,
            title="a function",
            compares=options.get("compares", "a figure of the response"),
            low=numbers["low"],
            high=numbers["high"],
            better="high" if better == "high" else "low",
            file=Path(file),
            function=function,
            limit=numbers["limit"],
        )

    async def score(self, conversation: Conversation, example: Example) -> float:
        step = await conversation.compute(
            self.name, call, str(self.file), self.function, example.to_record(), limit=self.limit, where="process"
        )
        return number_from_step(step)

    def check(self) -> None:
        load_scoring_function(self.file, self.function)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"digest": hashlib.sha256(self.file.read_bytes()).hexdigest()[:16]}


def load_scoring_function(file: Path, name: str) -> Callable[[dict[str, Any]], Any]:
    """Return a function of a Python file."""
    function = find_function(import_file(file), name)
    if function is None:
        raise ConfigurationError(f"{file}: has no function '{name}'")
    return function


def call(file: str, name: str, example: dict[str, Any]) -> Any:
    """Call the function for an example, in the worker process, which runs the file only once."""
    return load_scoring_function(Path(file), name)(example)


def _number_option(spec: str, key: str, text: str | None, default: float) -> float:
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ConfigurationError(f"assistant '{spec}': {key}={text}: expected a number")
    return value
