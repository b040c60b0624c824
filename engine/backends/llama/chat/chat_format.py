"""From messages to tokens: the model's own chat template, rendered once per pattern of roles.

The template is rendered with markers in place of the contents, so that it is known which text is the template's own:
marks of turns count in that alone (``vocabulary``), and nothing a user writes can end a turn. Blanks at the ends of a
content are left to the template, which may trim them.

Earlier turns stand as the template renders them. What the assistant generated is taken as it was computed wherever the
rendering up to there is word for word what it answered to; the tokens of a talk are then a prefix of the tokens of its
continuation. Elsewhere (a template that drops thoughts, trims, or moves messages) its text is part of the prompt.

Without a template in the GGUF (or with ``?template=plain``) messages are written as ``### System:`` blocks.
What never belongs here: KV, sampling; talks with tools (``toolchat``).
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

from ....errors import ConfigurationError, Rejected
from ....messages import Message
from ..native import NativeModel, Tokens
from ..segment import Segment
from .segment_writer import Runs
from .thought_markers import closing_of, message_end, opened_by, spelling_of
from .tokenizer import Vocabulary

PLAIN = (
    "{% for message in messages %}### {{ message['role'] | capitalize }}:\n{{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### Assistant:\n{% endif %}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMED = {"plain": PLAIN, "chatml": CHATML}
_FIRST_MARKER = 0xF0000  # of a plane for private use: a character for each message
_MARKER = re.compile("([\U000f0000-\U000ffffd])")
_REMEMBERED = 2_000

Key = tuple[tuple[str, str, str], ...]  # of each message its role, and the blanks before and behind what it says


@dataclass(slots=True, frozen=True)
class Layout:
    """A rendered pattern. ``literals`` is the template's text before, between and after the contents.

    ``prompts``: for each message of the assistant the text that stood before its answer when it was generated, if all
    before that is rendered now as it was then; else None. A prompt replaces the literal at its place.
    """

    literals: list[str]
    prompts: list[str | None]


class ChatFormat:
    """One model's way of writing a talk.

    ``spelling`` holds each token's bytes, marks of thoughts included; ``message_end`` is the token that ends a message
    of a channel, -1 for none (``thinking``).
    """

    def __init__(self, model: NativeModel, template: str | None = None) -> None:
        """``template``: a name (plain, chatml), a file, or None for the model's own.

        :raises ConfigurationError: the template cannot be read or compiled.
        """
        self.model = model
        source = self._source(template)
        self._tool_source = (None if template else model.metadata("tokenizer.chat_template.tool_use")) or source
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ConfigurationError(f"{model.path}: its chat template cannot be compiled: {error}") from None
        self.vocabulary = Vocabulary(model, f"{source}\n{self._tool_source}")
        self.spelling = spelling_of(model, self.vocabulary)
        self.message_end = message_end(model, self.vocabulary)
        self._literals: OrderedDict[Key, list[str]] = OrderedDict()
        self._layouts: OrderedDict[Key, Layout] = OrderedDict()

    def segments(self, messages: Sequence[Message], *, constrained: bool = False) -> list[Segment]:
        """The tokens of a talk up to where the assistant is to speak, in runs whose borders follow from it alone.

        A run ends after the system message and at each point where the assistant was, or is, to speak; what it
        generated is a run of its own. ``constrained``: the answer follows a schema, so thoughts that the template
        opens are closed at once.

        :raises Rejected: the template refuses this sequence of roles.
        """
        layout = self._layout(tuple(map(_pattern, messages)))
        literals = layout.literals
        runs = Runs(self.vocabulary)
        literal = self.begin(runs, literals[0])
        told = False  # the system message has just come
        for message, prompt, after in zip(messages, layout.prompts, literals[1:], strict=True):
            content = message.content.strip()
            if prompt is not None:
                asked, rest = self._spoken(message, prompt, f"{literal}{content}{after}")
                if asked is not None:
                    runs.template(asked)
                    runs.said(message.pieces or [])
                    literal, told = rest, False
                    continue
                if literal.startswith(prompt):
                    runs.template(prompt)
                    runs.border()
                    literal = literal[len(prompt) :]
            runs.template(literal)
            if told:
                runs.border(behind_mark=True)
            runs.plain(content)
            literal, told = after, message.role == "system"
        runs.template(literal)
        if constrained:
            runs.template(closing_of(literals[-1], self.vocabulary))
        return runs.segments()

    def begin(self, runs: Runs, literal: str) -> str:
        """Write the token every text of this model begins with, if it has one; returns the rest of the literal."""
        opening = self.model.control_text(self.model.bos)
        if len(self.opening):
            runs.mark(self.model.bos)
            literal = literal.removeprefix(opening)
        return literal

    def opened(self, messages: Sequence[Message]) -> str:
        """The tag with which the template itself has the answer to these messages begin, such as ``<think>``; or ""."""
        return opened_by(self._layout(tuple(map(_pattern, messages))).literals[-1])

    def plain_tokens(self, text: str) -> Tokens:
        """Plain text as it stands."""
        return self.vocabulary.plain(text)

    def template_tokens(self, text: str) -> Tokens:
        """A template's own text, in which marks count."""
        parts = (
            self.vocabulary.plain(part) if isinstance(part, str) else [part] for part in self.vocabulary.literal(text)
        )
        return np.concatenate([np.empty(0, dtype=np.int32), *parts]).astype(np.int32)

    def tool_template(self, tojson: Callable[..., str]) -> Template | None:
        """The template for talks with tools, with this filter ``tojson``; None if it never names the variable."""
        environment = _environment()
        environment.filters["tojson"] = tojson
        try:
            names = meta.find_undeclared_variables(environment.parse(self._tool_source))
            return environment.from_string(self._tool_source) if "tools" in names else None
        except TemplateError:  # one that is for tools only, and broken
            return None

    @property
    def opening(self) -> Tokens:
        """The token every text of this model begins with, if it has one."""
        return np.array([self.model.bos] if self.model.adds_bos and self.model.bos >= 0 else [], dtype=np.int32)

    def _spoken(self, message: Message, prompt: str, whole: str) -> tuple[str | None, str]:
        """The text that an answer's tokens followed, if they can stand where ``whole`` is rendered now, and the rest of
        that; None where they are not known, or the template renders something else there.
        """
        if not message.pieces:
            return None, whole
        contents = [message.content]
        if message.content[:1] == " " and self._ends_with_mark(prompt):
            contents.append(message.content[1:])  # some vocabularies put a space before a text behind a mark
        prompts = [prompt]
        closing = closing_of(prompt, self.vocabulary)
        if closing and not any(self.vocabulary.is_mark[ids].any() for _, ids in message.pieces):
            prompts.append(prompt + closing)
        for asked in prompts:
            for content in contents:
                if whole.startswith(asked + content):
                    return asked, whole[len(asked) + len(content) :]
        # Models whose template puts a space before an answer say that space themselves.
        if message.content[:1] == " " and whole.startswith(f"{prompt} {message.content}"):
            return prompt, whole[len(prompt) + 1 + len(message.content) :]
        return None, whole

    def _ends_with_mark(self, literal: str) -> bool:
        parts = self.vocabulary.literal(literal)
        return self.model.spaces and bool(parts) and isinstance(parts[-1], int)

    def _layout(self, key: Key) -> Layout:
        layout = self._layouts.get(key)
        if layout is None:
            literals = self._rendered(key)
            prompts = [
                self._prompt(key[:index], literals) if role == "assistant" else None
                for index, (role, _, _) in enumerate(key)
            ]
            layout = self._layouts[key] = Layout(literals, prompts)
            if len(self._layouts) > _REMEMBERED:
                self._layouts.popitem(last=False)
        return layout

    def _prompt(self, key: Key, literals: list[str]) -> str | None:
        """The text before the answer to the first messages of a talk, if they are rendered as they were then."""
        if not key:
            return None
        try:
            then = self._rendered(key)
        except Rejected:
            return None
        return then[-1] if then[:-1] == literals[: len(key)] else None

    def _rendered(self, key: Key) -> list[str]:
        """The template's text before, between and after the contents of a talk."""
        literals = self._literals.get(key)
        if literals is None:
            literals = self._literals[key] = self._render(key)
            if len(self._literals) > _REMEMBERED:
                self._literals.popitem(last=False)
        return literals

    def _render(self, key: Key) -> list[str]:
        roles = [role for role, _, _ in key]
        messages: list[dict[str, Any]] = [
            {"role": role, "content": f"{before}{chr(_FIRST_MARKER + index)}{behind}"}
            for index, (role, before, behind) in enumerate(key)
        ]
        model = self.model
        tokens = {"bos_token": model.control_text(model.bos), "eos_token": model.control_text(model.eos)}
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **tokens)
        except Exception as error:  # whatever a template's own code may raise
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

    def _without_system(self, key: Key) -> list[str]:
        """For templates that know no system message, or move it: its text goes before the first user's, a blank line
        between.
        """
        (_, first, gap), (_, rest, behind) = key[:2]
        literals = self._rendered((("user", first, behind), *key[2:]))
        return [literals[0], f"{gap}\n\n{rest}", *literals[1:]]

    def _source(self, template: str | None) -> str:
        if template in NAMED:
            return NAMED[template]
        if template is not None:
            try:
                return Path(template).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
                raise ConfigurationError(
                    f"template={template}: {why}; give a file or one of {', '.join(NAMED)}"
                ) from None
        return self.model.metadata("tokenizer.chat_template") or PLAIN


class _GenerationTag(Extension):
    """``{% generation %}`` marks what a model is trained on; for writing a prompt it is nothing."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """What stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    extensions = (LoopControlExtension, _GenerationTag)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime(2024, 1, 1).strftime(form)
    return environment


def _pattern(message: Message) -> tuple[str, str, str]:
    content = message.content
    begun = content.lstrip()
    # Of a content of blanks alone all stand before.
    return message.role, content[: len(content) - len(begun)], begun[len(begun.rstrip()) :]


def _refuse(message: str) -> None:
    raise TemplateError(message)
