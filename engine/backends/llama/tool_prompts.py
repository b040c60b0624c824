"""Prompts with tools: by the model's own template if it supports tools, else as functions offered in plain text.

A template that supports tools is rendered as its own text with placeholders for everything variable, so that only the
template can write special tokens. `ToolSupport` is what a loaded model needs: prompts, grammars of calls, and reading
of answers.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...errors import Rejected
from ...messages import Message, fold_system_messages
from ...thoughts import split_thoughts
from ...tools import Toolbox, ToolCall
from .chat_template import ChatFormat, SegmentWriter
from .grammar import Grammar, TokenMasks
from .native import NativeModel, Segment, Tokens
from .tokenizer import opened_marker
from .tool_calls import HERMES, CallReader, CallSyntax, arguments_text, call_grammar, syntax_of_template

_OFFER = (
    "You may call functions. These are the functions, each as a JSON object on a line of its own:\n\n{functions}\n\n"
    'To call one, write <tool_call>{{"name": …, "arguments": {{…}}}}</tool_call> with its name and an object of its '
    "arguments; for several calls write that several times. What a function returned then comes between "
    "<tool_response> and </tool_response>. If no call is needed, or something that a call needs is not known, answer "
    "in words instead."
)


def as_plain_messages(messages: Sequence[Message], tools: Toolbox | None) -> list[Message]:
    """Replace tool messages: functions are offered in the system message, calls and results become text.

    Consecutive results, and a user message right after them, are joined, because many templates require alternating
    roles.
    """
    plain: list[Message] = []
    results = False  # True if the last message holds results
    if tools is not None:
        functions = "\n".join(json.dumps(spec["function"], ensure_ascii=False) for spec in tools.specs)
        offer = _OFFER.format(functions=functions)
        if messages and messages[0].role == "system":
            offer = f"{messages[0].content}\n\n{offer}"
            messages = messages[1:]
        plain.append(Message("system", offer))
    for message in messages:
        if message.role == "assistant":
            contents = [message.content] if message.content or not message.calls else []
            contents += [HERMES.render(call) for call in message.calls]
            plain.append(Message("assistant", "\n".join(contents), message.pieces))
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


# All markers have nine characters, because some templates require that of identifiers. The second kind is inside a JSON
# string, where quotation marks and the like are escaped; markers of arguments stand for JSON themselves.
_PLACEHOLDER_MARKER = re.compile("\ue000(\\d{7})\ue001|\ue002(\\d{7})\ue003")
_PLACEHOLDER_IN_JSON = re.compile('("?)\ue000(\\d{7})\ue001("?)')
_ARGUMENTS, _TEXTS = 5_000_000, 9_000_000
_MAX_CACHED = 512
_PROBE = Toolbox([{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}])

PlaceholderKind = Literal["content", "id", "name", "arguments", "answered", "function"]
MessageShapes = tuple[tuple[str, bool, int], ...]


@dataclass(slots=True, frozen=True)
class Placeholder:
    """Position of a variable text, with its message and call. `text` is its text, if equal in every conversation."""

    message: int
    kind: PlaceholderKind = "content"
    call: int = 0
    escaped: bool = False
    text: str | None = None


@dataclass(slots=True, frozen=True)
class AssistantSpan:
    """An assistant message's text, from the beginning of its own text to the end of its turn."""

    message: int
    parts: tuple[str | Placeholder, ...]


TemplateParts = list["str | Placeholder | AssistantSpan"]


class _TemplateRefused(Exception):
    """The template does not accept a conversation; the message says why."""


