"""Convert messages to tokens by the model's own chat template, rendered once per pattern of roles.

The template is rendered with placeholders for the contents, so that its own text is known. Special tokens are parsed in
that text only, so a user's text cannot end a turn. Token ids come from the whole rendering. Segments end after special
tokens. They end inside plain text only if both sides have the same tokens separately as together.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...errors import ConfigurationError, Rejected
from ...messages import Message, Pieces
from .native import NativeModel, Segment, Tokens
from .tokenizer import (
    ChatTokenizer,
    closing_text,
    message_end_token,
    opened_marker,
    strip_blanks,
    token_bytes_with_markers,
)


class SegmentWriter:
    """Collector of a rendering, part by part; `segments` returns its segments."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._finished: list[Segment] = []
        self._current: list[Tokens] = []
        self._texts: list[str] = [""]  # plain text since the last special token, split at allowed boundaries
        self._has_special = False  # True if the template text added last contains a special token
        self._after_text = False
        self._strip = False  # True to strip whitespace after the last special token

    def template(self, text: str) -> None:
        """Add the template's own text, in which special tokens are parsed."""
        parts = self._tokenizer.split_template(text)
        self._has_special = any(isinstance(part, int) for part in parts)
        for part in parts:
            if isinstance(part, int):
                self.special_token(part)
            else:
                self._texts[-1] += part

    def plain(self, text: str) -> None:
        """Add content as plain text, even if it looks like special tokens."""
        self._texts[-1] += text

    def special_token(self, token: int) -> None:
        """Add one special token."""
        self._flush(strip=self._tokenizer.strips_left(token))
        self._current.append(self._tokenizer.single(token))
        self._after_text = False
        self._strip = self._tokenizer.strips_right(token)

    def boundary(self, *, after_special: bool = False) -> None:
        """Allow a segment to end here, or with `after_special` after the template text's last special token."""
        if not any(self._texts) or (after_special and self._has_special):
            self._end_segment()
        else:
            self._texts.append("")

    def generated(self, pieces: Pieces) -> None:
        """Add generated tokens, grouped as they were computed."""
        self._flush()
        self._end_segment()
        self._finished += [Segment(np.array(ids, dtype=np.int32), decoded) for decoded, ids in pieces]
        self._after_text, self._strip = True, False

    def segments(self) -> list[Segment]:
        """Return the non-empty segments."""
        self._flush()
        self._end_segment()
        return [segment for segment in self._finished if len(segment.tokens)]

    def _end_segment(self) -> None:
        if self._current:
            self._finished.append(Segment(np.concatenate(self._current)))
            self._current = []

    def _flush(self, *, strip: bool = False) -> None:
        """Tokenise the plain text since the last special token."""
        texts, self._texts = self._texts, [""]
        while self._strip and texts and not strip_blanks(texts[0], left=True, right=False):
            del texts[0]
            if texts:
                self._end_segment()
        if self._strip and texts:
            texts[0] = strip_blanks(texts[0], left=True, right=False)
        while strip and texts:
            texts[-1] = strip_blanks(texts[-1], left=False, right=True)
            if texts[-1] or len(texts) == 1:
                break
            texts.pop()
        if not texts:
            return
        joined = self._joined([text for text in texts if text])
        for index, text in enumerate(joined):
            if index:
                self._end_segment()
            self._current.append(self._tokenizer.plain(text, after_text=self._after_text))
            self._after_text = True
        if len(texts) > 1 and not texts[-1]:
            self._end_segment()

    def _joined(self, texts: list[str]) -> list[str]:
        """Return the texts; a text is joined to the one before if the two have other tokens apart than together."""
        if len(texts) < 2:
            return texts
        joined = texts[:1]
        for text in texts[1:]:
            if self._splits_alike([joined[-1], text], self._after_text or len(joined) > 1):
                joined.append(text)
            else:
                joined[-1] += text
        return joined if self._splits_alike(joined, self._after_text) else ["".join(joined)]

    def _splits_alike(self, texts: list[str], after_text: bool) -> bool:
        plain = self._tokenizer.plain
        separate = [plain(text, after_text=after_text or index > 0) for index, text in enumerate(texts)]
        return np.array_equal(np.concatenate(separate), plain("".join(texts), after_text=after_text))


PLAIN_TEMPLATE = (
    "{% for message in messages %}### {{ message['role'] | capitalize }}:\n{{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### Assistant:\n{% endif %}"
)
CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# A model without a template never ends its turn with a token; its text continues with the next speaker's heading.
PLAIN_STOP = "\n### "
NAMED_TEMPLATES = {"plain": PLAIN_TEMPLATE, "chatml": CHATML_TEMPLATE}


