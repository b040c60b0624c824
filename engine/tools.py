"""Tools: the functions that a request offers, and the calls that a model asks for.

Specifications have the OpenAI form; ``ToolCall.arguments`` is the model's own text, which may be anything.
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
    """One call a model asked for.

    ``id`` is the endpoint's, else ``call-N``, N counting the calls of the answer from 1; ``arguments`` is the text
    exactly as it was sent: JSON as a rule, possibly malformed or empty.
    """

    id: str
    name: str
    arguments: str

    def parsed(self) -> dict[str, Any]:
        """The arguments as an object; integers stay exact, of a key that is given twice the last value counts.

        :raises MalformedOutput: they are not a JSON object (an empty text is none).
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
        """The arguments for an API that takes nothing but an object: what is none stands as a text within one."""
        try:
            return self.parsed()
        except MalformedOutput:
            return {"arguments": self.arguments} if self.arguments else {}

    def to_record(self) -> list[str]:
        """``[id, name, arguments]``, as the journal keeps it."""
        return [self.id, self.name, self.arguments]

    def to_openai(self) -> dict[str, Any]:
        """The call as it stands in an assistant's message in OpenAI's form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    @classmethod
    def from_record(cls, record: Sequence[str]) -> ToolCall:
        """The call of a record."""
        id_, name, arguments = record
        return cls(id_, name, arguments)

    @property
    def _short_arguments(self) -> str:
        return repr(self.arguments if len(self.arguments) <= _MAX_SHOWN else self.arguments[:_MAX_SHOWN] + "…")


class Toolbox:
    """Tools offered in a request. Made once and shared by many requests; not changed after it is made.

    ``specs`` are in OpenAI's form, in the order given; ``names`` are their functions' names; ``digest`` is 16 bytes
    that stand for all of it, the order of tools and of their properties included, for models see that order;
    ``characters`` is how long they are as JSON. ``required``: the answer must be a call; ``single``: at most one call.
    """

    __slots__ = ("_functions", "characters", "digest", "names", "required", "single", "specs")

    def __init__(self, specs: Sequence[Mapping[str, Any]], *, required: bool = False, single: bool = False) -> None:
        """``specs``: ``{"type": "function", "function": {"name", "description", "parameters"}}``, or the inner object.

        :raises ConfigurationError: one of them is not of that form, or a name comes twice; names index and field.
        """
        self.specs: list[dict[str, Any]] = [_spec(index, spec) for index, spec in enumerate(specs)]
        self.names: list[str] = [spec["function"]["name"] for spec in self.specs]
        self._functions: dict[str, dict[str, Any]] = {}
        for index, (name, spec) in enumerate(zip(self.names, self.specs, strict=True)):
            if name in self._functions:
                raise _argument_error(index, "name", f"'{name}' is offered twice; keep one of the two")
            self._functions[name] = spec["function"]
        if not self.specs:
            raise ConfigurationError("tools: the list is empty; name at least one function, or offer no tools at all")
        data = orjson.dumps(self.specs)
        self.characters = len(data)
        self.required, self.single = required, single
        if required or single:  # otherwise the digest is that of earlier versions
            data += b"%d%d" % (required, single)
        self.digest: bytes = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()

    def parameters(self, name: str) -> Mapping[str, Any] | None:
        """The JSON schema of a function's arguments; None if no function has this name, or it names no schema."""
        function = self._functions.get(name)
        return None if function is None else function.get("parameters")

    def __len__(self) -> int:
        return len(self.specs)


def argument_text(value: Any) -> str:
    """Arguments as an endpoint sent them: text as it is, nothing as "", anything else as its compact JSON text."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()


def number_calls(calls: Iterable[tuple[str, str, str]]) -> list[ToolCall]:
    """Return calls from (id, name, arguments) in the order of the answer. An id that is empty, or an earlier call's,
    becomes ``call-N``: results name the call that they answer.
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
    bare = "function" not in tool
    if not bare and tool.get("type", "function") != "function":
        raise _argument_error(index, "type", f"expected 'function', found {tool['type']!r}")
    function = tool if bare else tool["function"]
    if not isinstance(function, Mapping):
        raise _argument_error(index, "function", f"expected an object, found {function!r}")
    prefix = "" if bare else "function."
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
        copy: dict[str, Any] = orjson.loads(orjson.dumps(function))  # a copy that nobody else can change
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"tools[{index}]: cannot be written as JSON: {error}") from None
    return {"type": "function", "function": copy}


def _argument_error(index: int, field: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"tools[{index}].{field}: {problem}")
