"""A chat template that knows tools, as a pattern: its own text, and places for whatever is said in a talk.

The template is rendered once per pattern of messages, with markers in place of contents, of names and arguments of
calls, and of identifiers. Texts in the tools' specifications that would read as control tokens are marked too.

What never belongs here: tokens of a talk (``toolchat``), reading answers (``tools``).
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ....errors import Rejected
from ....messages import Message
from ....tools import Toolbox, ToolCall
from ..chat.chat_format import ChatFormat
from .call_reader import notation_of
from .call_syntax import OWN, Notation, arguments_of

# All markers are nine characters: some templates want that of identifiers. Those of the second kind stand in a JSON
# string, where quotation marks and the like are escaped; those of arguments stand for JSON themselves.
_MARKER = re.compile("\ue000(\\d{7})\ue001|\ue002(\\d{7})\ue003")
_IN_JSON = re.compile('("?)\ue000(\\d{7})\ue001("?)')
_ARGUMENTS, _SPELT = 5_000_000, 9_000_000
_REMEMBERED = 512
_PROBE = Toolbox([{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}])

Kind = Literal["content", "id", "name", "arguments", "answered", "function"]
Signature = tuple[tuple[str, bool, int], ...]


@dataclass(slots=True, frozen=True)
class Slot:
    """A place for something said: of which message and call. ``text`` is set where it is the same in every talk."""

    message: int
    kind: Kind = "content"
    call: int = 0
    escaped: bool = False
    text: str | None = None


@dataclass(slots=True, frozen=True)
class Said:
    """What an assistant's message says, from where it begins to speak to where its turn ends."""

    message: int
    parts: tuple[str | Slot, ...]


Pattern = list["str | Slot | Said"]


class _Refused(Exception):
    """The template does not take a talk; says why."""


