"""Single keywords of a JSON schema: reading and checking their values, and writing fixed values as text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ....errors import ConfigurationError

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
ANNOTATIONS |= {"$comment", "$schema", "$defs", "definitions"}
KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_MAX_INTEGERS = 1000  # of a range, which is expanded into fixed values


def untyped_problem(schema: Mapping[str, Any]) -> str:
    """What is wrong with a schema without a type."""
    keywords = sorted(schema.keys() - ANNOTATIONS - {"type"})
    if not keywords:
        return "a part without 'type' allows anything; give its type"
    typed = keywords[0] in frozenset().union(*KEYWORDS.values())
    return f"keyword '{keywords[0]}' {'needs a type beside it' if typed else 'is not supported'}"


def known_type(kind: Any) -> str:
    """:raises ConfigurationError: it is not the name of a type."""
    if not isinstance(kind, str) or kind not in KEYWORDS:
        raise ConfigurationError(f"JSON schema: type {kind!r} is not supported")
    return kind


def refuse_unknown(schema: Mapping[str, Any], known: frozenset[str], kind: str) -> None:
    """:raises ConfigurationError: the schema has a keyword that is not ``known``; ``kind`` says of which type."""
    unknown = schema.keys() - ANNOTATIONS - {"type"} - known
    if unknown:
        raise ConfigurationError(f"JSON schema: keyword '{min(unknown)}' of {kind} is not supported")


def nonempty_list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """:raises ConfigurationError: the keyword's value is not a list, or is empty."""
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise ConfigurationError(f"JSON schema: {keyword} must be a list that is not empty, found {values!r}")
    return values


def length_bounds(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    """The lower and upper bound of a length; None for no upper one.

    :raises ConfigurationError: a bound is no count, or they exclude every length.
    """
    for keyword in schema.keys() & {low, high}:
        if type(schema[keyword]) is not int or schema[keyword] < 0:
            raise ConfigurationError(f"JSON schema: {keyword} must be a whole number from 0, found {schema[keyword]!r}")
    minimum, maximum = schema.get(low, 0), schema.get(high)
    if maximum is not None and minimum > maximum:
        raise ConfigurationError(f"JSON schema: {low} {minimum} and {high} {maximum} exclude every length")
    return minimum, maximum


def bounded_integers(schema: Mapping[str, Any]) -> range | None:
    """The integers between a schema's bounds; None if it has no bounds.

    :raises ConfigurationError: a bound is no number, only one side has one, or they leave no integer or too many.
    """
    bounds: dict[str, int] = {}
    for keyword in sorted(KEYWORDS["integer"] & schema.keys()):
        value = schema[keyword]
        if type(value) is not int and not (isinstance(value, float) and math.isfinite(value)):
            raise ConfigurationError(f"JSON schema: {keyword} must be a number, found {value!r}")
        # The outermost integer within the bound.
        match keyword:
            case "minimum":
                bounds[keyword] = math.ceil(value)
            case "exclusiveMinimum":
                bounds[keyword] = math.floor(value) + 1
            case "maximum":
                bounds[keyword] = math.floor(value)
            case "exclusiveMaximum":
                bounds[keyword] = math.ceil(value) - 1
    if not bounds:
        return None
    lows = [bounds[keyword] for keyword in ("minimum", "exclusiveMinimum") if keyword in bounds]
    highs = [bounds[keyword] for keyword in ("maximum", "exclusiveMaximum") if keyword in bounds]
    if not lows or not highs:
        raise ConfigurationError(
            f"JSON schema: '{min(bounds)}' of an integer needs a {'maximum' if lows else 'minimum'} beside it; "
            f"give both, so that at most {_MAX_INTEGERS:,} values are left, or neither"
        )
    low, high = max(lows), min(highs)
    if not low <= high < low + _MAX_INTEGERS:
        found = "no integer" if low > high else f"more than {_MAX_INTEGERS:,} integers"
        raise ConfigurationError(
            f"JSON schema: {' and '.join(bounds)} leave {found}; write bounds that leave at most "
            f"{_MAX_INTEGERS:,}, or none"
        )
    _check_integers([low, high])
    return range(low, high + 1)


def fixed(value: Any, schema: Mapping[str, Any], keyword: str) -> bytes:
    """The text of a value of ``enum`` or ``const``, which must be of the type given beside it.

    :raises ConfigurationError: it is of another type, or cannot be written as JSON.
    """
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_of(value, known_type(kind)) for kind in kinds):
            raise ConfigurationError(
                f"JSON schema: {keyword} holds {value!r}, which is not of type {' or '.join(kinds)}"
            )
    return canonical_json(value)


def _is_of(value: Any, kind: str) -> bool:
    return isinstance(value, _PYTHON_TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def canonical_json(value: Any) -> bytes:
    """The one way in which a given value is written.

    :raises ConfigurationError: it cannot be written, or JSON parsers would not read it back.
    """
    _check_integers(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"JSON schema: {value!r} cannot be written as JSON: {error}") from None


def _check_integers(value: Any) -> None:
    """:raises ConfigurationError: it holds an integer that JSON parsers turn into a float or refuse."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ConfigurationError(f"JSON schema: {value} is beyond the 64-bit integers that JSON parsers accept")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            _check_integers(part)
