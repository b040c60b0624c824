"""One request's reading of given continuations after a context: which rows of logits tell what about which token.

The context is computed once. Its last row tells the first token of every continuation; a continuation of one token
(a letter, most often) therefore costs nothing more. A longer one is computed behind the context up to its last token
but one, read, and taken off again before the next.

What never belongs here: llama.cpp, lanes, other requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ....likelihood import Likelihood
from ..native import Logits, Tokens
from ..segment import Segment


@dataclass(slots=True)
class ContinuationReading:
    """``continuations`` as token ids, none empty. ``results`` are complete once ``next_run`` has returned None."""

    continuations: list[Tokens]
    moments: bool = False
    results: list[Likelihood] = field(default_factory=list)
    _waiting: deque[int] = field(default_factory=deque)
    _current: int = -1

    @property
    def under_way(self) -> bool:
        """Whether the context has been read, so that what is computed now is a continuation."""
        return bool(self.results)

    def start(self, row: Logits) -> None:
        """The context's last row: every continuation's first token.

        :raises FloatingPointError: the row is no numbers; so does ``rows``.
        """
        self.results = [Likelihood([], True, *([], []) if self.moments else (None, None)) for _ in self.continuations]
        read = _Rows(row[None, :], self.moments)
        for number, tokens in enumerate(self.continuations):
            self._note(number, tokens[:1], read)
            if len(tokens) > 1:
                self._waiting.append(number)

    def next_run(self) -> Segment | None:
        """What to compute behind the context now, with logits of every token; None when all is read."""
        if not self._waiting:
            return None
        self._current = self._waiting.popleft()
        return Segment(self.continuations[self._current][:-1])

    def rows(self, logits: Logits) -> None:
        """The next rows of the run under way, in order."""
        done = len(self.results[self._current].logprobs)
        tokens = self.continuations[self._current]
        self._note(self._current, tokens[done : done + len(logits)], _Rows(logits, self.moments))

    def _note(self, number: int, tokens: Tokens, read: _Rows) -> None:
        result = self.results[number]
        result.logprobs.extend(read.logprobs(tokens))
        result.greedy = result.greedy and bool((read.best == tokens).all())
        if result.means is not None and result.deviations is not None:
            result.means.extend(read.means)
            result.deviations.extend(read.deviations)


class _Rows:
    """Normalised rows of logits. Exponentials are taken in single precision and summed in double: exact to 1e-6."""

    def __init__(self, logits: Logits, moments: bool) -> None:
        self._logits = logits
        self.best = logits.argmax(axis=1)
        top = logits.max(axis=1, keepdims=True)
        if not np.isfinite(top).all():
            raise FloatingPointError("its logits are no numbers (NaN or infinite): damaged weights, or an overflow")
        weights = np.exp(logits - top)
        total = weights.sum(axis=1, dtype=np.float64)
        self._norm: npt.NDArray[np.float64] = top[:, 0].astype(np.float64) + np.log(total)
        self.means: list[float] = []
        self.deviations: list[float] = []
        if moments:
            share = weights / total[:, None]
            logprobs = np.where(share > 0, logits, top) - self._norm[:, None]  # what cannot come weighs nothing
            means = (share * logprobs).sum(axis=1)
            spread = (share * (logprobs - means[:, None]) ** 2).sum(axis=1)
            self.means, self.deviations = means.tolist(), np.sqrt(spread).tolist()

    def logprobs(self, tokens: Tokens) -> list[float]:
        rows = np.zeros(len(tokens), dtype=np.int64) if len(self._norm) == 1 else np.arange(len(tokens))
        picked: list[float] = (self._logits[rows, tokens].astype(np.float64) - self._norm[rows]).tolist()
        return picked
