"""An answer that follows a JSON schema, filled in field by field: the form, and the JSON text that comes of it.

What never belongs here: HTML, and which field a schema's part becomes (``schema_fields``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.schemas import broken_rules

from .schema_fields import FormField, Group, Schema, Wrong, groups_of

WHOLE = "value"  # the name under which errors of the whole answer stand


class SchemaForm:
    """The form of a schema. ``prefix`` stands before the names of its fields, where a page has several forms."""

    def __init__(self, schema: Schema, prefix: str = "") -> None:
        self._schema, self._prefix = schema, prefix
        self.groups: list[Group] = groups_of(schema)

    def name(self, field: FormField) -> str:
        """The field's name on the page."""
        return self._prefix + field.name

    def read(self, given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """The answer as JSON text, fields in the schema's order, and what is wrong by the names of fields; where
        anything is, the text is empty.
        """
        errors: dict[str, str] = {}
        answer: Any = {}
        for group in self.groups:
            if group.label:  # an object that must be there is there, empty or not
                answer[group.name] = {}
            for field in group.fields:
                try:
                    value = field.value(given.get(self.name(field)))
                except Wrong as wrong:
                    errors[self.name(field)] = str(wrong)
                    continue
                if not field.path:
                    answer = value
                elif value is not ...:
                    _put(answer, field.path, value)
        errors = errors or self._broken_rules(answer)
        return ("" if errors else orjson.dumps(answer).decode()), errors

    def _broken_rules(self, answer: Any) -> dict[str, str]:
        """What the schema says against the answer, at the fields that it says it of."""
        fields = {field.path: field for group in self.groups for field in group.fields}
        found: dict[str, str] = {}
        for path, message in _broken_rules(self._schema, answer):
            at = next((fields[path[:length]] for length in range(len(path), -1, -1) if path[:length] in fields), None)
            name = self._prefix + WHOLE if at is None else self.name(at)
            inside = ".".join(path[len(at.path) :] if at is not None else path)
            found.setdefault(name, f"{inside}: {message}" if inside else message)
        return found


def _broken_rules(schema: Schema, value: Any) -> list[tuple[tuple[str, ...], str]]:
    """What a JSON schema says against a value, as (path, message)."""
    try:
        errors = broken_rules(schema, value)
    except ConfigurationError:
        return [((), "the schema itself cannot be used; please tell whoever runs this")]
    return [(tuple(map(str, one.path)), _sentence(one)) for one in errors]


def _sentence(error: Any) -> str:
    message = str(error.message)
    return message if len(message) <= 200 else f"breaks the rule '{error.validator}'"


def _put(answer: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        answer = answer.setdefault(step, {})
    answer[path[-1]] = value
