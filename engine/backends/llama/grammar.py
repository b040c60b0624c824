"""Grammars compiled from JSON schemas, their cached states, and vocabulary masks that enforce them.

The text has the form of `json.dumps(value, ensure_ascii=False)`: properties in the schema's order, `", "` and `": "` as
separators, no other whitespace. Most positions therefore have one continuation, which is prefilled instead of decoded
token by token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ConfigurationError
from .grammar_automaton import (
    MAX_DEPTH,
    AnyMembers,
    ArrayItems,
    DistinctBranches,
    FixedValues,
    Frame,
    Frames,
    FreeText,
    Integer,
    LiteralText,
    Number,
    ObjectMembers,
    OpenBranches,
    StringBody,
    may_end,
    next_bytes,
    one_of,
    state_after_text,
    step,
)

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
ANNOTATIONS |= {"$comment", "$schema", "$defs", "definitions"}
KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_MAX_INTEGERS = 1000  # in a range, which is expanded into fixed values
_OUTERMOST: dict[str, Callable[[float], int]] = {  # keyword: rounding towards an integer within the bound
    "minimum": math.ceil,
    "exclusiveMinimum": lambda bound: math.floor(bound) + 1,
    "maximum": math.floor,
    "exclusiveMaximum": lambda bound: math.ceil(bound) - 1,
}


def untyped_problem(schema: Mapping[str, Any]) -> str:
    """Return what is wrong with a schema without a type."""
    keywords = sorted(schema.keys() - ANNOTATIONS - {"type"})
    if not keywords:
        return "a part without 'type' allows anything; give its type"
    typed = keywords[0] in frozenset().union(*KEYWORDS.values())
    return f"keyword '{keywords[0]}' {'also needs a type' if typed else 'is not supported'}"


def known_type(kind: Any) -> str:
    """Return the type, or raise ConfigurationError if it is not a known one."""
    if not isinstance(kind, str) or kind not in KEYWORDS:
        raise ConfigurationError(f"JSON schema: type {kind!r} is not supported")
    return kind


def refuse_unknown(schema: Mapping[str, Any], known: frozenset[str], kind: str) -> None:
    """Raise ConfigurationError if the schema has a keyword not in `known`; `kind` is its type."""
    unknown = schema.keys() - ANNOTATIONS - {"type"} - known
    if unknown:
        raise ConfigurationError(f"JSON schema: keyword '{min(unknown)}' of {kind} is not supported")


def nonempty_list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """Return the keyword's list, or raise ConfigurationError if it is no list or empty."""
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise ConfigurationError(f"JSON schema: {keyword} must be a list that is not empty, found {values!r}")
    return values


