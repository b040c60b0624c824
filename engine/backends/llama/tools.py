"""How calls of functions stand in a local model's text: the notations there are, reading them, and one of our own.

A model whose chat template knows tools is offered them by that, and writes calls as it has learnt: like Hermes and Qwen
(``<tool_call>{"name": …, "arguments": …}</tool_call>``, any number of them), like Mistral (``[TOOL_CALLS] […]``) or
like Llama 3.1 (``{"name": …, "parameters": …}`` and nothing else). Any other model is told in its system message what
there is and how to call it, in the notation ``OWN``; results come to it as a user's message.

What never belongs here: templates (``toolchat``), which calls may be made (``calling``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from ...errors import MalformedOutput
from ...escapes import without_halves
from ...messages import Message
from ...tools import Toolbox, ToolCall, numbered

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_LIST = "[TOOL_CALLS]"
_DECODER = json.JSONDecoder()
_MARK = re.compile(_OPEN)
_BLANKS = re.compile(r"\s*")
_CALL_KEYS = {"type", "id", "name", "parameters", "arguments"}
_OFFER = (
    "You may call functions. These are the functions, each as a JSON object on a line of its own:\n\n{functions}\n\n"
    'To call one, write <tool_call>{{"name": …, "arguments": {{…}}}}</tool_call> with its name and an object of its '
    "arguments; for several calls write that several times. What a function returned then comes between "
    "<tool_response> and </tool_response>. If no call is needed, or something that a call needs is not known, answer "
    "in words instead."
)


@dataclass(slots=True, frozen=True)
class Notation:
    """How one call is written: ``mark``, ``opening``, its name, ``between``, its arguments, ``closing``.

    Text may stand before a mark. After a call ``hermes`` goes on in text or with another one, ``mistral`` with the next
    of a list, and in ``llama`` the answer is the call and nothing else.
    """

    kind: Literal["hermes", "mistral", "llama"]
    mark: str
    opening: str
    between: str
    closing: str

    def written(self, call: ToolCall) -> str:
        """A call, alone, as an answer says it."""
        end = "]" if self.kind == "mistral" else ""
        name = json.dumps(call.name, ensure_ascii=False)[1:-1]
        return self.mark + self.opening + name + self.between + arguments_of(call) + self.closing + end


OWN = Notation("hermes", _OPEN, '{"name": "', '", "arguments": ', "}" + _CLOSE)


def notation_of(before: str, between: str, after: str) -> Notation | None:
    """The notation in which a template wrote a call: the text before its name, before its arguments, and behind them.

    None if it is none that can be read.
    """
    found: Notation | None = None
    if _OPEN in before:
        found = Notation("hermes", _OPEN, before.rpartition(_OPEN)[2], between, after.rstrip())
    elif _LIST in before:
        # Identifiers are the template's; models name none.
        found = Notation("mistral", _LIST, before.rpartition(_LIST)[2], between, "}")
    elif (brace := before.rfind("{")) >= 0:
        found = Notation("llama", before[brace:], "", between, after.rstrip())
    if found is None:
        return None
    probe = ToolCall("call-1", "f", '{"a": 1}')
    reader = CallReader(found)
    said = reader.feed(found.written(probe)) + reader.end()
    return found if (said, reader.calls) == ("", [probe]) else None


def arguments_of(call: ToolCall) -> str:
    """A call's arguments as models write them, blanks after commas and colons; what is no object stays as it is."""
    try:
        return json.dumps(call.parsed(), ensure_ascii=False)
    except MalformedOutput:
        return call.arguments


def in_plain_messages(messages: Sequence[Message], tools: Toolbox | None) -> list[Message]:
    """The talk for a template that knows no tools: offered in the system message, calls and results as text.

    Results in a row, and what the user says right after them, are one message, for many templates want turns to
    alternate.
    """
    plain: list[Message] = []
    results = False  # the last message is of results
    if tools is not None:
        functions = "\n".join(json.dumps(spec["function"], ensure_ascii=False) for spec in tools.specs)
        offer = _OFFER.format(functions=functions)
        if messages and messages[0].role == "system":
            offer = f"{messages[0].content}\n\n{offer}"
            messages = messages[1:]
        plain.append(Message("system", offer))
    for message in messages:
        if message.role == "assistant":
            said = [message.content] if message.content or not message.calls else []
            said += [OWN.written(call) for call in message.calls]
            plain.append(Message("assistant", "\n".join(said), message.pieces))
            results = False
            continue
        content = message.content
        if message.role == "tool":
            content = f"<tool_response>{content}</tool_response>"
        if results and message.role in ("tool", "user"):
            plain[-1] = Message("user", f"{plain[-1].content}\n{content}")
        else:
            plain.append(Message("user" if message.role == "tool" else message.role, content))
        results = message.role == "tool"
    return plain


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
                return self._up_to(_LIST)
        if not self._told and (not self._held.strip() or self._held.lstrip().startswith("{")):
            return ""  # it may be one call, whole
        words, self._held = self._held, ""
        return self._words(words)

    def end(self) -> str:
        """The answer is complete; returns the words that are left."""
        with suppress(_CutString):
            if self._notation.kind == "mistral" and self._held.startswith(_LIST):
                if found := _listed(self._held[len(_LIST) :]):
                    self._calls(found)
            elif self._notation.kind == "llama" and not self._told and (call := _call(self._held, parameters=True)):
                self._calls([call])
        words = self._words(self._held)
        self._held = ""
        return words if self._found else words + self._blanks

    def _marked(self) -> str:
        told = ""
        while (close := self._held.find(_CLOSE, self._searched)) >= 0:
            end = close + len(_CLOSE)
            before, begin, call = self._before(close)
            rest = self._held[begin:]
            told += self._words(self._held[:before])
            if call is not None:
                self._calls([call])
            self._held, self._searched = rest, end - begin
        return told + self._up_to(_OPEN)

    def _before(self, close: int) -> tuple[int, int, tuple[str, str, str] | None]:
        """Where the words before a closing mark end, where what is held after it begins, and the call between them.

        A mark whose object is cut inside a string may still become a call: the closing mark is part of that string.
        There is one of those at most, for another mark within it is within the string, and a quote ends both or none.
        """
        text, end = self._held[:close], close + len(_CLOSE)
        pending = None
        marks = [0] if self._searched else []
        marks += [mark.start() for mark in _MARK.finditer(text, self._searched)]
        for mark in marks:
            try:
                call = _call(text, mark + len(_OPEN))
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
