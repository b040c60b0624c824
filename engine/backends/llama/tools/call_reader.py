"""Reading calls from an answer, piece by piece, and recognising the syntax in which a chat template writes them."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from ....escapes import without_halves
from ....tools import ToolCall, numbered
from .call_syntax import HERMES_CLOSE, HERMES_OPEN, MISTRAL_LIST, CallSyntax

_DECODER = json.JSONDecoder()
_MARKER = re.compile(HERMES_OPEN)
_BLANKS = re.compile(r"\s*")
_CALL_KEYS = {"type", "id", "name", "parameters", "arguments"}


def syntax_of_template(before: str, between: str, after: str) -> CallSyntax | None:
    """The syntax in which a template wrote a call: the text before its name, before its arguments, and after them.

    None if it is none of the known ones.
    """
    found: CallSyntax | None = None
    if HERMES_OPEN in before:
        found = CallSyntax("hermes", HERMES_OPEN, before.rpartition(HERMES_OPEN)[2], between, after.rstrip())
    elif MISTRAL_LIST in before:
        # Identifiers are the template's own; models write none.
        found = CallSyntax("mistral", MISTRAL_LIST, before.rpartition(MISTRAL_LIST)[2], between, "}")
    elif (brace := before.rfind("{")) >= 0:
        found = CallSyntax("llama", before[brace:], "", between, after.rstrip())
    if found is None:
        return None
    probe = ToolCall("call-1", "f", '{"a": 1}')
    reader = CallReader(found)
    text = reader.feed(found.written(probe)) + reader.end()
    return found if (text, reader.calls) == ("", [probe]) else None


class CallReader:
    """Takes an answer piece by piece and returns its text outside of calls; ``calls`` are those read so far.

    Whitespace around calls is dropped; text on both sides of a call is separated by a line break. What looks like a
    call but is none, or is incomplete, is text. The result does not depend on how the answer was split into pieces.
    """

    def __init__(self, syntax: CallSyntax) -> None:
        self._syntax = syntax
        self._found: list[tuple[str, str, str]] = []
        self._held = ""  # what may still become a call
        self._searched = 0  # no closing marker up to here ends the call; then the held text begins with a marker
        self._blanks = ""  # whitespace that may precede a call
        self._any_text = self._after_call = False

    @property
    def calls(self) -> list[ToolCall]:
        """The calls so far."""
        return numbered(self._found)

    def feed(self, text: str) -> str:
        """Add a piece. Returns the text that is certain now."""
        self._held += text
        match self._syntax.kind:
            case "hermes":
                return self._feed_hermes()
            case "mistral":
                return self._text_before(MISTRAL_LIST)
        if not self._any_text and (not self._held.strip() or self._held.lstrip().startswith("{")):
            return ""  # the whole answer may be one call
        text, self._held = self._held, ""
        return self._emit(text)

    def end(self) -> str:
        """The answer is complete. Returns the remaining text."""
        with suppress(_TruncatedString):
            if self._syntax.kind == "mistral" and self._held.startswith(MISTRAL_LIST):
                if found := _call_list(self._held[len(MISTRAL_LIST) :]):
                    self._calls(found)
            elif self._syntax.kind == "llama" and not self._any_text and (call := _call(self._held, parameters=True)):
                self._calls([call])
        text = self._emit(self._held)
        self._held = ""
        return text if self._found else text + self._blanks

    def _feed_hermes(self) -> str:
        text = ""
        while (close := self._held.find(HERMES_CLOSE, self._searched)) >= 0:
            end = close + len(HERMES_CLOSE)
            before, begin, call = self._before(close)
            rest = self._held[begin:]
            text += self._emit(self._held[:before])
            if call is not None:
                self._calls([call])
            self._held, self._searched = rest, end - begin
        return text + self._text_before(HERMES_OPEN)

    def _before(self, close: int) -> tuple[int, int, tuple[str, str, str] | None]:
        """Where the text before a closing marker ends, where the rest after it begins, and the call between them.

        A call whose object is cut inside a string may still become a call: the closing marker is then part of that
        string. There is at most one of those, because another opening marker in it is part of the string, and a
        quotation mark ends both or none.
        """
        text, end = self._held[:close], close + len(HERMES_CLOSE)
        pending = None
        starts = [0] if self._searched else []
        starts += [match.start() for match in _MARKER.finditer(text, self._searched)]
        for start in starts:
            try:
                call = _call(text, start + len(HERMES_OPEN))
            except _TruncatedString:
                pending = start
                continue
            if call is not None:
                return start, end, call
        return (end, end, None) if pending is None else (pending, pending, None)

    def _text_before(self, marker: str) -> str:
        """The text before a marker, or before the possible beginning of one."""
        place = self._held.find(marker)
        if place < 0:
            partial = (
                size
                for size in range(min(len(marker) - 1, len(self._held)), 0, -1)
                if self._held.endswith(marker[:size])
            )
            place = len(self._held) - next(partial, 0)
        text, self._held = self._held[:place], self._held[place:]
        return self._emit(text)

    def _calls(self, found: list[tuple[str, str, str]]) -> None:
        self._found += found
        self._held = self._blanks = ""
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


class _TruncatedString(Exception):
    """The text ends inside a string of the object."""


def _call(text: str, start: int = 0, *, parameters: bool = False) -> tuple[str, str, str] | None:
    """Id, name and arguments of a call that is all of a text from ``start`` on; None if it is none.

    ``parameters``: without a marker, an object must have arguments and no members that calls do not have.

    :raises _TruncatedString: it may be the beginning of one.
    """
    read = _members(text, start)
    if read is None or text[read[1] :].strip():
        return None
    return _call_of(read[0], parameters=parameters)


def _call_list(text: str) -> list[tuple[str, str, str]] | None:
    """The calls of a list that is all of a text; None if a member of it is none.

    :raises _TruncatedString: the text ends inside one of them.
    """
    found = []
    place = _skip_blanks(text, 0)
    if text[place : place + 1] != "[":
        return None
    while text[place : place + 1] in ("[", ","):
        read = _members(text, place + 1)
        call = read and _call_of(read[0])
        if not read or not call:
            return None
        found.append(call)
        place = _skip_blanks(text, read[1])
    return found if text[place:].strip() == "]" else None


def _call_of(members: dict[str, str], *, parameters: bool = False) -> tuple[str, str, str] | None:
    key = "arguments" if "arguments" in members else "parameters"
    if parameters and (key not in members or members.keys() - _CALL_KEYS):
        return None
    name, id_ = (json.loads(without_halves(members.get(field, '""'))) for field in ("name", "id"))
    if not isinstance(name, str) or not name:
        return None
    arguments = members.get(key, "")
    if arguments.startswith('"'):  # arguments as a JSON string
        arguments = json.loads(without_halves(arguments))
    return id_ if isinstance(id_, str) else "", name, arguments


def _members(text: str, start: int) -> tuple[dict[str, str], int] | None:
    """The members of the JSON object that begins at ``start``, each value as it is written, and where the object ends.

    :raises _TruncatedString: the text ends inside one of its strings.
    """
    place = _skip_blanks(text, start)
    if text[place : place + 1] != "{":
        return None
    members: dict[str, str] = {}
    place = _skip_blanks(text, place + 1)
    if text[place : place + 1] == "}":
        return members, place + 1
    try:
        while True:
            name, place = _DECODER.raw_decode(text, place)
            place = _skip_blanks(text, place)
            if not isinstance(name, str) or text[place : place + 1] != ":":
                return None
            begin = _skip_blanks(text, place + 1)
            _, end = _DECODER.raw_decode(text, begin)
            members[name] = text[begin:end]
            place = _skip_blanks(text, end) + 1
            if text[place - 1 : place] == "}":
                return members, place
            if text[place - 1 : place] != ",":
                return None
            place = _skip_blanks(text, place)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise _TruncatedString from None
        return None
    except (ValueError, RecursionError):
        return None


def _skip_blanks(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found else place
