"""Schemas: which values each keyword lets through, branches that are taken together, and what is refused by name."""

from __future__ import annotations

import enum
import json
import re
from typing import Annotated, Any, Literal

import pytest
from case_tables import case_table
from pydantic import BaseModel, Field
from random_schemas import Schema

from viva.engine.backends.llama.grammar import Grammar
from viva.engine.backends.llama.tool_calls import HERMES, call_grammar
from viva.engine.errors import ConfigurationError
from viva.engine.tools import Toolbox, ToolCall


def takes(schema: Schema, value: Any) -> bool:
    grammar = Grammar(schema)
    state = grammar.advance(grammar.start, json.dumps(value, ensure_ascii=False).encode())
    return state is not None and state.may_end


STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}


@case_table(
    ("bounds", "least", "most"),
    [
        ({"minimum": 1, "maximum": 10}, 1, 10),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 5}, 1, 4),
        ({"exclusiveMinimum": -0.5, "maximum": 2.5}, 0, 2),
        ({"minimum": -1.5, "exclusiveMaximum": 1.5}, -1, 1),
        ({"minimum": 3, "exclusiveMinimum": 3, "maximum": 9, "exclusiveMaximum": 7}, 4, 6),
        ({"minimum": 1.0, "maximum": 1000}, 1, 1000),
        ({"minimum": 5, "maximum": 5}, 5, 5),
    ],
)
def test_bounds_let_just_their_integers_through(bounds: Schema, least: int, most: int) -> None:
    schema = {**INTEGER, **bounds}
    assert [number for number in range(-20, 1100) if takes(schema, number)] == list(range(least, most + 1))


@case_table(
    ("schema", "taken", "refused"),
    [
        ({"anyOf": [{"anyOf": [STRING, NULL]}, INTEGER]}, ["a", None, 5], [True, 1.5, []]),
        ({"anyOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]}, ["a", None, 5], [True]),
        ({"anyOf": [{"$ref": "#/$defs/a"}, NULL], "$defs": {"a": {"oneOf": [STRING, INTEGER]}}}, ["a", 1, None], [[]]),
        ({"anyOf": [INTEGER, NUMBER]}, [5, 1.5], ["5"]),
        ({"anyOf": [NUMBER, INTEGER, STRING]}, [5, 1.5, "a"], [None]),
        ({"type": ["integer", "number"]}, [5, 1.5], ["5"]),
        ({"anyOf": [{"enum": ["a", "b"]}, {"enum": ["b", "ab"]}]}, ["a", "b", "ab"], ["abb", ""]),
        (
            {"anyOf": [{"const": "a"}, {"enum": [1, 10]}, {"type": "boolean"}, {"const": 100}]},
            ["a", 10, 100, True],
            [0],
        ),
        ({"anyOf": [{"const": {"a": 1}}, {"const": {"a": 2}}]}, [{"a": 1}, {"a": 2}], [{"a": 3}]),
        ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["c"]}]}, ["a", "c"], ["d"]),
        ({"anyOf": [{"enum": [0]}, {**INTEGER, "minimum": 1, "maximum": 3}]}, [0, 1, 3], [4]),
        ({"type": ["string", "null"], "minLength": 1}, ["a", None], [""]),
        ({"type": ["array", "integer"], "maxItems": 1, "items": NULL}, [[], [None], 7], [[None, None], ["a"]]),
        ({"anyOf": [{"type": "array", "items": NULL}, {"type": "object"}]}, [[None], {}], [["a"], {"a": 1}]),
        ({"type": ["integer", "string"], "enum": [1, "a"]}, [1, "a"], [2]),
        ({"type": "number", "enum": [1, 1.5]}, [1, 1.5], [2]),
        ({"enum": [2**64 - 1, -(2**63)]}, [2**64 - 1, -(2**63)], [0]),
        ({"type": "object", "additionalProperties": True}, [{}, {"a": [1, {"b": None}]}], [[], "a", 1]),
        ({"type": "object", "properties": {"a": NULL}, "additionalProperties": True}, [{"a": None}], [{}, {"b": 1}]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": NULL}}, [None], [1]),
    ],
)
def test_branches_are_taken_together(schema: Schema, taken: list[Any], refused: list[Any]) -> None:
    assert [value for value in [*taken, *refused] if takes(schema, value)] == taken


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Part(BaseModel):
    """Also its docstring comes along, as a description."""

    name: Annotated[str, Field(min_length=1, max_length=4)]
    colour: Colour | None


