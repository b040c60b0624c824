"""Grammars: random walks end in conforming JSON, canonical JSON is taken, forced is forced, masks equal brute force."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.agents.verdicts import VERDICT_SCHEMA
from viva.engine.backends.llama.grammar import Grammar, State, TokenMasks, may_end
from viva.engine.errors import ConfigurationError

Schema = dict[str, Any]
fixed = settings(deadline=None, derandomize=True, max_examples=60)
seeds = st.integers(0, 10**6)

DEFINITIONS: Schema = {
    "few": {"type": "array", "items": {"enum": [1, 10, "a", "ab", None]}, "maxItems": 2},
    "pair": {"type": "object", "properties": {"x": {"$ref": "#/$defs/few"}, "y": {"type": "integer"}}},
}
text = st.text('ab1"\\/é😀\n ', max_size=4)
plain: dict[str, st.SearchStrategy[Schema]] = {
    '"': st.just({"type": "string"}) | st.lists(text, min_size=1, max_size=3, unique=True).map(lambda e: {"enum": e}),
    "0": st.sampled_from([{"type": "integer"}, {"type": "number"}, {"enum": [1, 10, 100]}, {"enum": [0, -1, -12]}]),
    "n": st.just({"type": "null"}),
    "[": st.just({"$ref": "#/$defs/few"}),
    "{": st.just({"$ref": "#/$defs/pair"}),
}
mixed = st.lists(st.sampled_from([1, 10, "1", "10", None, True, "é"]), min_size=1, max_size=4, unique_by=json.dumps)
leaves = st.one_of(*plain.values(), st.just({"type": "boolean"}), text.map(lambda c: {"const": c}))
leaves |= mixed.map(lambda options: {"enum": options})
choices = st.lists(st.sampled_from(sorted(plain)), min_size=2, max_size=4, unique=True).flatmap(
    lambda firsts: st.tuples(*(plain[first] for first in firsts)).map(lambda branches: {"anyOf": list(branches)})
)


def arrays(items: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    limits = [{}, {"minItems": 1}, {"maxItems": 0}, {"maxItems": 2}, {"minItems": 2, "maxItems": 3}]
    return st.builds(lambda item, limit: {"type": "array", "items": item, **limit}, items, st.sampled_from(limits))


def objects(children: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    properties = st.dictionaries(text, children, max_size=3)
    return properties.map(lambda found: {"type": "object", "properties": found, "required": list(found)})


inner = st.recursive(leaves | choices, lambda found: arrays(found) | objects(found), max_leaves=6)
roots = (objects(inner) | arrays(inner)).map(lambda schema: {**schema, "$defs": DEFINITIONS})
ENUMS = {"type": "object", "properties": {"a": {"enum": [7]}, "b": {"enum": [1, 10]}, "c": {"enum": ["y", "yz"]}}}
schemas = roots | st.sampled_from([VERDICT_SCHEMA, ENUMS])


def resolved(schema: Schema) -> Schema:
    if "$ref" in schema:
        return resolved(DEFINITIONS[schema["$ref"].rpartition("/")[2]])
    return {"enum": [schema["const"]]} if "const" in schema else schema


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Any value of a schema; numbers as long as the grammar writes them."""
    schema = resolved(schema)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*map(values, schema["anyOf"]))
    if schema["type"] == "object":
        children = schema["properties"]
        return st.tuples(*map(values, children.values())).map(lambda found: dict(zip(children, found, strict=True)))
    if schema["type"] == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
        return st.lists(values(schema["items"]), min_size=least, max_size=most)
    floats = st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: len(json.dumps(number)) <= 18)
    whole = st.integers(-(10**17) + 1, 10**18 - 1)
    kinds: dict[str, st.SearchStrategy[Any]] = {"string": st.text(max_size=6), "boolean": st.booleans()}
    return (kinds | {"null": st.none(), "integer": whole, "number": floats | whole})[schema["type"]]


def conforms(value: Any, schema: Schema) -> bool:
    schema = resolved(schema)
    if "enum" in schema:
        return any(type(value) is type(one) and value == one for one in schema["enum"])
    if "anyOf" in schema:
        return any(conforms(value, branch) for branch in schema["anyOf"])
    if schema["type"] == "object":
        children = schema["properties"]
        same = isinstance(value, dict) and list(value) == list(children)
        return same and all(conforms(value[name], child) for name, child in children.items())
    if schema["type"] == "array":
        sized = isinstance(value, list) and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9)
        return sized and all(conforms(item, schema["items"]) for item in value)
    kinds = {"string": (str,), "boolean": (bool,), "null": (type(None),), "integer": (int,), "number": (int, float)}
    return type(value) in kinds[schema["type"]]


@lru_cache(512)
def following(grammar: Grammar, state: State) -> list[int]:
    """Brute force: every byte that may come next."""
    return [byte for byte in range(256) if grammar.advance(state, bytes([byte])) is not None]


def walk(grammar: Grammar, seed: int, patience: int = 40) -> Iterator[tuple[State, bytes]]:
    """Random allowed bytes up to the end; out of patience, and after nine characters of a number, it closes."""
    rng, state, data = random.Random(seed), grammar.start, b""
    yield state, data
    while state:
        allowed = following(grammar, state)
        assert allowed, f"nothing may follow {data!r}"
        long = re.search(rb"[-+.eE0-9]{9}$", data) is not None
        closing = [byte for byte in allowed if (byte not in b"-+.eE0123456789" if long else byte in b'"]}')]
        hurried = long or len(data) >= patience or rng.random() < 0.2
        byte = rng.choice(closing if closing and hurried else allowed)
        after = grammar.advance(state, bytes([byte]))
        assert after is not None
        state, data = after, data + bytes([byte])
        yield state, data


