"""Function calls in answers of local models: their syntaxes, the reader, and the grammar that constrains them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import ConfigurationError, MalformedOutput
from ...json_data import strip_surrogate_escapes
from ...tools import Toolbox, ToolCall, number_calls
from .grammar import KEYWORDS, MOST_BRANCHES, Grammar, PartBudget, canonical_json, compile_schema, length_bounds
from .grammar_automaton import (
    MAX_DEPTH,
    AnyMembers,
    AnyValue,
    ArrayItems,
    Frames,
    FreeText,
    LiteralText,
    ObjectMembers,
    one_by_prefix,
)

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
MISTRAL_LIST = "[TOOL_CALLS]"


@dataclass(slots=True, frozen=True)
class CallSyntax:
    """Syntax of one call: `marker`, `opening`, the name, `between`, the arguments, `closing`, in this order.

    Text may precede a marker. After a call, `hermes` allows text or another call, `mistral` the next call of a list; in
    `llama` the answer is one call and nothing else.
    """

    kind: Literal["hermes", "mistral", "llama"]
    marker: str
    opening: str
    between: str
    closing: str

    def render(self, call: ToolCall) -> str:
        """Return a single call in the form in which an answer contains it."""
        end = "]" if self.kind == "mistral" else ""
        name = json.dumps(call.name, ensure_ascii=False)[1:-1]
        return self.marker + self.opening + name + self.between + arguments_text(call) + self.closing + end


HERMES = CallSyntax("hermes", HERMES_OPEN, '{"name": "', '", "arguments": ', "}" + HERMES_CLOSE)


def arguments_text(call: ToolCall) -> str:
    """Return a call's arguments as models write them, with spaces after commas and colons if they are an object."""
    try:
        return json.dumps(call.parsed(), ensure_ascii=False)
    except MalformedOutput:
        return call.arguments


_DECODER = json.JSONDecoder()
_HERMES_MARKER = re.compile(HERMES_OPEN)
_BLANKS = re.compile(r"\s*")
_CALL_KEYS = {"type", "id", "name", "parameters", "arguments"}


def syntax_of_template(before: str, between: str, after: str) -> CallSyntax | None:
    """Return the syntax in which a template wrote a call, given the texts around its name and arguments.

    None if it is unknown.
    """
    syntax: CallSyntax | None = None
    if HERMES_OPEN in before:
        syntax = CallSyntax("hermes", HERMES_OPEN, before.rpartition(HERMES_OPEN)[2], between, after.rstrip())
    elif MISTRAL_LIST in before:
        # Only the template writes identifiers; models write none.
        syntax = CallSyntax("mistral", MISTRAL_LIST, before.rpartition(MISTRAL_LIST)[2], between, "}")
    elif (brace := before.rfind("{")) >= 0:
        syntax = CallSyntax("llama", before[brace:], "", between, after.rstrip())
    if syntax is None:
        return None
    probe = ToolCall("call-1", "f", '{"a": 1}')
    reader = CallReader(syntax)
    text = reader.feed(syntax.render(probe)) + reader.end()
    return syntax if (text, reader.calls) == ("", [probe]) else None


