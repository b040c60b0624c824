"""Forms of JSON schemas: any answer that follows a schema can be filled in, and whatever is taken follows it."""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from viva.scenarios.kieval.verdicts import read_verdict, verdict_schema
from viva.web.rooms.schema_form import SchemaForm

Drawn = tuple[dict[str, Any], Any]  # a schema, and a value that follows it
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=30)


@st.composite
def leaves(draw: st.DrawFn) -> Drawn:
    kind = draw(st.sampled_from(["enum", "words", "bounded", "integer", "number", "boolean", "text", "list", "deep"]))
    whole = draw(st.integers(-50, 50))
    match kind:
        case "enum":
            return {"type": "integer", "enum": [1, 2, 3, 4]}, draw(st.integers(1, 4))
        case "words":
            return {"type": "string", "enum": ["off_topic", "none", ""]}, draw(st.sampled_from(["off_topic", "none"]))
        case "bounded":
            return {"type": "integer", "minimum": whole - 3, "maximum": whole + 3}, whole
        case "integer":
            return {"type": "integer"}, whole
        case "number":
            return {"type": "number", "minimum": -1e9}, draw(st.floats(-1e9, 1e9))
        case "boolean":
            return {"type": "boolean"}, draw(st.booleans())
        case "text":
            return {"type": "string", "maxLength": draw(st.sampled_from([40, 300]))}, draw(TEXT)
        case "list":
            return {"type": "array", "items": {"type": "integer"}}, draw(st.lists(st.integers(-9, 9), max_size=3))
    return {"anyOf": [{"type": "integer"}, {"type": "array"}]}, draw(st.sampled_from([3, [None, {"a": [1]}]]))


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    names = draw(st.lists(st.text("ab_/~ é", min_size=1, max_size=4), unique=True, max_size=4))
    parts = {name: draw(inner) for name in names}
    schema = {
        "type": "object",
        "properties": {name: part for name, (part, _) in parts.items()},
        "required": names,
        "additionalProperties": False,
    }
    return schema, {name: value for name, (_, value) in parts.items()}


def filled(form: SchemaForm, value: Any) -> dict[str, str]:
    """What a person puts into the fields for a value."""
    entered: dict[str, str] = {}
    for group in form.groups:
        for field in group.fields:
            found = value
            for step in field.path:
                found = found[step]
            written = json.dumps(found, ensure_ascii=False)
            if field.choices:  # the button or line of this value
                [written] = [option for option, _ in field.choices if json.loads(option) == found]
            entered[form.name(field)] = found if field.kind in ("line", "text") else written
    return entered


@given(objects(st.one_of(leaves(), objects(leaves()))))
def test_every_answer_can_be_filled_in(drawn: Drawn) -> None:
    schema, value = drawn
    form = SchemaForm(schema, "call0/")
    text, errors = form.read(filled(form, value))
    assert errors == {}
    assert json.loads(text) == value
    assert list(json.loads(text)) == list(value), "in the schema's order"


@given(objects(st.one_of(leaves(), objects(leaves()))), st.randoms(use_true_random=False), st.data())
def test_whatever_is_taken_follows_the_schema(drawn: Drawn, chance: Any, data: st.DataObject) -> None:
    schema, value = drawn
    form = SchemaForm(schema)
    entered = filled(form, value)
    for name in entered:
        if chance.random() < 0.4:
            entered[name] = data.draw(
                st.one_of(TEXT, st.sampled_from(["", "7", "-1", "[]", '"x"', "null", "1e999", "9" * 30]))
            )
    text, errors = form.read(entered)
    assert bool(text) != bool(errors)
    if text:
        jsonschema.validate(json.loads(text), schema)
    else:
        assert errors.keys() <= entered.keys() | {"value"}


def test_a_verdict_has_buttons_a_list_and_comments_that_may_be_empty() -> None:
    form = SchemaForm(verdict_schema(512))
    labels = [group.label for group in form.groups]
    assert labels == ["Accuracy", "Logic", "Relevance", "Coherence", "Conciseness", ""]
    assert [(one.label, one.kind) for one in form.groups[0].fields] == [("Comment", "text"), ("Score", "choice")]
    assert [(one.label, one.kind) for one in form.groups[-1].fields] == [
        ("Overall comment", "text"), ("Overall score", "choice"),
        ("Stop conversation", "choice"), ("Stop reason", "list"),
    ]  # fmt: skip
    entered = {form.name(field): "3" for group in form.groups for field in group.fields if field.label.endswith("core")}
    text, errors = form.read(entered | {"value/stop_conversation": "false", "value/stop_reason": '"none"'})
    assert errors == {}
    assert read_verdict(text).scores() == [3] * 6
    _, errors = form.read({"value/stop_reason": '"bored"', "value/accuracy/comment": "x" * 500})
    assert errors["value/accuracy/comment"] == "expected at most 181 characters, found 500"
    assert errors["value/stop_reason"].startswith("expected one of Off topic, Empty response")
    assert errors["value/logic/score"] == "please choose one"


class _Part(BaseModel):
    why: str | None = None
    stars: int = Field(ge=1, le=5, description="five is best")


class _Review(BaseModel):
    part: _Part
    mood: Literal["good", "bad"] | None = None
    price: float = 0.0


def test_schemas_that_pydantic_writes_are_forms_too() -> None:
    form = SchemaForm(_Review.model_json_schema())
    stars = form.groups[0].fields[1]
    assert (stars.kind, stars.note, len(stars.choices)) == ("choice", "five is best", 5)
    text, errors = form.read({"value/part/stars": "4", "value/mood": "", "value/price": ""})
    assert errors == {}
    assert _Review.model_validate_json(text) == _Review(part=_Part(stars=4))
    text, _ = form.read({"value/part/stars": "1", "value/part/why": "so", "value/mood": '"bad"', "value/price": "2.5"})
    assert _Review.model_validate_json(text) == _Review(part=_Part(stars=1, why="so"), mood="bad", price=2.5)


@pytest.mark.parametrize(
    ("schema", "entered", "problem"),
    [
        ({"type": "array", "minItems": 2}, "[1", "this is not JSON"),
        ({"type": "array", "minItems": 2}, "[1]", "[1] is too short"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a": "b"}', "a: 'b' is not of type"),
        ({"type": "integer", "multipleOf": 5}, "7", "7 is not a multiple of 5"),
        ({"type": "integer"}, "7.5", "expected a whole number, found '7.5'"),
        ({"type": "number", "maximum": 1}, "2", "expected a number of at most 1, found 2"),
        ({"type": "number"}, "nan", "expected a number"),
        ({"type": "string", "minLength": 1}, "", "please fill this in"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "A", "'A' does not match"),
        ({"$ref": "http://127.0.0.1:9/never-asked.json"}, "1", "the schema itself is invalid"),
        ({"type": "nonsense"}, "1", "the schema itself is invalid"),
    ],
)
def test_what_is_wrong_is_named(schema: dict[str, Any], entered: str, problem: str) -> None:
    text, errors = SchemaForm(schema).read({"value": entered})
    assert text == ""
    assert problem in errors["value"]


def test_functions_without_arguments_need_none() -> None:
    assert SchemaForm({"type": "object", "properties": {}}).read({}) == ("{}", {})