@fixed
@given(schemas, seeds)
def test_a_random_walk_ends_in_json_of_the_schema(schema: Schema, seed: int) -> None:
    *_, (state, data) = walk(Grammar(schema), seed)
    assert state == ()
    assert conforms(json.loads(data.decode("utf-8", "replace")), schema)


with_values = roots.flatmap(lambda schema: st.tuples(st.just(schema), values(schema)))
with_values |= values(VERDICT_SCHEMA).map(lambda value: (VERDICT_SCHEMA, value))


@fixed
@given(with_values)
def test_canonical_json_of_any_value_is_taken_byte_by_byte(pair: tuple[Schema, Any]) -> None:
    grammar = Grammar(pair[0])
    state, whole = grammar.start, json.dumps(pair[1], ensure_ascii=False).encode()
    assert grammar.advance(state, whole) == ()
    for byte in whole:
        assert not may_end(state)
        state = grammar.advance(state, bytes([byte])) or ()
    assert may_end(state)


@settings(fixed, max_examples=200)
@given(with_values, st.data())
def test_corrupted_text_is_not_taken_for_whole(pair: tuple[Schema, Any], data: st.DataObject) -> None:
    schema, value = pair
    grammar, whole = Grammar(schema), json.dumps(value, ensure_ascii=False).encode()
    at = data.draw(st.integers(0, len(whole) - 1))
    assert grammar.advance(grammar.start, whole[:at]) != ()
    patch = data.draw(st.sampled_from([b"", b" ", b",", b'"', b"\\", b"0", b"}", b"]", b"\x1f", b"null", b"\xc3"]))
    text = whole[:at] + patch + whole[at + data.draw(st.integers(0, 1)) :]
    if grammar.advance(grammar.start, text) == ():
        assert conforms(json.loads(text.decode("utf-8", "replace")), schema)
    for other in (json.dumps(value, ensure_ascii=False, indent=1), json.dumps(value, separators=(",", ":"))):
        if other.encode() != whole:
            assert grammar.advance(grammar.start, other.encode()) != ()


@settings(fixed, max_examples=40)
@given(schemas, seeds)
def test_forced_text_is_the_only_continuation(schema: Schema, seed: int) -> None:
    grammar = Grammar(schema)
    for state, _ in walk(grammar, seed):
        forced, after = grammar.forced(state)
        for byte in forced:
            assert following(grammar, state) == [byte]
            state = grammar.advance(state, bytes([byte])) or ()
        assert (following(grammar, state), may_end(state)) == (following(grammar, after), may_end(after))
        if schema in (VERDICT_SCHEMA, ENUMS):  # of objects, strings, enums and booleans nothing forced is left out
            assert len(following(grammar, after)) != 1


NAMED: list[tuple[Schema, str]] = [
    ({"type": "string", "minLength": 1}, "minLength"),
    ({"type": "array", "items": {"type": "integer", "minimum": 1}}, "minimum"),
    ({"type": "object", "properties": {"a": {"allOf": [{"type": "null"}]}}}, "allOf"),
    ({"type": "object", "properties": {"maybe": {"type": "null"}}, "required": []}, "maybe"),
    ({"$ref": "#/$defs/nowhere"}, "#/$defs/nowhere"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}, "leads back to itself"),
    ({"anyOf": [{"type": "string"}, {"const": "a"}]}, "first character"),
]


@pytest.mark.parametrize(("schema", "word"), NAMED, ids=[word for _, word in NAMED])
def test_what_is_not_supported_is_named(schema: Schema, word: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(word)):
        Grammar(schema)


PIECES = [bytes([byte]) for byte in range(256)]
PIECES += [b"", b"true", b"10", b'"', b'": ', b'", "', b'"}', b'"]', b"}}", b"]"]
PIECES += [b'{"', b'\\"', b"\\u00", b"\\", b'\\\\"', b'ab"', b"a\n", b'"\x1f', "é".encode(), b"\xc3\xa9\xc3", b'\xa9"']
PIECES += [b", ", b"], [", b"1, 1", b"0]", b"null", b"\\q", b'"control"', b"<end>", b""]
CONTROLS, ENDS = (np.isin(np.arange(len(PIECES)), [len(PIECES) - back for back in backs]) for backs in ([3], [2, 1]))
MASKS = TokenMasks(PIECES, ENDS, CONTROLS)


@fixed
@given(schemas, seeds)
def test_masks_equal_brute_force(schema: Schema, seed: int) -> None:
    grammar = Grammar(schema)
    for state, _ in walk(grammar, seed, patience=20):
        expected = [piece != b"" and grammar.advance(state, piece) is not None for piece in PIECES]
        expected[-3:] = [False, may_end(state), may_end(state)]
        assert np.flatnonzero(MASKS.allowed(grammar, state) != expected).tolist() == []


@pytest.mark.parametrize("written", ["", "-", "0", "-0", "12", "1.", "1.5", "1e", "1E-", "1.5e+3"])
def test_a_number_alone_may_end_where_it_is_one(written: str) -> None:
    grammar = Grammar({"type": "number"})
    ended = MASKS.allowed(grammar, grammar.advance(grammar.start, written.encode()) or ())[ENDS]
    assert ended.all() == ended.any() == bool(re.search(r"\d$", written))