class CallReader:
    """Reader that takes an answer piece by piece and returns its text outside of calls; `calls` are those read so far.

    Whitespace around calls is dropped; text on both sides of a call is separated by a line break. Something that looks
    like a call but is none, or is incomplete, is text. The result does not depend on how the answer was split into
    pieces.
    """

    def __init__(self, syntax: CallSyntax) -> None:
        self._syntax = syntax
        self._calls_found: list[tuple[str, str, str]] = []
        self._buffered = ""  # text that may still become a call
        self._searched = 0  # no closing marker up to here ends a call; if above 0, the text begins with a marker
        self._blanks = ""  # whitespace that may precede a call
        self._any_text = self._after_call = False

    @property
    def calls(self) -> list[ToolCall]:
        """Calls so far."""
        return number_calls(self._calls_found)

    def feed(self, text: str) -> str:
        """Add a piece; return the text that is certain now."""
        self._buffered += text
        match self._syntax.kind:
            case "hermes":
                return self._feed_hermes()
            case "mistral":
                return self._text_before(MISTRAL_LIST)
        if not self._any_text and (not self._buffered.strip() or self._buffered.lstrip().startswith("{")):
            return ""  # the whole answer may be one call
        text, self._buffered = self._buffered, ""
        return self._emit(text)

    def end(self) -> str:
        """End the answer; return the remaining text."""
        with suppress(_TruncatedStringError):
            if self._syntax.kind == "mistral" and self._buffered.startswith(MISTRAL_LIST):
                if call_list := _read_call_list(self._buffered[len(MISTRAL_LIST) :]):
                    self._calls(call_list)
            elif (
                self._syntax.kind == "llama"
                and not self._any_text
                and (call := _read_call(self._buffered, parameters=True))
            ):
                self._calls([call])
        text = self._emit(self._buffered)
        self._buffered = ""
        return text if self._calls_found else text + self._blanks

    def _feed_hermes(self) -> str:
        text = ""
        while (close := self._buffered.find(HERMES_CLOSE, self._searched)) >= 0:
            end = close + len(HERMES_CLOSE)
            before, begin, call = self._before(close)
            rest = self._buffered[begin:]
            text += self._emit(self._buffered[:before])
            if call is not None:
                self._calls([call])
            self._buffered, self._searched = rest, end - begin
        return text + self._text_before(HERMES_OPEN)

    def _before(self, close: int) -> tuple[int, int, tuple[str, str, str] | None]:
        """Return where the text before a closing marker ends, where the rest begins, and the call between.

        A call whose object is cut inside a string may still become a call: the closing marker is then part of that
        string. At most one call can be cut in this way: a second opening marker would be part of its string, and a
        quotation mark would end both strings or none.
        """
        text, end = self._buffered[:close], close + len(HERMES_CLOSE)
        pending = None
        starts = [0] if self._searched else []
        starts += [match.start() for match in _HERMES_MARKER.finditer(text, self._searched)]
        for start in starts:
            try:
                call = _read_call(text, start + len(HERMES_OPEN))
            except _TruncatedStringError:
                pending = start
                continue
            if call is not None:
                return start, end, call
        return (end, end, None) if pending is None else (pending, pending, None)

    def _text_before(self, marker: str) -> str:
        """Return the text before a marker, or before the possible beginning of one."""
        position = self._buffered.find(marker)
        if position < 0:
            partial = (
                size
                for size in range(min(len(marker) - 1, len(self._buffered)), 0, -1)
                if self._buffered.endswith(marker[:size])
            )
            position = len(self._buffered) - next(partial, 0)
        text, self._buffered = self._buffered[:position], self._buffered[position:]
        return self._emit(text)

    def _calls(self, calls: list[tuple[str, str, str]]) -> None:
        self._calls_found += calls
        self._buffered = self._blanks = ""
        self._after_call = True

    def _emit(self, text: str) -> str:
        text = self._blanks + text
        safe = text.rstrip()
        self._blanks = text[len(safe) :]
        if self._after_call and safe:
            safe = ("\n" if self._any_text else "") + safe.lstrip()
            self._after_call = False
        self._any_text = self._any_text or bool(safe)
        return safe


class _TruncatedStringError(Exception):
    """The text ends inside a string of the object."""


def _read_call(text: str, start: int = 0, *, parameters: bool = False) -> tuple[str, str, str] | None:
    """Return id, name and arguments of a call that is the whole text from `start` on; None if that is no call.

    If `parameters` is set (no marker precedes), the object must have arguments, and only members that calls have.
    """
    read = _read_members(text, start)
    if read is None or text[read[1] :].strip():
        return None
    return _call_from_members(read[0], parameters=parameters)


def _read_call_list(text: str) -> list[tuple[str, str, str]] | None:
    """Return the calls of a list that is the whole text; None if a member of the list is no call.

    Raises:
        _TruncatedStringError: The text ends inside a string of a call.
    """
    calls = []
    position = _skip_blanks(text, 0)
    if text[position : position + 1] != "[":
        return None
    while text[position : position + 1] in ("[", ","):
        read = _read_members(text, position + 1)
        call = read and _call_from_members(read[0])
        if not read or not call:
            return None
        calls.append(call)
        position = _skip_blanks(text, read[1])
    return calls if text[position:].strip() == "]" else None


