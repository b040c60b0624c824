"""Splitting prompts so that KV is reused where the generation prompt does not remain in the conversation.

With most templates the tokens of a prompt and its answer are a prefix of the next prompt, so KV is reused from turn to
turn. Other templates begin an answer differently from how they render it later, for all answers or for those whose
tokens are unknown. Then KV is stored where the two forms diverge, and the answer is prefilled as part of the next
prompt; the KV of its generation is not used. All of this follows from the messages alone. Whether the next turn can
continue from an answer's own KV is known once its text is complete (``continues_from_answer``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ....errors import Rejected
from ....messages import Message, Pieces
from ..native import Tokens
from ..segment import Segment

PromptWriter = Callable[[Sequence[Message]], list[Segment]]


@dataclass(slots=True, frozen=True)
class PromptSplit:
    """A prompt in segments.

    ``stable_segments``: how many of them the next prompt begins with in any case, if not all; else 0. ``may_continue``:
    whether the next prompt can begin with all of them and the answer.
    """

    segments: list[Segment]
    stable_segments: int = 0
    may_continue: bool = True


def split_prompt(write: PromptWriter, messages: Sequence[Message]) -> PromptSplit:
    """The segments that ``write`` returns, also split where the generation prompt diverges from the next prompt.

    :raises Rejected: what ``write`` raises.
    """
    segments = write(messages)
    tokens = _concatenated(segments)
    without_tokens = _stable_length(write, messages, tokens, None)
    if without_tokens == len(tokens):  # so it was for the earlier turns
        return PromptSplit(segments)
    with_tokens = _stable_length(write, messages, tokens, [(True, [0])])
    parts = [
        _common_prefix(prompt, tokens)
        for index, message in enumerate(messages)
        if message.role == "assistant" and (prompt := _tokens_or_none(write, messages[:index])) is not None
    ]
    borders = {without_tokens, *(length for length, whole in parts if not whole)}
    ends = [length for length, _ in parts[1:]] + [len(tokens)]
    recomputed = [(length, end) for (length, whole), end in zip(parts, ends, strict=False) if not whole]
    cut = _cut(segments, borders, recomputed)
    sizes = np.cumsum([len(segment.tokens) for segment in cut])
    stable_segments = int(np.searchsorted(sizes, without_tokens)) + 1 if without_tokens else 0
    return PromptSplit(cut, stable_segments, with_tokens == len(tokens))


def continues_from_answer(
    write: PromptWriter, messages: Sequence[Message], segments: list[Segment], answer: Message
) -> bool:
    """Whether the next prompt begins with these segments and the tokens of this answer to them, which are known.

    If a template trims answers, or inserts something before them, that depends on the answer's own text.
    """
    following = [Message("tool", "\u00a7", call_id=call.id, name=call.name) for call in answer.calls]
    later = _tokens_or_none(write, [*messages, answer, *(following or [Message("user", "\u00a7")])])
    answer_tokens = [np.array(ids, dtype=np.int32) for _, ids in answer.pieces or []]
    return later is None or _common_prefix(np.concatenate([_concatenated(segments), *answer_tokens]), later)[1]


def _cut(segments: list[Segment], borders: set[int], recomputed: list[tuple[int, int]]) -> list[Segment]:
    """Split the segments at the borders. Answers that begin in a ``recomputed`` stretch join their neighbours."""
    made: list[Segment] = []
    start, joins = 0, False
    for segment in segments:
        end = start + len(segment.tokens)
        prompt = segment.decoded and any(first <= start < last for first, last in recomputed)
        places = [start, *sorted(place for place in borders if start < place < end), end]
        for first, last in pairwise(places):
            part = Segment(segment.tokens[first - start : last - start], segment.decoded and not prompt)
            if (joins or prompt) and made and first not in borders and not (made[-1].decoded or part.decoded):
                part = Segment(np.concatenate([made.pop().tokens, part.tokens]))
            made.append(part)
            joins = prompt
        start = end
    return made


def _stable_length(write: PromptWriter, messages: Sequence[Message], tokens: Tokens, pieces: Pieces | None) -> int:
    """How many of a prompt's tokens the next prompt begins with, after an answer with these tokens."""
    later = _tokens_or_none(write, [*messages, Message("assistant", "\u00a7", pieces), Message("user", "\u00a7")])
    return len(tokens) if later is None else _common_prefix(tokens, later)[0]


def _tokens_or_none(write: PromptWriter, messages: Sequence[Message]) -> Tokens | None:
    """The tokens of a prompt; None if the template refuses it."""
    try:
        return _concatenated(write(messages))
    except Rejected:
        return None


def _concatenated(segments: list[Segment]) -> Tokens:
    return np.concatenate([segment.tokens for segment in segments]) if segments else np.empty(0, dtype=np.int32)


def _common_prefix(prompt: Tokens, tokens: Tokens) -> tuple[int, bool]:
    """The length of the common prefix, and whether that is the whole prompt."""
    size = min(len(prompt), len(tokens))
    different = np.flatnonzero(prompt[:size] != tokens[:size])
    length = int(different[0]) if len(different) else size
    return length, length == len(prompt)