def read_template(name: str | None) -> str | None:
    """Return the source of a named template or file; None for the model's own.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    if name is None or name in NAMED_TEMPLATES:
        return NAMED_TEMPLATES[name] if name else None
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigurationError(
            f"template={name}: {why}; give a file or one of {', '.join(NAMED_TEMPLATES)}"
        ) from None


_FIRST_MARKER = 0xF0000  # private use area: one character per message
_MARKER = re.compile("([\U000f0000-\U000ffffd])")
_MAX_CACHED = 2_000

# For each message: its role, and the whitespace before and after its content.
RolePattern = tuple[tuple[str, str, str], ...]


@dataclass(slots=True, frozen=True)
class RenderedPattern:
    """A template rendered for one pattern of roles.

    `literals` is its text before, between and after the contents. `prompts` has an entry for each message of the
    assistant: the text that preceded the answer when it was generated, or None if anything before the answer is now
    rendered differently. Such a text replaces the literal at its position.
    """

    literals: list[str]
    prompts: list[str | None]


class ChatFormat:
    """A model's chat format.

    `token_bytes` holds each token's bytes, with text for control tokens that delimit thoughts. `message_end_token` ends
    a message of a channel; -1 if there is none (`thought_markers`). `has_template` is False if neither the model nor
    the user has one, as for base models; `stops` are texts that end its answers.
    """

    def __init__(self, model: NativeModel, template: str | None = None) -> None:
        """Compile a template: a name (plain, chatml), a file, or None for the model's own.

        Raises:
            ConfigurationError: The template cannot be read or compiled.
        """
        self.model = model
        own = read_template(template)
        self.has_template = own is not None or bool(model.metadata("tokenizer.chat_template"))
        source = own if own is not None else model.metadata("tokenizer.chat_template") or PLAIN_TEMPLATE
        self._tool_source = (None if template else model.metadata("tokenizer.chat_template.tool_use")) or source
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ConfigurationError(f"{model.path}: its chat template cannot be compiled: {error}") from None
        self.tokenizer = ChatTokenizer(model, f"{source}\n{self._tool_source}")
        self.token_bytes = token_bytes_with_markers(model, self.tokenizer)
        self.longest_token = max(map(len, self.token_bytes), default=1)
        self.message_end_token = message_end_token(model, self.tokenizer)
        self._literals: OrderedDict[RolePattern, list[str]] = OrderedDict()
        self._patterns: OrderedDict[RolePattern, RenderedPattern] = OrderedDict()

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end an answer, besides those of a request."""
        return () if self.has_template else (PLAIN_STOP,)

    def segments(self, messages: Sequence[Message], *, constrained: bool = False) -> list[Segment]:
        """Return the prompt for the assistant's next answer, in segments that depend on the messages alone.

        A segment ends after the system message and wherever the assistant answered or is to answer; each generated
        answer has its own segments. If `constrained`, the answer follows a schema, so thoughts that the template opens
        are closed at once.

        Raises:
            Rejected: The template refuses this sequence of roles.
        """
        pattern = self._pattern_of(tuple(map(_role_pattern, messages)))
        literals = pattern.literals
        writer = SegmentWriter(self.tokenizer)
        literal = self.write_bos(writer, literals[0])
        after_system = False  # True if the previous message is the system message
        for message, prompt, after in zip(messages, pattern.prompts, literals[1:], strict=True):
            content = message.content.strip()
            if prompt is not None:
                preceding, rest = self._answer_position(message, prompt, f"{literal}{content}{after}")
                if preceding is not None:
                    writer.template(preceding)
                    writer.generated(message.pieces or [])
                    literal, after_system = rest, False
                    continue
                if literal.startswith(prompt):
                    writer.template(prompt)
                    writer.boundary()
                    literal = literal[len(prompt) :]
            writer.template(literal)
            if after_system:
                writer.boundary(after_special=True)
            writer.plain(content)
            literal, after_system = after, message.role == "system"
        writer.template(literal)
        if constrained:
            writer.template(closing_text(literals[-1], self.tokenizer))
        return writer.segments()

    def write_bos(self, writer: SegmentWriter, literal: str) -> str:
        """Write the BOS token if this model has one; return the literal without it."""
        bos_text = self.model.control_text(self.model.bos)
        if len(self.bos_tokens):
            writer.special_token(self.model.bos)
            literal = literal.removeprefix(bos_text)
        return literal

    def opened_marker(self, messages: Sequence[Message]) -> str:
        """Return the thought marker (`<think>`) that the template writes before the answer; "" for none."""
        return opened_marker(self._pattern_of(tuple(map(_role_pattern, messages))).literals[-1])

    def plain_tokens(self, text: str) -> Tokens:
        """Return the tokens of plain text."""
        return self.tokenizer.plain(text)

    def template_tokens(self, text: str) -> Tokens:
        """Return the tokens of a template's own text, in which special tokens are parsed."""
        parts = (
            self.tokenizer.plain(part) if isinstance(part, str) else [part]
            for part in self.tokenizer.split_template(text)
        )
        return np.concatenate([np.empty(0, dtype=np.int32), *parts]).astype(np.int32)

    def tool_template(self, tojson: Callable[..., str]) -> Template | None:
        """Return the template for tools, with this filter `tojson`; None if it does not use the variable `tools`."""
        environment = _environment()
        environment.filters["tojson"] = tojson
        try:
            names = meta.find_undeclared_variables(environment.parse(self._tool_source))
            return environment.from_string(self._tool_source) if "tools" in names else None
        except TemplateError:  # a broken template for tools is not used
            return None

    @property
    def bos_tokens(self) -> Tokens:
        """Return the BOS token if this model begins every text with one."""
        return np.array([self.model.bos] if self.model.adds_bos and self.model.bos >= 0 else [], dtype=np.int32)

    def _answer_position(self, message: Message, prompt: str, rendered_text: str) -> tuple[str | None, str]:
        """Find out where an answer's tokens can be reused in the current rendering, `rendered_text`.

        Returns:
            The text that preceded the tokens, and the rest of `rendered_text` after the answer. The first is None if
                the tokens are unknown, or the template now renders something else.
        """
        if not message.pieces:
            return None, rendered_text
        contents = [message.content]
        if message.content[:1] == " " and self._ends_with_special(prompt):
            contents.append(message.content[1:])  # some vocabularies put a space before text after a special token
        prompts = [prompt]
        closing = closing_text(prompt, self.tokenizer)
        if closing and not any(self.tokenizer.is_special[ids].any() for _, ids in message.pieces):
            prompts.append(prompt + closing)
        for preceding in prompts:
            for content in contents:
                if rendered_text.startswith(preceding + content):
                    return preceding, rendered_text[len(preceding) + len(content) :]
        # If the template puts a space before an answer, the model generates that space itself.
        if message.content[:1] == " " and rendered_text.startswith(f"{prompt} {message.content}"):
            return prompt, rendered_text[len(prompt) + 1 + len(message.content) :]
        return None, rendered_text

    def _ends_with_special(self, literal: str) -> bool:
        parts = self.tokenizer.split_template(literal)
        return self.model.adds_space and bool(parts) and isinstance(parts[-1], int)

    def _pattern_of(self, key: RolePattern) -> RenderedPattern:
        pattern = self._patterns.get(key)
        if pattern is None:
            literals = self._rendered(key)
            prompts = [
                self._prompt(key[:index], literals) if role == "assistant" else None
                for index, (role, _, _) in enumerate(key)
            ]
            pattern = self._patterns[key] = RenderedPattern(literals, prompts)
            if len(self._patterns) > _MAX_CACHED:
                self._patterns.popitem(last=False)
        return pattern

    def _prompt(self, key: RolePattern, literals: list[str]) -> str | None:
        """Return the text before the answer to the first messages; None if these are now rendered differently."""
        if not key:
            return None
        try:
            then = self._rendered(key)
        except Rejected:
            return None
        return then[-1] if then[:-1] == literals[: len(key)] else None

    def _rendered(self, key: RolePattern) -> list[str]:
        """Return the template's text before, between and after the contents, cached."""
        literals = self._literals.get(key)
        if literals is None:
            literals = self._literals[key] = self._render(key)
            if len(self._literals) > _MAX_CACHED:
                self._literals.popitem(last=False)
        return literals

    def _render(self, key: RolePattern) -> list[str]:
        roles = [role for role, _, _ in key]
        messages: list[dict[str, Any]] = [
            {"role": role, "content": f"{before}{chr(_FIRST_MARKER + index)}{trailing}"}
            for index, (role, before, trailing) in enumerate(key)
        ]
        model = self.model
        tokens = {"bos_token": model.control_text(model.bos), "eos_token": model.control_text(model.eos)}
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **tokens)
        except Exception as error:  # a template's code may raise anything
            if roles[:2] == ["system", "user"]:
                return self._without_system(key)
            raise Rejected(
                f"its chat template refuses the roles {' '.join(roles)}: {error}", model=model.path.name
            ) from None
        order = [ord(marker) - _FIRST_MARKER for marker in _MARKER.findall(text)]
        if order != list(range(len(key))):
            if roles[:2] == ["system", "user"]:
                return self._without_system(key)
            raise Rejected("its chat template drops or repeats messages", model=model.path.name)
        return _MARKER.split(text)[::2]

    def _without_system(self, key: RolePattern) -> list[str]:
        """Put the system text before the first user message, for templates that refuse or move a system message."""
        (_, first, gap), (_, rest, trailing) = key[:2]
        literals = self._rendered((("user", first, trailing), *key[2:]))
        return [literals[0], f"{gap}\n\n{rest}", *literals[1:]]


class _GenerationTag(Extension):
    """The tag `{% generation %}`, which marks text for training and has no effect on a prompt."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the enclosed nodes."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    extensions = (LoopControlExtension, _GenerationTag)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime(2024, 1, 1).strftime(form)
    return environment


def _role_pattern(message: Message) -> tuple[str, str, str]:
    content = message.content
    stripped = content.lstrip()
    # Whitespace-only content counts as leading whitespace only.
    return message.role, content[: len(content) - len(stripped)], stripped[len(stripped.rstrip()) :]


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