class ToolTemplate:
    """A model's chat template with tools.

    `native` is True if the template supports tools and writes calls in a known `syntax`; otherwise the syntax is
    `HERMES` and there are no parts.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat, self._model = chat, chat.model
        self._ends = [self._model.control_text(int(token)) for token in np.flatnonzero(self._model.ends)]
        # Refusals are cached too, as text.
        self._cache: OrderedDict[tuple[bytes, MessageShapes], TemplateParts | str] = OrderedDict()
        self._template = chat.tool_template(_to_json_filter)
        self.syntax = HERMES
        detected = self._detect_syntax() if self._template is not None else None
        self.native = detected is not None
        self.syntax = detected or HERMES

    def parts(self, messages: Sequence[Message], tools: Toolbox | None) -> TemplateParts:
        """Return the rendered template of a conversation.

        Raises:
            Rejected: The template refuses this sequence of messages, or omits a part of it.
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
        """Return True if this text, written by the template, would contain special tokens."""
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
            # Templates test whether there is content, so empty content gets no marker.
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
        """Parse a rendering; raise _TemplateRefused if a content or argument is missing or misplaced."""
        spans: list[tuple[int, int, Placeholder]] = []
        for match in _PLACEHOLDER_MARKER.finditer(text):
            placeholder = placeholders[int(match[1] or match[2])]
            escaped = match[2] is not None
            spans.append(
                (
                    match.start(),
                    match.end(),
                    Placeholder(placeholder.message, placeholder.kind, placeholder.call, escaped, placeholder.text),
                )
            )
        present = [
            (s.message, s.kind, s.call) for _, _, s in spans if s.text is None and s.kind in ("content", "arguments")
        ]
        expected: list[tuple[int, PlaceholderKind, int]] = []
        for index, (_, worded, calls) in enumerate(shapes):
            content: tuple[int, PlaceholderKind, int] = (index, "content", 0)
            # Some templates omit the content beside a call; the call itself must be there.
            if not calls or (worded and content in present):
                expected.append(content)
            expected += [(index, "arguments", call) for call in range(calls)]
        named = {(s.message, s.call) for _, _, s in spans if s.kind == "name"}
        if present != expected or any(
            (index, call) not in named for index, (_, _, calls) in enumerate(shapes) for call in range(calls)
        ):
            raise _TemplateRefused("drops or repeats messages or calls")
        return self._cut(text, spans, shapes)

    def _cut(self, text: str, placeholders: list[tuple[int, int, Placeholder]], shapes: MessageShapes) -> TemplateParts:
        spans = {
            index: self._span(text, [entry for entry in placeholders if entry[2].message == index])
            for index, (role, _, _) in enumerate(shapes)
            if role == "assistant"
        }
        parts: TemplateParts = []
        position = 0
        rest = iter([*placeholders, (len(text), len(text), None)])
        start, end, placeholder = next(rest)
        for index, (begin, close) in spans.items():
            while start < begin:
                parts += [text[position:start], placeholder] if placeholder else []
                position = end
                start, end, placeholder = next(rest)
            parts.append(text[position:begin])
            position = begin
            inner: list[str | Placeholder] = []
            while start < close:
                inner += [text[position:start], placeholder] if placeholder else []
                position = end
                start, end, placeholder = next(rest)
            inner.append(text[position:close])
            position = close
            parts.append(AssistantSpan(index, tuple(part for part in inner if part)))
        while placeholder is not None:
            parts += [text[position:start], placeholder]
            position = end
            start, end, placeholder = next(rest)
        parts.append(text[position:])
        return [part for part in parts if part]

    def _span(self, text: str, own: list[tuple[int, int, Placeholder]]) -> tuple[int, int]:
        """Return where an assistant's own text begins, and where its turn ends."""
        content = [(start, end) for start, end, placeholder in own if placeholder.kind == "content"]
        name = next((start for start, _, placeholder in own if placeholder.kind == "name"), None)
        if name is None:
            return content[0]
        marker = self.syntax.marker
        begin = content[0][0] if content else text.rfind(marker, 0, name)
        last = max(end for _, end, placeholder in own if placeholder.kind == "arguments")
        close = min((position for word in self._ends if word and (position := text.find(word, last)) >= 0), default=-1)
        if begin < 0 or close < 0:
            raise _TemplateRefused("writes calls in several ways")
        return begin, close

    def _detect_syntax(self) -> CallSyntax | None:
        """Return the syntax of calls if it is known and the template supports tools, calls and results."""
        shapes: MessageShapes = (("user", True, 0), ("assistant", False, 1), ("tool", True, 0))
        try:
            text, placeholders = self._rendered(shapes, _PROBE)
        except _TemplateRefused:
            return None
        kinds = {placeholders[int(match[1] or match[2])].kind: match for match in _PLACEHOLDER_MARKER.finditer(text)}
        if "name" not in kinds or "arguments" not in kinds or kinds["name"].end() > kinds["arguments"].start():
            return None
        name, arguments = kinds["name"], kinds["arguments"]
        close = min((at for word in self._ends if word and (at := text.find(word, arguments.end())) >= 0), default=-1)
        ends = [match.end() for match in _PLACEHOLDER_MARKER.finditer(text) if match.end() <= name.start()]
        begin = max((end for end in ends if placeholders[int(text[end - 8 : end - 1])].kind == "content"), default=0)
        between = text[name.end() : arguments.start()]
        result = (
            syntax_of_template(text[begin : name.start()], between, text[arguments.end() : close])
            if close >= 0
            else None
        )
        if result is None:
            return None
        self.syntax = result
        try:
            self._parse(text, placeholders, shapes)
        except _TemplateRefused:
            self.syntax = HERMES
            return None
        return result


