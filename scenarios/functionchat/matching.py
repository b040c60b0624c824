"""Compares the calls of an output with those of the ground truth, argument by argument; several in any order.

The rules stand in ``grading``; here they are carried out. What never belongs here: outputs that want text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from viva.data.fields import shown
from viva.engine.errors import MalformedOutput
from viva.engine.tools import ToolCall

from .mentions import Mentions
from .turns import DialogTurn
from .values import fits, holds_text, named, required, same, text_hints, type_tags

# scipy.optimize takes a while to load, and runs wait meanwhile: only several calls to several need it.

Matching = Literal["strict", "official"]
_ABSENT = object()
# What an assignment costs: any error more than all that is open, another function more than errors within a call.
_ERROR, _OTHER_FUNCTION = 1_000, 1_000_000


@dataclass(slots=True)
class Compared:
    """What was found: ``errors`` and ``hints`` are tags; ``why``: a clause for each finding."""

    errors: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)

    def error(self, why: str, *tags: str) -> None:
        """Something that is wrong beyond doubt."""
        self.errors += tags
        self.why.append(why)

    def open(self, why: str, *tags: str) -> None:
        """Something for the judge."""
        self.hints += tags
        self.why.append(why)

    def merge(self, other: Compared) -> None:
        """Take in another's findings."""
        self.errors += other.errors
        self.hints += other.hints
        self.why += other.why


def compare_calls(turn: DialogTurn, calls: Sequence[ToolCall]) -> Compared:
    """Compares at least one call with the at least one that the ground truth has.

    Of several calls each is compared with the one of the ground truth that it is nearest to over all (an assignment
    with the least errors), so their order does not matter.
    """
    rules = turn.acceptable.values or ({},) * len(turn.expected())
    expected = list(zip(turn.expected(), rules, strict=True))
    if len(expected) == len(calls) == 1:
        return _compare(turn, *expected[0], calls[0])
    expected.sort(key=lambda one: (one[0].name, one[0].arguments))
    calls = sorted(calls, key=lambda one: (one.name, one.arguments))
    return _assigned(turn, expected, calls)


