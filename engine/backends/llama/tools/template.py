"""A chat template that supports tools, rendered as its own text with placeholders for everything variable.

The template is rendered once per pattern of messages, with placeholders for contents, for names and arguments of calls,
and for identifiers. Texts in the tools' specifications that would be parsed as special tokens get placeholders too.
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
from .call_reader import syntax_of_template
from .call_syntax import OWN, CallSyntax, arguments_text

# All markers have nine characters, because some templates require that of identifiers. The second kind stands in a
# JSON string, where quotation marks and the like are escaped; those of arguments stand for JSON themselves.
_MARKER = re.compile("\ue000(\\d{7})\ue001|\ue002(\\d{7})\ue003")
_IN_JSON = re.compile('("?)\ue000(\\d{7})\ue001("?)')
_ARGUMENTS, _TEXTS = 5_000_000, 9_000_000
_MAX_CACHED = 512
_PROBE = Toolbox([{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}])

PlaceholderKind = Literal["content", "id", "name", "arguments", "answered", "function"]
MessageShapes = tuple[tuple[str, bool, int], ...]


@dataclass(slots=True, frozen=True)
class Placeholder:
    """A place for a variable text: of which message and call. ``text``: it is equal in every conversation."""

    message: int
    kind: PlaceholderKind = "content"
    call: int = 0
    escaped: bool = False
    text: str | None = None


@dataclass(slots=True, frozen=True)
class AssistantSpan:
    """What an assistant's message says, from the beginning of its own text to the end of its turn."""

    message: int
    parts: tuple[str | Placeholder, ...]


TemplateParts = list["str | Placeholder | AssistantSpan"]


class _TemplateRefused(Exception):
    """The template does not accept a conversation; the message says why."""