class ToolTemplate:
    """One model's chat template with tools. ``native``: it has one, which writes calls in a ``notation`` that can be
    read; else that is ``OWN``, and there are no patterns.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat, self._model = chat, chat.model
        self._ends = [self._model.control_text(int(token)) for token in np.flatnonzero(self._model.ends)]
        # A refusal is remembered too, by its words.
        self._patterns: OrderedDict[tuple[bytes, Signature], Pattern | str] = OrderedDict()
        self._template = chat.tool_template(_in_json)
        self.notation = OWN
        found = self._probed() if self._template is not None else None
        self.native = found is not None
        self.notation = found or OWN

    def pattern(self, messages: Sequence[Message], tools: Toolbox | None) -> Pattern:
        """The pattern of a talk.

        :raises Rejected: the template refuses this sequence of messages, or leaves some of it out.
        """
        signature = tuple((message.role, bool(message.content), len(message.calls)) for message in messages)
        key = (tools.digest if tools is not None else b"", signature)
        known = self._patterns.pop(key, None)  # each step by itself, for the inference thread asks too
        if known is None:
            try:
                known = self._parse(*self._rendered(signature, tools), signature)
            except _Refused as error:
                known = str(error)
        self._patterns[key] = known
        if len(self._patterns) > _REMEMBERED:
            self._patterns.popitem(last=False)
        if isinstance(known, str):
            raise Rejected(f"its chat template {known}", model=self._model.path.name)
        return known

    def holds_marks(self, text: str) -> bool:
        """Whether a text of the template's would have marks."""
        return self._chat.vocabulary.holds_mark(text)

    def _rendered(self, signature: Signature, tools: Toolbox | None) -> tuple[str, dict[int, Slot]]:
        slots: dict[int, Slot] = {}

        def marker(slot: Slot) -> str:
            base = _SPELT if slot.text is not None else _ARGUMENTS if slot.kind == "arguments" else 0
            number = base + len(slots)
            slots[number] = slot
            return f"\ue000{number:07d}\ue001"

        messages: list[dict[str, Any]] = []
        for index, (role, worded, calls) in enumerate(signature):
            # A template asks whether there is a content, so there is a marker only where there is.
            content = "" if calls and not worded else marker(Slot(index))
            message: dict[str, Any] = {"role": role, "content": content}
            if calls:
                message["tool_calls"] = [
                    {
                        "id": marker(Slot(index, "id", call)),
                        "type": "function",
                        "function": {
                            "name": marker(Slot(index, "name", call)),
                            "arguments": marker(Slot(index, "arguments", call)),
                        },
                    }
                    for call in range(calls)
                ]
            if role == "tool":
                message |= {
                    "tool_call_id": marker(Slot(index, "answered")),
                    "name": marker(Slot(index, "function")),
                }
            messages.append(message)

        def guarded(value: Any) -> Any:
            if isinstance(value, str):
                odd = any("\ue000" <= letter <= "\ue003" for letter in value) or self.holds_marks(value)
                return marker(Slot(-1, text=value)) if odd else value
            if isinstance(value, dict):
                return {guarded(key): guarded(part) for key, part in value.items()}
            return [guarded(part) for part in value] if isinstance(value, list) else value

        specs = None if tools is None else guarded(tools.specs)
        model = self._model
        words = {"bos_token": model.control_text(model.bos), "eos_token": model.control_text(model.eos)}
        assert self._template is not None
        try:
            text = self._template.render(messages=messages, tools=specs, add_generation_prompt=True, **words)
        except Exception as error:  # whatever a template's own code may raise
            roles = " ".join(role for role, _, _ in signature)
            raise _Refused(f"refuses the roles {roles}: {error}") from None
        return text, slots

    def _parse(self, text: str, slots: dict[int, Slot], signature: Signature) -> Pattern:
        """:raises _Refused: something that was said is not in it, or not in its place."""
        found: list[tuple[int, int, Slot]] = []
        for match in _MARKER.finditer(text):
            slot = slots[int(match[1] or match[2])]
            escaped = match[2] is not None
            found.append((match.start(), match.end(), Slot(slot.message, slot.kind, slot.call, escaped, slot.text)))
        heard = [
            (s.message, s.kind, s.call) for _, _, s in found if s.text is None and s.kind in ("content", "arguments")
        ]
        wanted: list[tuple[int, Kind, int]] = []
        for index, (_, worded, calls) in enumerate(signature):
            content: tuple[int, Kind, int] = (index, "content", 0)
            # What is said beside a call some templates leave out; the call itself is to be there.
            if not calls or (worded and content in heard):
                wanted.append(content)
            wanted += [(index, "arguments", call) for call in range(calls)]
        named = {(s.message, s.call) for _, _, s in found if s.kind == "name"}
        if heard != wanted or any(
            (index, call) not in named for index, (_, _, calls) in enumerate(signature) for call in range(calls)
        ):
            raise _Refused("drops or repeats messages or calls")
        return self._cut(text, found, signature)

    def _cut(self, text: str, found: list[tuple[int, int, Slot]], signature: Signature) -> Pattern:
        spans = {
            index: self._span(text, [entry for entry in found if entry[2].message == index])
            for index, (role, _, _) in enumerate(signature)
            if role == "assistant"
        }
        pattern: Pattern = []
        place = 0
        rest = iter([*found, (len(text), len(text), None)])
        start, end, slot = next(rest)
        for index, (begin, close) in spans.items():
            while start < begin:
                pattern += [text[place:start], slot] if slot else []
                place = end
                start, end, slot = next(rest)
            pattern.append(text[place:begin])
            place = begin
            parts: list[str | Slot] = []
            while start < close:
                parts += [text[place:start], slot] if slot else []
                place = end
                start, end, slot = next(rest)
            parts.append(text[place:close])
            place = close
            pattern.append(Said(index, tuple(part for part in parts if part)))
        while slot is not None:
            pattern += [text[place:start], slot]
            place = end
            start, end, slot = next(rest)
        pattern.append(text[place:])
        return [part for part in pattern if part]

    def _span(self, text: str, own: list[tuple[int, int, Slot]]) -> tuple[int, int]:
        """Where an assistant's message begins to speak, and where its turn ends."""
        content = [(start, end) for start, end, slot in own if slot.kind == "content"]
        name = next((start for start, _, slot in own if slot.kind == "name"), None)
        if name is None:
            return content[0]
        mark = self.notation.mark
        begin = content[0][0] if content else text.rfind(mark, 0, name)
        last = max(end for _, end, slot in own if slot.kind == "arguments")
        close = min((place for word in self._ends if word and (place := text.find(word, last)) >= 0), default=-1)
        if begin < 0 or close < 0:
            raise _Refused("writes calls in several ways")
        return begin, close

    def _probed(self) -> Notation | None:
        """How the template writes a call, if it takes tools, calls and results, and in a notation that can be read."""
        signature: Signature = (("user", True, 0), ("assistant", False, 1), ("tool", True, 0))
        try:
            text, slots = self._rendered(signature, _PROBE)
        except _Refused:
            return None
        kinds = {slots[int(match[1] or match[2])].kind: match for match in _MARKER.finditer(text)}
        if "name" not in kinds or "arguments" not in kinds or kinds["name"].end() > kinds["arguments"].start():
            return None
        name, arguments = kinds["name"], kinds["arguments"]
        close = min((at for word in self._ends if word and (at := text.find(word, arguments.end())) >= 0), default=-1)
        said = [match.end() for match in _MARKER.finditer(text) if match.end() <= name.start()]
        begin = max((end for end in said if slots[int(text[end - 8 : end - 1])].kind == "content"), default=0)
        between = text[name.end() : arguments.start()]
        found = notation_of(text[begin : name.start()], between, text[arguments.end() : close]) if close >= 0 else None
        if found is None:
            return None
        self.notation = found
        try:
            self._parse(text, slots, signature)
        except _Refused:
            self.notation = OWN
            return None
        return found


def _in_json(
    value: Any, *, indent: int | None = None, separators: Any = None, sort_keys: bool = False, **_: Any
) -> str:
    """The filter ``tojson`` as chat templates expect it: plain JSON, not the one that is safe in a web page."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)

    def marked(match: re.Match[str]) -> str:
        before, number, after = match.groups()
        if _ARGUMENTS <= int(number) < _SPELT and before and after:
            return f"\ue000{number}\ue001"
        return f"{before}\ue002{number}\ue003{after}"

    return _IN_JSON.sub(marked, text)


def said_in(slot: Slot, messages: Sequence[Message]) -> str:
    """What stands in a place of this talk."""
    text = slot.text
    if text is None:
        message = messages[slot.message]
        match slot.kind:
            case "content":
                text = message.content
            case "answered":
                text = message.call_id
            case "function":
                text = message.name or _answered(message, messages[: slot.message])
            case "id":
                text = message.calls[slot.call].id
            case "name":
                text = message.calls[slot.call].name
            case "arguments":
                text = arguments_of(message.calls[slot.call])
    return json.dumps(text, ensure_ascii=False)[1:-1] if slot.escaped else text


def _answered(message: Message, before: Sequence[Message]) -> str:
    """The name of the function whose result this is, from the call that it answers."""
    calls: list[ToolCall] = [call for earlier in before for call in earlier.calls if call.id == message.call_id]
    return calls[-1].name if calls else ""