def length_bounds(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    """Return a length's lower and upper bound from the keywords `low` and `high`; without them 0 and None.

    Raises:
        ConfigurationError: A bound is not a count, or together they allow no length.
    """
    for keyword in schema.keys() & {low, high}:
        if type(schema[keyword]) is not int or schema[keyword] < 0:
            raise ConfigurationError(f"JSON schema: {keyword} must be a whole number from 0, found {schema[keyword]!r}")
    minimum, maximum = schema.get(low, 0), schema.get(high)
    if maximum is not None and minimum > maximum:
        raise ConfigurationError(f"JSON schema: {low} {minimum} and {high} {maximum} exclude every length")
    return minimum, maximum


def bounded_integers(schema: Mapping[str, Any]) -> range | None:
    """Return the integers between a schema's bounds; None if it has no bounds.

    Raises:
        ConfigurationError: A bound is not a number, a side is unbounded, or they allow no integer or too many.
    """
    bounds: dict[str, int] = {}
    for keyword in sorted(KEYWORDS["integer"] & schema.keys()):
        value = schema[keyword]
        if type(value) is not int and not (isinstance(value, float) and math.isfinite(value)):
            raise ConfigurationError(f"JSON schema: {keyword} must be a number, found {value!r}")
        bounds[keyword] = _OUTERMOST[keyword](value)
    if not bounds:
        return None
    lows = [bounds[keyword] for keyword in ("minimum", "exclusiveMinimum") if keyword in bounds]
    highs = [bounds[keyword] for keyword in ("maximum", "exclusiveMaximum") if keyword in bounds]
    if not lows or not highs:
        raise ConfigurationError(
            f"JSON schema: '{min(bounds)}' of an integer also needs a {'maximum' if lows else 'minimum'}; "
            f"give both, so that at most {_MAX_INTEGERS:,} values are left, or neither"
        )
    low, high = max(lows), min(highs)
    if not low <= high < low + _MAX_INTEGERS:
        result = "no integer" if low > high else f"more than {_MAX_INTEGERS:,} integers"
        raise ConfigurationError(
            f"JSON schema: {' and '.join(bounds)} leave {result}; write bounds that leave at most "
            f"{_MAX_INTEGERS:,}, or none"
        )
    _check_integers([low, high])
    return range(low, high + 1)


def fixed_value_text(value: Any, schema: Mapping[str, Any], keyword: str) -> bytes:
    """Return the text of a value of `enum` or `const`, which must have the schema's `type`, if given.

    Raises:
        ConfigurationError: The value has another type, or cannot be written as JSON.
    """
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_of_type(value, known_type(kind)) for kind in kinds):
            raise ConfigurationError(
                f"JSON schema: {keyword} holds {value!r}, which is not of type {' or '.join(kinds)}"
            )
    return canonical_json(value)


