"""One request's growing answer: tokens, text, stop strings, grammar, expected scores, and when it is finished.

Pure bookkeeping, told of each sampled token; it says what comes next: a token to feed, forced tokens to compute, or
the end. What never belongs here: llama.cpp, other requests.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..chat.thought_markers import in_final_channel
from ..grammar.grammar import Grammar, State
from ..grammar.token_masks import ScoreOptions, TokenMasks
from ..native import NativeModel, Tokens
from ..segment import Segment
from .sampler import Choice, Mask, Picked


@dataclass(slots=True)
class Generation:
    """``pieces`` are the answer's tokens in runs as they were computed: generated one by one, or forced at once.

    ``tokens`` are all tokens up to the one that completed a stop string, if one did; the text ends before that string,
    in the midst of a token maybe. ``logprobs`` has a row per sampled token of which a part, at least, is in the text.
    ``expected`` holds the expected value at each score position of the text where one could be known, in their order.
    ``sampled``: whether any token was. ``spelling`` holds each token's bytes: the model's pieces, or others in which
    control tokens that mark a call or thoughts are text too. ``message_end``: the token that ends a message of a
    channel, and the answer where that was the final one (-1: none).
    """

    model: NativeModel
    masks: TokenMasks
    choice: Choice
    max_tokens: int
    stops: tuple[bytes, ...] = ()
    grammar: Grammar | None = None
    forcing: bool = True
    tokenize: Callable[[str], Tokens] | None = None
    on_bytes: Callable[[bytes], None] | None = None
    spelling: list[bytes] = field(default_factory=list)
    message_end: int = -1
    state: State | None = None
    tokens: list[int] = field(default_factory=list)
    pieces: list[tuple[bool, list[int]]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    finish: str | None = None
    logprobs: list[list[Any]] | None = None
    expected: list[float] = field(default_factory=list)
    sampled: bool = False
    _row_starts: list[int] = field(default_factory=list)  # where in the text the token of each row of logprobs begins
    _score_starts: list[int] = field(default_factory=list)  # where in the text each score of ``expected`` begins
    _told: int = 0

    def __post_init__(self) -> None:
        self.spelling = self.spelling or self.model.pieces
        if self.grammar is not None:
            self.state = self.grammar.start
        if self.choice.logprobs is not None:
            self.logprobs = []

    def mask(self) -> Mask | None:
        """The tokens that may be sampled now; None for all."""
        if self.grammar is None or self.state is None:
            return None
        return self.masks.allowed(self.grammar, self.state)

    def score_options(self) -> ScoreOptions | None:
        """The tokens that stand for each score, if the next token chooses among scores; else None.

        A score position is where the grammar leaves a choice among integers only, none of them ruled out yet. It is
        left out (None) where a token may still become several of them, as 1 does of 1 and 10.
        """
        if self.grammar is None or self.state is None:
            return None
        return self.masks.score_options(self.grammar, self.state)

    def note_score(self, values: Mapping[int, float]) -> None:
        """The next token is a score: append the mean of the values, weighted by their probabilities, to ``expected``.

        ``values``: the probability of each value, of what ``score_options`` gave; any common factor is divided out.

        :raises ValueError: the probabilities do not sum to a positive, finite number.
        """
        total = math.fsum(values.values())
        if not 0 < total < math.inf:
            raise ValueError(f"the probabilities of a score sum to {total}")
        self.expected.append(math.fsum(value * weight for value, weight in values.items()) / total)
        self._score_starts.append(len(self.data))

    def opening(self) -> Segment | None:
        """What the grammar forces before anything is sampled."""
        return self._forced()

    def take(self, picked: Picked) -> Segment | None:
        """A token was sampled. Returns what to compute next if the grammar forces more: this token and those forced,
        in one run. Else the token is to be fed, unless ``finish`` is set now."""
        token = picked.token
        self.sampled = True
        ends = in_final_channel(self.data) if token == self.message_end else self.model.ends[token]
        if ends:
            self._end("stop")
            return None
        self.tokens.append(token)
        if self.choice.penalises:
            self.choice.counts[token] = self.choice.counts.get(token, 0) + 1
        if self.logprobs is not None:
            top = {self._text(other): value for other, value in picked.top or ()}
            self.logprobs.append([self._text(token), picked.logprob, top])
            self._row_starts.append(len(self.data))
        if not self.pieces or not self.pieces[-1][0]:
            self.pieces.append((True, []))
        self.pieces[-1][1].append(token)
        piece = self.spelling[token]
        self.data += piece
        if self.grammar is not None and self.state is not None:
            self.state = self.grammar.advance(self.state, piece)
        if self._stopped(len(piece)):
            return None
        # What the mask lets through fits the grammar; a token that does not, picked without it, ends the answer.
        if self.grammar is not None and (self.state is None or self.state.complete):
            self._end("stop")
            return None
        if len(self.tokens) >= self.max_tokens:
            self._end("length")
            return None
        segment = self._forced(sampled=True)
        self._tell()
        return segment

    def text(self) -> str:
        """The answer so far as text."""
        return self.data.decode("utf-8", "replace")

    def computed(self, held: int) -> list[Segment]:
        """The runs that the first ``held`` tokens of the answer make up; a run that was generated is cut there.

        The cut stays in ``pieces``: the run's beginning can be found again by the next turn, which feeds its rest.
        """
        runs: list[tuple[bool, list[int]]] = []
        for index, (decoded, ids) in enumerate(self.pieces):
            if held <= 0 or (len(ids) > held and not decoded):
                break
            if len(ids) > held:
                self.pieces[index : index + 1] = [(True, ids[:held]), (True, ids[held:])]
                ids = ids[:held]
            runs.append((decoded, ids))
            held -= len(ids)
        return [Segment(np.array(ids, dtype=np.int32), decoded) for decoded, ids in runs]

    def _forced(self, *, sampled: bool = False) -> Segment | None:
        """What the grammar forces now; in one run with the token just ``sampled``, which is not computed yet."""
        if self.grammar is None or self.state is None or self.tokenize is None:
            return None
        text, after = self.grammar.forced(self.state)
        if not text:
            return None
        # Options may part inside of a character: what is forced ends with the last whole one.
        whole = _complete_characters(bytearray(text), len(text))
        if self.data and self.data[-1] >= 0x80 and not _is_text(text[:whole]):
            return None  # the rest of a character that a sampled byte began: sampled byte by byte
        if whole < len(text):
            text = text[:whole]
            advanced = self.grammar.advance(self.state, text)
            after = advanced if advanced is not None else after
        if not text:
            return None
        ids = self.tokenize(text.decode("utf-8"))
        room = self.max_tokens - len(self.tokens)
        if room <= 0:
            self._end("length")
            return None
        if len(ids) > room:
            ids = ids[:room]
            text = b"".join(self.spelling[token] for token in ids)
        else:
            self.state = after
        self.tokens.extend(int(token) for token in ids)
        run = [int(token) for token in ids]
        if sampled:
            run.insert(0, self.pieces[-1][1].pop())
            if not self.pieces[-1][1]:
                self.pieces.pop()
        self.pieces.append((not self.forcing, run))
        self.data += text
        if self._stopped(len(text)):
            return None
        if self.state.complete:
            self._end("stop")
        elif len(ids) == room:
            self._end("length")
        return Segment(np.array(run, dtype=np.int32), decoded=not self.forcing)

    def _stopped(self, added: int) -> bool:
        """Whether a stop string ends in the last ``added`` bytes; if so, the answer ends just before it.

        Of several the one that is complete first counts, however the text was cut into tokens and forced runs.
        """
        found = [
            (place + len(stop), place)
            for stop in self.stops
            if stop and (place := self.data.find(stop, max(0, len(self.data) - added - len(stop)))) >= 0
        ]
        if not found:
            return False
        end, cut = min(found)
        # Of a forced run, what lies behind the stop was never computed.
        size = len(self.data)
        while self.tokens and size - len(self.spelling[self.tokens[-1]]) >= end:
            size -= len(self.spelling[self.tokens.pop()])
        del self.data[cut:]
        if self.logprobs is not None:
            del self.logprobs[bisect_left(self._row_starts, cut) :]
        del self.expected[bisect_left(self._score_starts, cut) :]
        self.pieces = []  # the kept text ends inside a token: its tokens are no longer known
        self._end("stop")
        return True

    def _end(self, why: str) -> None:
        self.finish = why
        self._tell()

    def _tell(self) -> None:
        if self.on_bytes is None:
            return
        # Text that may turn out to be the beginning of a stop string, or half a character, waits.
        end = len(self.data)
        if self.finish is None:
            end = _complete_characters(self.data, end)
            size = len(self.data)
            for stop in self.stops:
                for length in range(min(len(stop) - 1, size), 0, -1):
                    if self.data.endswith(stop[:length]):
                        end = min(end, size - length)
                        break
            end = min(end, _complete_characters(self.data, end))
        if end > self._told:
            self.on_bytes(bytes(self.data[self._told : end]))
            self._told = end

    def _text(self, token: int) -> str:
        return self.spelling[token].decode("utf-8", "replace")


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _complete_characters(data: bytearray, end: int) -> int:
    """Where the last whole UTF-8 character ends."""
    start = end
    while start > 0 and end - start < 4 and data[start - 1] & 0xC0 == 0x80:
        start -= 1
    if start == 0:
        return end
    lead = data[start - 1]
    need = 2 if lead >> 5 == 6 else 3 if lead >> 4 == 14 else 4 if lead >> 3 == 30 else 1
    return end if end - (start - 1) >= need else start - 1
