"""JSON schema to a byte automaton: what may come next, what must come next, and when the text is complete.

The text of a schema is canonical JSON: properties in the schema's order, ``", "`` and ``": "`` between, nothing around.
That leaves one continuation at most places, and those are *forced*: they are appended as prompt instead of being
decoded token by token. Elsewhere a mask over the vocabulary says which tokens may be sampled; masks are cached per
state, and within a string only tokens with a quotation mark or a backslash need a closer look.

Supported: object (all properties, in order), array, string, integer, number, boolean, null, enum, const, ``$ref`` to
``$defs``, anyOf whose branches differ in their first character. Anything else is refused by name, never ignored.
What never belongs here: sampling and models; tokens are just byte strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from ...errors import ConfigurationError

# A frame is ("lit", bytes), ("alt", options), ("str", mode), ("int", mode), ("num", mode), ("more", node, least, most);
# a state is a tuple of frames, innermost first; () is complete.
Frame = tuple[Any, ...]
State = tuple[Frame, ...]

_ESCAPES = frozenset(b'"\\/bfnrt')
_HEX = frozenset(b"0123456789abcdefABCDEF")
_DIGITS = frozenset(b"0123456789")
_ANNOTATIONS = {
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$defs",
    "definitions",
    "additionalProperties",
}


class Grammar:
    """A compiled schema. ``start`` is its first state; ``advance`` moves on; ``forced`` says what must come."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """:raises ConfigurationError: the schema uses a keyword that is not supported."""
        self._root = schema
        self.start: State = self._node(schema, ())

    def advance(self, state: State, data: bytes) -> State | None:
        """The state after ``data``, or None if it cannot come here."""
        current: State | None = state
        for byte in data:
            if not current:
                return None
            current = _step(current, byte)
            if current is None:
                return None
        return current

    def forced(self, state: State) -> tuple[bytes, State]:
        """The longest text that must come next (maybe empty), and the state after it."""
        text = bytearray()
        while state:
            frame = state[0]
            if frame[0] == "lit":
                text += frame[1]
                state = state[1:]
            elif frame[0] == "alt":
                common = _common_prefix([option for option, _ in frame[1]])
                if not common:
                    break
                text += common
                state = _after_alternatives(frame, state[1:], common)
            else:
                break
        return bytes(text), state

    # -- compiling ------------------------------------------------------------------------------------------------

    def _node(self, schema: Any, rest: State, depth: int = 0) -> State:
        if depth > 32:
            raise ConfigurationError("JSON schema: nested more than 32 deep, or a $ref that leads back to itself")
        if not isinstance(schema, Mapping):
            raise ConfigurationError(f"JSON schema: expected an object, found {schema!r}")
        for keyword in ("$ref", "const", "enum", "anyOf", "oneOf"):
            if keyword in schema:
                beside = schema.keys() - _ANNOTATIONS - {keyword, "type"}
                if beside:
                    raise ConfigurationError(f"JSON schema: '{sorted(beside)[0]}' beside {keyword} is not supported")
        if "$ref" in schema:
            return self._node(self._resolve(schema["$ref"]), rest, depth + 1)
        if "const" in schema:
            return (("lit", _canonical(schema["const"])), *rest)
        if "enum" in schema:
            options = sorted({_canonical(value) for value in _several(schema, "enum")})
            return (_alternatives([(option, ()) for option in options]), *rest)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                _several(schema, keyword)
                return (self._choice([self._node(branch, (), depth + 1) for branch in schema[keyword]]), *rest)
        kind = schema.get("type")
        if isinstance(kind, list):
            _several(schema, "type")
            return (self._choice([self._node({**schema, "type": one}, (), depth + 1) for one in kind]), *rest)
        known: dict[str, set[str]] = {
            "object": {"properties", "required"},
            "array": {"items", "minItems", "maxItems"},
        }
        unknown = schema.keys() - _ANNOTATIONS - {"type"} - known.get(str(kind), set())
        if unknown:
            raise ConfigurationError(f"JSON schema: keyword '{sorted(unknown)[0]}' of {kind} is not supported")
        match kind:
            case "object":
                return self._object(schema, rest, depth)
            case "array":
                return self._array(schema, rest, depth)
            case "string":
                return (("lit", b'"'), ("str", "text"), *rest)
            case "integer":
                return (("int", "start"), *rest)
            case "number":
                return (("num", "start"), *rest)
            case "boolean":
                return (_alternatives([(b"true", ()), (b"false", ())]), *rest)
            case "null":
                return (("lit", b"null"), *rest)
        raise ConfigurationError(f"JSON schema: type {kind!r} is not supported")

    def _object(self, schema: Mapping[str, Any], rest: State, depth: int) -> State:
        properties = schema.get("properties") or {}
        required = schema.get("required", list(properties))
        unknown = set(required) - set(properties)
        if unknown:
            raise ConfigurationError(f"JSON schema: required property '{sorted(unknown)[0]}' is not described")
        missing = set(properties) - set(required)
        if missing:
            raise ConfigurationError(f"JSON schema: property '{sorted(missing)[0]}' is optional; list it in 'required'")
        state: State = (("lit", b"}"), *rest)
        for index, (name, child) in reversed(list(enumerate(properties.items()))):
            opening = (b", " if index else b"") + orjson.dumps(name) + b": "
            state = (("lit", opening), *self._node(child, state, depth + 1))
        return (("lit", b"{"), *state)

    def _array(self, schema: Mapping[str, Any], rest: State, depth: int) -> State:
        item = self._node(schema.get("items", {"type": "string"}), (), depth + 1)
        least, most = schema.get("minItems", 0), schema.get("maxItems", 1 << 30)
        if not isinstance(least, int) or not isinstance(most, int) or not 0 <= least <= most:
            raise ConfigurationError(f"JSON schema: minItems {least!r} and maxItems {most!r} allow no array")
        first: Frame = ("first", item, least, most)
        return (("lit", b"["), first, *rest)

    def _choice(self, branches: list[State]) -> Frame:
        options = []
        for branch in branches:
            if not branch or branch[0][0] not in ("lit", "alt", "int", "num"):
                raise ConfigurationError("JSON schema: a branch of anyOf may not be empty or an array's inside")
            options.append(branch)
        firsts = [frozenset(byte for byte in range(256) if _step(branch, byte) is not None) for branch in options]
        for index, one in enumerate(firsts):
            if any(one & other for other in firsts[index + 1 :]):
                raise ConfigurationError("JSON schema: branches of anyOf must differ in their first character")
        return ("branch", tuple(options))

    def _resolve(self, reference: Any) -> Any:
        node: Any = self._root
        if not isinstance(reference, str):
            raise ConfigurationError(f"JSON schema: $ref {reference!r} is not a path")
        for part in reference.removeprefix("#/").split("/"):
            if not isinstance(node, Mapping) or part not in node:
                raise ConfigurationError(f"JSON schema: $ref '{reference}' leads nowhere")
            node = node[part]
        return node


def _several(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise ConfigurationError(f"JSON schema: {keyword} needs a list that is not empty, found {values!r}")
    return values


def _canonical(value: Any) -> bytes:
    """The one way in which a given value is written."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"JSON schema: {value!r} cannot be written as JSON: {error}") from None