class Whole(BaseModel):
    grade: Annotated[int, Field(ge=1, le=10)]
    share: float | None
    kind: Literal["a", "b"] | Literal[1, 2]
    colour: Colour
    parts: Annotated[list[Part], Field(min_length=1)]
    amount: int | float


def test_what_pydantic_writes_for_a_model_is_taken() -> None:
    schema = Whole.model_json_schema()
    value: Any = {"grade": 10, "share": None, "kind": 2, "colour": "red"}
    value |= {"parts": [{"name": "éé", "colour": None}], "amount": 1.5}
    assert Whole.model_validate(value)
    assert takes(schema, value)
    for path, other in [("grade", 11), ("kind", 3), ("colour", None), ("parts", []), ("amount", "1")]:
        assert not takes(schema, value | {path: other})


NAMED: list[tuple[Schema, str]] = [
    ({"type": "string", "pattern": "a+"}, "'pattern' of string"),
    ({"type": "string", "format": "date"}, "'format' of string"),
    ({"type": "string", "minLength": -1}, "minLength must be a whole number from 0, found -1"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength 3 and maxLength 2 exclude every length"),
    ({"type": "array", "maxItems": True}, "maxItems must be a whole number from 0, found True"),
    ({"type": "array", "items": {"type": "integer", "minimum": 1}}, "'minimum' of an integer also needs a maximum"),
    ({"type": "integer", "exclusiveMaximum": 1}, "'exclusiveMaximum' of an integer also needs a minimum"),
    ({"type": "integer", "minimum": 1, "maximum": 1001}, "maximum and minimum leave more than 1,000 integers"),
    ({"type": "integer", "minimum": -1e300, "maximum": 1e300}, "leave more than 1,000 integers"),
    ({"type": "integer", "minimum": 0.2, "maximum": 0.8}, "leave no integer"),
    ({"type": "integer", "minimum": 10**400, "maximum": 10**400}, "beyond the 64-bit integers"),
    ({"type": "string", "minLength": None}, "minLength must be a whole number from 0, found None"),
    ({"type": "integer", "minimum": "1", "maximum": 2}, "minimum must be a number, found '1'"),
    ({"type": "integer", "minimum": 2**64, "maximum": 2**64}, "beyond the 64-bit integers"),
    ({"type": "number", "minimum": 0, "maximum": 1}, "'maximum' of number"),
    ({"type": "integer", "enum": ["a"]}, "enum holds 'a', which is not of type integer"),
    ({"type": "integer", "enum": [1, 2.5]}, "enum holds 2.5, which is not of type integer"),
    ({"type": "integer", "enum": [True]}, "enum holds True, which is not of type integer"),
    ({"type": ["string", "null"], "enum": ["a", 1]}, "enum holds 1, which is not of type string or null"),
    ({"type": "string", "const": None}, "const holds None, which is not of type string"),
    ({"enum": [1, 2**70]}, f"{2**70} is beyond the 64-bit integers"),
    ({"const": {"a": [-(2**63) - 1]}}, f"{-(2**63) - 1} is beyond the 64-bit integers"),
    ({"const": float("nan")}, "cannot be written as JSON"),
    ({"const": "\ud800"}, "cannot be written as JSON"),
    ({"type": "object", "properties": {"\ud800": NULL}}, "cannot be written as JSON"),
    ({"enum": []}, "enum must be a list that is not empty"),
    ({"enum": [1], "minimum": 0}, "'minimum' together with enum"),
    ({"anyOf": [NULL], "type": "string"}, "'type' together with anyOf"),
    ({"type": "object", "properties": {"a": {"allOf": [NULL]}}}, "keyword 'allOf' is not supported"),
    ({"properties": {"a": NULL}}, "keyword 'properties' also needs a type"),
    ({"type": "array", "items": {}}, "allows anything"),
    ({"type": "object", "properties": {}, "required": ["a"]}, "'a' is not described"),
    ({"type": "object", "properties": {"a": NULL}, "required": "a"}, "required must be a list"),
    ({"type": "object", "additionalProperties": NUMBER}, "additionalProperties"),
    ({"type": ["string", "null"], "minItems": 1}, "'minItems' of string or null"),
    ({"type": ["string", "float"]}, "type 'float'"),
    ({"$ref": "#/$defs/nowhere"}, "#/$defs/nowhere"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}, "leads back to itself"),
    ({"oneOf": [INTEGER, NUMBER]}, "a number matches two branches of oneOf"),
    ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, "2 matches two branches of oneOf"),
    ({"oneOf": [STRING, STRING]}, 'first character, but two begin with "'),
    ({"oneOf": [STRING, {"const": "a"}]}, 'first character, but two begin with "'),
    ({"oneOf": [{"const": 1}, INTEGER]}, "first character, but two begin with 1"),
]


