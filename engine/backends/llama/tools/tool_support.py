"""What a loaded model needs for tools: prompts, grammars of calls, reading answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....messages import Message
from ....thoughts import split_thoughts
from ....tools import Toolbox, ToolCall
from ..chat.chat_format import ChatFormat
from ..grammar.grammar import Grammar
from ..grammar.token_masks import TokenMasks
from ..native import NativeModel, Tokens
from ..segment import Segment
from .call_grammar import call_grammar
from .call_reader import CallReader
from .call_syntax import CallSyntax
from .prompt_format import ToolPromptFormat

_MAX_GRAMMARS = 32


class ToolSupport:
    """See the module.

    A call marker that is a control token has no text of its own; in ``token_bytes`` and ``masks`` it has.
    """

    def __init__(self, model: NativeModel, chat: ChatFormat, masks: TokenMasks) -> None:
        self._format = ToolPromptFormat(chat)
        self._chat = chat
        self._grammars: dict[bytes, Grammar] = {}
        self.token_bytes, self.masks = chat.token_bytes, masks
        marker = chat.template_tokens(self.syntax.marker)
        if len(marker) == 1 and model.controls[marker[0]]:
            self.token_bytes, controls = chat.token_bytes.copy(), model.controls.copy()
            self.token_bytes[marker[0]], controls[marker[0]] = self.syntax.marker.encode(), False
            self.masks = TokenMasks(self.token_bytes, model.ends, controls)

    @property
    def syntax(self) -> CallSyntax:
        """How the model writes calls."""
        return self._format.syntax

    def segments(self, messages: Sequence[Message], tools: Toolbox | None) -> list[Segment]:
        """The prompt of a conversation with tools, calls or results; see ``ToolPromptFormat.segments``.

        :raises Rejected: the template refuses this sequence of messages.
        """
        return self._format.segments(messages, tools)

    def opened_marker(self, messages: Sequence[Message], tools: Toolbox | None) -> str:
        """The thought marker with which the template itself begins the answer; see ``ChatFormat.opened_marker``."""
        return self._format.opened_marker(messages, tools)

    def has_grammar(self, tools: Toolbox) -> bool:
        """Return True if the grammar of these functions is compiled."""
        return tools.digest in self._grammars

    def grammar(self, tools: Toolbox) -> Grammar:
        """The grammar of answers that may call these functions."""
        grammar = self._grammars.get(tools.digest)
        if grammar is None:
            grammar = self._grammars[tools.digest] = call_grammar(tools, self.syntax)
            if len(self._grammars) > _MAX_GRAMMARS:
                self._grammars.pop(next(iter(self._grammars)), None)
        return grammar

    def forced_tokens(self, text: str) -> Tokens:
        """The tokens of text that a grammar forces: a marker at its beginning is the model's own token, if it has one.

        Only a required call begins with a forced marker; elsewhere the model chooses it.
        """
        marker = self.syntax.marker
        if not marker or not text.startswith(marker) or len(self._chat.template_tokens(marker)) != 1:
            return self._chat.plain_tokens(text)
        rest = text.removeprefix(marker)
        tokens = [self._chat.template_tokens(marker)] + ([self._chat.plain_tokens(rest)] if rest else [])
        return np.concatenate(tokens)

    def read(self, answer: str) -> tuple[str, list[ToolCall] | None]:
        """The text of an answer, thoughts included, and its calls. A call inside thoughts is no call."""
        thoughts, answer_text = split_thoughts(answer)
        if not answer_text:
            return answer, None
        reader = CallReader(self.syntax)
        text = reader.feed(answer_text) + reader.end()
        if answer_text != answer:  # thoughts may stand between calls: they are moved to the front
            text = f"<think>\n{thoughts}\n</think>\n\n{text}"
        return text, reader.calls or None


class TextOutsideCalls:
    """Streams an answer's text without its calls: the same text that ``ToolSupport.read`` returns."""

    def __init__(self, on_text: Callable[[str], None], use: ToolSupport) -> None:
        self._on_text = on_text
        self._reader = CallReader(use.syntax)

    def __call__(self, piece: str) -> None:
        self._forward(self._reader.feed(piece))

    def end(self) -> None:
        """The answer is complete."""
        self._forward(self._reader.end())

    def _forward(self, text: str) -> None:
        if text:
            self._on_text(text)
