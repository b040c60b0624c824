"""What single keywords of a JSON schema say: their values read and checked, and fixed values written as text.

What never belongs here: frames, and how keywords work together (``schema``).
"""

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
_MOST_INTEGERS = 1000  # of a range that is written out as alternatives


def untyped(schema: Mapping[str, Any]) -> str:
    """What is wrong with a schema of no type."""
    keywords = sorted(schema.keys() - ANNOTATIONS - {"type"})
    if not keywords:
        return "a part without 'type' allows anything; say what it is to be"
    typed = keywords[0] in frozenset().union(*KEYWORDS.values())
    return f"keyword '{keywords[0]}' {'needs a type beside it' if typed else 'is not supported'}"


def known_type(kind: Any) -> str:
    """:raises ConfigurationError: it is not the name of a type."""
    if not isinstance(kind, str) or kind not in KEYWORDS:
        raise ConfigurationError(f"JSON schema: type {kind!r} is not supported")
    return kind


def refuse_others(schema: Mapping[str, Any], known: frozenset[str], kind: str) -> None:
    """:raises ConfigurationError: the schema has a keyword that is not ``known``; ``kind`` says of what."""
    unknown = schema.keys() - ANNOTATIONS - {"type"} - known
    if unknown:
        raise ConfigurationError(f"JSON schema: keyword '{min(unknown)}' of {kind} is not supported")


def several(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """:raises ConfigurationError: the keyword's value is not a list, or empty."""
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise ConfigurationError(f"JSON schema: {keyword} needs a list that is not empty, found {values!r}")
    return values


def counts(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    """The two counts that bound a length; no upper one is None.

    :raises ConfigurationError: one is not a count, or no length is left.
    """
    for keyword in schema.keys() & {low, high}:
        if type(schema[keyword]) is not int or schema[keyword] < 0:
            raise ConfigurationError(f"JSON schema: {keyword} must be a whole number from 0, found {schema[keyword]!r}")
    least, most = schema.get(low, 0), schema.get(high)
    if most is not None and least > most:
        raise ConfigurationError(f"JSON schema: {low} {least} and {high} {most} leave nothing")
    return least, most


def integers(schema: Mapping[str, Any]) -> range | None:
    """The integers between a schema's bounds; None if it has no bounds.

    :raises ConfigurationError: a bound is not a number, only one side has one, or they leave none or too many.
    """
    bounds: dict[str, int] = {}
    for keyword in sorted(KEYWORDS["integer"] & schema.keys()):
        value = schema[keyword]
        if type(value) is not int and not (isinstance(value, float) and math.isfinite(value)):
            raise ConfigurationError(f"JSON schema: {keyword} must be a number, found {value!r}")
        # The outermost integer that the bound lets through.
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
            f"give both, so that at most {_MOST_INTEGERS:,} values are left, or neither"
        )
    low, high = max(lows), min(highs)
    if not low <= high < low + _MOST_INTEGERS:
        found = "no integer" if low > high else f"more than {_MOST_INTEGERS:,} integers"
        raise ConfigurationError(
            f"JSON schema: {' and '.join(bounds)} leave {found}; write bounds that leave at most "
            f"{_MOST_INTEGERS:,}, or none"
        )
    _check_integers([low, high])
    return range(low, high + 1)


def fixed(value: Any, schema: Mapping[str, Any], keyword: str) -> bytes:
    """The text of a value of ``enum`` or ``const``, which must be of the type beside it.

    :raises ConfigurationError: it is of another type, or JSON cannot say it.
    """
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_of(value, known_type(kind)) for kind in kinds):
            raise ConfigurationError(
                f"JSON schema: {keyword} holds {value!r}, which is not of type {' or '.join(kinds)}"
            )
    return canonical(value)


def _is_of(value: Any, kind: str) -> bool:
    return isinstance(value, _PYTHON_TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def canonical(value: Any) -> bytes:
    """The one way in which a given value is written.

    :raises ConfigurationError: it cannot be written, or JSON readers would not read it back.
    """
    _check_integers(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"JSON schema: {value!r} cannot be written as JSON: {error}") from None


def _check_integers(value: Any) -> None:
    """:raises ConfigurationError: an integer in it is one that JSON readers turn into a float or refuse."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ConfigurationError(f"JSON schema: {value} is beyond the 64-bit integers that JSON readers take")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            _check_integers(part)