def _is_of_type(value: Any, kind: str) -> bool:
    return isinstance(value, _PYTHON_TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def canonical_json(value: Any) -> bytes:
    """Return the only form in which a given value may be written.

    Raises:
        ConfigurationError: The value cannot be written, or JSON parsers would not read it back unchanged.
    """
    _check_integers(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"JSON schema: {value!r} cannot be written as JSON: {error}") from None


def _check_integers(value: Any) -> None:
    """Raise ConfigurationError if the value holds an integer that JSON parsers refuse or turn into a float."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ConfigurationError(f"JSON schema: {value} is beyond the 64-bit integers that JSON parsers accept")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            _check_integers(part)


# All frames at one position are advanced at each byte, so too many of them slow down all conversations.
MOST_BRANCHES = 200  # of anyOf and oneOf, and of optional properties of an object
_MOST_PARTS = 10_000  # nested schemas, counted at each use of a $ref to them, and values


class PartBudget:
    """Remaining number of parts that may be compiled, of one or several schemas."""

    def __init__(self) -> None:
        self._left = _MOST_PARTS

    def take(self, count: int = 1) -> None:
        """Use up parts or values; raise `ConfigurationError` if there are too many."""
        self._left -= count
        if self._left < 0:
            raise ConfigurationError(
                f"JSON schema: has more than {_MOST_PARTS:,} parts and values, each counted wherever a $ref uses it"
            )


def compile_schema(schema: Mapping[str, Any], budget: PartBudget | None = None) -> Frames:
    """Return the frames of a schema's canonical text, or raise `ConfigurationError` if the schema is not supported."""
    return _Compiler(schema, budget or PartBudget()).node(schema, 0)


@dataclass(slots=True)
class _Options:
    """Texts that a schema allows, in parts that can be merged with other branches."""

    fixed: set[bytes] = field(default_factory=set)
    number: Frame | None = None
    others: dict[Frames, None] = field(default_factory=dict)  # insertion-ordered set

    def add(self, other: _Options, *, once: bool) -> None:
        """Allow what `other` allows. With `once` (`oneOf`), raise an error if both allow the same text."""
        both = self.fixed & other.fixed
        if once and (both or (self.number and other.number)):
            problem = min(both).decode() if both else "a number"
            raise ConfigurationError(
                f"JSON schema: {problem} matches two branches of oneOf; use anyOf, or keep one branch"
            )
        self.fixed |= other.fixed
        # Every integer is a number.
        self.number = other.number if not isinstance(self.number, Number) and other.number else self.number
        self.others |= other.others

    def frames(self) -> Frames:
        """Return the frames of all parts together."""
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
        """Return the first bytes that both allow; fixed values are compared as a whole instead."""
        ours, theirs = ({byte for part in item._open() for byte in next_bytes(part)} for item in (self, other))
        mine, its = ({value[0] for value in item.fixed} for item in (self, other))
        return frozenset((ours & (theirs | its)) | (mine & theirs))

    def _open(self) -> list[Frames]:
        return [*self.others, (self.number,)] if self.number is not None else list(self.others)


class _Compiler:
    """Compiler of one schema. `$ref` is resolved in the root."""

    def __init__(self, root: Mapping[str, Any], budget: PartBudget) -> None:
        self._root, self._budget = root, budget

    def node(self, schema: Any, depth: int) -> Frames:
        """Return the frames of a part of the schema."""
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
                    raise ConfigurationError(f"JSON schema: '{min(beside)}' together with {keyword} is not supported")
        if "$ref" in schema:
            return self._options(self._resolve(schema["$ref"]), depth + 1)
        if "const" in schema:
            return _Options({fixed_value_text(schema["const"], schema, "const")})
        if "enum" in schema:
            values = nonempty_list(schema, "enum")
            self._budget.take(len(values))
            return _Options({fixed_value_text(value, schema, "enum") for value in values})
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._union(nonempty_list(schema, keyword), depth, once=keyword == "oneOf")
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = nonempty_list(schema, "type")
            own = {entry: KEYWORDS[entry] for entry in map(known_type, kinds)}
            refuse_unknown(schema, frozenset().union(*own.values()), " or ".join(own))
            parts = [
                {name: value for name, value in schema.items() if name in own[entry] | ANNOTATIONS} for entry in own
            ]
            return self._union([{**part, "type": entry} for part, entry in zip(parts, own, strict=True)], depth)
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
            raise ConfigurationError(f"JSON schema: an object may have at most {MOST_BRANCHES} optional properties")
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
                raise ConfigurationError(f"JSON schema: $ref '{reference}' does not exist")
            node = node[name]
        return node


_MAX_STATES = 20_000  # cached per grammar, about 13 MB; further states are created anew at each use
_MAX_FORCED_BYTES = 1 << 16  # bytes at once: a schema may require a billion equal items


class GrammarState:
    """A position in a grammar's text. States with equal frames are equal and have the same continuations."""

    __slots__ = ("_hash", "_next", "complete", "forced", "frames", "may_end")

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.may_end = may_end(frames)  # the text may end here
        self.complete = self.may_end and not next_bytes(frames)  # it must end here
        self.forced: tuple[bytes, GrammarState] | None = None  # cached by `Grammar.forced`
        self._next: dict[int, GrammarState | None] = {}
        self._hash = hash(frames)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, GrammarState) and self.frames == other.frames)

    def next_bytes(self) -> frozenset[int]:
        """Return the bytes that may come next."""
        return next_bytes(self.frames)

    def score_values(self) -> Mapping[bytes, int] | None:
        """Return the texts among which the next bytes choose, with their values, if all are integers; else None.

        There is one such position in each enum, const or bounded range of integers: before the first byte that excludes
        a value. If all values begin alike, such as 10, 11 and 12, the texts are what follows this beginning.
        """
        head = self.frames[0] if self.frames else None
        return head.score_values() if isinstance(head, FixedValues) else None