class ToolTemplate:
    """One model's chat template with tools.

    ``native``: there is one, and it writes calls in a known ``syntax``; otherwise that is ``OWN`` and there are no
    parts.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat, self._model = chat, chat.model
        self._ends = [self._model.control_text(int(token)) for token in np.flatnonzero(self._model.ends)]
        # Refusals are cached too, as text.
        self._cache: OrderedDict[tuple[bytes, MessageShapes], TemplateParts | str] = OrderedDict()
        self._template = chat.tool_template(_in_json)
        self.syntax = OWN
        found = self._detect_syntax() if self._template is not None else None
        self.native = found is not None
        self.syntax = found or OWN

    def parts(self, messages: Sequence[Message], tools: Toolbox | None) -> TemplateParts:
        """The rendered template of a conversation.

        :raises Rejected: the template refuses this sequence of messages, or leaves out some of it.
        """
        shapes = tuple((message.role, bool(message.content), len(message.calls)) for message in messages)
        key = (tools.digest if tools is not None else b"", shapes)
        known = self._cache.pop(key, None)  # atomic steps: the inference thread calls this too
        if known is None:
            try:
                known = self._parse(*self._rendered(shapes, tools), shapes)
            except _TemplateRefused as error:
                known = str(error)
        self._cache[key] = known
        if len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)
        if isinstance(known, str):
            raise Rejected(f"its chat template {known}", model=self._model.path.name)
        return known

    def has_special_tokens(self, text: str) -> bool:
        """Whether a text would contain special tokens if the template wrote it."""
        return self._chat.tokenizer.has_special(text)

    def _rendered(self, shapes: MessageShapes, tools: Toolbox | None) -> tuple[str, dict[int, Placeholder]]:
        placeholders: dict[int, Placeholder] = {}

        def marker(placeholder: Placeholder) -> str:
            base = _TEXTS if placeholder.text is not None else _ARGUMENTS if placeholder.kind == "arguments" else 0
            number = base + len(placeholders)
            placeholders[number] = placeholder
            return f"\ue000{number:07d}\ue001"

        messages: list[dict[str, Any]] = []
        for index, (role, worded, calls) in enumerate(shapes):
            # Templates test whether there is content, so an empty one gets no marker.
            content = "" if calls and not worded else marker(Placeholder(index))
            message: dict[str, Any] = {"role": role, "content": content}
            if calls:
                message["tool_calls"] = [
                    {
                        "id": marker(Placeholder(index, "id", call)),
                        "type": "function",
                        "function": {
                            "name": marker(Placeholder(index, "name", call)),
                            "arguments": marker(Placeholder(index, "arguments", call)),
                        },
                    }
                    for call in range(calls)
                ]
            if role == "tool":
                message |= {
                    "tool_call_id": marker(Placeholder(index, "answered")),
                    "name": marker(Placeholder(index, "function")),
                }
            messages.append(message)

        def protected(value: Any) -> Any:
            if isinstance(value, str):
                odd = any("\ue000" <= letter <= "\ue003" for letter in value) or self.has_special_tokens(value)
                return marker(Placeholder(-1, text=value)) if odd else value
            if isinstance(value, dict):
                return {protected(key): protected(part) for key, part in value.items()}
            return [protected(part) for part in value] if isinstance(value, list) else value

        specs = None if tools is None else protected(tools.specs)
        model = self._model
        words = {"bos_token": model.control_text(model.bos), "eos_token": model.control_text(model.eos)}
        assert self._template is not None
        try:
            text = self._template.render(messages=messages, tools=specs, add_generation_prompt=True, **words)
        except Exception as error:  # a template's code may raise anything
            roles = " ".join(role for role, _, _ in shapes)
            raise _TemplateRefused(f"refuses the roles {roles}: {error}") from None
        return text, placeholders

    def _parse(self, text: str, placeholders: dict[int, Placeholder], shapes: MessageShapes) -> TemplateParts:
        """:raises _TemplateRefused: a content or an argument is missing, or not in its place."""
        found: list[tuple[int, int, Placeholder]] = []
        for match in _MARKER.finditer(text):
            placeholder = placeholders[int(match[1] or match[2])]
            escaped = match[2] is not None
            found.append(
                (
                    match.start(),
                    match.end(),
                    Placeholder(placeholder.message, placeholder.kind, placeholder.call, escaped, placeholder.text),
                )
            )
        present = [
            (s.message, s.kind, s.call) for _, _, s in found if s.text is None and s.kind in ("content", "arguments")
        ]
        wanted: list[tuple[int, PlaceholderKind, int]] = []
        for index, (_, worded, calls) in enumerate(shapes):
            content: tuple[int, PlaceholderKind, int] = (index, "content", 0)
            # Some templates leave out the content beside a call; the call itself must be there.
            if not calls or (worded and content in present):
                wanted.append(content)
            wanted += [(index, "arguments", call) for call in range(calls)]
        named = {(s.message, s.call) for _, _, s in found if s.kind == "name"}
        if present != wanted or any(
            (index, call) not in named for index, (_, _, calls) in enumerate(shapes) for call in range(calls)
        ):
            raise _TemplateRefused("drops or repeats messages or calls")
        return self._cut(text, found, shapes)

    def _cut(self, text: str, found: list[tuple[int, int, Placeholder]], shapes: MessageShapes) -> TemplateParts:
        spans = {
            index: self._span(text, [entry for entry in found if entry[2].message == index])
            for index, (role, _, _) in enumerate(shapes)
            if role == "assistant"
        }
        parts: TemplateParts = []
        place = 0
        rest = iter([*found, (len(text), len(text), None)])
        start, end, placeholder = next(rest)
        for index, (begin, close) in spans.items():
            while start < begin:
                parts += [text[place:start], placeholder] if placeholder else []
                place = end
                start, end, placeholder = next(rest)
            parts.append(text[place:begin])
            place = begin
            inner: list[str | Placeholder] = []
            while start < close:
                inner += [text[place:start], placeholder] if placeholder else []
                place = end
                start, end, placeholder = next(rest)
            inner.append(text[place:close])
            place = close
            parts.append(AssistantSpan(index, tuple(part for part in inner if part)))
        while placeholder is not None:
            parts += [text[place:start], placeholder]
            place = end
            start, end, placeholder = next(rest)
        parts.append(text[place:])
        return [part for part in parts if part]

    def _span(self, text: str, own: list[tuple[int, int, Placeholder]]) -> tuple[int, int]:
        """Where an assistant's own text begins, and where its turn ends."""
        content = [(start, end) for start, end, placeholder in own if placeholder.kind == "content"]
        name = next((start for start, _, placeholder in own if placeholder.kind == "name"), None)
        if name is None:
            return content[0]
        marker = self.syntax.marker
        begin = content[0][0] if content else text.rfind(marker, 0, name)
        last = max(end for _, end, placeholder in own if placeholder.kind == "arguments")
        close = min((place for word in self._ends if word and (place := text.find(word, last)) >= 0), default=-1)
        if begin < 0 or close < 0:
            raise _TemplateRefused("writes calls in several ways")
        return begin, close

    def _detect_syntax(self) -> CallSyntax | None:
        """The syntax of the template's calls, if it supports tools, calls and results, and the syntax is known."""
        shapes: MessageShapes = (("user", True, 0), ("assistant", False, 1), ("tool", True, 0))
        try:
            text, placeholders = self._rendered(shapes, _PROBE)
        except _TemplateRefused:
            return None
        kinds = {placeholders[int(match[1] or match[2])].kind: match for match in _MARKER.finditer(text)}
        if "name" not in kinds or "arguments" not in kinds or kinds["name"].end() > kinds["arguments"].start():
            return None
        name, arguments = kinds["name"], kinds["arguments"]
        close = min((at for word in self._ends if word and (at := text.find(word, arguments.end())) >= 0), default=-1)
        ends = [match.end() for match in _MARKER.finditer(text) if match.end() <= name.start()]
        begin = max((end for end in ends if placeholders[int(text[end - 8 : end - 1])].kind == "content"), default=0)
        between = text[name.end() : arguments.start()]
        found = (
            syntax_of_template(text[begin : name.start()], between, text[arguments.end() : close])
            if close >= 0
            else None
        )
        if found is None:
            return None
        self.syntax = found
        try:
            self._parse(text, placeholders, shapes)
        except _TemplateRefused:
            self.syntax = OWN
            return None
        return found


