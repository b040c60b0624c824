"""Where the runs of a talk are cut when the generation prompt does not stand in the talk's continuation.

For most templates the tokens that a model answered to are a prefix of the next request's, so its KV goes on from turn
to turn. Others open an answer in another way than they write one down, all of them or those whose tokens are not known.
There KV up to the point where the two ways part is kept, and the answer is computed once more as a prompt, at once and
not token by token: its KV never is that of its generation. All of it follows from the messages alone. Whether the next
turn goes on from an answer's own KV is known once its text is (``goes_on``).

What never belongs here: templates (``chat``), what is done with the runs (``lanes``).
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

Writer = Callable[[Sequence[Message]], list[Segment]]


@dataclass(slots=True, frozen=True)
class Turns:
    """A talk's runs. ``kept``: how many of them the next turn begins with in any case, where these are not all; else 0.
    ``continued``: whether it can begin with all of them and the answer.
    """

    runs: list[Segment]
    kept: int = 0
    continued: bool = True


def divided(write: Writer, messages: Sequence[Message]) -> Turns:
    """A talk's runs by ``write``, cut where a generation prompt parts from the talk's continuation.

    :raises Rejected: what ``write`` raises.
    """
    runs = write(messages)
    tokens = _joined(runs)
    other = _stays(write, messages, tokens, None)
    if other == len(tokens):  # so it was for the turns before
        return Turns(runs)
    own = _stays(write, messages, tokens, [(True, [0])])
    parts = [
        _common(prompt, tokens)
        for index, message in enumerate(messages)
        if message.role == "assistant" and (prompt := _written(write, messages[:index])) is not None
    ]
    borders = {other, *(length for length, whole in parts if not whole)}
    ends = [length for length, _ in parts[1:]] + [len(tokens)]
    again = [(length, end) for (length, whole), end in zip(parts, ends, strict=False) if not whole]
    cut = _cut(runs, borders, again)
    sizes = np.cumsum([len(run.tokens) for run in cut])
    kept = int(np.searchsorted(sizes, other)) + 1 if other else 0
    return Turns(cut, kept, own == len(tokens))


def goes_on(write: Writer, messages: Sequence[Message], runs: list[Segment], answer: Message) -> bool:
    """Whether a talk's next request begins with these runs and the tokens of this answer to them, which are known.

    Where a template trims answers, or writes something before them, that depends on the answer's own text.
    """
    following = [Message("tool", "\u00a7", call_id=call.id, name=call.name) for call in answer.calls]
    later = _written(write, [*messages, answer, *(following or [Message("user", "\u00a7")])])
    said = [np.array(ids, dtype=np.int32) for _, ids in answer.pieces or []]
    return later is None or _common(np.concatenate([_joined(runs), *said]), later)[1]


def _cut(runs: list[Segment], borders: set[int], again: list[tuple[int, int]]) -> list[Segment]:
    """The runs cut at the borders; answers that begin in a stretch of ``again`` join the runs around them."""
    made: list[Segment] = []
    start, joins = 0, False
    for run in runs:
        end = start + len(run.tokens)
        prompt = run.decoded and any(first <= start < last for first, last in again)
        places = [start, *sorted(place for place in borders if start < place < end), end]
        for first, last in pairwise(places):
            part = Segment(run.tokens[first - start : last - start], run.decoded and not prompt)
            if (joins or prompt) and made and first not in borders and not (made[-1].decoded or part.decoded):
                part = Segment(np.concatenate([made.pop().tokens, part.tokens]))
            made.append(part)
            joins = prompt
        start = end
    return made


def _stays(write: Writer, messages: Sequence[Message], tokens: Tokens, pieces: Pieces | None) -> int:
    """How many of a request's tokens a next turn begins with, after an answer of which these tokens are known."""
    later = _written(write, [*messages, Message("assistant", "\u00a7", pieces), Message("user", "\u00a7")])
    return len(tokens) if later is None else _common(tokens, later)[0]


def _written(write: Writer, messages: Sequence[Message]) -> Tokens | None:
    """The tokens of a request; None where the template refuses it."""
    try:
        return _joined(write(messages))
    except Rejected:
        return None


def _joined(runs: list[Segment]) -> Tokens:
    return np.concatenate([run.tokens for run in runs]) if runs else np.empty(0, dtype=np.int32)


def _common(prompt: Tokens, tokens: Tokens) -> tuple[int, bool]:
    """How many tokens both begin with, and whether that is all of the prompt."""
    size = min(len(prompt), len(tokens))
    different = np.flatnonzero(prompt[:size] != tokens[:size])
    length = int(different[0]) if len(different) else size
    return length, length == len(prompt)
