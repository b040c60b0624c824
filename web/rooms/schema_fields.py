"""From a JSON schema to the fields of a form: what each is called, how it is filled in, and its value as JSON.

Objects within the answer are groups, one level deep. Whatever has no field of its own (lists, deeper objects, schemas
that combine others) is a field for JSON. What never belongs here: the whole answer (``schema_form``), HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from viva.engine.escapes import readable

Kind = Literal["choice", "list", "line", "text", "number", "json"]
Schema = Mapping[str, Any]
_MOST_BUTTONS = 11  # choices that stand beside each other; more are a list
_LARGEST = 2**63  # JSON with larger whole numbers is read differently by different programs
_LONGEST_LINE = 60  # characters that fit a line; longer texts get an area


class Wrong(Exception):
    """What is in a field cannot be its value; the text says why."""


@dataclass(slots=True, frozen=True)
class FormField:
    """One value of the answer. ``path`` leads to it (empty: it is the whole answer); ``choices`` are (value as JSON, as
    shown). What is left blank is left out, or null where that is allowed, unless the value is ``required``.
    """

    path: tuple[str, ...]
    label: str
    kind: Kind
    schema: Schema
    required: bool = True
    nullable: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """The field's name in a form: a JSON pointer."""
        return "/".join(["value", *(part.replace("~", "~0").replace("/", "~1") for part in self.path)])

    @property
    def longest(self) -> int | None:
        """The most characters of a text; None if there is no bound."""
        bound = self.schema.get("maxLength")
        return bound if isinstance(bound, int) and self.kind in ("line", "text") else None

    def value(self, given: str | None) -> Any:
        """The value of what is in the field; ``...`` if it is left out.

        :raises Wrong: it cannot be one.
        """
        if self.kind in ("line", "text"):
            return self._text(given or "")
        if given is None or not given.strip():
            if not self.required or self.nullable:
                return None if self.nullable else ...
            raise Wrong("please choose one" if self.kind in ("choice", "list") else "please fill this in")
        if self.kind in ("choice", "list"):
            if given not in [value for value, _ in self.choices]:
                raise Wrong(f"expected one of {', '.join(shown for _, shown in self.choices)}")
            return orjson.loads(given)
        return self._number(given.strip()) if self.kind == "number" else _json(given)

    def _text(self, given: str) -> Any:
        text = readable(given.replace("\r\n", "\n"))
        shortest = self.schema.get("minLength", 0)
        if not text and (self.nullable or not self.required):
            return None if self.nullable else ...
        if len(text) < shortest:
            raise Wrong("please fill this in" if shortest == 1 else f"expected at least {shortest:,} characters")
        if self.longest is not None and len(text) > self.longest:
            raise Wrong(f"expected at most {self.longest:,} characters, found {len(text):,}")
        return text

    def _number(self, given: str) -> int | float:
        whole = self.schema.get("type") == "integer"
        try:
            value: int | float = int(given) if whole else float(given)
        except ValueError:
            raise Wrong(f"expected a {'whole ' if whole else ''}number, found {given[:40]!r}") from None
        low, high = self.schema.get("minimum", -math.inf), self.schema.get("maximum", math.inf)
        if not low <= value <= high or not abs(value) < _LARGEST:
            raise Wrong(f"expected a number {_bounds(low, high)}, found {given[:40]}")
        return value


@dataclass(slots=True, frozen=True)
class Group:
    """Fields of one object within the answer, which stands under ``name`` there; without a label those of the answer
    itself.
    """

    label: str
    fields: tuple[FormField, ...]
    name: str = ""
    note: str = ""


def groups_of(schema: Schema) -> list[Group]:
    """The fields of a schema's answers, in its order."""
    whole = _Resolved(schema, schema)
    if not whole.is_object:
        return [Group("", (_field((), "Answer", whole, required=True),))]
    groups: list[Group] = []
    for name, part, required in whole.properties():
        if part.is_object and required and not part.nullable:
            inner = [_field((name, key), _words(key), one, needed) for key, one, needed in part.properties()]
            groups.append(Group(part.title or _words(name), tuple(inner), name, part.note))
            continue
        one = _field((name,), _words(name), part, required)
        if groups and not groups[-1].label:
            groups[-1] = Group("", (*groups[-1].fields, one))
        else:
            groups.append(Group("", (one,)))
    return groups


