"""Tools: the functions that a request offers, and the calls that a model makes.

Specifications have the OpenAI form; `ToolCall.arguments` is the model's own text, which may be anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from .errors import ConfigurationError, MalformedOutput
from .json_data import strip_surrogate_escapes


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
_DIGEST_BYTES = 16
_MAX_SHOWN = 80


@dataclass(slots=True, frozen=True)
class ToolCall:
    """A call by a model.

    `id` is the endpoint's, else `call-N`, with N counting the calls of the answer from 1; `arguments` is the text
    exactly as sent: usually JSON, possibly malformed or empty.
    """

    id: str
    name: str
    arguments: str

    def parsed(self) -> dict[str, Any]:
        """Return the arguments as an object; integers stay exact, and the last value of a repeated key counts.

        Raises:
            MalformedOutput: The arguments are not a JSON object (an empty text is none).
        """
        try:
            value = _DECODER.decode(strip_surrogate_escapes(self.arguments))
        except (ValueError, RecursionError) as error:
            raise MalformedOutput(
                f"the arguments of {self.name} are not JSON ({error}): {self._short_arguments}"
            ) from None
        if not isinstance(value, dict):
            raise MalformedOutput(f"the arguments of {self.name} are not a JSON object: {self._short_arguments}")
        return value

    def as_object(self) -> dict[str, Any]:
        """Return the arguments for an API that accepts only an object; anything else is wrapped as text."""
        try:
            return self.parsed()
        except MalformedOutput:
            return {"arguments": self.arguments} if self.arguments else {}

    def to_record(self) -> list[str]:
        """Return `[id, name, arguments]`, as stored in the journal."""
        return [self.id, self.name, self.arguments]

    def to_openai(self) -> dict[str, Any]:
        """Return the call in the form of an assistant's message in OpenAI's API."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    @classmethod
    def from_record(cls, record: Sequence[str]) -> ToolCall:
        """Restore what `to_record` returned; raise `ValueError` if it is no such record."""
        id_, name, arguments = record
        if not (isinstance(id_, str) and isinstance(name, str) and isinstance(arguments, str)):
            raise ValueError("a call's record has something other than texts")
        return cls(id_, name, arguments)

    @property
    def _short_arguments(self) -> str:
        return repr(self.arguments if len(self.arguments) <= _MAX_SHOWN else self.arguments[:_MAX_SHOWN] + "…")


class Toolbox:
    """Tools offered in a request. Created once and shared by many requests; immutable.

    `specs` are in OpenAI's form, in the order given; `names` are their functions' names; `digest` is 16 bytes that
    identify all specifications, including the order of tools and of their properties, because models see that order;
    `characters` is their length as JSON. `required` demands a call; `single` allows at most one.
    """

    __slots__ = ("_functions", "characters", "digest", "names", "required", "single", "specs")

    def __init__(self, specs: Sequence[Mapping[str, Any]], *, required: bool = False, single: bool = False) -> None:
        """Check and copy the tools.

        Args:
            specs: `{"type": "function", "function": {"name", "description", "parameters"}}`, or the inner object.
            required: The answer must be a call.
            single: At most one call.

        Raises:
            ConfigurationError: A tool has another form, or a name is repeated; the message has index and field.
        """
        self.specs: list[dict[str, Any]] = [_spec(index, spec) for index, spec in enumerate(specs)]
        self.names: list[str] = [spec["function"]["name"] for spec in self.specs]
        self._functions: dict[str, dict[str, Any]] = {}
        for index, (name, spec) in enumerate(zip(self.names, self.specs, strict=True)):
            if name in self._functions:
                raise _argument_error(index, "name", f"'{name}' is offered twice; remove one")
            self._functions[name] = spec["function"]
        if not self.specs:
            raise ConfigurationError("tools: the list is empty; give at least one function, or no tools at all")
        data = orjson.dumps(self.specs)
        self.characters = len(data)
        self.required, self.single = required, single
        if required or single:  # otherwise the digest is as in earlier versions
            data += b"%d%d" % (required, single)
        self.digest: bytes = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()

    def parameters(self, name: str) -> Mapping[str, Any] | None:
        """Return the JSON schema of a function's arguments; None if there is no such function, or it has no schema."""
        function = self._functions.get(name)
        return None if function is None else function.get("parameters")

    def __len__(self) -> int:
        return len(self.specs)


def argument_text(value: Any) -> str:
    """Return arguments as an endpoint sent them: text as is, nothing as "", anything else as compact JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


def number_calls(calls: Iterable[tuple[str, str, str]]) -> list[ToolCall]:
    """Return calls from (id, name, arguments) in the order of the answer.

    An id that is empty or repeated becomes `call-N`, because results name the call that they answer.
    """
    result: list[ToolCall] = []
    ids: set[str] = set()
    number = 0
    for index, (id_, name, text) in enumerate(calls, 1):
        while not id_ or id_ in ids:
            number = max(number + 1, index)
            id_ = f"call-{number}"
        ids.add(id_)
        result.append(ToolCall(id_, name, text))
    return result


def _spec(index: int, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise ConfigurationError(f"tools[{index}]: expected an object, found {tool!r}")
    is_bare = "function" not in tool
    if not is_bare and tool.get("type", "function") != "function":
        raise _argument_error(index, "type", f"expected 'function', found {tool['type']!r}")
    function = tool if is_bare else tool["function"]
    if not isinstance(function, Mapping):
        raise _argument_error(index, "function", f"expected an object, found {function!r}")
    prefix = "" if is_bare else "function."
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _argument_error(index, f"{prefix}name", f"expected the function's name, found {name!r}")
    if not isinstance(function.get("description", ""), str):
        raise _argument_error(index, f"{prefix}description", f"expected text, found {function['description']!r}")
    parameters = function.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise _argument_error(index, f"{prefix}parameters", f"expected a JSON schema, found {parameters!r}")
    if parameters.get("type", "object") != "object":
        raise _argument_error(index, f"{prefix}parameters.type", f"expected 'object', found {parameters['type']!r}")
    if not isinstance(parameters.get("properties", {}), Mapping):
        raise _argument_error(
            index, f"{prefix}parameters.properties", f"expected an object, found {parameters['properties']!r}"
        )
    required = parameters.get("required")
    if required is not None and not (isinstance(required, list) and all(isinstance(name_, str) for name_ in required)):
        raise _argument_error(index, f"{prefix}parameters.required", f"expected a list of names, found {required!r}")
    try:
        copy: dict[str, Any] = orjson.loads(orjson.dumps(function))  # a private copy
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"tools[{index}]: cannot be written as JSON: {error}") from None
    return {"type": "function", "function": copy}


def _argument_error(index: int, field: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"tools[{index}].{field}: {problem}")
