"""Random JSON schemas of what local models' grammars support, values of them, and random walks through their
grammars.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from viva.engine.backends.llama.grammar import Grammar, GrammarState
from viva.scenarios.kieval.verdicts import verdict_schema

Schema = dict[str, Any]

DEFINITIONS: Schema = {
    "few": {"type": "array", "items": {"enum": [1, 10, "a", "ab", None]}, "maxItems": 2},
    "pair": {"type": "object", "properties": {"x": {"$ref": "#/$defs/few"}, "y": {"type": "integer"}}},
}
text = st.text('ab1"\\/é😀\n ', max_size=4)
_lengths: st.SearchStrategy[Schema] = st.sampled_from(
    [{}, {"minLength": 1}, {"maxLength": 0}, {"maxLength": 3}, {"minLength": 2, "maxLength": 2}, {"minLength": 4}]
)
_bounds: st.SearchStrategy[Schema] = st.sampled_from(
    [
        {"minimum": 1, "maximum": 10},
        {"minimum": -2, "maximum": 0},
        {"minimum": 7, "maximum": 7},
        {"exclusiveMinimum": 9, "exclusiveMaximum": 13},
        {"exclusiveMinimum": 0.5, "maximum": 11.5},
        {"minimum": 0, "maximum": 999},
    ]
)
_strings = st.builds(lambda lengths: {"type": "string", **lengths}, _lengths)
_numbers = st.sampled_from([{"type": "integer"}, {"type": "number"}, {"type": ["integer", "number"]}])
_numbers |= st.just({"anyOf": [{"type": "integer"}, {"type": "number"}]})
_whole = st.builds(lambda bounds: {"type": "integer", **bounds}, _bounds)
_scales = _whole | st.sampled_from(
    [{"enum": [1, 10, 100]}, {"enum": [0, -1, -12]}, {"oneOf": [{"const": 1}, {"const": 12}]}]
)
# By the character with which their values begin, so that branches of anyOf can be told apart.
_plain: dict[str, st.SearchStrategy[Schema]] = {
    '"': _strings | st.lists(text, min_size=1, max_size=3, unique=True).map(lambda e: {"enum": e}),
    "0": _numbers | _scales,
    "n": st.just({"type": "null"}),
    "[": st.just({"$ref": "#/$defs/few"}),
    "{": st.just({"$ref": "#/$defs/pair"}),
}
_mixed = st.lists(st.sampled_from([1, 10, "1", "10", None, True, "é"]), min_size=1, max_size=4, unique_by=json.dumps)
_fixed = _mixed.map(lambda options: {"enum": options}) | text.map(lambda value: {"const": value}) | _whole
_fixed |= st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["null", "boolean"]}])
_types = st.lists(st.sampled_from(["string", "integer", "number", "boolean", "null"]), min_size=1, unique=True)
_leaves = st.one_of(*_plain.values(), _fixed) | st.builds(lambda t, n: {"type": t, **n}, _types, st.just({}))


def _nested(branches: list[Schema]) -> Schema:
    """The same choice as an anyOf within an anyOf, one branch said twice."""
    return {"anyOf": [{"anyOf": branches[:1]}, *branches[1:2], {"anyOf": branches[1:] or branches}]}


_branches = st.lists(st.sampled_from(sorted(_plain)), min_size=2, max_size=4, unique=True).flatmap(
    lambda next_bytes: st.tuples(*(_plain[first] for first in next_bytes)).map(list)
)
# Branches of fixed values may begin alike.
_branches |= st.lists(_fixed, min_size=1, max_size=3)
# And so may others, in which case each goes its own way until only one is left.
_branches |= st.lists(st.one_of(_strings, _numbers, _fixed, *_plain.values()), min_size=2, max_size=3)
choices = _branches.map(lambda branches: {"anyOf": branches}) | _branches.map(_nested)


def _arrays(items: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    limits = [{}, {"minItems": 1}, {"maxItems": 0}, {"maxItems": 2}, {"minItems": 2, "maxItems": 3}]
    return st.builds(lambda item, limit: {"type": "array", "items": item, **limit}, items, st.sampled_from(limits))


def _objects(children: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def described(found: Schema, needed: list[bool]) -> Schema:
        required = [name for name, need in zip(found, needed, strict=False) if need]
        return {"type": "object", "properties": found, "required": required, "additionalProperties": False}

    needed = st.just([True] * 3) | st.lists(st.booleans(), min_size=3, max_size=3)
    return st.builds(described, st.dictionaries(text, children, max_size=3), needed)


def _pairs(objects: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """A choice among objects, which begin alike."""
    return st.lists(objects, min_size=2, max_size=2).map(lambda branches: {"anyOf": branches})


_inner = st.recursive(
    _leaves | choices, lambda found: _arrays(found) | _objects(found) | _pairs(_objects(found)), max_leaves=6
)
roots = (_objects(_inner) | _arrays(_inner)).map(lambda schema: {**schema, "$defs": DEFINITIONS})
ENUMS: Schema = {
    "type": "object",
    "properties": {"a": {"enum": [7]}, "b": {"enum": [1, 10]}, "c": {"enum": ["y", "yz"]}},
    "required": ["a", "b", "c"],
}
schemas = roots | st.sampled_from([verdict_schema(400), ENUMS])


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Any value of a schema; numbers as long as the grammar writes them."""
    if "$ref" in schema:
        return values(DEFINITIONS[schema["$ref"].rpartition("/")[2]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return st.one_of(*map(values, schema[keyword]))
    kind = schema["type"]
    if isinstance(kind, list):
        return st.one_of(*(values({"type": one}) for one in kind))
    if kind == "object":
        children = schema["properties"]
        needed = schema.get("required", list(children))
        parts = [values(child) if name in needed else st.just(...) | values(child) for name, child in children.items()]
        return st.tuples(*parts).map(
            lambda found: {name: value for name, value in zip(children, found, strict=True) if value is not ...}
        )
    if kind == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
        return st.lists(values(schema["items"]), min_size=least, max_size=most)
    if kind == "string":
        return st.text(min_size=schema.get("minLength", 0), max_size=schema.get("maxLength", 6))
    if kind == "integer":
        low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
        low = max(low, int(schema.get("exclusiveMinimum", low - 1)) + 1)  # no bound of ours is a negative fraction
        return st.integers(low, int(min(high, schema.get("exclusiveMaximum", high + 1) - 1)))
    floats = st.floats(-1e100, 1e100, exclude_min=True, exclude_max=True)
    kinds: dict[str, st.SearchStrategy[Any]] = {"boolean": st.booleans(), "null": st.none()}
    return (kinds | {"number": floats | st.integers(-(10**23) + 1, 10**24 - 1)})[kind]


with_values = roots.flatmap(lambda schema: st.tuples(st.just(schema), values(schema)))
with_values |= values(verdict_schema(400)).map(lambda value: (verdict_schema(400), value))


@lru_cache(512)
def following(grammar: Grammar, state: GrammarState) -> list[int]:
    """Brute force: every byte that may come next."""
    return [byte for byte in range(256) if grammar.advance(state, bytes([byte])) is not None]


def walk(grammar: Grammar, seed: int, patience: int = 40) -> Iterator[tuple[GrammarState, bytes]]:
    """Random allowed bytes up to the end; out of patience, and after nine characters of a number, it closes."""
    rng, state, data = random.Random(seed), grammar.start, b""
    yield state, data
    while not state.complete:
        allowed = following(grammar, state)
        long = re.search(rb"[-+.eE0-9]{9}$", data) is not None
        closing = [byte for byte in allowed if (byte not in b"-+.eE0123456789" if long else byte in b'"]}')]
        hurried = long or len(data) >= patience or rng.random() < 0.2
        byte = rng.choice(closing if closing and hurried else allowed)  # no dead ends: an error if nothing may follow
        after = grammar.advance(state, bytes([byte]))
        if after is None:
            raise AssertionError(f"{bytes([byte])!r} was allowed after {data!r}")
        state, data = after, data + bytes([byte])
        yield state, data
