"""State of one request: the answer so far, or the log-probabilities of given continuations."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...likelihood import Likelihood, max_logprob_by_token
from .grammar import Grammar, GrammarState, ScoreOptions, TokenMasks
from .native import Logits, NativeModel, Segment, Tokens
from .sampler import Mask, SampledToken, SamplerSettings
from .tokenizer import in_final_channel


@dataclass(slots=True)
class ContinuationReading:
    """The continuations of a request, as non-empty token ids.

    `results` is complete once no segment is left. If `moments` is set, the mean and deviation of the log-probabilities
    at each position are computed, too.
    """

    continuations: list[Tokens]
    moments: bool = False
    results: list[Likelihood] = field(default_factory=list)
    _pending: deque[int] = field(default_factory=deque)
    _current: int = -1

    @property
    def in_continuations(self) -> bool:
        """Return True if the context has been read, so that a continuation is computed next."""
        return bool(self.results)

    def read_context(self, row: Logits) -> None:
        """Read the context's last row: the first token of every continuation.

        Raises:
            FloatingPointError: The logits are not finite. `read_rows` raises it too.
        """
        self.results = [Likelihood([], True, *([], []) if self.moments else (None, None)) for _ in self.continuations]
        read = _NormalisedRows(row[None, :], self.moments)
        for number, tokens in enumerate(self.continuations):
            self._record(number, tokens[:1], read)
            if len(tokens) > 1:
                self._pending.append(number)

    def next_segment(self) -> Segment | None:
        """Return the next continuation to compute, with logits of all its tokens; None if all are read."""
        if not self._pending:
            return None
        self._current = self._pending.popleft()
        return Segment(self.continuations[self._current][:-1])

    def read_rows(self, logits: Logits) -> None:
        """Read the next rows of the current continuation, in order."""
        done = len(self.results[self._current].logprobs)
        tokens = self.continuations[self._current]
        self._record(self._current, tokens[done : done + len(logits)], _NormalisedRows(logits, self.moments))

    def _record(self, number: int, tokens: Tokens, read: _NormalisedRows) -> None:
        result = self.results[number]
        result.logprobs.extend(read.logprobs(tokens))
        result.greedy = result.greedy and bool((read.best == tokens).all())
        if result.means is not None and result.deviations is not None:
            result.means.extend(read.means)
            result.deviations.extend(read.deviations)


class _NormalisedRows:
    """Log-softmax over rows of logits. Exponentials are single precision, sums double: exact to 1e-6."""

    def __init__(self, logits: Logits, moments: bool) -> None:
        self._logits = logits
        self.best = logits.argmax(axis=1)
        top = logits.max(axis=1, keepdims=True)
        if not np.isfinite(top).all():
            raise FloatingPointError("its logits are not finite (NaN or infinite): damaged weights, or an overflow")
        weights = np.exp(logits - top)
        total = weights.sum(axis=1, dtype=np.float64)
        self._norm: npt.NDArray[np.float64] = top[:, 0].astype(np.float64) + np.log(total)
        self.means: list[float] = []
        self.deviations: list[float] = []
        if moments:
            share = weights / total[:, None]
            logprobs = np.where(share > 0, logits, top) - self._norm[:, None]  # impossible tokens (-inf) have no weight
            means = (share * logprobs).sum(axis=1)
            spread = (share * (logprobs - means[:, None]) ** 2).sum(axis=1)
            self.means, self.deviations = means.tolist(), np.sqrt(spread).tolist()

    def logprobs(self, tokens: Tokens) -> list[float]:
        read_rows = np.zeros(len(tokens), dtype=np.int64) if len(self._norm) == 1 else np.arange(len(tokens))
        picked: list[float] = (self._logits[read_rows, tokens].astype(np.float64) - self._norm[read_rows]).tolist()
        return picked


@dataclass(slots=True)
class Generation:
    """The answer so far.

    `pieces` are the answer's tokens in runs, each either generated one by one or forced at once. `tokens` are all
    tokens up to the one that completed a stop string, if any; the text ends before that string, possibly inside a
    token. `logprobs` has a row for each sampled token that is at least partly in the text. `expected` holds the
    expected value at each score position of the text for which it can be computed, in order. `token_bytes` holds each
    token's bytes: the model's pieces, possibly with text for control tokens that mark calls or thoughts.
    `message_end_token` ends a message of a channel, and the answer if that was the final channel (-1: none).
    """

    model: NativeModel
    masks: TokenMasks
    settings: SamplerSettings
    max_tokens: int
    stops: tuple[bytes, ...] = ()
    grammar: Grammar | None = None
    forcing: bool = True
    tokenize: Callable[[str], Tokens] | None = None
    on_bytes: Callable[[bytes], None] | None = None
    token_bytes: list[bytes] = field(default_factory=list)
    message_end_token: int = -1
    state: GrammarState | None = None
    tokens: list[int] = field(default_factory=list)
    pieces: list[tuple[bool, list[int]]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    finish: str | None = None
    logprobs: list[list[Any]] | None = None
    expected: list[float] = field(default_factory=list)
    any_sampled: bool = False
    _row_starts: list[int] = field(default_factory=list)  # offset in the text of each row of logprobs
    _score_starts: list[int] = field(default_factory=list)  # offset in the text of each score in `expected`
    _streamed: int = 0

    def __post_init__(self) -> None:
        self.token_bytes = self.token_bytes or self.model.pieces
        if self.grammar is not None:
            self.state = self.grammar.start
        if self.settings.logprobs is not None:
            self.logprobs = []

    def mask(self) -> Mask | None:
        """Return the tokens that may be sampled now; None for all."""
        if self.grammar is None or self.state is None:
            return None
        return self.masks.allowed(self.grammar, self.state)

    def score_options(self) -> ScoreOptions | None:
        """Return the tokens for each score if the next token chooses among scores, else None."""
        if self.grammar is None or self.state is None:
            return None
        return self.masks.score_options(self.grammar, self.state)

    def add_expected_score(self, values: Mapping[int, float]) -> None:
        """Append the expected value of the next token, a score, to `expected`.

        `values` has the probability of each value of `score_options`, up to a common factor.
        """
        total = math.fsum(values.values())
        if not 0 < total < math.inf:
            raise ValueError(f"the probabilities of a score sum to {total}")
        self.expected.append(math.fsum(value * weight for value, weight in values.items()) / total)
        self._score_starts.append(len(self.data))

    def forced_opening(self) -> Segment | None:
        """Return what the grammar forces before anything is sampled."""
        return self._forced()

    def add_token(self, sampled: SampledToken) -> Segment | None:
        """Add a sampled token.

        If the grammar then forces more, return one segment of this token and the forced tokens, to be prefilled.
        Otherwise the token is to be decoded, unless `finish` is now set.
        """
        token = sampled.token
        self.any_sampled = True
        ends = in_final_channel(self.data) if token == self.message_end_token else self.model.ends[token]
        if ends:
            self._end("stop")
            return None
        self.tokens.append(token)
        if self.settings.has_penalties:
            self.settings.counts[token] = self.settings.counts.get(token, 0) + 1
        if self.logprobs is not None:
            top = max_logprob_by_token((self._text(other), value) for other, value in sampled.top or ())
            self.logprobs.append([self._text(token), sampled.logprob, top])
            self._row_starts.append(len(self.data))
        if not self.pieces or not self.pieces[-1][0]:
            self.pieces.append((True, []))
        self.pieces[-1][1].append(token)
        piece = self.token_bytes[token]
        self.data += piece
        if self.grammar is not None and self.state is not None:
            self.state = self.grammar.advance(self.state, piece)
        if self._cut_at_stop(len(piece)):
            return None
        # Tokens that the mask allows fit the grammar; one sampled without the mask may end the answer.
        if self.grammar is not None and (self.state is None or self.state.complete):
            self._end("stop")
            return None
        if len(self.tokens) >= self.max_tokens:
            self._end("length")
            return None
        segment = self._forced(sampled=True)
        self._stream()
        return segment

    def text(self) -> str:
        """Return the answer so far as text."""
        return self.data.decode("utf-8", "replace")

    def computed_segments(self, stored: int) -> list[Segment]:
        """Return the segments of the answer's first `stored` tokens.

        At that point a decoded segment is cut, and a forced one is left out. The cut stays in `pieces`: the next turn
        can then find the first part in the host cache and decode the rest.
        """
        runs: list[tuple[bool, list[int]]] = []
        for index, (decoded, ids) in enumerate(self.pieces):
            if stored <= 0 or (len(ids) > stored and not decoded):
                break
            if len(ids) > stored:
                self.pieces[index : index + 1] = [(True, ids[:stored]), (True, ids[stored:])]
                ids = ids[:stored]
            runs.append((decoded, ids))
            stored -= len(ids)
        return [Segment(np.array(ids, dtype=np.int32), decoded) for decoded, ids in runs]

    def _forced(self, *, sampled: bool = False) -> Segment | None:
        """Return what the grammar forces now as one segment, after the token just `sampled`, not yet computed."""
        if self.grammar is None or self.state is None or self.tokenize is None:
            return None
        text, after = self.grammar.forced(self.state)
        if not text:
            return None
        # Allowed texts may differ inside a character, so forced text ends with the last complete character.
        whole = _complete_characters(bytearray(text), len(text))
        if self.data and self.data[-1] >= 0x80 and not _is_text(text[:whole]):
            return None  # the rest of a partly sampled character is sampled byte by byte
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
            text = b"".join(self.token_bytes[token] for token in ids)
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
        if self._cut_at_stop(len(text)):
            return None
        if self.state.complete:
            self._end("stop")
        elif len(ids) == room:
            self._end("length")
        return Segment(np.array(run, dtype=np.int32), decoded=not self.forcing)

    def _cut_at_stop(self, added: int) -> bool:
        """Cut the answer at a stop string that was completed by the last `added` bytes; return True if there is one.

        The rest of a forced run was never computed.
        """
        stop = find_stop(self.data, self.stops, added)
        if stop is None:
            return False
        end, cut = stop
        size = len(self.data)
        while self.tokens and size - len(self.token_bytes[self.tokens[-1]]) >= end:
            size -= len(self.token_bytes[self.tokens.pop()])
        del self.data[cut:]
        if self.logprobs is not None:
            del self.logprobs[bisect_left(self._row_starts, cut) :]
        del self.expected[bisect_left(self._score_starts, cut) :]
        self.pieces = []  # the text may end inside a token: its tokens are unknown
        self._end("stop")
        return True

    def _end(self, why: str) -> None:
        self.finish = why
        self._stream()

    def _stream(self) -> None:
        if self.on_bytes is None:
            return
        # The possible beginning of a stop string, and an incomplete character, are held back.
        end = len(self.data)
        if self.finish is None:
            end = _complete_characters(self.data, end)
            end = min(end, len(self.data) - held_back(self.data, self.stops))
            end = min(end, _complete_characters(self.data, end))
        if end > self._streamed:
            self.on_bytes(bytes(self.data[self._streamed : end]))
            self._streamed = end

    def _text(self, token: int) -> str:
        return self.token_bytes[token].decode("utf-8", "replace")


def find_stop(text: Any, stops: Sequence[Any], added: int) -> tuple[int, int] | None:
    """Return end and beginning of a stop string that the last `added` letters complete; None if there is none.

    The stop string that is completed first counts, however the text is divided into tokens and forced runs.
    """
    results = [
        (position + len(stop), position)
        for stop in stops
        if stop and (position := text.find(stop, max(0, len(text) - added - len(stop)))) >= 0
    ]
    return min(results, default=None)


def held_back(text: Any, stops: Sequence[Any]) -> int:
    """Return how many letters at the end of a text may begin a stop string."""
    return max(
        (
            next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
            for stop in stops
        ),
        default=0,
    )


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _complete_characters(data: bytearray, end: int) -> int:
    """Return the end of the last complete UTF-8 character."""
    start = end
    while start > 0 and end - start < 4 and data[start - 1] & 0xC0 == 0x80:
        start -= 1
    if start == 0:
        return end
    lead = data[start - 1]
    need = 2 if lead >> 5 == 6 else 3 if lead >> 4 == 14 else 4 if lead >> 3 == 30 else 1
    return end if end - (start - 1) >= need else start - 1
