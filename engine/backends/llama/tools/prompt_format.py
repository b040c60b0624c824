"""Talks with tools to tokens: by the model's own template where that knows tools, else in the notation ``tools.OWN``.

What a model answered with stands in the talk as it was generated, calls included, wherever the template writes before
it what it wrote then; a call that somebody else made is written as the template writes it. As in ``chat`` whatever
anybody said holds no marks.

What never belongs here: rendering (``toolpattern``), reading answers (``tools``), KV, sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....errors import Rejected
from ....messages import Message
from ....tools import Toolbox
from ..chat.chat_format import ChatFormat
from ..chat.segment_writer import Runs
from ..chat.thought_markers import opened_by
from ..segment import Segment
from .call_syntax import Notation
from .plain_messages import in_plain_messages
from .template import Pattern, Slot, ToolTemplate, said_in


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
        runs = Runs(self._chat.vocabulary)
        first = pattern[0] if pattern and isinstance(pattern[0], str) else ""
        rest = self._chat.begin(runs, first)
        pattern = [rest, *pattern[1:]] if first else pattern
        owner = -1
        closing = tools is not None and [message.role for message in messages[:1]] != ["system"]
        for place, part in enumerate(pattern):
            if isinstance(part, str):
                runs.template(part)
                continue
            if part.message >= 0 and part.message != owner:
                if closing:
                    runs.border(behind_mark=True)
                owner = part.message
                closing = messages[owner].role == "system"
            if isinstance(part, Slot):
                runs.plain(said_in(part, messages))
                continue
            pieces = messages[owner].pieces
            if self._asked_alike(pattern[:place], messages[:owner], tools, len(first) - len(rest)):
                if pieces:
                    runs.said(pieces)
                    continue
                runs.border()
            for inner in part.parts:
                if isinstance(inner, str):
                    runs.template(inner)
                else:
                    runs.plain(said_in(inner, messages))
        return runs.segments()

    def opened(self, messages: Sequence[Message], tools: Toolbox | None) -> str:
        """The tag with which the template itself has the answer begin; see ``ChatFormat.opened``."""
        if not self.native:
            return self._chat.opened(in_plain_messages(messages, tools))
        pattern, _ = self._pattern(messages, tools)
        last = pattern[-1] if pattern else ""
        return opened_by(last) if isinstance(last, str) else ""

    def _asked_alike(self, before: Pattern, messages: Sequence[Message], tools: Toolbox | None, cut: int) -> bool:
        """Whether what stands before an answer is what it was generated behind, less ``cut`` characters."""
        if not messages:
            return False
        try:
            then = self._template.pattern(messages, tools)
        except Rejected:
            return False
        first = then[0] if then else ""
        return [first[cut:] if isinstance(first, str) else first, *then[1:]] == list(before)

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
