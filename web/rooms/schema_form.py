"""A form for a JSON schema: its fields, how each is filled in, and the resulting JSON text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.json_data import find_schema_violations, strip_surrogates

FieldKind = Literal["choice", "list", "line", "text", "number", "json"]
Schema = Mapping[str, Any]
_MAX_BUTTONS = 11  # maximum choices shown as buttons; more are shown as a list
_MAX_INTEGER = 2**63  # some programs round larger integers in JSON
_MAX_LINE = 60  # maximum characters for a one-line field; longer texts get a text area


class InvalidField(Exception):
    """The content of a field is not valid; the message says why."""


@dataclass(slots=True, frozen=True)
class FormField:
    """A single value of the answer.

    `path` leads to it (empty if it is the whole answer); `choices` are (value as JSON, displayed text). A blank field
    is null if null is allowed; otherwise it is left out, unless the value is `required`.
    """

    path: tuple[str, ...]
    label: str
    kind: FieldKind
    schema: Schema
    required: bool = True
    nullable: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        return "/".join(["value", *(part.replace("~", "~0").replace("/", "~1") for part in self.path)])

    @property
    def longest(self) -> int | None:
        """The maximum number of characters of a text; None if there is no limit."""
        bound = self.schema.get("maxLength")
        return bound if isinstance(bound, int) and self.kind in ("line", "text") else None

    def value(self, text: str | None) -> Any:
        """Parse the content of the field; return `...` if the field is left out of the answer.

        Raises:
            InvalidField: The content is not valid.
        """
        if self.kind in ("line", "text"):
            return self._text(text or "")
        if text is None or not text.strip():
            if not self.required or self.nullable:
                return None if self.nullable else ...
            raise InvalidField("please choose one" if self.kind in ("choice", "list") else "please fill this in")
        if self.kind in ("choice", "list"):
            if text not in [value for value, _ in self.choices]:
                raise InvalidField(f"expected one of {', '.join(label for _, label in self.choices)}")
            return orjson.loads(text)
        return self._number(text.strip()) if self.kind == "number" else _parse_json(text)

    def _text(self, answer: str) -> Any:
        text = strip_surrogates(answer.replace("\r\n", "\n"))
        shortest = self.schema.get("minLength", 0)
        if not text and (self.nullable or not self.required):
            return None if self.nullable else ...
        if len(text) < shortest:
            raise InvalidField("please fill this in" if shortest == 1 else f"expected at least {shortest:,} characters")
        if self.longest is not None and len(text) > self.longest:
            raise InvalidField(f"expected at most {self.longest:,} characters, found {len(text):,}")
        return text

    def _number(self, text: str) -> int | float:
        is_integer = self.schema.get("type") == "integer"
        try:
            value: int | float = int(text) if is_integer else float(text)
        except ValueError:
            raise InvalidField(f"expected a {'whole ' if is_integer else ''}number, found {text[:40]!r}") from None
        low, high = self.schema.get("minimum", -math.inf), self.schema.get("maximum", math.inf)
        if not low <= value <= high or not abs(value) < _MAX_INTEGER:
            raise InvalidField(f"expected a number {_bounds_message(low, high)}, found {text[:40]}")
        return value


@dataclass(slots=True, frozen=True)
class FieldGroup:
    """Fields of the object called `name` within the answer; a group without a label has fields of the answer itself."""

    label: str
    fields: tuple[FormField, ...]
    name: str = ""
    note: str = ""


def field_groups(schema: Schema) -> list[FieldGroup]:
    """Return the fields of a schema's answers, in the schema's order."""
    root = _ResolvedSchema(schema, schema)
    if not root.is_object:
        return [FieldGroup("", (_make_field((), "Answer", root, required=True),))]
    groups: list[FieldGroup] = []
    for name, part, required in root.properties():
        if part.is_object and required and not part.nullable:
            inner = [
                _make_field((name, key), _label_from_name(key), field, needed)
                for key, field, needed in part.properties()
            ]
            groups.append(FieldGroup(part.title or _label_from_name(name), tuple(inner), name, part.note))
            continue
        field = _make_field((name,), _label_from_name(name), part, required)
        if groups and not groups[-1].label:
            groups[-1] = FieldGroup("", (*groups[-1].fields, field))
        else:
            groups.append(FieldGroup("", (field,)))
    return groups


class _ResolvedSchema:
    """Part of a schema with its references resolved and null removed from its types."""

    def __init__(self, part: Any, root: Schema) -> None:
        self._root = root
        self.schema, self.nullable = self._without_null(part if isinstance(part, Mapping) else {})
        self.title = _optional_text(self.schema.get("title"))
        self.note = _optional_text(self.schema.get("description"))

    @property
    def is_object(self) -> bool:
        """True if this part describes an object and all fields are known."""
        properties = self.schema.get("properties")
        combined = self.schema.keys() & {"anyOf", "oneOf", "allOf", "patternProperties", "if", "$ref"}
        open_ = self.schema.get("additionalProperties") not in (None, False)
        return isinstance(properties, Mapping) and not combined and not open_

    def properties(self) -> Iterator[tuple[str, _ResolvedSchema, bool]]:
        """Iterate over the fields of an object as (name, schema, whether the field is required)."""
        required = self.schema.get("required", ())
        for name, part in self.schema["properties"].items():
            yield name, _ResolvedSchema(part, self._root), name in required

    def _without_null(self, part: Schema) -> tuple[Schema, bool]:
        part = self._followed(part)
        for key in ("anyOf", "oneOf"):
            options = part.get(key)
            if isinstance(options, list) and {"type": "null"} in options and len(options) == 2:
                [kind_left] = [option for option in options if option != {"type": "null"}]
                rest = {name: value for name, value in part.items() if name != key}
                return {**self._followed(kind_left), **rest}, True
        kinds = part.get("type")
        if isinstance(kinds, list) and "null" in kinds and len(kinds) == 2:
            [kind_left] = [kind for kind in kinds if kind != "null"]
            return {**part, "type": kind_left}, True
        return part, False

    def _followed(self, part: Any) -> Schema:
        for _ in range(8):  # a longer chain of references must be circular
            reference = part.get("$ref") if isinstance(part, Mapping) else None
            if not isinstance(reference, str) or not reference.startswith("#/"):
                break
            target: Any = self._root
            for step in reference[2:].split("/"):
                target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
            if not isinstance(target, Mapping):
                break
            part = {**target, **{name: value for name, value in part.items() if name != "$ref"}}
        return part if isinstance(part, Mapping) else {}


def _make_field(path: tuple[str, ...], label: str, part: _ResolvedSchema, required: bool) -> FormField:
    schema = part.schema
    kind, choices = _kind_and_choices(schema)
    return FormField(path, part.title or label, kind, schema, required, part.nullable, choices, part.note)


def _kind_and_choices(schema: Schema) -> tuple[FieldKind, tuple[tuple[str, str], ...]]:
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    type_ = schema.get("type")
    if (
        isinstance(listed, list)
        and listed
        and all(isinstance(choice, str | int | float | bool | None) for choice in listed)
    ):
        choices = tuple((_to_json(choice), _display_value(choice)) for choice in listed)
        numbers = all(isinstance(choice, int | float) for choice in listed) or len(listed) == 1
        return ("choice" if numbers and len(listed) <= _MAX_BUTTONS else "list"), choices
    if schema.keys() & {"anyOf", "oneOf", "allOf", "not", "if", "$ref"}:
        return "json", ()
    if type_ == "boolean":
        return "choice", (("true", "yes"), ("false", "no"))
    if type_ == "integer":
        low, high = schema.get("minimum"), schema.get("maximum")
        if isinstance(low, int) and isinstance(high, int) and 0 <= high - low < _MAX_BUTTONS:
            return "choice", tuple((str(choice), str(choice)) for choice in range(low, high + 1))
        return "number", ()
    if type_ == "number":
        return "number", ()
    if type_ == "string":
        bound = schema.get("maxLength")
        return ("line" if isinstance(bound, int) and bound <= _MAX_LINE else "text"), ()
    return "json", ()


def _parse_json(text: str) -> Any:
    try:
        return orjson.loads(text.encode("utf-8", "replace"))
    except orjson.JSONDecodeError as error:
        raise InvalidField(f"this is not JSON: {error}") from None


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _display_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "yes", False: "no"}[value]
    return _label_from_name(value) if isinstance(value, str) else f"{value}"


def _label_from_name(name: str) -> str:
    """Return a label for a name: `stop_reason` becomes Stop reason."""
    words = " ".join(name.replace("_", " ").split())
    return words[:1].upper() + words[1:] if words else name


def _optional_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _bounds_message(low: float, high: float) -> str:
    if math.isinf(low) or math.isinf(high):
        return f"of at least {low:g}" if math.isinf(high) else f"of at most {high:g}"
    return f"from {low:g} to {high:g}"


WHOLE_ANSWER = "value"  # the name for errors of the whole answer


class SchemaForm:
    """The form of a schema. `prefix` precedes the names of its fields, for pages with several forms."""

    def __init__(self, schema: Schema, prefix: str = "") -> None:
        self._schema, self._prefix = schema, prefix
        self.groups: list[FieldGroup] = field_groups(schema)

    def name(self, field: FormField) -> str:
        return self._prefix + field.name

    def read(self, fields: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Return (the answer as JSON text with fields in the schema's order, the errors by field name).

        The text is empty if there are errors.
        """
        errors: dict[str, str] = {}
        answer: Any = {}
        for group in self.groups:
            if group.label:  # a required object is included even if it is empty
                answer[group.name] = {}
            for field in group.fields:
                try:
                    value = field.value(fields.get(self.name(field)))
                except InvalidField as wrong:
                    errors[self.name(field)] = str(wrong)
                    continue
                if not field.path:
                    answer = value
                elif value is not ...:
                    _set_at_path(answer, field.path, value)
        errors = errors or self._broken_rules(answer)
        return ("" if errors else orjson.dumps(answer).decode()), errors

    def _broken_rules(self, answer: Any) -> dict[str, str]:
        """Return the schema's errors for an answer, by field."""
        fields = {field.path: field for group in self.groups for field in group.fields}
        problems: dict[str, str] = {}
        for path, message in _schema_errors(self._schema, answer):
            at = next((fields[path[:length]] for length in range(len(path), -1, -1) if path[:length] in fields), None)
            name = self._prefix + WHOLE_ANSWER if at is None else self.name(at)
            inside = ".".join(path[len(at.path) :] if at is not None else path)
            problems.setdefault(name, f"{inside}: {message}" if inside else message)
        return problems


def _schema_errors(schema: Schema, value: Any) -> list[tuple[tuple[str, ...], str]]:
    """Validate a value against a JSON schema; return its errors as (path, message)."""
    try:
        errors = find_schema_violations(schema, value)
    except ConfigurationError:
        return [((), "the schema itself is invalid; please tell the person who started the run")]
    return [(tuple(map(str, error.path)), _error_sentence(error)) for error in errors]


def _error_sentence(error: Any) -> str:
    message = str(error.message)
    return message if len(message) <= 200 else f"violates the rule '{error.validator}'"


def _set_at_path(answer: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        answer = answer.setdefault(step, {})
    answer[path[-1]] = value
