"""From messages to tokens: the model's own chat template, rendered once per pattern of roles.

The template is rendered with markers in place of the contents. What stands between the markers is the template's own
text, in which control tokens count; contents are tokenised on their own, where they are plain text whatever they
look like. So nothing a user writes can end a turn, and the tokens of a talk are a prefix of the tokens of its
continuation.

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

from ...errors import ConfigurationError, Rejected
from ...messages import Message
from .native import NativeModel, Tokens

PLAIN = (
    "{% for message in messages %}### {{ message['role'] | capitalize }}:\n{{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### Assistant:\n{% endif %}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMED = {"plain": PLAIN, "chatml": CHATML}
_MARKER = re.compile("\ue000(\\d+)\ue001")
_CACHED_TEXTS = 20_000


@dataclass(slots=True, frozen=True)
class Segment:
    """A run of tokens computed in one way: ``decoded`` ones one by one, as they were generated, others at once."""

    tokens: Tokens
    decoded: bool = False

    def key(self) -> tuple[bool, bytes]:
        """What makes two segments the same."""
        return self.decoded, self.tokens.tobytes()


class ChatFormat:
    """One model's way of writing a talk."""

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
        self._patterns: dict[tuple[str, ...], list[str]] = {}
        self._texts: OrderedDict[tuple[str, bool], Tokens] = OrderedDict()

    def segments(self, messages: Sequence[Message]) -> list[Segment]:
        """The tokens of a talk up to where the assistant is to speak, in runs whose borders follow from it alone.

        A run ends after the system message and at each point where the assistant was, or is, to speak; what the
        assistant said is a run of its own, computed as it was generated where its tokens are known.

        :raises Rejected: the template refuses this sequence of roles.
        """
        literals = self._literals(tuple(message.role for message in messages))
        segments: list[Segment] = []
        open_run: list[Tokens] = [self._tokens(literals[0], special=True)]
        for message, literal in zip(messages, literals[1:], strict=True):
            if message.role == "assistant":
                segments.append(Segment(_joined(open_run)))
                segments.extend(self.said(message))
                open_run = [self._tokens(literal, special=True)]
            else:
                open_run.append(self._tokens(message.content, special=False))
                open_run.append(self._tokens(literal, special=True))
                if message.role == "system":
                    segments.append(Segment(_joined(open_run)))
                    open_run = []
        segments.append(Segment(_joined(open_run)))
        return [segment for segment in segments if len(segment.tokens)]

    def plain_tokens(self, text: str) -> Tokens:
        """Plain text as it stands."""
        return self._tokens(text, special=False)

    def template_tokens(self, text: str) -> Tokens:
        """A template's own text, in which control tokens count."""
        return self._tokens(text, special=True)

    def tool_template(self, tojson: Callable[..., str]) -> Template | None:
        """The template for talks with tools, with this filter ``tojson``; None if it never names the variable."""
        environment = _environment()
        environment.filters["tojson"] = tojson
        try:
            names = meta.find_undeclared_variables(environment.parse(self._tool_source))
            return environment.from_string(self._tool_source) if "tools" in names else None
        except TemplateError:  # one that is for tools only, and broken
            return None

    def said(self, message: Message) -> list[Segment]:
        """The runs of what an assistant said."""
        pieces = message.pieces
        if pieces is None:
            return [Segment(self._tokens(message.content, special=False), decoded=True)]
        return [Segment(np.array(ids, dtype=np.int32), decoded) for decoded, ids in pieces]

    @property
    def opening(self) -> Tokens:
        """The token every text of this model begins with, if it has one."""
        return np.array([self.model.bos] if self.model.adds_bos and self.model.bos >= 0 else [], dtype=np.int32)

    def _literals(self, roles: tuple[str, ...]) -> list[str]:
        """The template's text before, between and after the contents of a talk with these roles."""
        literals = self._patterns.get(roles)
        if literals is None:
            literals = self._patterns[roles] = self._render(roles)
        return literals

    def _render(self, roles: tuple[str, ...]) -> list[str]:
        messages: list[dict[str, Any]] = [
            {"role": role, "content": f"\ue000{index}\ue001"} for index, role in enumerate(roles)
        ]
        model = self.model
        tokens = {"bos_token": model.control_text(model.bos), "eos_token": model.control_text(model.eos)}
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **tokens)
        except Exception as error:  # whatever a template's own code may raise
            if roles[:1] == ("system",) and roles[1:2] == ("user",):
                return self._without_system(roles)
            raise Rejected(
                f"its chat template refuses the roles {' '.join(roles)}: {error}", model=model.path.name
            ) from None
        order = [int(number) for number in _MARKER.findall(text)]
        if order != list(range(len(roles))):
            if roles[:2] == ("system", "user") and order == list(range(1, len(roles))):
                return self._without_system(roles)
            raise Rejected("its chat template drops or repeats messages", model=model.path.name)
        literals = _MARKER.split(text)[::2]
        opening = model.control_text(model.bos)
        if model.adds_bos and opening and not literals[0].startswith(opening):
            literals[0] = opening + literals[0]
        return literals

    def _without_system(self, roles: tuple[str, ...]) -> list[str]:
        """For templates that know no system message: its text goes before the first user's, a blank line between."""
        literals = self._render(roles[1:])
        return [literals[0], "\n\n", *literals[1:]]

    def _tokens(self, text: str, *, special: bool) -> Tokens:
        key = (text, special)
        tokens = self._texts.pop(key, None)  # each step by itself, for the inference thread asks too
        if tokens is None:
            tokens = self.model.tokenize(text, special=special)
        self._texts[key] = tokens
        if len(self._texts) > _CACHED_TEXTS:
            self._texts.popitem(last=False)
        return tokens

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


def _joined(runs: list[Tokens]) -> Tokens:
    return np.concatenate(runs) if runs else np.empty(0, dtype=np.int32)


def _refuse(message: str) -> None:
    raise TemplateError(message)
