"""Comparison of an output's calls with the ground truth, argument by argument; the order of calls means nothing.

This includes the comparison of argument values, and the search for values in the messages of the dialog.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from viva.data.items import preview
from viva.engine.errors import MalformedOutput
from viva.engine.tools import ToolCall

from .turns import DialogTurn, message_calls

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def fits_schema(value: Any, schema: Any) -> bool:
    """Return True if a value has the type of a schema, including within arrays and objects.

    An integer is a number, but a number written with a fraction or exponent (3.0, 3e0) is no integer, as the rubric for
    calls says; a boolean is no number. A schema without a known type accepts everything.
    """
    if not isinstance(schema, dict):
        return True
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list) and not any(fits_schema(value, part) for part in choices):
        return False
    kinds = schema_types(schema)
    if kinds and not any(_is_of_type(value, kind) for kind in kinds):
        return False
    if isinstance(value, list):
        return all(fits_schema(part, schema.get("items")) for part in value)
    if isinstance(value, dict):
        properties = schema.get("properties")
        return not isinstance(properties, dict) or all(
            fits_schema(part, properties.get(name)) for name, part in value.items()
        )
    return True


def type_names(schema: Any) -> str:
    """Return the types of a schema and of its alternatives in words."""
    return " or ".join(_types_within(schema)) or "of another type"


def required_parameters(parameters: Any) -> Sequence[str]:
    """Return the names of required parameters in the schema of a function's parameters."""
    names: Sequence[str] = (parameters or {}).get("required") or ()
    return names


def _types_within(schema: Any) -> tuple[str, ...]:
    branches = (schema.get("anyOf") or schema.get("oneOf") or ()) if isinstance(schema, dict) else ()
    return schema_types(schema) or tuple(kind for branch in branches for kind in schema_types(branch))


def schema_types(schema: Any) -> tuple[str, ...]:
    """Return the JSON Schema types that a schema itself names; empty means any."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, str):
        return (kind,) if kind in _KINDS else ()
    several: list[Any] = kind if isinstance(kind, list) else [kind]
    return tuple(several) if all(isinstance(name, str) and name in _KINDS for name in several) else ()


def _is_of_type(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def type_tags(value: Any, schema: Any) -> list[str]:
    """Return the error tags for a value that does not have its schema's type."""
    kinds, tags = _types_within(schema), ["wrong_type"]
    if isinstance(value, float) and "integer" in kinds:
        tags.append("integer_as_float")
    elif isinstance(value, str) and {"integer", "number"} & set(kinds) and _is_number_text(value):
        tags.append("number_as_text")
    elif isinstance(value, int | float) and not isinstance(value, bool) and "string" in kinds:
        tags.append("text_as_number")
    return tags


def same_value(first: Any, second: Any) -> bool:
    """Return True if two values are equal; 170 equals 170.0, but a boolean never equals a number.

    Texts are compared in Unicode's canonical composition, so that equivalent encodings are equal.
    """
    if type(first) is type(second) is str:
        return first == second or to_nfc(first) == to_nfc(second)
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first == second
    if type(first) is not type(second):
        return False
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same_value, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_value(value, second[name]) for name, value in first.items())
    return bool(first == second)


def to_nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def leaf_values(value: Any) -> Iterator[Any]:
    """Yield the texts, numbers, booleans and nulls in a value."""
    waiting = [value]  # models may nest deeper than Python's recursion limit
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            waiting += current.values()
        elif isinstance(current, list):
            waiting += current
        else:
            yield current


def has_text(value: Any) -> bool:
    return any(isinstance(leaf, str) for leaf in leaf_values(value))


def text_hints(text: str, right: Sequence[Any]) -> list[str]:
    """Return hints on the differences between a text and the right ones."""
    hints = []
    for expected in right:
        if not isinstance(expected, str):
            continue
        actual, target = to_nfc(text), to_nfc(expected)
        if actual.split() == target.split() or "".join(actual.split()) == "".join(target.split()):
            hints.append("different_spacing")
        elif actual.casefold() == target.casefold():
            hints.append("different_case")
        elif actual.strip() and actual.strip() in target:
            hints.append("partial_value")
        elif target.strip() and target.strip() in actual:
            hints.append("extended_value")
    first = next((expected for expected in right if isinstance(expected, str)), "")
    if unicode_scripts(text) and unicode_scripts(first) and not unicode_scripts(text) & unicode_scripts(first):
        hints.append("other_script")
    return hints


