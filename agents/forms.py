"""Answers in the form of a pydantic model: the JSON schema that a backend is held to, and reading what came.

What never belongs here: asking, and what a form is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from viva.engine.errors import MalformedOutput

from .reading import answer_in, own_objects

M = TypeVar("M", bound=BaseModel)
_MOST_CHOICES = 100  # whole numbers between bounds are listed one by one up to so many
_KEPT = ("type", "enum", "const", "items", "minItems", "maxItems", "minLength", "maxLength", "anyOf")


@lru_cache(maxsize=256)  # pydantic takes a millisecond to write one, as long as some calls take
def form_schema(form: type[BaseModel]) -> dict[str, Any]:
    """A model's JSON schema as every structured-output implementation takes it: without ``$ref``, titles and defaults,
    every field required and no other allowed. Descriptions stay with their fields. It is shared: do not change it.
    """
    schema = form.model_json_schema()
    return _plain(schema, schema.get("$defs", {}))


def read_form(form: type[M], text: str, judged: str = "") -> M:
    """The last JSON object in a model's text, if it has the form. What it quotes, of ``judged`` or of others, does not
    count.

    :raises MalformedOutput: there is none; the message says what is wrong with the last object.
    """
    problem = "it holds no JSON object"
    for _, value in reversed(own_objects(answer_in(text), judged)):
        try:
            return form.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            problem = f"{where}: {first['msg']}" if where else str(first["msg"])
            break
    raise MalformedOutput(problem)


def _plain(schema: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _plain(named[str(schema["$ref"]).rpartition("/")[2]], named)
    if "allOf" in schema and len(schema["allOf"]) == 1:
        return _plain(schema["allOf"][0], named)
    plain = {key: schema[key] for key in _KEPT if key in schema}
    if "description" in schema:
        plain["description"] = schema["description"]
    if "anyOf" in schema:
        plain["anyOf"] = [_plain(one, named) for one in schema["anyOf"]]
    if isinstance(schema.get("items"), Mapping):
        plain["items"] = _plain(schema["items"], named)
    if "properties" in schema:
        plain["properties"] = {name: _plain(one, named) for name, one in schema["properties"].items()}
        plain |= {"required": list(schema["properties"]), "additionalProperties": False}
    if schema.get("type") == "integer":
        low, high = _bounds(schema)
        if low is not None and high is not None and high - low < _MOST_CHOICES:
            plain["enum"] = list(range(low, high + 1))
    return plain


def _bounds(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - 1
    return low, high
