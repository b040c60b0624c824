"""JSON schema to the frames of the automaton: which text conforms, in one canonical form.

The text is that of ``json.dumps(value, ensure_ascii=False)``: properties in the schema's order, ``", "`` and ``": "``
as separators, nothing around. So most places have one continuation.

Supported:

- object: properties in the schema's order; those not in ``required`` may be left out (without ``required`` all are
  required); any object where ``additionalProperties`` is true and there are no ``properties``
- array with ``minItems``, ``maxItems``; boolean; null
- string, with ``minLength`` and ``maxLength`` in characters
- integer: of 64 bits, or with a lower and an upper bound (``minimum``, ``exclusiveMaximum``, …) that leave at most
  1,000 values; number: of up to 24 characters
- ``enum``, ``const``, ``$ref`` to a place in the schema
- ``anyOf`` and lists of types, nested in any way; ``oneOf``, whose branches must differ in their first character; of
  either at most 200 branches;
  branches of fixed values are merged, and so are integer and number

Anything else is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....errors import ConfigurationError
from .any_value import MAX_DEPTH, AnyMembers
from .automaton import (
    ArrayItems,
    DistinctBranches,
    FixedValues,
    Frame,
    Frames,
    LiteralText,
    ObjectMembers,
    next_bytes,
    one_of,
)
from .json_text import Integer, Number, StringBody
from .schema_keywords import (
    ANNOTATIONS,
    KEYWORDS,
    bounded_integers,
    canonical_json,
    fixed,
    known_type,
    length_bounds,
    nonempty_list,
    refuse_unknown,
    untyped_problem,
)

# Frames of one place are walked together at each byte, so that many of them hold up all conversations of the model.
MOST_BRANCHES = 200  # of anyOf and oneOf, and of properties of an object that may be left out
_MOST_PARTS = 10_000  # schemas within a schema, at each use of a $ref to them, and values


class PartBudget:
    """Count of what may still be compiled, of one schema or of several together."""

    def __init__(self) -> None:
        self._left = _MOST_PARTS

    def take(self, count: int = 1) -> None:
        """Take parts or values.

        Raises:
            ConfigurationError: There are too many.
        """
        self._left -= count
        if self._left < 0:
            raise ConfigurationError(
                f"JSON schema: has more than {_MOST_PARTS:,} parts and values, each counted wherever a $ref uses it"
            )


def compile_schema(schema: Mapping[str, Any], budget: PartBudget | None = None) -> Frames:
    """The frames of a schema's canonical text.

    :raises ConfigurationError: the schema contradicts itself, is too large, or uses an unsupported keyword or
        combination.
    """
    return _Compiler(schema, budget or PartBudget()).node(schema, 0)


@dataclass(slots=True)
class _Options:
    """What a schema allows, in parts that can be merged with those of other branches."""

    fixed: set[bytes] = field(default_factory=set)
    number: Frame | None = None
    others: dict[Frames, None] = field(default_factory=dict)  # in order

    def add(self, other: _Options, *, once: bool) -> None:
        """Also allow what ``other`` allows. ``once``: it is an error if both allow the same (``oneOf``)."""
        both = self.fixed & other.fixed
        if once and (both or (self.number and other.number)):
            what = min(both).decode() if both else "a number"
            raise ConfigurationError(
                f"JSON schema: {what} matches two branches of oneOf; use anyOf, or keep one branch"
            )
        self.fixed |= other.fixed
        # Every integer is a number.
        self.number = other.number if not isinstance(self.number, Number) and other.number else self.number
        self.others |= other.others

    def frames(self) -> Frames:
        """The frames of all parts together."""
        parts = self._open()
        if len(self.fixed) == 1:
            parts.append((LiteralText(min(self.fixed)),))
        elif self.fixed:
            parts.append((FixedValues(tuple(sorted(self.fixed))),))
        if len(parts) == 1:
            return parts[0]
        starts = [next_bytes(part) for part in parts]
        distinct = sum(map(len, starts)) == len(frozenset().union(*starts))
        return (DistinctBranches(tuple(parts)),) if distinct else one_of(parts)

    def clash(self, other: _Options) -> frozenset[int]:
        """Bytes with which both begin, except among fixed values, which are compared as a whole."""
        ours, theirs = ({byte for part in one._open() for byte in next_bytes(part)} for one in (self, other))
        mine, its = ({value[0] for value in one.fixed} for one in (self, other))
        return frozenset((ours & (theirs | its)) | (mine & theirs))

    def _open(self) -> list[Frames]:
        return [*self.others, (self.number,)] if self.number is not None else list(self.others)


class _Compiler:
    """Compiles one schema. ``$ref`` is resolved in the root."""

    def __init__(self, root: Mapping[str, Any], budget: PartBudget) -> None:
        self._root, self._budget = root, budget

    def node(self, schema: Any, depth: int) -> Frames:
        """The frames of a part of the schema."""
        return self._options(schema, depth).frames()

    def _options(self, schema: Any, depth: int) -> _Options:
        self._budget.take()
        if depth > 32:
            raise ConfigurationError("JSON schema: nested more than 32 deep, or a $ref that leads back to itself")
        if not isinstance(schema, Mapping):
            raise ConfigurationError(f"JSON schema: expected an object, found {schema!r}")
        for keyword in ("$ref", "const", "enum", "anyOf", "oneOf"):
            if keyword in schema:
                beside = schema.keys() - ANNOTATIONS - {keyword}
                if keyword in ("const", "enum"):
                    beside -= {"type"}
                if beside:
                    raise ConfigurationError(f"JSON schema: '{min(beside)}' beside {keyword} is not supported")
        if "$ref" in schema:
            return self._options(self._resolve(schema["$ref"]), depth + 1)
        if "const" in schema:
            return _Options({fixed(schema["const"], schema, "const")})
        if "enum" in schema:
            values = nonempty_list(schema, "enum")
            self._budget.take(len(values))
            return _Options({fixed(value, schema, "enum") for value in values})
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._union(nonempty_list(schema, keyword), depth, once=keyword == "oneOf")
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = nonempty_list(schema, "type")
            own = {one: KEYWORDS[one] for one in map(known_type, kinds)}
            refuse_unknown(schema, frozenset().union(*own.values()), " or ".join(own))
            parts = [{name: value for name, value in schema.items() if name in own[one] | ANNOTATIONS} for one in own]
            return self._union([{**part, "type": one} for part, one in zip(parts, own, strict=True)], depth)
        if kind is None:
            raise ConfigurationError(f"JSON schema: {untyped_problem(schema)}")
        kind = known_type(kind)
        refuse_unknown(schema, KEYWORDS[kind], kind)
        match kind:
            case "integer":
                integers = bounded_integers(schema)
                if integers is None:
                    return _Options(number=Integer())
                self._budget.take(len(integers))
                return _Options({str(integer).encode() for integer in integers})
            case "number":
                return _Options(number=Number())
            case "boolean":
                return _Options({b"true", b"false"})
            case "null":
                return _Options({b"null"})
            case "string":
                return _Options(
                    others={(LiteralText(b'"'), StringBody(*length_bounds(schema, "minLength", "maxLength"))): None}
                )
            case "array":
                item = self.node(schema.get("items", {"type": "string"}), depth + 1)
                return _Options(
                    others={(LiteralText(b"["), ArrayItems(item, *length_bounds(schema, "minItems", "maxItems"))): None}
                )
        return _Options(others={self._object(schema, depth): None})

    def _union(self, branches: list[Any], depth: int, *, once: bool = False) -> _Options:
        options = _Options()
        for branch in branches:
            other = self._options(branch, depth + 1)
            shared = options.clash(other) if once and not (options.number and other.number) else frozenset()
            if shared:
                raise ConfigurationError(
                    "JSON schema: branches of oneOf must differ in their first character, but two begin with "
                    f"{chr(min(shared))} ; use anyOf, which may allow both"
                )
            options.add(other, once=once)
            if len(options.others) > MOST_BRANCHES:
                raise ConfigurationError(f"JSON schema: anyOf and oneOf may have at most {MOST_BRANCHES} branches")
        return options

    def _object(self, schema: Mapping[str, Any], depth: int) -> Frames:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping) or not all(isinstance(name, str) for name in properties):
            raise ConfigurationError(f"JSON schema: properties must be an object, found {properties!r}")
        required = schema.get("required", list(properties))
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise ConfigurationError(f"JSON schema: required must be a list of names, found {required!r}")
        if not isinstance(schema.get("additionalProperties", False), bool):
            raise ConfigurationError(
                "JSON schema: a schema for 'additionalProperties' is not supported; name each property in 'properties'"
            )
        if schema.get("additionalProperties") is True and "properties" not in schema and not required:
            return (LiteralText(b"{"), AnyMembers(MAX_DEPTH - 1))
        needed = set(required)
        unknown = needed - properties.keys()
        if unknown:
            raise ConfigurationError(f"JSON schema: required property '{min(unknown)}' is not described")
        if len(properties) - len(needed) > MOST_BRANCHES:
            raise ConfigurationError(f"JSON schema: at most {MOST_BRANCHES} properties of an object may be left out")
        if len(needed) < len(properties):
            left = [
                (canonical_json(name), self.node(child, depth + 1), name in needed)
                for name, child in properties.items()
            ]
            return (LiteralText(b"{"), ObjectMembers(tuple(left)))
        frames: list[Frame] = []
        text = b"{"
        for index, (name, child) in enumerate(properties.items()):
            text += (b", " if index else b"") + canonical_json(name) + b": "
            frames += [LiteralText(text), *self.node(child, depth + 1)]
            text = b""
        return (*frames, LiteralText(text + b"}"))

    def _resolve(self, reference: Any) -> Any:
        node: Any = self._root
        if not isinstance(reference, str):
            raise ConfigurationError(f"JSON schema: $ref {reference!r} is not a path")
        for part in reference.removeprefix("#/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                raise ConfigurationError(f"JSON schema: $ref '{reference}' leads nowhere")
            node = node[name]
        return node
