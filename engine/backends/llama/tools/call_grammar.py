"""The grammar of answers that may call functions: free text up to a call marker, then a function's name and arguments.

Arguments follow the function's schema in canonical form: properties in the schema's order, optional ones possibly left
out. Schemas of functions come from users and data, so nothing in them is refused: a keyword that cannot be enforced
(``pattern``, a lower bound alone, …) is ignored; a part that cannot be enforced allows any JSON value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import ConfigurationError
from ....tools import Toolbox
from ..grammar.any_value import MAX_DEPTH, AnyMembers, AnyValue
from ..grammar.automaton import ArrayItems, Frames, LiteralText, ObjectMembers, one_by_prefix
from ..grammar.free_text import FreeText
from ..grammar.grammar import Grammar
from ..grammar.schema import MOST_BRANCHES, PartBudget, compile_schema
from ..grammar.schema_keywords import KEYWORDS, canonical_json, length_bounds
from .call_syntax import CallSyntax


def call_grammar(tools: Toolbox, syntax: CallSyntax) -> Grammar:
    """The grammar of an answer that may call any of these functions, in this syntax."""
    functions = []
    budget = PartBudget()
    for name in tools.names:
        arguments = _object(tools.parameters(name) or {}, {}, 0, budget)
        key = canonical_json(name)[1:-1] + syntax.between.encode()
        functions.append((key, (*arguments, LiteralText(syntax.closing.encode()))))
    one = one_by_prefix(functions)
    opening = syntax.opening.encode()
    if syntax.kind == "mistral":
        list_, _, item = opening.partition(b"[")
        most = 1 if tools.single else None
        call: Frames = (LiteralText(list_ + b"["), ArrayItems((LiteralText(item), *one), 1, most))
    else:
        call = (LiteralText(opening), *one) if opening else one
    key = b"%b %b" % (syntax.marker.encode(), tools.digest)
    again = syntax.kind == "hermes" and not tools.single
    prose = FreeText(syntax.marker.encode(), key, call, syntax.kind == "llama", again)
    if not tools.required:
        return Grammar.of((prose,))
    return Grammar.of((LiteralText(syntax.marker.encode()), *call, *([prose] if again else [])))


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, budget: PartBudget) -> Frames:
    """An object with the properties that a schema describes; any object where too many of them may be left out."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    root = root or schema
    if len(properties.keys() - needed) > MOST_BRANCHES:
        return (LiteralText(b"{"), AnyMembers(MAX_DEPTH - 1))
    left = [
        (canonical_json(name), _value(part, root, depth + 1, budget), name in needed)
        for name, part in properties.items()
    ]
    left += [(canonical_json(name), (AnyValue(),), True) for name in sorted(needed - properties.keys())]
    return (LiteralText(b"{"), ObjectMembers(tuple(left)))


def _value(schema: Any, root: Mapping[str, Any], depth: int, budget: PartBudget) -> Frames:
    """What a part of a schema allows, as far as that can be enforced."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return (AnyValue(),)
    kind = schema.get("type")
    fixed = "enum" in schema or "const" in schema
    if not fixed and (kind == "object" or (kind is None and "properties" in schema)):
        described = schema.get("properties") or schema.get("required")
        return _object(schema, root, depth, budget) if described else (LiteralText(b"{"), AnyMembers(MAX_DEPTH - 1))
    if not fixed and kind == "array":
        try:
            bounds = length_bounds(schema, "minItems", "maxItems")
        except ConfigurationError:
            bounds = (0, None)
        return (LiteralText(b"["), ArrayItems(_value(schema.get("items"), root, depth + 1, budget), *bounds))
    known = KEYWORDS.get(kind, frozenset()) if isinstance(kind, str) else frozenset()
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    tries = [
        {**schema, **definitions},
        {name: value for name, value in schema.items() if name in known | {"type"}},
        {"type": kind},
    ]
    if fixed:
        name = "enum" if "enum" in schema else "const"
        tries[1:] = [{name: schema[name]}, {"type": kind}]
    for part in tries:
        try:
            return compile_schema(part, budget)
        except ConfigurationError:
            continue
    return (AnyValue(),)