class Grammar:
    """A compiled schema. `start` is its first state, `advance` follows text, `forced` returns the forced text."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Compile a schema; raise ConfigurationError if it uses an unsupported keyword."""
        self._begin(compile_schema(schema))

    @classmethod
    def from_frames(cls, frames: Frames) -> Grammar:
        """Return the grammar of the texts that these frames accept."""
        grammar = cls.__new__(cls)
        grammar._begin(frames)
        return grammar

    def _begin(self, frames: Frames) -> None:
        self._states: dict[GrammarState, GrammarState] = {}
        self.start = self.state(frames)

    def advance(self, state: GrammarState, data: bytes) -> GrammarState | None:
        """Return the state after `data`, or None if that is not allowed here."""
        current = state
        for byte in data:
            try:
                after = current._next[byte]
            except KeyError:
                after = self._step(current, byte)
            if after is None:
                return None
            current = after
        return current

    def forced(self, state: GrammarState) -> tuple[bytes, GrammarState]:
        """Return the text that must come next, at most some 64 KiB of it, and the state after it."""
        if state.forced is None:
            state.forced = self._forced(state)
        return state.forced

    def equivalent(self, state: GrammarState, length: int) -> GrammarState:
        """Return a state accepting the same texts of up to `length` bytes; many bounded strings share such a state."""
        head = state.frames[0] if state.frames else None
        if not isinstance(head, StringBody) or (not head.minimum and head.maximum is None):
            return state
        return self.state((head.equivalent(length), *state.frames[1:]))

    def _forced(self, state: GrammarState) -> tuple[bytes, GrammarState]:
        text, frames = bytearray(), state.frames
        while frames and len(text) < _MAX_FORCED_BYTES:
            head = frames[0]
            if isinstance(head, LiteralText):
                text += head.text
                frames = frames[1:]
                continue
            coming = next_bytes(frames)
            if len(coming) != 1 or may_end(frames):
                break
            [byte] = coming
            left = step(frames, byte)
            assert left is not None
            text.append(byte)
            frames = left
        return bytes(text), self.state(frames) if text else state

    def _step(self, state: GrammarState, byte: int) -> GrammarState | None:
        frames = step(state.frames, byte)
        after = None if frames is None else self.state(frames)
        if after is None or after in self._states:  # states that are not cached are not referenced by others
            state._next[byte] = after
        return after

    def state(self, frames: Frames) -> GrammarState:
        """Return the state of these frames, reusing an existing one."""
        made = GrammarState(frames)
        known = self._states.get(made)
        if known is not None:
            return known
        if len(self._states) < _MAX_STATES:
            self._states[made] = made
        return made


ScoreOptions = dict[int, tuple[int, ...]]  # value: the tokens that represent it
_MAX_CACHED_MASKS = 512