def _alternatives(options: list[tuple[bytes, State]]) -> Frame:
    return ("alt", tuple(sorted(options)))


def _after_alternatives(frame: Frame, rest: State, taken: bytes) -> State:
    left: list[tuple[bytes, State]] = [(option[len(taken) :], after) for option, after in frame[1]]
    if len(left) > 1:
        return (("alt", tuple(left)), *rest)
    [(option, after)] = left
    literal: State = (("lit", option),) if option else ()
    return literal + after + rest


def _step(state: State, byte: int) -> State | None:
    """The state after one byte, None if it cannot come."""
    frame, rest = state[0], state[1:]
    match frame[0]:
        case "lit":
            if frame[1][0] != byte:
                return None
            return (("lit", frame[1][1:]), *rest) if len(frame[1]) > 1 else rest
        case "alt":
            left = [(option, after) for option, after in frame[1] if option[:1] == bytes((byte,))]
            if left:
                return _after_alternatives(("alt", tuple(left)), rest, bytes((byte,)))
            # An option that is the beginning of another ends where something else goes on (1 and 10).
            done = [after for option, after in frame[1] if not option]
            return _step(done[0] + rest, byte) if done and done[0] + rest else None
        case "str":
            return _in_string(frame[1], rest, byte)
        case "int" | "num":
            return _in_number(frame, rest, byte)
        case "branch":
            for branch in frame[1]:
                after = _step(branch + rest, byte)
                if after is not None:
                    return after
            return None
        case "first":
            return _in_array(frame, rest, byte)
    return _after_item(frame, rest, byte)


def _in_string(mode: str, rest: State, byte: int) -> State | None:
    if mode == "text":
        if byte == 0x22:
            return rest
        if byte == 0x5C:
            return (("str", "escape"), *rest)
        return None if byte < 0x20 else (("str", "text"), *rest)
    if mode == "escape":
        if byte == 0x75:
            return (("str", "hex4"), *rest)
        return (("str", "text"), *rest) if byte in _ESCAPES else None
    if byte not in _HEX:
        return None
    left = int(mode[3]) - 1
    return (("str", f"hex{left}" if left else "text"), *rest)


