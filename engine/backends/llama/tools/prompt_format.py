"""Prompts of conversations with tools: by the model's own template if it supports tools, else as plain messages.

A model's answers stand in the prompt as they were generated, calls included, wherever the template renders the text
before them as it did then; calls that others made are written by the template. As in ``chat``, special tokens are
parsed in the template's own text only.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....errors import Rejected
from ....messages import Message, without_system
from ....tools import Toolbox
from ..chat.chat_format import ChatFormat
from ..chat.segment_writer import SegmentWriter
from ..chat.thought_markers import opened_marker
from ..segment import Segment
from .call_syntax import CallSyntax
from .plain_messages import as_plain_messages
from .template import Placeholder, TemplateParts, ToolTemplate, placeholder_text


class ToolPromptFormat:
    """One model's prompts of conversations with tools."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._template = ToolTemplate(chat)

    @property
    def native(self) -> bool:
        """Whether the model's own template supports tools."""
        return self._template.native

    @property
    def syntax(self) -> CallSyntax:
        """The syntax of calls in the model's answers."""
        return self._template.syntax

    def segments(self, messages: Sequence[Message], tools: Toolbox | None) -> list[Segment]:
        """The prompt in segments, as in ``ChatFormat.segments``.

        The segment of the system message, or of the text before the first message, holds the tools.

        :raises Rejected: the template refuses this sequence of messages.
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
        for place, part in enumerate(parts):
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
            if self._same_prompt(parts[:place], messages[:owner], tools, len(first) - len(rest)):
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
        """The thought marker with which the template itself begins the answer; see ``ChatFormat.opened_marker``."""
        if not self.native:
            return self._chat.opened_marker(as_plain_messages(messages, tools))
        parts, _ = self._parts(messages, tools)
        last = parts[-1] if parts else ""
        return opened_marker(last) if isinstance(last, str) else ""

    def _same_prompt(self, before: TemplateParts, messages: Sequence[Message], tools: Toolbox | None, cut: int) -> bool:
        """Whether the text before an answer is that to which it was generated, without the first ``cut`` characters."""
        if not messages:
            return False
        try:
            then = self._template.parts(messages, tools)
        except Rejected:
            return False
        first = then[0] if then else ""
        return [first[cut:] if isinstance(first, str) else first, *then[1:]] == list(before)

    def _parts(self, messages: Sequence[Message], tools: Toolbox | None) -> tuple[TemplateParts, Sequence[Message]]:
        """The template's parts and the messages they fit; the system message may be merged into the user's."""
        try:
            return self._template.parts(messages, tools), messages
        except Rejected:
            if [message.role for message in messages[:2]] != ["system", "user"]:
                raise
        messages = without_system(messages)
        return self._template.parts(messages, tools), messages