def _call_from_members(members: dict[str, str], *, parameters: bool = False) -> tuple[str, str, str] | None:
    key = "arguments" if "arguments" in members else "parameters"
    if parameters and (key not in members or members.keys() - _CALL_KEYS):
        return None
    name, id_ = (json.loads(strip_surrogate_escapes(members.get(field, '""'))) for field in ("name", "id"))
    if not isinstance(name, str) or not name:
        return None
    arguments = members.get(key, "")
    if arguments.startswith('"'):  # arguments as a JSON string
        arguments = json.loads(strip_surrogate_escapes(arguments))
    return id_ if isinstance(id_, str) else "", name, arguments


def _read_members(text: str, start: int) -> tuple[dict[str, str], int] | None:
    """Return the members of the JSON object at `start`, each value as written, and where the object ends.

    Raises:
        _TruncatedStringError: The text ends inside one of its strings.
    """
    position = _skip_blanks(text, start)
    if text[position : position + 1] != "{":
        return None
    members: dict[str, str] = {}
    position = _skip_blanks(text, position + 1)
    if text[position : position + 1] == "}":
        return members, position + 1
    try:
        while True:
            name, position = _DECODER.raw_decode(text, position)
            position = _skip_blanks(text, position)
            if not isinstance(name, str) or text[position : position + 1] != ":":
                return None
            begin = _skip_blanks(text, position + 1)
            _, end = _DECODER.raw_decode(text, begin)
            members[name] = text[begin:end]
            position = _skip_blanks(text, end) + 1
            if text[position - 1 : position] == "}":
                return members, position
            if text[position - 1 : position] != ",":
                return None
            position = _skip_blanks(text, position)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise _TruncatedStringError from None
        return None
    except (ValueError, RecursionError):
        return None


def _skip_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return match.end() if match else position


def call_grammar(tools: Toolbox, syntax: CallSyntax) -> Grammar:
    """Return the grammar of an answer that may call any of these functions, in this syntax."""
    functions = []
    budget = PartBudget()
    for name in tools.names:
        arguments = _object_frames(tools.parameters(name) or {}, {}, 0, budget)
        key = canonical_json(name)[1:-1] + syntax.between.encode()
        functions.append((key, (*arguments, LiteralText(syntax.closing.encode()))))
    single_function = one_by_prefix(functions)
    opening = syntax.opening.encode()
    if syntax.kind == "mistral":
        list_, _, item = opening.partition(b"[")
        limit = 1 if tools.single else None
        call: Frames = (LiteralText(list_ + b"["), ArrayItems((LiteralText(item), *single_function), 1, limit))
    else:
        call = (LiteralText(opening), *single_function) if opening else single_function
    key = b"%b %b" % (syntax.marker.encode(), tools.digest)
    is_repeated = syntax.kind == "hermes" and not tools.single
    prose = FreeText(syntax.marker.encode(), key, call, syntax.kind == "llama", is_repeated)
    if not tools.required:
        return Grammar.from_frames((prose,))
    return Grammar.from_frames((LiteralText(syntax.marker.encode()), *call, *([prose] if is_repeated else [])))


def _object_frames(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, budget: PartBudget) -> Frames:
    """Return frames of an object with the schema's properties, or of any object if too many of them are optional."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    root = root or schema
    if len(properties.keys() - needed) > MOST_BRANCHES:
        return (LiteralText(b"{"), AnyMembers(MAX_DEPTH - 1))
    left = [
        (canonical_json(name), _value_frames(part, root, depth + 1, budget), name in needed)
        for name, part in properties.items()
    ]
    left += [(canonical_json(name), (AnyValue(),), True) for name in sorted(needed - properties.keys())]
    return (LiteralText(b"{"), ObjectMembers(tuple(left)))


def _value_frames(schema: Any, root: Mapping[str, Any], depth: int, budget: PartBudget) -> Frames:
    """Return the frames for the enforceable part of a schema."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return (AnyValue(),)
    kind = schema.get("type")
    fixed = "enum" in schema or "const" in schema
    if not fixed and (kind == "object" or (kind is None and "properties" in schema)):
        described = schema.get("properties") or schema.get("required")
        return (
            _object_frames(schema, root, depth, budget) if described else (LiteralText(b"{"), AnyMembers(MAX_DEPTH - 1))
        )
    if not fixed and kind == "array":
        try:
            bounds = length_bounds(schema, "minItems", "maxItems")
        except ConfigurationError:
            bounds = (0, None)
        return (LiteralText(b"["), ArrayItems(_value_frames(schema.get("items"), root, depth + 1, budget), *bounds))
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