def _in_json(
    value: Any, *, indent: int | None = None, separators: Any = None, sort_keys: bool = False, **_: Any
) -> str:
    """The filter ``tojson`` as chat templates expect it: plain JSON, not jinja2's form that is safe in HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)

    def marked(match: re.Match[str]) -> str:
        before, number, after = match.groups()
        if _ARGUMENTS <= int(number) < _TEXTS and before and after:
            return f"\ue000{number}\ue001"
        return f"{before}\ue002{number}\ue003{after}"

    return _IN_JSON.sub(marked, text)


def placeholder_text(placeholder: Placeholder, messages: Sequence[Message]) -> str:
    """The text of a placeholder in this conversation."""
    text = placeholder.text
    if text is None:
        message = messages[placeholder.message]
        match placeholder.kind:
            case "content":
                text = message.content
            case "answered":
                text = message.call_id
            case "function":
                text = message.name or _answered_function(message, messages[: placeholder.message])
            case "id":
                text = message.calls[placeholder.call].id
            case "name":
                text = message.calls[placeholder.call].name
            case "arguments":
                text = arguments_text(message.calls[placeholder.call])
    return json.dumps(text, ensure_ascii=False)[1:-1] if placeholder.escaped else text


def _answered_function(message: Message, before: Sequence[Message]) -> str:
    """The name of the function whose result this is, from the call that it answers."""
    calls: list[ToolCall] = [call for earlier in before for call in earlier.calls if call.id == message.call_id]
    return calls[-1].name if calls else ""
