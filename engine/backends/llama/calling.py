"""Which calls may be made, as a grammar: free text up to the mark of a call, then a function's name and its arguments.

A call's arguments follow the function's schema in canonical form: properties in the schema's order, optional ones
perhaps left out. Schemas of functions come from anywhere, so nothing in them is refused: a keyword that cannot be
enforced (``pattern``, a lower bound alone, …) is left out, a part that cannot be, is any JSON value.

What never belongs here: how calls are read (``tools``), tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import ConfigurationError
from ...tools import Toolbox
from .automaton import Frame, Frames, Items, Literal, Members, parted, step
from .grammar import Grammar
from .keywords import KEYWORDS, canonical, counts
from .schema import compile_schema
from .spelling import Number, Text
from .tools import Notation

_DEEPEST = 8  # of values that no schema describes
_ALL = frozenset(range(256))
_SCALARS = frozenset(b'"-0123456789tfn')
_WORDS = {0x74: b"rue", 0x66: b"alse", 0x6E: b"ull"}


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


@dataclass(frozen=True, slots=True)
class Prose(Frame):
    """Free text, of whose ``mark`` the first ``matched`` bytes have come; behind a whole mark stands a ``call``.

    ``first``: only the very beginning of the text can be a mark. ``again``: free text goes on behind a call. ``key``
    stands for the call: prose of one mark and one key is the same.
    """

    mark: bytes
    key: bytes
    call: Frames = field(compare=False, repr=False)
    first: bool = False
    again: bool = True
    matched: int = 0

    @property
    def ends(self) -> bool:
        return True

    def firsts(self) -> frozenset[int]:
        return _ALL

    def step(self, byte: int) -> Frames | None:
        if not self.mark:
            return (self,)
        seen = self.mark[: self.matched] + bytes([byte])
        if self.first:
            if not self.mark.startswith(seen):
                return (replace(self, mark=b"", matched=0),)
        else:
            while not self.mark.startswith(seen):
                seen = seen[1:]
        if len(seen) < len(self.mark):
            return (replace(self, matched=len(seen)),)
        return (*self.call, replace(self, matched=0)) if self.again else self.call

    def risky(self) -> tuple[frozenset[int], bytes]:
        """Which tokens may complete a mark: those that begin with one of these bytes, or hold this one."""
        if not self.mark:
            return frozenset(), b""
        if self.first:
            return frozenset(self.mark[self.matched : self.matched + 1]), b""
        seen = self.mark[: self.matched]
        sizes = [size for size in range(1, len(seen) + 1) if seen.endswith(self.mark[:size])]
        return frozenset(self.mark[size] for size in sizes), self.mark[:1]


@dataclass(frozen=True, slots=True)
class Anything(Frame):
    """Any JSON value, nested ``depth`` deep at most."""

    depth: int = _DEEPEST

    def firsts(self) -> frozenset[int]:
        return _SCALARS | frozenset(b"{[") if self.depth else _SCALARS

    def step(self, byte: int) -> Frames | None:
        if byte not in self.firsts():
            return None
        match byte:
            case 0x22:
                return (Text(),)
            case 0x7B:
                return (Pairs(self.depth - 1),)
            case 0x5B:
                return (Items((Anything(self.depth - 1),), 0, None),)
        return (Literal(_WORDS[byte]),) if byte in _WORDS else step((Number(),), byte)


@dataclass(frozen=True, slots=True)
class Pairs(Frame):
    """The inside of an object of any keys and values, and its closing brace."""

    depth: int
    first: bool = True

    def firsts(self) -> frozenset[int]:
        return frozenset(b'}"' if self.first else b"},")

    def step(self, byte: int) -> Frames | None:
        if byte not in self.firsts():
            return None
        if byte == 0x7D:
            return ()
        pair = (Text(), Literal(b": "), Anything(self.depth), Pairs(self.depth, False))
        return pair if self.first else (Literal(b' "'), *pair)


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
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return (Anything(),)
    kind = schema.get("type")
    fixed = "enum" in schema or "const" in schema
    if not fixed and (kind == "object" or (kind is None and "properties" in schema)):
        described = schema.get("properties") or schema.get("required")
        return _object(schema, root, depth) if described else (Literal(b"{"), Pairs(_DEEPEST - 1))
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