def unicode_scripts(text: str) -> frozenset[str]:
    """Return the scripts of a text's letters, by the first word of their Unicode names (HANGUL, LATIN, CJK, …)."""
    return frozenset(_script_of(character) for character in set(to_nfc(text)) if character.isalpha())


@cache  # a run has few distinct letters
def _script_of(letter: str) -> str:
    return unicodedata.name(letter, "?").split(" ", 1)[0]


def _is_number_text(text: str) -> bool:
    try:
        float(text.strip().replace(",", ""))
    except ValueError:
        return False
    return any(character.isdigit() for character in text)


_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_MARKS = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\W\d_]+")


class Mentions:
    """The words and numbers of a dialog's messages, including the arguments of its calls."""

    __slots__ = ("_numbers", "_text")

    def __init__(self, messages: Iterable[Mapping[str, Any]]) -> None:
        texts: list[str] = []
        for message in messages:
            texts += map(_unescape, [message["content"] or "", *(call.arguments for call in message_calls(message))])
        text = _fold("\n".join(texts))
        self._text = _letters_and_digits(text)
        self._numbers = set(map(_normalize_number, _NUMBER.findall(text)))

    def has(self, value: Any) -> bool:
        """Return True if the messages mention a value, as a whole or by all its words and numbers."""
        return all(map(self._has, leaf_values(value)))

    def _has(self, value: Any) -> bool:
        if value is None or isinstance(value, bool):
            return True
        text = _fold(str(value))
        if isinstance(value, str):
            if _letters_and_digits(text) in self._text:
                return True
            if not all(word in self._text for word in _WORD.findall(text)):
                return False
        return not self.strange_numbers(text)

    def strange_numbers(self, text: str) -> list[str]:
        """Return the numbers of a text that no message mentions, in the order of the text."""
        numbers = map(_normalize_number, _NUMBER.findall(_fold(text)))
        return [
            number
            for number in numbers
            if number not in self._numbers and (number.rstrip("0") or "0") not in self._numbers
        ]


def _unescape(text: str) -> str:
    """Return JSON text without escapes; other text stays as it is."""
    if "\\" not in text:
        return text
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _letters_and_digits(text: str) -> str:
    return _MARKS.sub("", text)


def _normalize_number(text: str) -> str:
    """Return a number's digits without separators, leading zeros, and trailing zeros of the fraction."""
    integer, _, fraction = text.replace(",", "").partition(".")
    fraction = fraction.rstrip("0")
    return (integer.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


# scipy.optimize loads slowly and blocks the run, so it is imported only to match several calls to several.

Matching = Literal["strict", "official"]
_ABSENT = object()
# Costs of an assignment: an error outweighs all hints; a wrong function outweighs all errors within a call.
_ERROR, _OTHER_FUNCTION = 1_000, 1_000_000


@dataclass(slots=True)
class CallComparison:
    """The result of a comparison: `errors` and `hints` are tags, `why` has a clause for each of them."""

    errors: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)

    def error(self, why: str, *tags: str) -> None:
        self.errors += tags
        self.why.append(why)

    def open(self, why: str, *tags: str) -> None:
        self.hints += tags
        self.why.append(why)

    def merge(self, other: CallComparison) -> None:
        self.errors += other.errors
        self.hints += other.hints
        self.why += other.why


def compare_calls(turn: DialogTurn, calls: Sequence[ToolCall]) -> CallComparison:
    """Compare at least one call with the ground truth's calls.

    With several calls, each is compared with the closest one of the ground truth, by the assignment with the fewest
    errors, so their order does not matter.
    """
    rules = turn.acceptable.values or ({},) * len(turn.expected())
    expected = list(zip(turn.expected(), rules, strict=True))
    if len(expected) == len(calls) == 1:
        return _compare(turn, *expected[0], calls[0])
    expected.sort(key=lambda pair: (pair[0].name, pair[0].arguments))
    calls = sorted(calls, key=lambda call: (call.name, call.arguments))
    return _assign_calls(turn, expected, calls)


def matches_officially(turn: DialogTurn, calls: Sequence[ToolCall]) -> bool:
    """Return True if the authors' exact match accepts the calls (`compare_arguments` in their code).

    Texts are compared without spaces and in lower case, other values as Python compares them. An argument that the
    ground truth lacks fails. If an acceptable value is neither a text nor a list, every value passes, and so does a
    missing argument. If one call is due, only the first call is compared. Several calls must be as many as are due, in
    the same order.
    """
    expected = turn.expected()
    if not calls or (len(expected) > 1 and len(calls) != len(expected)):
        return False
    try:
        rules = json.loads(turn.acceptable.text)
    except ValueError:  # a sentence
        rules = {}
    several = rules if isinstance(rules, list) else [rules] * len(expected)
    return all(
        right.name == call.name and _arguments_match_officially(right, call, rule if isinstance(rule, dict) else {})
        for right, call, rule in zip(expected, calls, several, strict=False)
    )