class _Resolved:
    """A part of a schema with its references followed, and null taken out of what it may be."""

    def __init__(self, part: Any, root: Schema) -> None:
        self._root = root
        self.schema, self.nullable = self._without_null(part if isinstance(part, Mapping) else {})
        self.title = _text(self.schema.get("title"))
        self.note = _text(self.schema.get("description"))

    @property
    def is_object(self) -> bool:
        """Whether it is an object of which all fields are known."""
        named = self.schema.get("properties")
        combined = self.schema.keys() & {"anyOf", "oneOf", "allOf", "patternProperties", "if", "$ref"}
        open_ = self.schema.get("additionalProperties") not in (None, False)
        return isinstance(named, Mapping) and not combined and not open_

    def properties(self) -> Iterator[tuple[str, _Resolved, bool]]:
        """The fields of an object: name, schema, whether they must be there."""
        required = self.schema.get("required", ())
        for name, part in self.schema["properties"].items():
            yield name, _Resolved(part, self._root), name in required

    def _without_null(self, part: Schema) -> tuple[Schema, bool]:
        part = self._followed(part)
        for key in ("anyOf", "oneOf"):
            options = part.get(key)
            if isinstance(options, list) and {"type": "null"} in options and len(options) == 2:
                [other] = [option for option in options if option != {"type": "null"}]
                rest = {name: value for name, value in part.items() if name != key}
                return {**self._followed(other), **rest}, True
        kinds = part.get("type")
        if isinstance(kinds, list) and "null" in kinds and len(kinds) == 2:
            [other] = [kind for kind in kinds if kind != "null"]
            return {**part, "type": other}, True
        return part, False

    def _followed(self, part: Any) -> Schema:
        for _ in range(8):  # a chain of references that is longer has no end
            reference = part.get("$ref") if isinstance(part, Mapping) else None
            if not isinstance(reference, str) or not reference.startswith("#/"):
                break
            found: Any = self._root
            for step in reference[2:].split("/"):
                found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
            if not isinstance(found, Mapping):
                break
            part = {**found, **{name: value for name, value in part.items() if name != "$ref"}}
        return part if isinstance(part, Mapping) else {}


def _field(path: tuple[str, ...], label: str, part: _Resolved, required: bool) -> FormField:
    schema = part.schema
    kind, choices = _kind(schema)
    return FormField(path, part.title or label, kind, schema, required, part.nullable, choices, part.note)


def _kind(schema: Schema) -> tuple[Kind, tuple[tuple[str, str], ...]]:
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    type_ = schema.get("type")
    if isinstance(listed, list) and listed and all(isinstance(one, str | int | float | bool | None) for one in listed):
        choices = tuple((_written(one), _shown(one)) for one in listed)
        numbers = all(isinstance(one, int | float) for one in listed) or len(listed) == 1
        return ("choice" if numbers and len(listed) <= _MOST_BUTTONS else "list"), choices
    if schema.keys() & {"anyOf", "oneOf", "allOf", "not", "if", "$ref"}:
        return "json", ()
    if type_ == "boolean":
        return "choice", (("true", "yes"), ("false", "no"))
    if type_ == "integer":
        low, high = schema.get("minimum"), schema.get("maximum")
        if isinstance(low, int) and isinstance(high, int) and 0 <= high - low < _MOST_BUTTONS:
            return "choice", tuple((str(one), str(one)) for one in range(low, high + 1))
        return "number", ()
    if type_ == "number":
        return "number", ()
    if type_ == "string":
        bound = schema.get("maxLength")
        return ("line" if isinstance(bound, int) and bound <= _LONGEST_LINE else "text"), ()
    return "json", ()


def _json(given: str) -> Any:
    try:
        return orjson.loads(given.encode("utf-8", "replace"))
    except orjson.JSONDecodeError as error:
        raise Wrong(f"this is not JSON: {error}") from None


def _written(value: Any) -> str:
    return orjson.dumps(value).decode()


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "yes", False: "no"}[value]
    return _words(value) if isinstance(value, str) else f"{value}"


def _words(name: str) -> str:
    """``stop_reason`` as a person writes it: Stop reason."""
    words = " ".join(name.replace("_", " ").split())
    return words[:1].upper() + words[1:] if words else name


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _bounds(low: float, high: float) -> str:
    if math.isinf(low) or math.isinf(high):
        return f"of at least {low:g}" if math.isinf(high) else f"of at most {high:g}"
    return f"from {low:g} to {high:g}"