class TokenMasks:
    """Allowed tokens by grammar state. Created once per model; results are cached.

    The threads of all contexts use this object; uncached results are computed under a lock.
    """

    def __init__(self, pieces: list[bytes], ends: npt.NDArray[np.bool_], controls: npt.NDArray[np.bool_]) -> None:
        """Index the vocabulary: each token's bytes, and which tokens end the text or are no text."""
        self._pieces = pieces
        self._ends = np.flatnonzero(ends)
        self._longest = max(map(len, pieces), default=0)
        # Inside a string, most tokens are plain text in every state. For each token: if it is plain text, and its
        # number of characters.
        self._plain = np.zeros(len(pieces), dtype=bool)
        self._character_counts = np.zeros(len(pieces), dtype=np.int32)
        self._quoting: list[int] = []
        self._by_first_byte: dict[int, list[int]] = {}
        for token, piece in enumerate(pieces):
            if not piece or controls[token] or ends[token]:
                continue
            self._by_first_byte.setdefault(piece[0], []).append(token)
            if b'"' in piece or b"\\" in piece:
                self._quoting.append(token)
            elif (end := state_after_text(piece)) is not None:
                self._plain[token] = True
                self._character_counts[token] = end[1]
        self._tokens_holding: dict[bytes, list[int]] = {}  # tokens that contain a byte, cached by byte
        self._lock = RLock()
        self._masks: dict[GrammarState, npt.NDArray[np.bool_]] = {}
        self._score_options: dict[GrammarState, ScoreOptions | None] = {}

    def allowed(self, grammar: Grammar, state: GrammarState) -> npt.NDArray[np.bool_]:
        """Return a boolean row over the vocabulary, which is shared: do not change it.

        End-of-text tokens are allowed only if the text may end.
        """
        state = grammar.equivalent(state, self._longest)
        mask = self._masks.get(state)
        if mask is None:
            with self._lock:
                _make_room(self._masks)
                mask = self._masks[state] = self._compute(grammar, state)
        return mask

    def score_options(self, grammar: Grammar, state: GrammarState) -> ScoreOptions | None:
        """Return the tokens that represent each score if a state begins a choice among integers only; else None.

        A token represents a value if it may come here and can become no other value. The result is also None if a token
        can become several values (1, if they are 1, 2 and 10), because its probability cannot be divided, or if a value
        has no token.
        """
        if state.score_values() is None:  # the usual case, which is not cached
            return None
        with self._lock:
            if state not in self._score_options:
                _make_room(self._score_options)
                self._score_options[state] = self._score_tokens(grammar, state)
            return self._score_options[state]

    def _compute(self, grammar: Grammar, state: GrammarState) -> npt.NDArray[np.bool_]:
        head = state.frames[0] if state.frames else None
        if isinstance(head, FreeText):
            return self._in_free_text(grammar, state, head)
        if isinstance(head, OpenBranches):
            # A token is allowed if one of the open branches allows it.
            states = [grammar.state((*branch, *state.frames[1:])) for branch in head.branches]
            any_way: npt.NDArray[np.bool_] = np.any(
                [self.allowed(grammar, branch_state) for branch_state in states], axis=0
            )
            return any_way
        if isinstance(head, StringBody) and head.mode == "text":
            mask = (
                self._plain.copy() if head.maximum is None else self._plain & (self._character_counts <= head.maximum)
            )
            candidates = self._quoting
        else:
            mask = np.zeros(len(self._pieces), dtype=bool)
            candidates = [token for byte in state.next_bytes() for token in self._by_first_byte.get(byte, ())]
        for token in candidates:
            if grammar.advance(state, self._pieces[token]) is not None:
                mask[token] = True
        if state.may_end:
            mask[self._ends] = True
        return mask

    def _in_free_text(self, grammar: Grammar, state: GrammarState, head: FreeText) -> npt.NDArray[np.bool_]:
        """Return the allowed tokens: all except those that complete a marker but cannot continue with a call."""
        mask = np.ones(len(self._pieces), dtype=bool)
        beginnings, stored = head.marker_candidates()
        candidates = [token for byte in beginnings for token in self._by_first_byte.get(byte, ())]
        if stored:
            if stored not in self._tokens_holding:
                tokens = [token for of_byte in self._by_first_byte.values() for token in of_byte]
                self._tokens_holding[stored] = [token for token in tokens if stored in self._pieces[token]]
            candidates += self._tokens_holding[stored]
        for token in candidates:
            mask[token] = grammar.advance(state, self._pieces[token]) is not None
        return mask

    def _score_tokens(self, grammar: Grammar, state: GrammarState) -> ScoreOptions | None:
        texts = state.score_values() or {}
        of_value: dict[int, list[int]] = {value: [] for value in texts.values()}
        ends = set(self._ends.tolist())
        for token in np.flatnonzero(self.allowed(grammar, state)).tolist():
            piece = b"" if token in ends else self._pieces[token]
            values = [value for text, value in texts.items() if _may_become(piece, text)]
            if len(values) != 1:
                return None
            of_value[values[0]].append(token)
        return {value: tuple(tokens) for value, tokens in of_value.items()} if all(of_value.values()) else None


def _may_become(piece: bytes, text: bytes) -> bool:
    """Return True if a token (b"" for the end) may represent the rest of an integer; no digit may follow."""
    if piece and text.startswith(piece):
        return True
    return piece.startswith(text) and not piece[len(text) : len(text) + 1].isdigit()


def _make_room(cache: dict[GrammarState, Any]) -> None:
    if len(cache) >= _MAX_CACHED_MASKS:
        del cache[next(iter(cache))]