def _to_json_filter(
    value: Any, *, indent: int | None = None, separators: Any = None, sort_keys: bool = False, **_: Any
) -> str:
    """Return plain JSON, as chat templates expect of the filter `tojson`, not jinja2's HTML-safe form."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)

    def marked(match: re.Match[str]) -> str:
        before, number, after = match.groups()
        if _ARGUMENTS <= int(number) < _TEXTS and before and after:
            return f"\ue000{number}\ue001"
        return f"{before}\ue002{number}\ue003{after}"

    return _PLACEHOLDER_IN_JSON.sub(marked, text)


def placeholder_text(placeholder: Placeholder, messages: Sequence[Message]) -> str:
    """Return the text of a placeholder in this conversation."""
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
    """Return the name of the function whose result `message` is, from the call that the message answers."""
    calls: list[ToolCall] = [call for earlier in before for call in earlier.calls if call.id == message.call_id]
    return calls[-1].name if calls else ""


class ToolPromptFormat:
    """A model's prompts of conversations with tools."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._template = ToolTemplate(chat)

    @property
    def native(self) -> bool:
        """True if the model's own template supports tools."""
        return self._template.native

    @property
    def syntax(self) -> CallSyntax:
        """Syntax of calls in the model's answers."""
        return self._template.syntax

    def segments(self, messages: Sequence[Message], tools: Toolbox | None) -> list[Segment]:
        """Return the prompt in segments, as in `ChatFormat.segments`.

        The segment of the system message, or of the text before the first message, holds the tools.

        Raises:
            Rejected: The template refuses this sequence of messages.
        """
        if not self.native:
            return self._chat.segments(as_plain_messages(messages, tools))
        parts, messages = self._parts(messages, tools)
        writer = SegmentWriter(self._chat.tokenizer)
        first = parts[0] if parts and isinstance(parts[0], str) else ""
        rest = self._chat.write_bos(writer, first)
        parts = [rest, *parts[1:]] if first else parts
        owner = -1
        closing = tools is not None and [message.role for message in messages[:1]] != ["system"]
        for index, part in enumerate(parts):
            if isinstance(part, str):
                writer.template(part)
                continue
            if part.message >= 0 and part.message != owner:
                if closing:
                    writer.boundary(after_special=True)
                owner = part.message
                closing = messages[owner].role == "system"
            if isinstance(part, Placeholder):
                writer.plain(placeholder_text(part, messages))
                continue
            pieces = messages[owner].pieces
            if self._same_prompt(parts[:index], messages[:owner], tools, len(first) - len(rest)):
                if pieces:
                    writer.generated(pieces)
                    continue
                writer.boundary()
            for inner in part.parts:
                if isinstance(inner, str):
                    writer.template(inner)
                else:
                    writer.plain(placeholder_text(inner, messages))
        return writer.segments()

    def opened_marker(self, messages: Sequence[Message], tools: Toolbox | None) -> str:
        """Return the thought marker that begins the answer; see `ChatFormat.opened_marker`."""
        if not self.native:
            return self._chat.opened_marker(as_plain_messages(messages, tools))
        parts, _ = self._parts(messages, tools)
        last = parts[-1] if parts else ""
        return opened_marker(last) if isinstance(last, str) else ""

    def _same_prompt(self, before: TemplateParts, messages: Sequence[Message], tools: Toolbox | None, cut: int) -> bool:
        """Return True if the text before an answer, from `cut` on, is what the answer was generated from."""
        if not messages:
            return False
        try:
            then = self._template.parts(messages, tools)
        except Rejected:
            return False
        first = then[0] if then else ""
        return [first[cut:] if isinstance(first, str) else first, *then[1:]] == list(before)

    def _parts(self, messages: Sequence[Message], tools: Toolbox | None) -> tuple[TemplateParts, Sequence[Message]]:
        """Return the template's parts and the messages they fit; the system message may be merged into the user's."""
        try:
            return self._template.parts(messages, tools), messages
        except Rejected:
            if [message.role for message in messages[:2]] != ["system", "user"]:
                raise
        messages = fold_system_messages(messages)
        return self._template.parts(messages, tools), messages


