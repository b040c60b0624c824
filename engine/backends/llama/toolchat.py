"""Talks with tools to tokens: by the model's own template where that knows tools, else in the notation ``tools.OWN``.

What a model answered with stands in the talk as it was generated, calls included; a call that somebody else made is
written as the template writes it. As in ``chat`` whatever anybody said is tokenised on its own.

What never belongs here: rendering (``toolpattern``), reading answers (``tools``), KV, sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import Rejected
from ...messages import Message
from ...tools import Toolbox
from .chat import ChatFormat, Segment
from .native import Tokens
from .toolpattern import Pattern, Said, Slot, ToolTemplate, said_in
from .tools import Notation, in_plain_messages


class ToolTalk:
    """One model's way of writing talks with tools."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._template = ToolTemplate(chat)

    @property
    def native(self) -> bool:
        """Whether the model's own template is told of the tools."""
        return self._template.native

    @property
    def notation(self) -> Notation:
        """The notation of the model's answers."""
        return self._template.notation

    def segments(self, messages: Sequence[Message], tools: Toolbox | None) -> list[Segment]:
        """The runs of a talk, as ``ChatFormat.segments`` has them.

        The run of the system message, or of what stands before the first message, holds the tools.

        :raises Rejected: the template refuses this sequence of messages.
        """
        if not self.native:
            return self._chat.segments(in_plain_messages(messages, tools))
        pattern, messages = self._pattern(messages, tools)
        segments: list[Segment] = []
        run: list[Tokens] = []
        owner = -1
        closing = tools is not None and [message.role for message in messages[:1]] != ["system"]
        for part in pattern:
            if isinstance(part, str):
                run.append(self._chat.template_tokens(part))
                continue
            if part.message >= 0 and part.message != owner:
                if closing or isinstance(part, Said):
                    segments.append(_segment(run))
                    run = []
                owner = part.message
                closing = messages[owner].role == "system"
            if isinstance(part, Slot):
                run.append(self._chat.plain_tokens(said_in(part, messages)))
            elif messages[part.message].pieces is not None:
                segments.extend(self._chat.said(messages[part.message]))
            else:
                segments.append(_segment(self._written(part, messages), decoded=True))
        segments.append(_segment(run))
        return [segment for segment in segments if len(segment.tokens)]

    def _written(self, said: Said, messages: Sequence[Message]) -> list[Tokens]:
        """The tokens of what somebody else said; only what holds control tokens of the template stands apart."""
        runs: list[Tokens] = []
        plain = ""
        for part in said.parts:
            text = part if isinstance(part, str) else said_in(part, messages)
            if isinstance(part, str) and self._template.holds_controls(part):
                runs += [self._chat.plain_tokens(plain), self._chat.template_tokens(part)]
                plain = ""
            else:
                plain += text
        return [*runs, self._chat.plain_tokens(plain)]

    def _pattern(self, messages: Sequence[Message], tools: Toolbox | None) -> tuple[Pattern, Sequence[Message]]:
        """The pattern of a talk, and the talk that it fits: for some templates without a system message of its own."""
        try:
            return self._template.pattern(messages, tools), messages
        except Rejected:
            if [message.role for message in messages[:2]] != ["system", "user"]:
                raise
        merged = Message("user", f"{messages[0].content}\n\n{messages[1].content}")
        messages = [merged, *messages[2:]]
        return self._template.pattern(messages, tools), messages


def _segment(runs: list[Tokens], *, decoded: bool = False) -> Segment:
    return Segment(np.concatenate(runs) if runs else np.empty(0, dtype=np.int32), decoded)
