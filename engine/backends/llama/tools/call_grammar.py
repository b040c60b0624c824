"""Which calls may be made, as a grammar: free text up to the mark of a call, then a function's name and its arguments.

A call's arguments follow the function's schema in canonical form: properties in the schema's order, optional ones
perhaps left out. Schemas of functions come from anywhere, so nothing in them is refused: a keyword that cannot be
enforced (``pattern``, a lower bound alone, …) is left out, a part that cannot be, is any JSON value.

What never belongs here: how calls are read (``tools``), tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import ConfigurationError
from ....tools import Toolbox
from ..grammar.any_value import MAX_DEPTH, Anything, Pairs
from ..grammar.automaton import Frames, Items, Literal, Members, parted
from ..grammar.free_text import Prose
from ..grammar.grammar import Grammar
from ..grammar.schema import compile_schema
from ..grammar.schema_keywords import KEYWORDS, canonical, counts
from .call_syntax import Notation


def call_grammar(tools: Toolbox, notation: Notation) -> Grammar:
    """The grammar of an answer that may call any of these functions, in this notation."""
    functions = []
    for name in tools.names:
        arguments = _object(tools.parameters(name) or {}, {}, 0)
        key = canonical(name)[1:-1] + notation.between.encode()
        functions.append((key, (*arguments, Literal(notation.closing.encode()))))
    one = parted(functions)
    opening = notation.opening.encode()
    if notation.kind == "mistral":
        list_, _, item = opening.partition(b"[")
        call: Frames = (Literal(list_ + b"["), Items((Literal(item), *one), 1, None))
    else:
        call = (Literal(opening), *one) if opening else one
    key = b"%b %b" % (notation.mark.encode(), tools.digest)
    prose = Prose(notation.mark.encode(), key, call, notation.kind == "llama", notation.kind == "hermes")
    return Grammar.of((prose,))


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Frames:
    """An object of the properties that a schema describes."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    root = root or schema
    left = [(canonical(name), _value(part, root, depth + 1), name in needed) for name, part in properties.items()]
    left += [(canonical(name), (Anything(),), True) for name in sorted(needed - properties.keys())]
    return (Literal(b"{"), Members(tuple(left)))


def _value(schema: Any, root: Mapping[str, Any], depth: int) -> Frames:
    """What a part of a schema allows, as far as that can be enforced."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return (Anything(),)
    kind = schema.get("type")
    fixed = "enum" in schema or "const" in schema
    if not fixed and (kind == "object" or (kind is None and "properties" in schema)):
        described = schema.get("properties") or schema.get("required")
        return _object(schema, root, depth) if described else (Literal(b"{"), Pairs(MAX_DEPTH - 1))
    if not fixed and kind == "array":
        try:
            bounds = counts(schema, "minItems", "maxItems")
        except ConfigurationError:
            bounds = (0, None)
        return (Literal(b"["), Items(_value(schema.get("items"), root, depth + 1), *bounds))
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
            return compile_schema(part)
        except ConfigurationError:
            continue
    return (Anything(),)
