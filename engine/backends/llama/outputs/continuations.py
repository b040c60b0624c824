"""Log-probabilities of given continuations after a context: which row of logits belongs to which token.

The context is computed once; its last row predicts the first token of every continuation, so a continuation of one
token (most often a letter) costs nothing more. A longer one is computed after the context, up to its last token but
one, and removed again before the next.
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
    """One request's continuations, as non-empty token ids. ``results`` are complete when no segment is left.

    ``moments``: also compute mean and deviation of the log-probabilities at each position.
    """

    continuations: list[Tokens]
    moments: bool = False
    results: list[Likelihood] = field(default_factory=list)
    _pending: deque[int] = field(default_factory=deque)
    _current: int = -1

    @property
    def in_continuations(self) -> bool:
        """Whether the context has been read, so that what is computed now is a continuation."""
        return bool(self.results)

    def read_context(self, row: Logits) -> None:
        """Read the context's last row: the first token of every continuation.

        :raises FloatingPointError: the logits are not finite; so does ``read_rows``.
        """
        self.results = [Likelihood([], True, *([], []) if self.moments else (None, None)) for _ in self.continuations]
        read = _NormalisedRows(row[None, :], self.moments)
        for number, tokens in enumerate(self.continuations):
            self._record(number, tokens[:1], read)
            if len(tokens) > 1:
                self._pending.append(number)

    def next_segment(self) -> Segment | None:
        """The continuation to compute after the context now, with logits of all its tokens; None when all are read."""
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
    """Log-softmax over rows of logits. Exponentials are single precision, their sums double: exact to 1e-6."""

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
