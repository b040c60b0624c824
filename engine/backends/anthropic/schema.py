"""A JSON schema as the Messages API takes it for structured output.

The API refuses a schema with bounds of numbers and texts, and objects that are open. Objects are closed here; a bound
is written into the description, where the model may follow it. What never belongs here: schemas of tools' arguments,
which the API takes as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEPT = frozenset(["$ref", "type", "enum", "const", "title", "required"])
_LISTS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}  # of alternatives, under the name that is known
_MAPPINGS = ("properties", "$defs", "definitions")
_FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"])


def taken_schema(schema: Any) -> Any:
    """The schema with what the API does not know written out as words."""
    if not isinstance(schema, Mapping):
        return schema
    taken: dict[str, Any] = {}
    words: list[str] = []
    for name, value in schema.items():
        if name in _KEPT or (name == "format" and value in _FORMATS) or (name == "minItems" and value in (0, 1)):
            taken[name] = value
        elif name in _LISTS:
            taken[_LISTS[name]] = [taken_schema(one) for one in value]
        elif name in _MAPPINGS:
            taken[name] = {key: taken_schema(one) for key, one in value.items()}
        elif name == "items":
            taken[name] = taken_schema(value)
        elif name not in ("description", "additionalProperties", "$schema", "$id"):
            words.append(f"{name}: {value}")
    if schema.get("type") == "object" or "properties" in schema:
        taken["additionalProperties"] = False
    described = " ".join([schema.get("description", ""), f"({', '.join(words)})" if words else ""]).strip()
    return taken | ({"description": described} if described else {})
