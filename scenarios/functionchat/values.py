"""Values of arguments: whether one is of a specified type, whether two are the same, and how two texts differ.

What never belongs here: which difference is an error (``grading``).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def fits(value: Any, schema: Any) -> bool:
    """Whether a value is of the type that a schema names, within arrays and objects too.

    An integer is a number, but a number written with a fraction or exponent (3.0, 3e0) is no integer, as the rubric
    for calls says; true and false are neither. A schema that names no type, or one unknown here, lets everything pass.
    """
    if not isinstance(schema, dict):
        return True
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list) and not any(fits(value, one) for one in choices):
        return False
    kinds = types(schema)
    if kinds and not any(_is(value, kind) for kind in kinds):
        return False
    if isinstance(value, list):
        return all(fits(one, schema.get("items")) for one in value)
    if isinstance(value, dict):
        known = schema.get("properties")
        return not isinstance(known, dict) or all(fits(one, known.get(name)) for name, one in value.items())
    return True


def named(schema: Any) -> str:
    """The types that a schema names, its alternatives' too, in words."""
    return " or ".join(_types_within(schema)) or "of another type"


def required(parameters: Any) -> Sequence[str]:
    """The names that the schema of a function's parameters requires."""
    held: Sequence[str] = (parameters or {}).get("required") or ()
    return held


def _types_within(schema: Any) -> tuple[str, ...]:
    branches = (schema.get("anyOf") or schema.get("oneOf") or ()) if isinstance(schema, dict) else ()
    return types(schema) or tuple(kind for one in branches for kind in types(one))


def types(schema: Any) -> tuple[str, ...]:
    """The types that a schema names itself, as far as they are JSON Schema's; none means any."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, str):
        return (kind,) if kind in _KINDS else ()
    several: list[Any] = kind if isinstance(kind, list) else [kind]
    return tuple(several) if all(isinstance(one, str) and one in _KINDS for one in several) else ()


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def type_tags(value: Any, schema: Any) -> list[str]:
    """How a value that does not fit fails to."""
    kinds, found = _types_within(schema), ["wrong_type"]
    if isinstance(value, float) and "integer" in kinds:
        found.append("integer_as_float")
    elif isinstance(value, str) and {"integer", "number"} & set(kinds) and _reads_as_number(value):
        found.append("number_as_text")
    elif isinstance(value, int | float) and not isinstance(value, bool) and "string" in kinds:
        found.append("text_as_number")
    return found


def same(first: Any, second: Any) -> bool:
    """Whether two values are the same: numbers by their value (170 is 170.0), truth values apart from numbers.

    Texts are compared character by character, after Unicode's canonical composition: what looks the same by
    definition is the same.
    """
    if type(first) is type(second) is str:
        return first == second or composed(first) == composed(second)
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first == second
    if type(first) is not type(second):
        return False
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(one, second[name]) for name, one in first.items())
    return bool(first == second)


def composed(text: str) -> str:
    """The text in Unicode's normal form C."""
    return unicodedata.normalize("NFC", text)


def leaves(value: Any) -> Iterator[Any]:
    """What a value holds that holds nothing itself: texts, numbers, truth values, nulls."""
    waiting = [value]  # a model may nest deeper than Python recurses
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        else:
            yield one


def holds_text(value: Any) -> bool:
    """Whether a value is a text, or has one within."""
    return any(isinstance(one, str) for one in leaves(value))


def text_hints(text: str, right: Sequence[Any]) -> list[str]:
    """What strikes the eye about a text that is none of the right ones."""
    found = []
    for other in right:
        if not isinstance(other, str):
            continue
        one, two = composed(text), composed(other)
        if one.split() == two.split() or "".join(one.split()) == "".join(two.split()):
            found.append("different_spacing")
        elif one.casefold() == two.casefold():
            found.append("different_case")
        elif one.strip() and one.strip() in two:
            found.append("partial_value")
        elif two.strip() and two.strip() in one:
            found.append("extended_value")
    first = next((other for other in right if isinstance(other, str)), "")
    if scripts(text) and scripts(first) and not scripts(text) & scripts(first):
        found.append("other_script")
    return found


def scripts(text: str) -> frozenset[str]:
    """The scripts that a text's letters belong to, by the first word of their Unicode names (HANGUL, LATIN, CJK, …)."""
    return frozenset(_script(character) for character in set(composed(text)) if character.isalpha())


@cache  # a text has few distinct letters, and so has a run
def _script(letter: str) -> str:
    return unicodedata.name(letter, "?").split(" ", 1)[0]


def _reads_as_number(text: str) -> bool:
    try:
        float(text.strip().replace(",", ""))
    except ValueError:
        return False
    return any(character.isdigit() for character in text)