def _arguments_match_officially(right: ToolCall, call: ToolCall, rule: Mapping[str, Any]) -> bool:
    try:
        expected, arguments = right.parsed(), call.parsed()
    except MalformedOutput:
        return False
    if arguments.keys() - expected.keys():
        return False
    for name, value in expected.items():
        alternatives = rule.get(name, [])
        alternatives = (
            alternatives
            if isinstance(alternatives, list)
            else [alternatives]
            if isinstance(alternatives, str)
            else None
        )
        if alternatives is not None and not any(
            _equal_officially(arguments.get(name), alternative) for alternative in (value, *alternatives)
        ):
            return False
    return True


def _equal_officially(first: Any, second: Any) -> bool:
    if isinstance(first, str) and isinstance(second, str):
        return first.replace(" ", "").lower() == second.replace(" ", "").lower()
    return bool(first == second)


def _assign_calls(
    turn: DialogTurn, expected: Sequence[tuple[ToolCall, Mapping[str, Any]]], calls: Sequence[ToolCall]
) -> CallComparison:
    table = [[_compare(turn, right, rule, call) for call in calls] for right, rule in expected]
    costs = [
        [_cost(cell, right.name == call.name) for cell, call in zip(row, calls, strict=True)]
        for row, (right, _) in zip(table, expected, strict=True)
    ]
    pairs = _cheapest_assignment(costs)
    comparison = CallComparison()
    for row, column in sorted(pairs):
        comparison.merge(table[row][column])
    for row in sorted(set(range(len(expected))) - {row for row, _ in pairs}):
        comparison.error(f"{expected[row][0].name} was not called", "missing_call")
    for column in sorted(set(range(len(calls))) - {column for _, column in pairs}):
        offered = _function(turn, calls[column].name) is not None
        tags = ["extra_call"] if offered else ["extra_call", "unoffered_function"]
        comparison.error(f"{calls[column].name} was called more often than was due", *tags)
    return comparison