@case_table(("schema", "words"), NAMED, ids=range(len(NAMED)))
def test_what_is_not_supported_is_named(schema: Schema, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        Grammar(schema)


A: Schema = {"type": "object", "properties": {"kind": {"const": "a"}, "size": INTEGER}, "required": ["kind", "size"]}
B: Schema = {"type": "object", "properties": {"kind": {"const": "ab"}, "name": STRING}, "required": ["kind"]}


@case_table(
    ("schema", "taken", "refused"),
    [
        ({"anyOf": [STRING, {"const": "a"}]}, ["a", "", "ab"], [None, 1]),
        ({"anyOf": [{"enum": ["a", "abc"]}, {"type": "string", "maxLength": 2}]}, ["abc", "xy", ""], ["abd", "xyz"]),
        ({"anyOf": [{"type": "string", "minLength": 3}, {"type": "string", "maxLength": 1}]}, ["", "a", "abc"], ["ab"]),
        ({"anyOf": [INTEGER, {"enum": [1, 2, 2.5, "1"]}]}, [1, 12, 2.5, "1", -3], [2.6, "2"]),
        ({"anyOf": [A, B]}, [{"kind": "a", "size": 1}, {"kind": "ab"}, {"kind": "ab", "name": ""}], [{"kind": "a"}]),
        ({"anyOf": [B, {"type": "array", "items": {"anyOf": [A, B, STRING]}}]}, [[{"kind": "ab"}, "x"], []], [[1]]),
        (
            {"anyOf": [{"type": "array", "items": INTEGER}, {"type": "array", "items": STRING}]},
            [[1], ["a"], []],
            [[1, "a"]],
        ),
        ({"anyOf": [{"type": "object"}, {"anyOf": [{"const": {"a": 1}}]}]}, [{}, {"a": 1}], [{"a": 2}]),
        ({"oneOf": [{"const": "a"}, {"anyOf": [INTEGER, {"const": 1}]}]}, ["a", 1, 7], ["b"]),
    ],
)
def test_line_39_branches_may_begin_alike(schema: Schema, taken: list[Any], refused: list[Any]) -> None:
    assert [value for value in [*taken, *refused] if takes(schema, value)] == taken


def test_line_39_optional_properties_may_be_left_out() -> None:
    properties = {"a": INTEGER, "ab": STRING, "c": {"type": "array", "items": NULL}, "d": {"const": 1}}
    schema: Schema = {"type": "object", "properties": properties, "required": ["ab"]}
    whole: dict[str, Any] = {"a": 1, "ab": "x", "c": [None], "d": 1}
    for names in [["ab"], ["a", "ab"], ["ab", "c"], ["ab", "d"], ["a", "ab", "c", "d"], ["ab", "c", "d"]]:
        assert takes(schema, {name: whole[name] for name in names})
    for names in [[], ["a"], ["c", "d"], ["a", "c", "d"], ["ab", "a"], ["d", "ab"]]:
        assert not takes(schema, {name: whole[name] for name in names})
    assert takes({"type": "object", "properties": {"maybe": NULL}, "required": []}, {})


def test_line_39_optional_fields_as_pydantic_writes_them() -> None:
    class Step(BaseModel):
        do: Literal["step"]
        note: str | None = None

    class Stop(BaseModel):
        do: Literal["stop"]
        code: int = 0

    class Plan(BaseModel):
        title: str
        steps: list[Step | Stop] = Field(default_factory=list, max_length=2)

    schema = Plan.model_json_schema()
    for value in ({"title": "t"}, {"title": "t", "steps": [{"do": "step", "note": None}, {"do": "stop", "code": 3}]}):
        assert takes(schema, value)
    assert not takes(schema, {"title": "t", "steps": [{"do": "stop", "note": "n"}]})


def test_line_39_text_of_bounded_length_always_ends() -> None:
    """However long a model rambles, the grammar brings its answer to an end within the tokens that it may take."""
    schema: Schema = {
        "type": "object",
        "properties": {"comment": {"type": "string", "maxLength": 40}, "score": {"enum": [1, 2]}},
    }
    grammar = Grammar(schema)
    state, said = grammar.start, b""
    while not state.complete:
        allowed = [byte for byte in range(256) if grammar.advance(state, bytes([byte])) is not None]
        byte = next(
            (byte for byte in b"\\u0" if byte in allowed), allowed[-1]
        )  # the longest spelling of each character
        after = grammar.advance(state, bytes([byte]))
        assert after is not None
        state, said = after, said + bytes([byte])
        assert len(said) < 60 + 6 * 40
    assert len(json.loads(said)["comment"]) == 40


GROWING: Schema = {
    "$defs": {f"a{n}": {"properties": {name: {"$ref": f"#/$defs/a{n + 1}"} for name in "bcdefghij"}, "type": "object"}
              for n in range(9)} | {"a9": NULL},
    "$ref": "#/$defs/a0",
}  # fmt: skip


@case_table(
    ("schema", "problem"),
    [
        (GROWING, "more than 10,000 parts and values"),
        ({"anyOf": [{**INTEGER, "minimum": n, "maximum": n + 999} for n in range(0, 90_000, 1_000)]}, "10,000 parts"),
        ({"anyOf": [{**STRING, "maxLength": n} for n in range(300)]}, "at most 200 branches"),
        (
            {"anyOf": [{"anyOf": [{**STRING, "maxLength": n + m} for n in range(99)]} for m in (0, 99, 198)]},
            "200 branches",
        ),
        (
            {"type": "object", "properties": {f"p{n}": NULL for n in range(300)}, "required": []},
            "at most 200 optional properties",
        ),
    ],
)
def test_no_small_schema_becomes_a_large_grammar(schema: Schema, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Grammar(schema)


def test_tools_beyond_the_bounds_allow_any_value() -> None:
    described: list[Schema] = [
        {"properties": {"a": {"$ref": "#/$defs/a0"}}, "required": ["a"], "$defs": GROWING["$defs"]},
        {"properties": {f"p{n}": NULL for n in range(300)}},
    ]
    tools = Toolbox([{"name": f"f{n}", "parameters": one} for n, one in enumerate(described)], required=True)
    grammar = call_grammar(tools, HERMES)
    for name, arguments in (("f0", {"a": {"any": [1]}}), ("f1", {"any": [1]})):
        said = HERMES.render(ToolCall("", name, json.dumps(arguments)))
        assert grammar.advance(grammar.start, said.encode()) is not None