def matches_officially(turn: DialogTurn, calls: Sequence[ToolCall]) -> bool:
    """Return True where the authors' exact match passes the calls (``compare_arguments`` of their code).

    Texts are equal without spaces and in small letters, values as Python compares them; arguments beyond those of the
    ground truth fail. Where the data have one acceptable value that is neither a text nor a list, any value passes, and
    so does a missing one. One call that is due is compared with the first call alone; several are compared in their
    order, if there are as many.
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
        right.name == call.name and _argues_officially(right, call, rule if isinstance(rule, dict) else {})
        for right, call, rule in zip(expected, calls, several, strict=False)
    )


def _argues_officially(right: ToolCall, call: ToolCall, rule: Mapping[str, Any]) -> bool:
    try:
        wanted, given = right.parsed(), call.parsed()
    except MalformedOutput:
        return False
    if given.keys() - wanted.keys():
        return False
    for name, value in wanted.items():
        others = rule.get(name, [])
        others = others if isinstance(others, list) else [others] if isinstance(others, str) else None
        if others is not None and not any(_equal_officially(given.get(name), one) for one in (value, *others)):
            return False
    return True


def _equal_officially(first: Any, second: Any) -> bool:
    if isinstance(first, str) and isinstance(second, str):
        return first.replace(" ", "").lower() == second.replace(" ", "").lower()
    return bool(first == second)


def _assigned(
    turn: DialogTurn, expected: Sequence[tuple[ToolCall, Mapping[str, Any]]], calls: Sequence[ToolCall]
) -> Compared:
    table = [[_compare(turn, right, rule, call) for call in calls] for right, rule in expected]
    costs = [
        [_cost(found, right.name == call.name) for found, call in zip(row, calls, strict=True)]
        for row, (right, _) in zip(table, expected, strict=True)
    ]
    pairs = _nearest(costs)
    whole = Compared()
    for row, column in sorted(pairs):
        whole.merge(table[row][column])
    for row in sorted(set(range(len(expected))) - {row for row, _ in pairs}):
        whole.error(f"{expected[row][0].name} was not called", "missing_call")
    for column in sorted(set(range(len(calls))) - {column for _, column in pairs}):
        offered = _function(turn, calls[column].name) is not None
        tags = ["extra_call"] if offered else ["extra_call", "unoffered_function"]
        whole.error(f"{calls[column].name} was called beyond what was due", *tags)
    return whole


def _nearest(costs: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    """Rows and columns that belong together, each used once, at the least cost over all."""
    if len(costs) == 1:
        return {(0, min(range(len(costs[0])), key=costs[0].__getitem__))}
    if len(costs[0]) == 1:
        return {(min(range(len(costs)), key=lambda row: costs[row][0]), 0)}
    from scipy.optimize import linear_sum_assignment

    return {(int(row), int(column)) for row, column in zip(*linear_sum_assignment(costs), strict=True)}


def _cost(found: Compared, same_function: bool) -> int:
    return (0 if same_function else _OTHER_FUNCTION) + _ERROR * len(found.errors) + len(found.hints)


def _compare(turn: DialogTurn, right: ToolCall, rule: Mapping[str, Sequence[Any]], call: ToolCall) -> Compared:
    """One call with one of the ground truth; ``rule``: further values by argument."""
    found = Compared()
    if call.name != right.name:
        asked = call.name or "a function without a name"
        found.error(f"called {asked} instead of {right.name}", _misnamed(turn, right, call))
        return found
    try:
        given = call.parsed()
    except MalformedOutput as error:
        absent = call.arguments.strip() in ("", "null")
        found.error(str(error), "no_arguments" if absent else "malformed_arguments")
        return found
    wanted, known = right.parsed(), parameters(turn, right.name)
    for name in wanted.keys() - given.keys():
        if not same(_default(known.get(name)), wanted[name]):
            found.error(f"'{name}' is missing", "missing_argument")
    for name, value in given.items():
        schema, others = known.get(name), list(rule.get(name, ()))
        if name not in known:
            found.error(f"{right.name} has no parameter '{name}'", "unknown_argument")
        elif not fits(value, schema):
            found.error(f"'{name}' is specified as {named(schema)}, found {shown(value)}", *type_tags(value, schema))
        elif name in wanted:
            if not (same(value, wanted[name]) or any(same(value, one) for one in others)):
                _differs(turn, found, name, value, [wanted[name], *others], schema)
        elif others:
            if not any(same(value, one) for one in (_default(schema), *others)):
                _differs(turn, found, name, value, others, schema)
        elif not same(value, _default(schema)):
            found.error(f"'{name}' was to be left out", "extra_argument")
    return found


def _differs(turn: DialogTurn, found: Compared, name: str, value: Any, right: Sequence[Any], schema: Any) -> None:
    """A value of a right type that is none of the right ones: an error, or open."""
    why = f"'{name}' is {shown(value)} instead of {shown(right[0])}"
    kind, choices = turn.acceptable.kind, schema.get("enum") if isinstance(schema, dict) else None
    if isinstance(choices, list) and not any(same(value, one) for one in choices):
        found.error(why, "outside_choices")
    elif isinstance(value, str) and not value.strip() and isinstance(right[0], str):
        found.error(why, "empty_value")
    elif kind != "only" and (kind == "remark" or (choices is None and _wordable(value, right))):
        hints = text_hints(value, right) if isinstance(value, str) else []
        if holds_text(value) and not Mentions(turn.messages).has(value):
            hints.append("unmentioned_value")
        found.open(why, "different_value", *hints)
    else:
        opposite = any(_is_number(one) and one and same(-one, value) for one in right)
        found.error(why, "wrong_value", *(["flipped_sign"] if _is_number(value) and opposite else []))


def _wordable(value: Any, right: Sequence[Any]) -> bool:
    """Whether wording leaves room: from one of the right ones the value differs in texts alone."""
    return any(_worded(value, one) for one in right)


def _worded(value: Any, other: Any) -> bool:
    """Whether two values are the same but for texts, of which a list may hold more or fewer."""
    if isinstance(value, str) or isinstance(other, str):
        return True
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_worded(one, other[name]) for name, one in value.items())
    if isinstance(value, list) and isinstance(other, list):
        if len(value) != len(other):
            return all(isinstance(one, str) for one in (*value, *other))
        return all(map(_worded, value, other))
    return same(value, other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def unneeded_calls(turn: DialogTurn, calls: Sequence[ToolCall]) -> Compared:
    """What is to be said of calls where text was due."""
    found, mentions = Compared(), Mentions(turn.messages)
    for call in calls:
        found.error(f"{call.name or 'a function without a name'} was called where text was due", "unneeded_call")
        if _function(turn, call.name) is None:
            found.error(f"{call.name} is not among the tools", "unoffered_function")
            continue
        try:
            given = call.parsed()
        except MalformedOutput as error:
            absent = call.arguments.strip() in ("", "null")
            found.error(str(error), "no_arguments" if absent else "malformed_arguments")
            continue
        if turn.type == "slot":
            _slots(turn, found, call, given, mentions)
    return found


def _slots(turn: DialogTurn, found: Compared, call: ToolCall, given: Mapping[str, Any], mentions: Mentions) -> None:
    for name in required((_function(turn, call.name) or {}).get("parameters")):
        if name not in given:
            found.error(f"'{name}' is missing", "missing_argument")
        elif not mentions.has(given[name]):
            found.error(f"'{name}' is {shown(given[name])}, which no message mentions", "fabricated_argument")


def _misnamed(turn: DialogTurn, right: ToolCall, call: ToolCall) -> str:
    if _function(turn, call.name) is not None:
        return "wrong_function"
    return "misspelt_function" if _spelling(call.name) == _spelling(right.name) else "unoffered_function"


def _spelling(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())


def _function(turn: DialogTurn, name: str) -> Mapping[str, Any] | None:
    return next((tool["function"] for tool in turn.tools if tool["function"]["name"] == name), None)


def parameters(turn: DialogTurn, name: str) -> Mapping[str, Any]:
    """The parameters of an offered function, each with its schema."""
    held: Mapping[str, Any] = ((_function(turn, name) or {}).get("parameters") or {}).get("properties") or {}
    return held


def _default(schema: Any) -> Any:
    return schema.get("default", _ABSENT) if isinstance(schema, dict) else _ABSENT