_NUMBER_GRAPH: dict[str, list[tuple[frozenset[int], str]]] = {
    "start": [(frozenset(b"-"), "sign"), (frozenset(b"0"), "zero"), (_DIGITS, "whole")],
    "sign": [(frozenset(b"0"), "zero"), (_DIGITS, "whole")],
    "zero": [(frozenset(b"."), "point"), (frozenset(b"eE"), "e")],
    "whole": [(_DIGITS, "whole"), (frozenset(b"."), "point"), (frozenset(b"eE"), "e")],
    "point": [(_DIGITS, "fraction")],
    "fraction": [(_DIGITS, "fraction"), (frozenset(b"eE"), "e")],
    "e": [(frozenset(b"+-"), "esign"), (_DIGITS, "exponent")],
    "esign": [(_DIGITS, "exponent")],
    "exponent": [(_DIGITS, "exponent")],
}
_NUMBER_ENDS = {"zero", "whole", "fraction", "exponent"}
_LONGEST_NUMBER = 18  # characters after which a number that could end must end


def _in_number(frame: Frame, rest: State, byte: int) -> State | None:
    kind, mode = frame[0], frame[1]
    length = frame[2] if len(frame) > 2 else 0
    for bytes_, following in _NUMBER_GRAPH[mode]:
        if byte in bytes_ and not (kind == "int" and following in ("point", "e")):
            # A number that has grown long may still be finished, but begins nothing that needs more characters.
            if length >= _LONGEST_NUMBER and mode in _NUMBER_ENDS:
                break
            return ((kind, following, length + 1), *rest)
    if mode in _NUMBER_ENDS and rest:
        return _step(rest, byte)
    return None


def _in_array(frame: Frame, rest: State, byte: int) -> State | None:
    _, item, least, most = frame
    if byte == 0x5D and least == 0:
        return rest
    if most == 0:
        return None
    return _step((*item, ("more", item, least - 1, most - 1), *rest), byte)


def _after_item(frame: Frame, rest: State, byte: int) -> State | None:
    _, item, least, most = frame
    if byte == 0x5D and least <= 0:
        return rest
    if byte == 0x2C and most > 0:
        return (("lit", b" "), *item, ("more", item, least - 1, most - 1), *rest)
    return None


def _common_prefix(options: list[bytes]) -> bytes:
    first, last = min(options), max(options)
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]


def may_end(state: State) -> bool:
    """Whether the text may end here: nothing is left, or only what needs nothing more."""
    if len(state) > 1:
        return False
    if not state or (state[0][0] in ("int", "num") and state[0][1] in _NUMBER_ENDS):
        return True
    return state[0][0] == "alt" and any(not option and not after for option, after in state[0][1])  # 1, of 1 and 10


class TokenMasks:
    """Which tokens of one vocabulary may come in a state of any grammar. Made once per model; masks are cached."""

    _CACHED = 512

    def __init__(self, pieces: list[bytes], ends: npt.NDArray[np.bool_], controls: npt.NDArray[np.bool_]) -> None:
        self._pieces = pieces
        self._ends = np.flatnonzero(ends)
        usable = [bool(piece) and not controls[token] and not ends[token] for token, piece in enumerate(pieces)]
        self._usable = np.flatnonzero(usable)
        # Inside of a string, most tokens are plain text whatever comes after; the rest is looked at one by one.
        self._text = np.zeros(len(pieces), dtype=bool)
        special = []
        for token in self._usable:
            piece = pieces[token]
            if b'"' in piece or b"\\" in piece:
                special.append(int(token))
            elif all(byte >= 0x20 for byte in piece):
                self._text[token] = True
        self._special = special
        self._by_first: dict[int, list[int]] = {}
        for token in self._usable:
            self._by_first.setdefault(pieces[token][0], []).append(int(token))
        self._masks: dict[tuple[int, State], npt.NDArray[np.bool_]] = {}

    def allowed(self, grammar: Grammar, state: State) -> npt.NDArray[np.bool_]:
        """A boolean row over the vocabulary; end-of-text tokens only where the text may end."""
        key = (id(grammar), state)
        mask = self._masks.get(key)
        if mask is None:
            if len(self._masks) >= self._CACHED:
                self._masks.pop(next(iter(self._masks)))
            mask = self._masks[key] = self._compute(grammar, state)
        return mask

    def _compute(self, grammar: Grammar, state: State) -> npt.NDArray[np.bool_]:
        if state and state[0] == ("str", "text"):
            mask = self._text.copy()
            candidates = self._special
        else:
            mask = np.zeros(len(self._pieces), dtype=bool)
            firsts = [byte for byte in range(256) if state and _step(state, byte) is not None]
            candidates = [token for byte in firsts for token in self._by_first.get(byte, ())]
        for token in candidates:
            if grammar.advance(state, self._pieces[token]) is not None:
                mask[token] = True
        if may_end(state):
            mask[self._ends] = True
        return mask