def _cheapest_assignment(costs: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    """Return the assignment of rows to columns with the lowest total cost."""
    if len(costs) == 1:
        return {(0, min(range(len(costs[0])), key=costs[0].__getitem__))}
    if len(costs[0]) == 1:
        return {(min(range(len(costs)), key=lambda row: costs[row][0]), 0)}
    from scipy.optimize import linear_sum_assignment

    return {(int(row), int(column)) for row, column in zip(*linear_sum_assignment(costs), strict=True)}


def _cost(comparison: CallComparison, same_function: bool) -> int:
    return (0 if same_function else _OTHER_FUNCTION) + _ERROR * len(comparison.errors) + len(comparison.hints)


def _compare(turn: DialogTurn, right: ToolCall, rule: Mapping[str, Sequence[Any]], call: ToolCall) -> CallComparison:
    """Compare one call with one of the ground truth; `rule` has further acceptable values by argument."""
    comparison = CallComparison()
    if call.name != right.name:
        called = call.name or "a function without a name"
        comparison.error(f"called {called} instead of {right.name}", _wrong_name_tag(turn, right, call))
        return comparison
    try:
        arguments = call.parsed()
    except MalformedOutput as error:
        absent = call.arguments.strip() in ("", "null")
        comparison.error(str(error), "no_arguments" if absent else "malformed_arguments")
        return comparison
    expected, schemas = right.parsed(), parameters(turn, right.name)
    for name in expected.keys() - arguments.keys():
        if not same_value(_default(schemas.get(name)), expected[name]):
            comparison.error(f"'{name}' is missing", "missing_argument")
    for name, value in arguments.items():
        schema, alternatives = schemas.get(name), list(rule.get(name, ()))
        if name not in schemas:
            comparison.error(f"{right.name} has no parameter '{name}'", "unknown_argument")
        elif not fits_schema(value, schema):
            comparison.error(
                f"'{name}' is specified as {type_names(schema)}, found {preview(value)}", *type_tags(value, schema)
            )
        elif name in expected:
            if not (
                same_value(value, expected[name]) or any(same_value(value, alternative) for alternative in alternatives)
            ):
                _check_value(turn, comparison, name, value, [expected[name], *alternatives], schema)
        elif alternatives:
            if not any(same_value(value, alternative) for alternative in (_default(schema), *alternatives)):
                _check_value(turn, comparison, name, value, alternatives, schema)
        elif not same_value(value, _default(schema)):
            comparison.error(f"'{name}' should have been left out", "extra_argument")
    return comparison


def _check_value(
    turn: DialogTurn, comparison: CallComparison, name: str, value: Any, right: Sequence[Any], schema: Any
) -> None:
    """Grade a value of a right type that differs from the right values: it is an error, or left to the judge."""
    why = f"'{name}' is {preview(value)} instead of {preview(right[0])}"
    kind, choices = turn.acceptable.kind, schema.get("enum") if isinstance(schema, dict) else None
    if isinstance(choices, list) and not any(same_value(value, option) for option in choices):
        comparison.error(why, "outside_choices")
    elif isinstance(value, str) and not value.strip() and isinstance(right[0], str):
        comparison.error(why, "empty_value")
    elif kind != "only" and (kind == "remark" or (choices is None and _may_differ_in_wording(value, right))):
        hints = text_hints(value, right) if isinstance(value, str) else []
        if has_text(value) and not Mentions(turn.messages).has(value):
            hints.append("unmentioned_value")
        comparison.open(why, "different_value", *hints)
    else:
        opposite = any(_is_number(option) and option and same_value(-option, value) for option in right)
        comparison.error(why, "wrong_value", *(["flipped_sign"] if _is_number(value) and opposite else []))


def _may_differ_in_wording(value: Any, right: Sequence[Any]) -> bool:
    """Return True if the value differs from a right value only in texts."""
    return any(_equal_but_for_texts(value, expected) for expected in right)


def _equal_but_for_texts(value: Any, target: Any) -> bool:
    """Return True if two values differ only in texts; lists of texts may differ in length."""
    if isinstance(value, str) or isinstance(target, str):
        return True
    if isinstance(value, dict) and isinstance(target, dict):
        return value.keys() == target.keys() and all(
            _equal_but_for_texts(part, target[name]) for name, part in value.items()
        )
    if isinstance(value, list) and isinstance(target, list):
        if len(value) != len(target):
            return all(isinstance(part, str) for part in (*value, *target))
        return all(map(_equal_but_for_texts, value, target))
    return same_value(value, target)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def unneeded_calls(turn: DialogTurn, calls: Sequence[ToolCall]) -> CallComparison:
    """Grade calls made although text was due."""
    comparison, mentions = CallComparison(), Mentions(turn.messages)
    for call in calls:
        comparison.error(f"{call.name or 'a function without a name'} was called where text was due", "unneeded_call")
        if _function(turn, call.name) is None:
            comparison.error(f"{call.name} is not among the tools", "unoffered_function")
            continue
        try:
            arguments = call.parsed()
        except MalformedOutput as error:
            absent = call.arguments.strip() in ("", "null")
            comparison.error(str(error), "no_arguments" if absent else "malformed_arguments")
            continue
        if turn.type == "slot":
            _check_slots(turn, comparison, call, arguments, mentions)
    return comparison


def _check_slots(
    turn: DialogTurn, comparison: CallComparison, call: ToolCall, arguments: Mapping[str, Any], mentions: Mentions
) -> None:
    for name in required_parameters((_function(turn, call.name) or {}).get("parameters")):
        if name not in arguments:
            comparison.error(f"'{name}' is missing", "missing_argument")
        elif not mentions.has(arguments[name]):
            comparison.error(
                f"'{name}' is {preview(arguments[name])}, which no message mentions", "fabricated_argument"
            )


def _wrong_name_tag(turn: DialogTurn, right: ToolCall, call: ToolCall) -> str:
    if _function(turn, call.name) is not None:
        return "wrong_function"
    return "misspelt_function" if _normalize_name(call.name) == _normalize_name(right.name) else "unoffered_function"


def _normalize_name(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())


def _function(turn: DialogTurn, name: str) -> Mapping[str, Any] | None:
    return next((tool["function"] for tool in turn.tools if tool["function"]["name"] == name), None)


def parameters(turn: DialogTurn, name: str) -> Mapping[str, Any]:
    """Return the parameters of an offered function with their schemas."""
    schemas: Mapping[str, Any] = ((_function(turn, name) or {}).get("parameters") or {}).get("properties") or {}
    return schemas


def _default(schema: Any) -> Any:
    return schema.get("default", _ABSENT) if isinstance(schema, dict) else _ABSENT
