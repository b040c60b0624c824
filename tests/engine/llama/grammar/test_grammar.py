"""Grammars: random walks end in conforming JSON, canonical JSON is taken, what is forced is the only continuation."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from random_schemas import ENUMS, Schema, following, schemas, walk, with_values

from viva.engine.backends.llama import grammar as grammars
from viva.engine.backends.llama.grammar import Grammar, GrammarState

fixed = settings(deadline=None, derandomize=True, max_examples=60)
seeds = st.integers(0, 10**6)


def conforms(data: bytes, schema: Schema) -> bool:
    orjson.loads(data)  # the strict reader takes it too: well-formed UTF-8, no half of a surrogate pair, no infinity
    return bool(Draft202012Validator(schema).is_valid(json.loads(data.decode())))


def after(schema: Schema, text: str) -> tuple[Grammar, GrammarState]:
    grammar = Grammar(schema)
    state = grammar.advance(grammar.start, text.encode())
    assert state is not None, text
    return grammar, state


def takes(schema: Schema, text: str | bytes) -> bool:
    grammar = Grammar(schema)
    state = grammar.advance(grammar.start, text.encode() if isinstance(text, str) else text)
    return state is not None and state.may_end


@settings(fixed, max_examples=200)
@given(schemas, seeds)
def test_a_random_walk_ends_in_json_of_the_schema(schema: Schema, seed: int) -> None:
    *_, (state, data) = walk(Grammar(schema), seed)
    assert state.complete
    assert conforms(data, schema)


@settings(fixed, max_examples=200)
@given(with_values)
def test_canonical_json_of_any_value_is_taken_byte_by_byte(pair: tuple[Schema, Any]) -> None:
    grammar = Grammar(pair[0])
    state, whole = grammar.start, json.dumps(pair[1], ensure_ascii=False).encode()
    for byte in whole:
        assert not state.may_end
        following = grammar.advance(state, bytes([byte]))
        assert following is not None
        state = following
    assert state.complete
    assert grammar.advance(grammar.start, whole) == state


@settings(fixed, max_examples=200)
@given(with_values, st.data())
def test_corrupted_text_is_not_taken_for_whole(pair: tuple[Schema, Any], data: st.DataObject) -> None:
    schema, value = pair
    whole = json.dumps(value, ensure_ascii=False).encode()
    at = data.draw(st.integers(0, len(whole) - 1))
    assert not takes(schema, whole[:at])
    patch = data.draw(st.sampled_from([b"", b" ", b",", b'"', b"\\", b"0", b"}", b"]", b"\x1f", b"null", b"\xc3"]))
    text = whole[:at] + patch + whole[at + data.draw(st.integers(0, 1)) :]
    if takes(schema, text):
        assert conforms(text, schema)
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for other in (json.dumps(value, ensure_ascii=False, indent=1), compact):
        if other.encode() != whole:
            assert not takes(schema, other)


def test_properties_come_in_the_order_of_the_schema() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}
    assert takes(schema, '{"b": null, "a": null}')
    assert not takes(schema, '{"a": null, "b": null}')


def only_continuation(grammar: Grammar, state: GrammarState) -> tuple[bytes, GrammarState]:
    """Brute force: on as long as just one of all bytes may come and the text may not end."""
    text = b""
    while not state.may_end and len(following(grammar, state)) == 1:
        text += bytes(following(grammar, state))
        state = grammar.advance(state, text[-1:]) or state
    return text, state


@settings(fixed, max_examples=100)
@given(schemas, seeds)
def test_forced_text_is_the_only_continuation(schema: Schema, seed: int) -> None:
    grammar = Grammar(schema)
    for state, _ in walk(grammar, seed):
        assert grammar.forced(state) == only_continuation(grammar, state)


ARRAY: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}
ZERO: Schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
FORCED: list[tuple[Schema, str, str]] = [
    (ARRAY, "", '["'),
    (ARRAY, '["a"', ""),  # another item, or the end
    (ARRAY, '["a", "b"', "]"),
    ({"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}, "", "[1, 1]"),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 0}, "", "[]"),
    ({"type": "array", "items": {"type": "array", "minItems": 1}, "minItems": 1}, "", '[["'),
    (ZERO, '{"n": 0', ', "s": "'),
    (ZERO, '{"n": 10', ""),
    (ZERO, '{"n": 1234567890123456789', ', "s": "'),  # no integer of 64 bits is longer
    ({"anyOf": [{"type": "string"}]}, "", '"'),
    ({"anyOf": [{"anyOf": [{"type": "object", "properties": {"a": {"type": "null"}}}]}]}, "", '{"a": null}'),
    ({"type": ["string"]}, "", '"'),
    ({"type": "string", "maxLength": 2}, '"ab', '"'),
    ({"type": "string"}, '"\\ud83d', "\\u"),
    ({"type": "integer"}, "0", ""),  # nothing more may come, and the text ends
    ({"enum": [1, 10]}, "", "1"),
    ({"enum": [1, 10]}, "1", ""),  # it may end here, though only one byte may come
    (ENUMS, "", '{"a": 7, "b": 1'),
]


@case_table(("schema", "said", "forced"), FORCED)
def test_what_leaves_no_choice_is_forced(schema: Schema, said: str, forced: str) -> None:
    grammar, state = after(schema, said)
    text, end = grammar.forced(state)
    assert text.decode() == forced
    assert end == grammar.advance(state, forced.encode())


def test_forced_text_comes_in_bounded_pieces() -> None:
    grammar = Grammar({"type": "array", "items": {"const": "again"}, "minItems": 10**9})
    text, state = grammar.forced(grammar.start)
    assert 1 << 16 <= len(text) < 1 << 17
    more, _ = grammar.forced(state)
    assert (text + more).startswith(b'["again", "again", ')
    assert grammar.advance(grammar.start, text + more) is not None


def test_within_a_string_nothing_is_made_anew() -> None:
    grammar, state = after({"type": "object", "properties": {"comment": {"type": "string"}}}, '{"comment": "')
    assert grammar.advance(state, "a long é comment".encode()) is state
    assert grammar.forced(state) == (b"", state)


@fixed
@given(schemas, seeds)
def test_a_grammar_that_remembers_few_states_says_the_same(schema: Schema, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammars, "_MAX_STATES", 3)
        few, whole = Grammar(schema), Grammar(schema)
        patch.undo()
        for state, data in walk(whole, seed):
            there = few.advance(few.start, data)
            assert there == state
            assert few.forced(there or state) == whole.forced(state)


INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}


@settings(fixed, max_examples=300)
@given(st.integers(-(2**64), 2**64) | st.sampled_from([s * 2**63 + d for s in (-1, 1) for d in range(-12, 13)]))
def test_just_the_integers_of_64_bits_are_taken(number: int) -> None:
    assert takes(INTEGER, str(number)) == (-(2**63) <= number < 2**63)


@settings(fixed, max_examples=200)
@given(st.floats(-1e100, 1e100, exclude_min=True, exclude_max=True))
def test_the_shortest_form_of_any_float_is_taken(number: float) -> None:
    assert takes(NUMBER, json.dumps(number))


@case_table(
    ("text", "taken"),
    [
        ("-2.2250738585072014e-308", True),  # the longest there is
        ("123456789012345678901234", True),
        ("1234567890123456789012345", False),
        ("12345678901234567890123.", False),  # nothing is begun that could not be finished
        ("1e99", True),
        ("1e-999", True),
        ("1e100", False),
        ("1E+999", False),
        ("01", False),
        (".5", False),
        ("-", False),
    ],
)
def test_numbers_have_bounds(text: str, taken: bool) -> None:
    assert takes(NUMBER, text) == taken


@case_table(
    ("inside", "taken"),
    [
        ("é😀", True),
        (r"\u00e9\ud83d\ude00", True),  # an escape is a character, and so is a surrogate pair
        (r"\ud83d\n", False),
        (r"\ude00a", False),
        ("é", False),
        ("abc", False),
        (b"a\xc3", False),
        (b"a\xa9", False),
        (b"a\xed\xa0\x80", False),  # a surrogate in UTF-8
        (b"a\xc0\xaf", False),  # a slash, spelt too long
        (b"a\xf4\x8f\xbf\xbf", True),
        (b"a\xf4\x90\x80\x80", False),  # beyond the last character
    ],
)
def test_length_is_counted_in_characters(inside: str | bytes, taken: bool) -> None:
    data = inside.encode() if isinstance(inside, str) else inside
    assert takes({"type": "string", "minLength": 2, "maxLength": 2}, b'"' + data + b'"') == taken
