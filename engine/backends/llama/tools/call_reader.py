"""Reads calls from an answer, piece by piece, and recognises the syntax in which a chat template writes them."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from ....escapes import without_halves
from ....tools import ToolCall, numbered
from .call_syntax import HERMES_CLOSE, HERMES_OPEN, MISTRAL_LIST, Notation

_DECODER = json.JSONDecoder()
_MARK = re.compile(HERMES_OPEN)
_BLANKS = re.compile(r"\s*")
_CALL_KEYS = {"type", "id", "name", "parameters", "arguments"}


def notation_of(before: str, between: str, after: str) -> Notation | None:
    """The notation in which a template wrote a call: the text before its name, before its arguments, and behind them.

    None if it is none that can be read.
    """
    found: Notation | None = None
    if HERMES_OPEN in before:
        found = Notation("hermes", HERMES_OPEN, before.rpartition(HERMES_OPEN)[2], between, after.rstrip())
    elif MISTRAL_LIST in before:
        # Identifiers are the template's; models name none.
        found = Notation("mistral", MISTRAL_LIST, before.rpartition(MISTRAL_LIST)[2], between, "}")
    elif (brace := before.rfind("{")) >= 0:
        found = Notation("llama", before[brace:], "", between, after.rstrip())
    if found is None:
        return None
    probe = ToolCall("call-1", "f", '{"a": 1}')
    reader = CallReader(found)
    said = reader.feed(found.written(probe)) + reader.end()
    return found if (said, reader.calls) == ("", [probe]) else None


class CallReader:
    """Takes an answer piece by piece and tells what of it is said in words; ``calls`` are those found so far.

    Blank space around calls belongs to nobody; words on both sides of a call are parted by a line break. What looks
    like a call but is none, or is cut off, is words. The result does not depend on where the pieces were cut.
    """

    def __init__(self, notation: Notation) -> None:
        self._notation = notation
        self._found: list[tuple[str, str, str]] = []
        self._held = ""  # what may yet be a call
        self._searched = 0  # up to where no closing mark ends it; what is held begins with a mark then
        self._blanks = ""  # what may stand before one
        self._told = self._behind_call = False

    @property
    def calls(self) -> list[ToolCall]:
        """The calls so far."""
        return numbered(self._found)

    def feed(self, text: str) -> str:
        """Take a piece; returns the words that can be told now."""
        self._held += text
        match self._notation.kind:
            case "hermes":
                return self._marked()
            case "mistral":
                return self._up_to(MISTRAL_LIST)
        if not self._told and (not self._held.strip() or self._held.lstrip().startswith("{")):
            return ""  # it may be one call, whole
        words, self._held = self._held, ""
        return self._words(words)

    def end(self) -> str:
        """The answer is complete; returns the words that are left."""
        with suppress(_CutString):
            if self._notation.kind == "mistral" and self._held.startswith(MISTRAL_LIST):
                if found := _listed(self._held[len(MISTRAL_LIST) :]):
                    self._calls(found)
            elif self._notation.kind == "llama" and not self._told and (call := _call(self._held, parameters=True)):
                self._calls([call])
        words = self._words(self._held)
        self._held = ""
        return words if self._found else words + self._blanks

    def _marked(self) -> str:
        told = ""
        while (close := self._held.find(HERMES_CLOSE, self._searched)) >= 0:
            end = close + len(HERMES_CLOSE)
            before, begin, call = self._before(close)
            rest = self._held[begin:]
            told += self._words(self._held[:before])
            if call is not None:
                self._calls([call])
            self._held, self._searched = rest, end - begin
        return told + self._up_to(HERMES_OPEN)

    def _before(self, close: int) -> tuple[int, int, tuple[str, str, str] | None]:
        """Where the words before a closing mark end, where what is held after it begins, and the call between them.

        A mark whose object is cut inside a string may still become a call: the closing mark is part of that string.
        There is one of those at most, for another mark within it is within the string, and a quote ends both or none.
        """
        text, end = self._held[:close], close + len(HERMES_CLOSE)
        pending = None
        marks = [0] if self._searched else []
        marks += [mark.start() for mark in _MARK.finditer(text, self._searched)]
        for mark in marks:
            try:
                call = _call(text, mark + len(HERMES_OPEN))
            except _CutString:
                pending = mark
                continue
            if call is not None:
                return mark, end, call
        return (end, end, None) if pending is None else (pending, pending, None)

    def _up_to(self, mark: str) -> str:
        """The words before a mark, or before what may become one."""
        place = self._held.find(mark)
        if place < 0:
            begun = (
                size for size in range(min(len(mark) - 1, len(self._held)), 0, -1) if self._held.endswith(mark[:size])
            )
            place = len(self._held) - next(begun, 0)
        words, self._held = self._held[:place], self._held[place:]
        return self._words(words)

    def _calls(self, found: list[tuple[str, str, str]]) -> None:
        self._found += found
        self._held = self._blanks = ""
        self._behind_call = True

    def _words(self, text: str) -> str:
        text = self._blanks + text
        words = text.rstrip()
        self._blanks = text[len(words) :]
        if self._behind_call and words:
            words = ("\n" if self._told else "") + words.lstrip()
            self._behind_call = False
        self._told = self._told or bool(words)
        return words


class _CutString(Exception):
    """The text ends inside a string of the object."""


def _call(text: str, start: int = 0, *, parameters: bool = False) -> tuple[str, str, str] | None:
    """Id, name and arguments of a call that is all of a text from ``start`` on; None if it is none.

    ``parameters``: where nothing else marks a call, an object must have arguments and nothing that calls have not.

    :raises _CutString: it may be the beginning of one.
    """
    read = _members(text, start)
    if read is None or text[read[1] :].strip():
        return None
    return _as_call(read[0], parameters=parameters)


def _listed(text: str) -> list[tuple[str, str, str]] | None:
    """The calls of a list that is all of a text; None if one of its members is none.

    :raises _CutString: the text ends inside one of them.
    """
    found = []
    place = _blank(text, 0)
    if text[place : place + 1] != "[":
        return None
    while text[place : place + 1] in ("[", ","):
        read = _members(text, place + 1)
        call = read and _as_call(read[0])
        if not read or not call:
            return None
        found.append(call)
        place = _blank(text, read[1])
    return found if text[place:].strip() == "]" else None


def _as_call(members: dict[str, str], *, parameters: bool = False) -> tuple[str, str, str] | None:
    key = "arguments" if "arguments" in members else "parameters"
    if parameters and (key not in members or members.keys() - _CALL_KEYS):
        return None
    name, id_ = (json.loads(without_halves(members.get(field, '""'))) for field in ("name", "id"))
    if not isinstance(name, str) or not name:
        return None
    arguments = members.get(key, "")
    if arguments.startswith('"'):  # arguments as text within the text
        arguments = json.loads(without_halves(arguments))
    return id_ if isinstance(id_, str) else "", name, arguments


def _members(text: str, start: int) -> tuple[dict[str, str], int] | None:
    """The members of the JSON object that begins here, each value as it is spelt, and where the object ends.

    :raises _CutString: the text ends inside one of its strings.
    """
    place = _blank(text, start)
    if text[place : place + 1] != "{":
        return None
    members: dict[str, str] = {}
    place = _blank(text, place + 1)
    if text[place : place + 1] == "}":
        return members, place + 1
    try:
        while True:
            name, place = _DECODER.raw_decode(text, place)
            place = _blank(text, place)
            if not isinstance(name, str) or text[place : place + 1] != ":":
                return None
            begin = _blank(text, place + 1)
            _, end = _DECODER.raw_decode(text, begin)
            members[name] = text[begin:end]
            place = _blank(text, end) + 1
            if text[place - 1 : place] == "}":
                return members, place
            if text[place - 1 : place] != ",":
                return None
            place = _blank(text, place)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise _CutString from None
        return None
    except (ValueError, RecursionError):
        return None


def _blank(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found else place
