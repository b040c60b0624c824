"""From messages and texts to the tokens that a model of transformers is given.

Contents are no part of a template: where one spells a special token of the model, it is kept from being one. What never
belongs here: computing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigurationError, ContextTooLong, Rejected
from ...likelihood import Reading
from ...messages import Message, without_system
from ..llama.chat.chat_format import NAMED

if TYPE_CHECKING:
    from .loading import LoadedModel

_APART = "\u200b"  # takes no room; stands within what would be a special token
_DAY = datetime(2024, 1, 1)  # a prompt is the same on any day


def template_of(given: str | None) -> str | None:
    """The chat template that a model's name asks for; None for the model's own.

    :raises ConfigurationError: the file cannot be read.
    """
    if given is None or given in NAMED:
        return NAMED[given] if given else None
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigurationError(f"template={given}: {why}; give a file or one of {', '.join(NAMED)}") from None


def chat_text(model: LoadedModel, messages: Sequence[Message], template: str | None, label: str) -> str:
    """The conversation as the chat template has it, up to where the answer begins. A system message that the template
    refuses is put before the first user message.

    :raises ConfigurationError: calls of tools, which these models are not told. :raises Rejected: the template refuses
        this sequence of roles.
    """
    if any(one.calls or one.role == "tool" for one in messages):
        raise ConfigurationError(f"{label}: models of kind hf take no tools; use a GGUF file (llama:) or an endpoint")
    for taken in (messages, without_system(messages)):
        turns = [{"role": one.role, "content": _plain(model, one.content)} for one in taken]
        try:
            return _rendered(model, turns, template)
        except Exception as error:  # a template's code may raise anything
            problem = error
    raise Rejected(f"its chat template refuses these messages: {problem}", model=label) from None


def tokens_of(model: LoadedModel, text: str, *, opened: bool) -> list[int]:
    """The tokens of a text; ``opened``: behind the tokens that open every text."""
    found: list[int] = model.tokenizer(text, add_special_tokens=opened)["input_ids"]
    return found


def longest_answer(model: LoadedModel, prompt: list[int], wanted: int, label: str) -> int:
    """How many tokens an answer may have.

    :raises ContextTooLong: there is room for none.
    """
    if not model.context:
        return wanted
    if len(prompt) >= model.context:
        raise ContextTooLong(
            f"the prompt has {len(prompt)} tokens, the context {model.context} (option ctx, and what the model takes)",
            model=label,
        )
    return min(wanted, model.context - len(prompt))


def texts_to_read(model: LoadedModel, reading: Reading, label: str) -> list[tuple[list[int], int]]:
    """The tokens of each continuation behind its context, and how many of them are not asked about: those that end
    before the continuation begins, and one at least, for nothing says how likely the first token of a text is.

    :raises Rejected: a continuation is empty. :raises ContextTooLong: a text does not fit.
    """
    before = _plain(model, reading.shared + reading.context)
    found = []
    for continuation in reading.continuations:
        tokens, skipped = _behind(model, before, _plain(model, continuation))
        if len(tokens) <= skipped:
            raise Rejected("nothing to score: a text is empty, or of one token with nothing before it", model=label)
        if model.context and len(tokens) > model.context:
            raise ContextTooLong(f"a text has {len(tokens)} tokens, its context {model.context}", model=label)
        found.append((tokens, skipped))
    return found


def _behind(model: LoadedModel, before: str, continuation: str) -> tuple[list[int], int]:
    """A text's tokens, and how many of them end before ``continuation`` begins."""
    if not model.tokenizer.is_fast:  # such cannot say where tokens stand
        context = tokens_of(model, before, opened=True)
        return tokens_of(model, before + continuation, opened=True), max(1, len(context))
    told = model.tokenizer(before + continuation, return_offsets_mapping=True)
    places = zip(told["offset_mapping"], told["input_ids"], strict=True)
    skipped = sum(1 for (start, end), _ in places if end <= len(before) or start == end)
    return told["input_ids"], max(1, skipped)


def _rendered(model: LoadedModel, turns: list[dict[str, str]], template: str | None) -> str:
    used = template or model.tokenizer.chat_template or NAMED["plain"]
    text: str = model.tokenizer.apply_chat_template(
        turns, chat_template=used, tokenize=False, add_generation_prompt=True, strftime_now=_DAY.strftime
    )
    return text


def _plain(model: LoadedModel, text: str) -> str:
    """A content with nothing in it that the tokenizer would take for a special token."""
    for special in model.special:
        if special in text:
            text = re.sub(re.escape(special), special[:1] + _APART + special[1:], text)
    return text