_MAX_GRAMMARS = 32


class ToolSupport(ToolPromptFormat):
    """Tool support of a loaded model.

    A call marker that is a control token has text only in `token_bytes` and `masks`.
    """

    def __init__(self, model: NativeModel, chat: ChatFormat, masks: TokenMasks) -> None:
        super().__init__(chat)
        self._grammars: dict[bytes, Grammar] = {}
        self.token_bytes, self.masks = chat.token_bytes, masks
        marker = chat.template_tokens(self.syntax.marker)
        if len(marker) == 1 and model.controls[marker[0]]:
            self.token_bytes, controls = chat.token_bytes.copy(), model.controls.copy()
            self.token_bytes[marker[0]], controls[marker[0]] = self.syntax.marker.encode(), False
            self.masks = TokenMasks(self.token_bytes, model.ends, controls)

    def has_grammar(self, tools: Toolbox) -> bool:
        """Return True if the grammar of these functions is compiled."""
        return tools.digest in self._grammars

    def grammar(self, tools: Toolbox) -> Grammar:
        """Return the grammar of answers that may call these functions."""
        grammar = self._grammars.get(tools.digest)
        if grammar is None:
            grammar = self._grammars[tools.digest] = call_grammar(tools, self.syntax)
            if len(self._grammars) > _MAX_GRAMMARS:
                self._grammars.pop(next(iter(self._grammars)), None)
        return grammar

    def forced_tokens(self, text: str) -> Tokens:
        """Return the tokens of text that a grammar forces; an initial marker is the model's own token, if it has one.

        Only a required call begins with a forced marker; in all other cases the model chooses the marker.
        """
        marker = self.syntax.marker
        if not marker or not text.startswith(marker) or len(self._chat.template_tokens(marker)) != 1:
            return self._chat.plain_tokens(text)
        rest = text.removeprefix(marker)
        tokens = [self._chat.template_tokens(marker)] + ([self._chat.plain_tokens(rest)] if rest else [])
        return np.concatenate(tokens)

    def read(self, answer: str) -> tuple[str, list[ToolCall] | None]:
        """Return the text of an answer, including thoughts, and its calls. A call inside thoughts is no call."""
        thoughts, answer_text = split_thoughts(answer)
        if not answer_text:
            return answer, None
        reader = CallReader(self.syntax)
        text = reader.feed(answer_text) + reader.end()
        if answer_text != answer:  # thoughts may stand between calls: they are moved to the front
            text = f"<think>\n{thoughts}\n</think>\n\n{text}"
        return text, reader.calls or None


class TextOutsideCalls:
    """A stream of an answer's text without its calls: the same text that `ToolSupport.read` returns."""

    def __init__(self, on_text: Callable[[str], None], use: ToolSupport) -> None:
        self._on_text = on_text
        self._reader = CallReader(use.syntax)

    def __call__(self, piece: str) -> None:
        self._forward(self._reader.feed(piece))

    def end(self) -> None:
        """End the answer."""
        self._forward(self._reader.end())

    def _forward(self, text: str) -> None:
        if text:
            self._on_text(text)
