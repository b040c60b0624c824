"""What a loaded model needs for tools: its way of writing talks, grammars of calls, tokens, one of which may be a mark.

What never belongs here: requests under way, and all that is the same without tools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....messages import Message
from ....thoughts import split_thoughts
from ....tools import Toolbox, ToolCall
from ..chat.chat_format import ChatFormat
from ..grammar.grammar import Grammar
from ..grammar.token_masks import TokenMasks
from ..native import NativeModel
from ..segment import Segment
from .call_grammar import call_grammar
from .call_reader import CallReader
from .call_syntax import Notation
from .prompt_format import ToolTalk

_REMEMBERED_GRAMMARS = 32


class ToolUse:
    """See the module. A mark that is a control token has no text of its own; in ``spelling`` and ``masks`` it has."""

    def __init__(self, model: NativeModel, chat: ChatFormat, masks: TokenMasks) -> None:
        self._talk = ToolTalk(chat)
        self._grammars: dict[bytes, Grammar] = {}
        self.spelling, self.masks = chat.spelling, masks
        mark = chat.template_tokens(self.notation.mark)
        if len(mark) == 1 and model.controls[mark[0]]:
            self.spelling, controls = chat.spelling.copy(), model.controls.copy()
            self.spelling[mark[0]], controls[mark[0]] = self.notation.mark.encode(), False
            self.masks = TokenMasks(self.spelling, model.ends, controls)

    @property
    def notation(self) -> Notation:
        """How the model writes calls."""
        return self._talk.notation

    def segments(self, messages: Sequence[Message], tools: Toolbox | None) -> list[Segment]:
        """The runs of a talk with tools, calls or results; see ``ToolTalk.segments``.

        :raises Rejected: the template refuses this sequence of messages.
        """
        return self._talk.segments(messages, tools)

    def opened(self, messages: Sequence[Message], tools: Toolbox | None) -> str:
        """The tag with which the template itself has the answer begin; see ``ChatFormat.opened``."""
        return self._talk.opened(messages, tools)

    def grammar(self, tools: Toolbox) -> Grammar:
        """The grammar of answers that may call these functions."""
        grammar = self._grammars.get(tools.digest)
        if grammar is None:
            grammar = self._grammars[tools.digest] = call_grammar(tools, self.notation)
            if len(self._grammars) > _REMEMBERED_GRAMMARS:
                del self._grammars[next(iter(self._grammars))]
        return grammar

    def read(self, answer: str) -> tuple[str, list[ToolCall] | None]:
        """The words of an answer, thoughts included, and the calls in it. What it only thinks of calling is no call."""
        thoughts, said = split_thoughts(answer)
        if not said:
            return answer, None
        reader = CallReader(self.notation)
        words = reader.feed(said) + reader.end()
        if said != answer:  # thoughts may stand between calls, so they are put before all of it
            words = f"<think>\n{thoughts}\n</think>\n\n{words}"
        return words, reader.calls or None


class Listener:
    """Hears an answer as it grows and tells the words of it alone: together, those that ``ToolUse.read`` finds."""

    def __init__(self, on_text: Callable[[str], None], use: ToolUse) -> None:
        self._on_text = on_text
        self._reader = CallReader(use.notation)

    def __call__(self, piece: str) -> None:
        self._tell(self._reader.feed(piece))

    def end(self) -> None:
        """The answer is complete."""
        self._tell(self._reader.end())

    def _tell(self, words: str) -> None:
        if words:
            self._on_text(words)
